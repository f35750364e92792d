//! What the filters before the walk drop, and how many tools a target takes (`routing.md` §2, §13.3).

use rstest::rstest;

use super::*;
use ExclusionReason::{CapabilityMismatch, ContextWindow, TagMismatch};

/// `p1/a` and `p2/b`, with these members of the combo.
fn two_models(combo: Value) -> World {
    World::combo(&["p1/k1", "p2/k2"], &["p1/a", "p2/b"], combo, no_waits())
}

fn blind() -> ModelInfo {
    ModelInfo {
        vision: Some(false),
        ..ModelInfo::default()
    }
}

fn small() -> ModelInfo {
    ModelInfo {
        context_window: Some(999),
        ..ModelInfo::default()
    }
}

fn reasons(excluded: &[Exclusion]) -> Vec<ExclusionReason> {
    excluded.iter().map(|one| one.reason).collect()
}

#[test]
fn targets_without_the_tags_are_left_out() {
    let mut world = two_models(json!({}));
    world.change_targets(|targets| targets[1].tags = vec!["eu".to_owned(), "fast".to_owned()]);
    world.facts.tags = vec!["eu".to_owned(), "fast".to_owned()];
    let dispatch = world.dispatch();
    assert_eq!(dispatch.provider.as_str(), "p2");
    assert_eq!(reasons(&dispatch.excluded), [TagMismatch]);

    // Nobody has all of them: as if none were asked for.
    world.facts.tags.push("cheap".to_owned());
    assert_eq!(world.dispatch().provider.as_str(), "p1");
}

type Needs = fn(&mut RequestFacts);
type Lacks = fn(&mut ModelInfo);

#[rstest]
#[case::tools(|facts: &mut RequestFacts| facts.tools = 1, |info: &mut ModelInfo| info.tools = Some(false))]
#[case::images(|facts: &mut RequestFacts| facts.vision = true, |info: &mut ModelInfo| info.vision = Some(false))]
#[case::schema(|facts: &mut RequestFacts| facts.structured_output = true, |info: &mut ModelInfo| info.structured_output = Some(false))]
fn a_model_that_lacks_what_the_request_needs_is_left_out(
    #[case] needs: Needs,
    #[case] lacks: Lacks,
) {
    let mut world = two_models(json!({}));
    let mut info = ModelInfo::default();
    lacks(&mut info);
    world.catalogue(&[("p1/a", info.clone())]);
    assert_eq!(world.dispatch().provider.as_str(), "p1");
    needs(&mut world.facts);
    let dispatch = world.dispatch();
    assert_eq!(dispatch.provider.as_str(), "p2");
    assert_eq!(reasons(&dispatch.excluded), [CapabilityMismatch]);

    world.catalogue(&[("p1/a", info.clone()), ("p2/b", info)]);
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (400, "capability_mismatch")
    );
    assert_eq!(rejection.terminal_reason, "capability_mismatch");
    assert_eq!(reasons(&rejection.excluded), [CapabilityMismatch; 2]);
    assert_eq!(rejection.pool_size, 2);
}

#[test]
fn tools_that_may_not_be_used_need_no_model_that_takes_them() {
    let mut world = two_models(json!({}));
    let info = ModelInfo {
        tools: Some(false),
        ..ModelInfo::default()
    };
    world.catalogue(&[("p1/a", info)]);
    world.facts.tools = 1;
    world.facts.tools_forbidden = true;
    assert_eq!(world.dispatch().provider.as_str(), "p1");
}

#[test]
fn a_window_that_is_too_small_is_left_out() {
    let mut world = two_models(json!({}));
    world.catalogue(&[("p1/a", small())]);
    world.facts.estimated_tokens = Some(999);
    assert_eq!(world.dispatch().provider.as_str(), "p1");
    world.facts.estimated_tokens = Some(1_000);
    let dispatch = world.dispatch();
    assert_eq!(dispatch.provider.as_str(), "p2");
    assert_eq!(reasons(&dispatch.excluded), [ContextWindow]);
    world.facts.estimated_tokens = None;
    assert_eq!(world.dispatch().provider.as_str(), "p1");
}

#[rstest]
#[case::most(
    crate::config::Strategy::Priority,
    404,
    "no_executable_targets",
    "context_requirements_exhausted"
)]
#[case::auto(
    crate::config::Strategy::Auto,
    400,
    "context_length_exceeded",
    "context_length_exceeded"
)]
fn an_input_that_no_window_holds_is_refused(
    #[case] strategy: crate::config::Strategy,
    #[case] status: u16,
    #[case] code: &str,
    #[case] terminal_reason: &str,
) {
    let mut world = two_models(json!({}));
    let name = ComboName::new("c").unwrap();
    world.config.combos.get_mut(&name).unwrap().combo.strategy = strategy;
    world.catalogue(&[("p1/a", small()), ("p2/b", small())]);
    world.facts.estimated_tokens = Some(1_000);
    let rejection = world.reject();
    assert_eq!((rejection.status, rejection.code.as_str()), (status, code));
    assert_eq!(rejection.terminal_reason, terminal_reason);
    assert_eq!(reasons(&rejection.excluded), [ContextWindow; 2]);
}

#[test]
fn the_context_is_looked_at_only_where_capability_is_given() {
    let mut world = two_models(json!({}));
    world.catalogue(&[("p1/a", small()), ("p2/b", blind())]);
    world.facts.vision = true;
    world.facts.estimated_tokens = Some(1_000);
    let rejection = world.reject();
    assert_eq!(rejection.terminal_reason, "context_requirements_exhausted");
    assert_eq!(
        reasons(&rejection.excluded),
        [ContextWindow, CapabilityMismatch]
    );
}

#[test]
fn a_combo_may_try_what_is_not_able_rather_than_nothing() {
    let mut world = two_models(json!({"compatFilterFailOpen": true}));
    world.catalogue(&[("p1/a", blind()), ("p2/b", blind())]);
    world.facts.vision = true;
    assert_eq!(world.dispatch().provider.as_str(), "p1");
    world.catalogue(&[("p1/a", blind())]);
    assert_eq!(world.dispatch().provider.as_str(), "p2");
}

#[test]
fn a_request_that_names_a_model_gets_it() {
    let mut world = two_models(json!({}));
    world.catalogue(&[("p1/a", blind())]);
    world.facts.vision = true;
    world.facts.model = "p1/a".to_owned();
    assert_eq!(world.dispatch().provider.as_str(), "p1");
}

#[test]
fn what_is_left_out_shows_beside_what_cools_down() {
    let mut world = two_models(json!({}));
    world.catalogue(&[("p1/a", blind())]);
    world.facts.vision = true;
    world.connection_state("k2", cooling(5_000, Reason::ServerError));
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (503, Some(5))
    );
    assert_eq!(
        reasons(&rejection.excluded),
        [CapabilityMismatch, ExclusionReason::ConnectionCooldown]
    );
    let explained = world.with_input(explain);
    assert_eq!(
        explained.targets[0].exclusions[0].reason,
        CapabilityMismatch
    );
}

#[test]
fn vector_routing_v_tl5() {
    let mut world = World::combo(
        &["openai/o", "nvidia/n"],
        &["openai/a", "nvidia/b"],
        json!({"maxRetries": 0}),
        no_waits(),
    );
    let openai = ProviderId::new("openai").unwrap();
    world.telemetry.tool_limits.insert(openai, 100);
    world.facts.tools = 100;
    let dispatch = world.dispatch();
    assert_eq!(
        (dispatch.provider.as_str(), dispatch.max_tools),
        ("openai", None)
    );

    world.facts.tools = 150;
    let first = world.dispatch();
    assert_eq!((first.provider.as_str(), first.max_tools), ("nvidia", None));
    assert_eq!(first.order, [1, 0]);
    world.fail(&first, &upstream_error(503, "", None));
    world.so_far.order = first.order;
    let second = world.dispatch();
    assert_eq!(
        (second.provider.as_str(), second.max_tools),
        ("openai", Some(100))
    );

    world.so_far = AttemptsSoFar::default();
    world.open_breaker("nvidia", 10_000);
    let dispatch = world.dispatch();
    assert_eq!(
        (dispatch.provider.as_str(), dispatch.max_tools),
        ("openai", Some(100))
    );
}

#[test]
fn too_many_tools_lead_to_the_next_target_and_change_no_state() {
    let mut world = two_models(json!({}));
    world.facts.tools = 150;
    let journey = world.run(|_, before| {
        if before == 0 {
            answer(400, "'tools': maximum number of items is 100", None)
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["p1/k1/a", "p2/k2/b"]);
    let classification = &world.so_far.attempts[0].classification;
    assert_eq!(
        classification.consequence,
        crate::classify::Consequence::RecordError
    );
    assert!(!classification.counts_for_breaker);
}

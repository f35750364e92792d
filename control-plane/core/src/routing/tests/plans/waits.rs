//! Which parts of a plan wait for cooldowns, and what time they have.

use rstest::rstest;

use super::super::*;

/// Two providers whose accounts cool, and waits as they are by default.
fn two_steps(strategy: &str, config: Value) -> World {
    let provider =
        |id: &str| json!({"id": id, "protocol": "openai", "baseUrl": "https://x.example/v1"});
    World::of(
        json!({
            "providers": [provider("p1"), provider("p2")],
            "connections": [{"id": "c1", "provider": "p1"}, {"id": "c2", "provider": "p2"}],
            "combos": [{"name": "c", "strategy": strategy, "steps": ["p1/a", "p2/b"],
                        "config": config}],
        }),
        "c",
    )
}

/// A 429 that cools the account for 8 s, then an answer.
fn limited_once(_: &str, before: usize) -> Reply {
    match before {
        0 => answer(429, "{}", Some("8")),
        _ => Reply::Success,
    }
}

#[rstest]
#[case::of_a_panel("fusion", true, 1)]
#[case::a_judge("fusion", false, 2)]
#[case::of_a_pipeline("pipeline", false, 1)]
fn only_a_judge_waits_for_a_cooldown(
    #[case] strategy: &str,
    #[case] of_panel: bool,
    #[case] attempts: usize,
) {
    let mut world = two_steps(strategy, json!({}));
    world.facts.member = Some(0);
    world.facts.of_panel = of_panel;
    let journey = world.run(limited_once);
    assert_eq!(journey.attempts.len(), attempts);
    assert_eq!(journey.rejection.is_some(), attempts == 1);
    // The account still cools for the next request.
    if let Some(rejection) = journey.rejection {
        assert_eq!(
            (rejection.status, rejection.retry_after_secs),
            (429, Some(8))
        );
    }
}

#[rstest]
#[case::a_panel_member("fusion", true)]
#[case::a_step("pipeline", false)]
fn a_part_whose_account_cools_is_refused_at_once(#[case] strategy: &str, #[case] of_panel: bool) {
    let mut world = two_steps(strategy, json!({}));
    world.facts.member = Some(0);
    world.facts.of_panel = of_panel;
    world.connection_state("c1", cooling(8_000, Reason::RateLimitExceeded));
    world.so_far.elsewhere = 2;
    let rejection = world.reject();
    assert_eq!(rejection.code, "all_targets_cooling_down");
    assert_eq!((rejection.pool_size, rejection.attempted), (2, 2));
}

/// What a part does where the places of its account are all taken.
#[rstest]
#[case::a_panel_member("fusion", Some(0), true, false)]
#[case::a_judge("fusion", Some(0), false, true)]
#[case::a_step("pipeline", Some(0), false, false)]
fn only_a_judge_waits_for_a_place(
    #[case] strategy: &str,
    #[case] member: Option<u32>,
    #[case] of_panel: bool,
    #[case] waits: bool,
) {
    let mut world = two_steps(strategy, json!({}));
    let mut document = Document::clone(&world.config.document);
    for account in &mut document.connections {
        account.max_concurrent = Some(1);
    }
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
    world.facts.member = member;
    world.facts.of_panel = of_panel;
    let policy = world.dispatch().permit.unwrap().policy;
    assert_eq!(policy.queue().is_some(), waits);
    assert_eq!(policy == PermitPolicy::Skip, !waits);
}

#[test]
fn one_step_waits_like_any_request() {
    let mut world = two_steps("pipeline", json!({}));
    let mut config = world.config.clone();
    for entry in config.combos.values_mut() {
        entry.targets = entry.targets.iter().take(1).cloned().collect();
    }
    world.config = config;
    assert_eq!(world.run(limited_once).attempts.len(), 2);
}

#[test]
fn a_step_of_a_pipeline_is_not_repeated_as_a_list() {
    let mut world =
        two_steps("pipeline", json!({"maxRetries": 0, "maxSetRetries": 2})).without_cooling();
    world.facts.member = Some(0);
    assert_eq!(world.run(|_, _| status(503)).attempts.len(), 1);
}

#[test]
fn the_time_limit_is_that_of_the_whole_request() {
    let mut world = two_steps("pipeline", json!({"comboTimeoutMs": 5_000}));
    world.facts.member = Some(1);
    world.so_far.elapsed_ms = 4_000;
    assert_eq!(world.dispatch().timeout_ms, Some(1_000));
    world.so_far.elapsed_ms = 5_000;
    world.so_far.elsewhere = 1;
    let rejection = world.reject();
    assert_eq!(
        (rejection.code.as_str(), rejection.attempted),
        ("COMBO_TIMEOUT", 1)
    );
}

//! `routing.md` §8.18 (`fusion`) and §8.19 (`pipeline`): what is planned, how parts are walked, what a step of a
//! pipeline leads to.

mod panel;
mod waits;

use rstest::rstest;

use super::*;
use crate::config::Strategy;

fn world(strategy: &str, steps: Value, config: Value) -> World {
    let provider =
        |id: &str| json!({"id": id, "protocol": "openai", "baseUrl": "https://x.example/v1"});
    World::of(
        json!({
            "providers": [provider("p1"), provider("p2"), provider("p3"), provider("p4")],
            "connections": [
                {"id": "c1", "provider": "p1"}, {"id": "c2", "provider": "p2"},
                {"id": "c3", "provider": "p3"}, {"id": "c4", "provider": "p4"},
            ],
            "combos": [{"name": "c", "strategy": strategy, "steps": steps, "config": config}],
            "settings": no_waits(),
        }),
        "c",
    )
    .without_cooling()
}

pub(super) fn three(strategy: &str, config: Value) -> World {
    world(strategy, json!(["p1/a", "p2/b", "p3/c"]), config)
}

pub(super) fn fusion(world: &World) -> FusionPlan {
    match world.decide() {
        Decision::Plan(plan) => match *plan {
            Plan::Fusion(plan) => plan,
            Plan::Pipeline(_) => panic!("a fusion"),
        },
        other => panic!("a plan, not {other:?}"),
    }
}

pub(super) fn pipeline(world: &World) -> PipelinePlan {
    match world.decide() {
        Decision::Plan(plan) => match *plan {
            Plan::Pipeline(plan) => plan,
            Plan::Fusion(_) => panic!("a pipeline"),
        },
        other => panic!("a plan, not {other:?}"),
    }
}

fn names(members: &[PlanMember]) -> Vec<(u32, &str)> {
    members
        .iter()
        .map(|member| (member.step, member.name.as_str()))
        .collect()
}

#[test]
fn a_fusion_asks_all_steps_and_lets_the_first_judge() {
    let plan = fusion(&three("fusion", json!({})));
    assert_eq!(names(&plan.panel), [(0, "p1/a"), (1, "p2/b"), (2, "p3/c")]);
    let (judge, min, grace, hard) = (
        plan.judge,
        plan.min_panel,
        plan.straggler_grace_ms,
        plan.panel_hard_timeout_ms,
    );
    assert_eq!((judge, min, grace, hard), (0, 2, 8_000, 90_000));
}

#[rstest]
#[case::too_few(json!(1), 2)]
#[case::all(json!(3), 3)]
#[case::too_many(json!(9), 3)]
fn the_least_panel_is_two_at_least_and_all_at_most(#[case] min: Value, #[case] expected: u32) {
    let plan = fusion(&three("fusion", json!({"fusion": {"minPanel": min}})));
    assert_eq!(plan.min_panel, expected);
}

#[rstest]
#[case::a_step("p2/b", 1)]
#[case::no_step("p4/j", 3)]
fn the_judge_may_be_a_step_or_none(#[case] judge: &str, #[case] expected: u32) {
    let mut world = three("fusion", json!({"fusion": {"judgeModel": judge}}));
    assert_eq!(fusion(&world).judge, expected);
    world.facts.member = Some(expected);
    let dispatch = world.dispatch();
    assert_eq!(format!("{}/{}", dispatch.provider, dispatch.model), judge);
}

#[test]
fn a_judge_that_is_no_step_is_reached_by_its_position_alone() {
    let mut world = three("fusion", json!({"fusion": {"judgeModel": "p4/j"}}));
    world.facts.member = Some(4);
    assert_eq!(world.reject().code, "no_steps");
}

#[test]
fn a_part_walks_the_targets_of_its_step_alone() {
    let mut world = three("fusion", json!({"maxRetries": 0}));
    world.facts.member = Some(1);
    let journey = world.run(|_, _| status(503));
    assert_eq!(journey.attempts, ["p2/c2/b"]);
    assert_eq!(journey.rejection().status, 503);
}

#[test]
fn a_part_that_is_a_combo_orders_its_targets_itself() {
    let mut document = json!({
        "providers": [
            {"id": "p1", "protocol": "openai", "baseUrl": "https://x.example/v1"},
            {"id": "p2", "protocol": "openai", "baseUrl": "https://x.example/v1"},
        ],
        "connections": [{"id": "c1", "provider": "p1"}, {"id": "c2", "provider": "p2"}],
        "combos": [
            {"name": "c", "strategy": "fusion", "steps": ["p1/a", "inner", "p1/b"],
             "config": {"fusion": {"judgeModel": "p1/z"}, "maxRetries": 0}},
            {"name": "inner", "strategy": "round-robin", "steps": ["p2/x", "p1/z"],
             "config": {"stickyRoundRobinLimit": 1}},
        ],
        "settings": no_waits(),
    });
    let world = World::of(document.clone(), "c");
    let plan = fusion(&world);
    assert_eq!(names(&plan.panel), [(0, "p1/a"), (1, "p2/x"), (2, "p1/b")]);
    assert_eq!(plan.judge, 3, "a combo is not the model in it");
    let counters = Counters::of(&world.config, None, 0);
    let facts = RequestFacts {
        member: Some(1),
        ..world.facts.clone()
    };
    let mut seen = Vec::new();
    for _ in 0..2 {
        let turns = DecisionTurns::alone(&counters);
        let decision = world.with_input(|input| {
            decide(&Input {
                facts: &facts,
                turns: &turns,
                ..*input
            })
        });
        let Decision::Dispatch(dispatch) = decision else {
            panic!("{decision:?}");
        };
        seen.push((dispatch.model.to_string(), dispatch.target, dispatch.order));
    }
    seen.sort();
    let expected = [
        ("x".to_owned(), 0, vec![0, 1]),
        ("z".to_owned(), 1, vec![1, 0]),
    ];
    assert_eq!(seen, expected);

    document["combos"][0]["strategy"] = json!("pipeline");
    let mut world = World::of(document, "c");
    world.facts.member = Some(1);
    let journey = world.run(|_, _| status(503));
    assert_eq!(journey.attempts, ["p2/c2/x", "p1/c1/z"]);
}

#[test]
fn attempts_of_other_parts_count_for_the_cap() {
    let mut world = three("fusion", json!({"maxGlobalAttempts": 4}));
    world.facts.member = Some(1);
    world.so_far.elsewhere = 3;
    let journey = world.run(|_, _| status(503));
    assert_eq!(journey.attempts, ["p2/c2/b"]);
    assert_eq!(journey.rejection().code, "max_attempts_exceeded");
}

#[rstest]
#[case::tools(2, false, true)]
#[case::forbidden_tools(2, true, false)]
#[case::no_tools(0, false, false)]
fn a_fusion_with_tools_goes_to_its_judge_alone(
    #[case] tools: u32,
    #[case] forbidden: bool,
    #[case] direct: bool,
) {
    let mut world = three("fusion", json!({"fusion": {"judgeModel": "p3/c"}}));
    world.facts.tools = tools;
    world.facts.tools_forbidden = forbidden;
    match world.decide() {
        Decision::Dispatch(dispatch) => {
            assert!(direct);
            assert_eq!(dispatch.provider.as_str(), "p3");
        }
        Decision::Plan(_) => assert!(!direct),
        other => panic!("unexpected {other:?}"),
    }
}

#[rstest]
#[case::fusion("fusion")]
#[case::pipeline("pipeline")]
fn one_step_is_a_direct_request(#[case] strategy: &str) {
    let mut world = world(strategy, json!(["p2/b"]), json!({"maxRetries": 0}));
    let journey = world.run(|_, _| status(429));
    assert_eq!(journey.attempts, ["p2/c2/b"]);
    assert_eq!(journey.rejection().status, 429);
}

#[rstest]
#[case::fusion("fusion")]
#[case::pipeline("pipeline")]
fn without_steps_the_request_is_refused(#[case] strategy: &str) {
    let mut world = three(strategy, json!({}));
    let mut config = world.config.clone();
    for entry in config.combos.values_mut() {
        entry.targets = Arc::default();
    }
    world.config = config;
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (400, "no_steps")
    );
}

#[test]
fn who_may_not_ask_for_the_combo_starts_no_plan() {
    let mut world = three("fusion", json!({}));
    let key: ApiKey =
        serde_json::from_value(json!({"id": "k", "allowedModels": ["other"]})).unwrap();
    world.facts.key = Some(Arc::new(key));
    assert_eq!(world.reject().code, "no_executable_targets");
}

#[test]
fn a_plan_is_explained_as_one() {
    let explanation = three("pipeline", json!({})).with_input(explain);
    assert!(matches!(explanation.decision, Decision::Plan(_)));
    assert_eq!(explanation.targets.len(), 3);
}

#[rstest]
#[case::fusion("fusion")]
#[case::pipeline("pipeline")]
fn a_plan_of_more_steps_than_may_be_asked_is_refused(#[case] strategy: &str) {
    let document = |steps: usize| -> Document {
        serde_json::from_value(json!({
            "providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
            "combos": [{"name": "c", "strategy": strategy, "steps": vec!["p/m"; steps]}],
        }))
        .unwrap()
    };
    let build = |steps| Config::build(document(steps), 1, &Overrides::default());
    assert!(build(crate::config::MAX_PLAN_STEPS).is_ok());
    let violations = build(crate::config::MAX_PLAN_STEPS + 1).unwrap_err();
    assert_eq!(violations[0].field, "combos[0].steps");
}

/// Asks the steps of a pipeline one after the other.
fn follow(
    world: &mut World,
    script: impl Fn(&str, usize) -> Reply,
) -> (Vec<String>, Result<(), Rejection>) {
    let plan = pipeline(world);
    let mut attempts = Vec::new();
    for (number, stage) in plan.stages.iter().enumerate() {
        world.facts.member = Some(stage.member.step);
        world.so_far = AttemptsSoFar {
            elsewhere: u32::try_from(attempts.len()).unwrap(),
            ..AttemptsSoFar::default()
        };
        let journey = world.run(&script);
        attempts.extend(journey.attempts);
        if let Some(rejection) = journey.rejection {
            let fault = StageFault::Rejected(Box::new(rejection));
            let sent = u32::try_from(attempts.len()).unwrap();
            return (attempts, Err(stage_failure(&plan, number, fault, sent)));
        }
    }
    (attempts, Ok(()))
}

#[test]
fn a_pipeline_asks_its_steps_in_their_order() {
    let (attempts, ended) = follow(&mut three("pipeline", json!({})), |_, _| Reply::Success);
    assert_eq!(attempts, ["p1/c1/a", "p2/c2/b", "p3/c3/c"]);
    assert!(ended.is_ok());
}

#[test]
fn vector_routing_v_pl2() {
    let (attempts, ended) = follow(&mut three("pipeline", json!({})), |attempt, _| {
        if attempt.starts_with("p2") {
            status(401)
        } else {
            Reply::Success
        }
    });
    assert_eq!(attempts, ["p1/c1/a", "p2/c2/b"]);
    let rejection = ended.unwrap_err();
    assert_eq!(rejection.status, 401);
    assert_eq!((rejection.pool_size, rejection.attempted), (3, 2));
    assert!(
        rejection.message.starts_with("step 2 (p2/b): "),
        "{rejection:?}"
    );
}

#[test]
fn vector_routing_v_pl3() {
    let mut world = three("pipeline", json!({"maxRetries": 1}));
    let begun = world.now;
    let (attempts, ended) = follow(&mut world, |attempt, before| {
        if attempt.starts_with("p1") && before == 0 {
            status(503)
        } else {
            Reply::Success
        }
    });
    assert_eq!(attempts, ["p1/c1/a", "p1/c1/a", "p2/c2/b", "p3/c3/c"]);
    assert!(ended.is_ok());
    assert_eq!(world.now.ms_since(begun), 2_000, "retryDelayMs");
}

#[rstest]
#[case::unavailable(503, 2)]
#[case::rate_limited(429, 2)]
#[case::internal_error(500, 1)]
#[case::request_timeout(408, 1)]
fn a_step_of_a_pipeline_is_tried_again_after_few_statuses(
    #[case] failed: u16,
    #[case] attempts: usize,
) {
    let mut world = three("pipeline", json!({}));
    world.facts.member = Some(0);
    let journey = world.run(|_, _| status(failed));
    assert_eq!(journey.attempts.len(), attempts);
    assert_eq!(journey.rejection().status, failed);
}

#[test]
fn only_the_first_step_speaks_for_the_client() {
    let plan = pipeline(&three("pipeline", json!({})));
    let mut world = three("pipeline", json!({}));
    world.facts.member = Some(0);
    let fault = world.run(|_, _| answer(400, r#"{"error":{"message":"bad"}}"#, None));
    let fault = fault.rejection.unwrap();
    assert!(fault.pass_through);
    for (stage, passes) in [(0, true), (1, false)] {
        let fault = StageFault::Rejected(Box::new(fault.clone()));
        let rejection = stage_failure(&plan, stage, fault, 4);
        assert_eq!((rejection.status, rejection.pass_through), (400, passes));
    }
}

#[rstest]
#[case::empty(StageFault::EmptyContent, "pipeline_step_empty")]
#[case::unparseable(StageFault::Unparseable, "pipeline_step_unparseable")]
fn an_answer_without_a_text_ends_the_pipeline(#[case] fault: StageFault, #[case] code: &str) {
    let plan = pipeline(&three("pipeline", json!({})));
    let rejection = stage_failure(&plan, 1, fault, 2);
    assert_eq!((rejection.status, rejection.code.as_str()), (502, code));
    assert_eq!((rejection.pool_size, rejection.attempted), (3, 2));
    assert!(rejection.message.starts_with("step 2 (p2/b): "));
}

#[test]
fn the_prompts_of_steps_are_in_the_plan() {
    let steps = json!(["p1/a", {"model": "p2/b", "prompt": "be brief"}]);
    let plan = pipeline(&world("pipeline", steps, json!({})));
    let prompts: Vec<_> = plan
        .stages
        .iter()
        .map(|stage| stage.prompt.as_deref())
        .collect();
    assert_eq!(prompts, [None, Some("be brief")]);
}

#[test]
fn only_two_strategies_make_plans() {
    for strategy in [
        Strategy::Priority,
        Strategy::Weighted,
        Strategy::ContextRelay,
    ] {
        let world = three(strategy.as_str(), json!({}));
        assert!(matches!(world.decide(), Decision::Dispatch(_)));
    }
}

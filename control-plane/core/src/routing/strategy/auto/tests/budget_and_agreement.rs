//! What a request may cost, and what was agreed on.

use rstest::rstest;

use crate::config::BudgetFallback;

use super::*;

/// A, B and C cost 10, 1 and 5 USD per million tokens, and 0.010, 0.001 and 0.005 for 1,000.
fn priced(budget: f64) -> Stage {
    let actors = [("A", 10.0), ("B", 1.0), ("C", 5.0)];
    let mut stage = Stage::new(Vec::from(actors.map(|(name, price)| Actor {
        info: ModelInfo {
            input_price: Some(finite(price)),
            output_price: Some(finite(price)),
            ..ModelInfo::default()
        },
        ..Actor::new(name)
    })));
    stage.facts.budget = Some(finite(budget));
    stage.facts.estimated_tokens = Some(1_000);
    // Without a budget the dearest would be picked.
    auto(&mut stage).router = Some("lkgp".to_owned());
    stage.last_known_good = Some(LastKnownGood {
        provider: ProviderId::new("pa").unwrap(),
        connection: None,
        at: NOW,
    });
    stage
}

#[test]
fn vector_routing_v_au10_what_is_over_the_cap_is_not_picked() {
    let mut stage = priced(0.005);
    auto(&mut stage).exploration_rate = Some(Finite::ZERO);
    let ordered = stage.order(Strategy::Auto).unwrap();
    assert_eq!((ordered.order, ordered.usable), (vec![1, 2, 0], 3));
    stage.facts.budget_fallback = Some(BudgetFallback::Strict);
    let ordered = stage.order(Strategy::Auto).unwrap();
    assert_eq!((ordered.order, ordered.usable), (vec![1, 2, 0], 2));
    stage.facts.budget = Some(finite(0.010));
    assert_eq!(stage.head(Strategy::Auto), 0);
    stage.facts.estimated_tokens = Some(1_001);
    assert_ne!(stage.head(Strategy::Auto), 0);
}

#[test]
fn vector_routing_v_au11_when_nothing_is_affordable_the_fallback_decides() {
    let mut stage = priced(0.000_5);
    assert_eq!(stage.head(Strategy::Auto), 1);
    stage.facts.budget_fallback = Some(BudgetFallback::Strict);
    let rejection = refusal(&stage);
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (402, "budget_exceeded")
    );
    assert_eq!(rejection.pool_size, 3);
    assert_eq!(rejection.retry_after_secs, None);
    let reasons: Vec<_> = rejection.excluded.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [ExclusionReason::OverBudget; 3]);
}

#[test]
fn what_costs_exactly_the_cap_is_affordable() {
    // 0.1 for a million tokens, times three, is a little more than 0.3 as numbers go.
    let mut stage = priced(0.000_3);
    stage.facts.estimated_tokens = Some(3_000);
    stage.facts.budget_fallback = Some(BudgetFallback::Strict);
    stage.actors[1].info.input_price = Some(finite(0.1));
    stage.actors[1].info.output_price = Some(finite(0.1));
    assert_eq!(stage.order(Strategy::Auto).unwrap().usable, 1);
    stage.facts.budget = Some(finite(0.000_299_9));
    assert_eq!(refusal(&stage).status, 402);
}

#[test]
fn what_is_cheap_but_excluded_by_a_gate_is_not_affordable() {
    let mut stage = priced(0.002);
    stage.actors[1].eligible = false;
    // Of those that can be used the cheaper one, whatever is known of the others.
    assert_eq!(stage.head(Strategy::Auto), 2);
    stage.facts.budget_fallback = Some(BudgetFallback::Strict);
    assert_eq!(refusal(&stage).status, 402);
    for actor in &mut stage.actors {
        actor.eligible = false;
    }
    assert_eq!(stage.order(Strategy::Auto).unwrap().usable, 1);
}

#[test]
fn layers_do_not_move_what_is_over_the_cap() {
    let stage = priced(0.005);
    let ordered = stage.order(Strategy::Auto).unwrap();
    assert_eq!((ordered.usable, ordered.movable), (3, 2));
    let nothing_affordable = priced(0.000_5).order(Strategy::Auto).unwrap();
    assert_eq!(
        (nothing_affordable.usable, nothing_affordable.movable),
        (3, 1)
    );
}

#[rstest]
#[case::of_the_combo(None, Some(0.005), 1_000, "BCA")]
#[case::the_request_comes_first(Some(1.0), Some(0.005), 1_000, "ABC")]
#[case::no_cap_asked(Some(0.0), Some(0.005), 1_000, "BCA")]
#[case::tokens_of_the_request(None, Some(0.005), 100, "ABC")]
fn the_cap_is_that_of_the_request_or_of_the_combo(
    #[case] asked: Option<f64>,
    #[case] of_combo: Option<f64>,
    #[case] tokens: u64,
    #[case] expected: &str,
) {
    let mut stage = priced(1.0);
    stage.facts.budget = asked.map(finite);
    stage.facts.estimated_tokens = Some(tokens);
    auto(&mut stage).budget_cap = of_combo.map(finite);
    auto(&mut stage).exploration_rate = Some(Finite::ZERO);
    assert_eq!(keys(&stage), expected);
}

/// p95, failure rate, cost and standard deviation of A, B and C.
fn agreed(hard: bool) -> Stage {
    let rows = [
        ("A", 1_200.0, 0.02, 10.0, 200.0),
        ("B", 3_000.0, 0.01, 2.0, 100.0),
        ("C", 1_000.0, 0.20, 1.0, 300.0),
    ];
    let mut stage = Stage::new(Vec::from(rows.map(
        |(name, p95_ms, failure_rate, cost, std_dev_ms)| Actor {
            performance: Some(Performance {
                requests: 100,
                success_rate: Some(1.0 - failure_rate),
                mean_latency_ms: p95_ms / 2.0,
                p95_latency_ms: p95_ms,
                latency_std_dev_ms: std_dev_ms,
            }),
            info: ModelInfo {
                input_price: Some(finite(cost)),
                output_price: Some(finite(cost)),
                ..ModelInfo::default()
            },
            ..Actor::new(name)
        },
    )));
    *auto(&mut stage) = AutoConfig {
        router: Some("sla-aware".to_owned()),
        sla_latency_ms: Some(finite(1_500.0)),
        sla_error_rate: Some(finite(0.05)),
        sla_cost: Some(finite(5.0)),
        hard_constraints: Some(hard),
        ..AutoConfig::default()
    };
    stage
}

#[rstest]
#[case::vector_routing_v_au12_soft(false, [0.0, 0.0, 0.0])]
#[case::vector_routing_v_au12_hard(true, [1.0, 1.0, 3.0])]
fn agreements_are_kept_more_or_less(#[case] hard: bool, #[case] violations: [f64; 3]) {
    let stage = agreed(hard);
    let agreement = sla::Agreement::of(stage.config.auto.as_ref().unwrap());
    let assessments = stage.ask(assess);
    for (assessment, (score, violation)) in assessments
        .iter()
        .zip([0.9167, 0.8083, 0.6875].into_iter().zip(violations))
    {
        assert!((agreement.score(assessment) - score).abs() <= 0.000_05);
        assert!((agreement.violation(assessment) - violation).abs() < 1e-9);
    }
    assert_eq!(keys(&stage), "ABC");
}

#[test]
fn hard_constraints_put_the_least_violation_first() {
    let mut stage = agreed(true);
    auto(&mut stage).sla_cost = Some(finite(1.0));
    assert_eq!(keys(&stage), "BCA");
    auto(&mut stage).hard_constraints = None;
    assert_eq!(keys(&stage), "ABC");
}

#[test]
fn an_agreement_on_nothing_at_all_is_no_division_by_zero() {
    let mut stage = agreed(true);
    auto(&mut stage).sla_latency_ms = Some(Finite::ZERO);
    auto(&mut stage).sla_error_rate = Some(Finite::ZERO);
    assert_eq!(keys(&stage), "BCA");
}

//! What holds of `auto` whatever is known, set and drawn.

use proptest::prelude::*;

use crate::breaker::Phase;
use crate::catalogue::ModelInfo;
use crate::config::Strategy::Auto;
use crate::config::{AutoConfig, BudgetFallback};
use crate::ids::ConnectionId;
use crate::number::Finite;
use crate::routing::strategy::Halt;
use crate::routing::strategy::stage::{Actor, NOW, Stage};
use crate::telemetry::{Performance, QuotaSnapshot, QuotaWindow};
use crate::time::Timestamp;

use super::assess;

fn finite(number: f64) -> Finite {
    Finite::new(number).unwrap()
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(0.0),
        any::<f64>(),
        0.0..10_000.0_f64,
    ]
}

fn any_price() -> impl Strategy<Value = Option<Finite>> {
    proptest::option::of((0.0..1_000_000.0_f64).prop_map(finite))
}

fn any_phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Closed),
        Just(Phase::Degraded),
        Just(Phase::Open { retry_after_ms: 1 }),
        Just(Phase::HalfOpen { probe_out: false }),
    ]
}

prop_compose! {
    fn any_performance()(
        requests in 0..20_u64,
        numbers in [any_number(), any_number(), any_number(), any_number()],
    ) -> Performance {
        let [success_rate, mean_latency_ms, p95_latency_ms, latency_std_dev_ms] = numbers;
        let success_rate = Some(success_rate);
        Performance { requests, success_rate, mean_latency_ms, p95_latency_ms, latency_std_dev_ms }
    }
}

prop_compose! {
    fn any_quota()(
        used in proptest::option::of(-1.0..3.0_f64),
        session in proptest::option::of((-1.0..3.0_f64, 0..u64::MAX)),
        unreadable in any::<bool>(),
        limit_reached in any::<bool>(),
    ) -> QuotaSnapshot {
        QuotaSnapshot {
            used: used.map(finite),
            session: session.map(|(used, end)| QuotaWindow {
                used: finite(used),
                resets_at: Some(Timestamp(end)), observed_at: None, }),
            unreadable,
            limit_reached,
            ..QuotaSnapshot::default()
        }
    }
}

prop_compose! {
    fn any_actor()(
        name in "[a-d]",
        (connected, eligible) in any::<(bool, bool)>(),
        phase in any_phase(),
        accounts in any::<usize>(),
        performance in proptest::option::of(any_performance()),
        combo_performance in proptest::option::of(any_performance()),
        quota in proptest::option::of(any_quota()),
        (input_price, output_price) in (any_price(), any_price()),
        rests in any::<bool>(),
    ) -> Actor {
        Actor {
            connection: connected.then(|| ConnectionId::new(&name).unwrap()),
            eligible,
            phase,
            accounts,
            performance,
            combo_performance,
            quota,
            adaptation_until: rests.then(|| NOW.plus_ms(1)),
            info: ModelInfo { input_price, output_price, ..ModelInfo::default() },
            ..Actor::new(&name)
        }
    }
}

prop_compose! {
    fn any_config()(
        router in prop::sample::select(vec!["rules", "score", "cost", "latency", "sla", "lkgp"]),
        weights in proptest::collection::btree_map(
            prop::sample::select(vec!["quota", "costInv", "latencyInv", "stability", "cacheAffinity"]),
            -1.0..1e300_f64,
            0..5,
        ),
        rate in 0.0..1.0_f64,
        cutoff in proptest::option::of(0.0..100.0_f64),
        cap in proptest::option::of(0.0..0.1_f64),
        (strict, hard) in any::<(bool, bool)>(),
        limits in [0.0..1.0_f64, 0.0..1.0, 0.0..1.0],
    ) -> AutoConfig {
        AutoConfig {
            router: Some(router.to_owned()),
            weights: Some(weights.into_iter().map(|(name, weight)| (name.to_owned(), finite(weight))).collect()),
            exploration_rate: Some(finite(rate)),
            quota_cutoff_percent: cutoff.map(finite),
            budget_cap: cap.map(finite),
            budget_fallback: strict.then_some(BudgetFallback::Strict),
            sla_latency_ms: Some(finite(limits[0])),
            sla_error_rate: Some(finite(limits[1])),
            sla_cost: Some(finite(limits[2])),
            hard_constraints: Some(hard),
            ..AutoConfig::default()
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_known_everyone_is_ordered_once(
        actors in proptest::collection::vec(any_actor(), 0..12),
        config in any_config(),
        seed in any::<u64>(),
    ) {
        let mut stage = Stage::new(actors);
        stage.config.auto = Some(config);
        stage.seed = seed;
        stage.facts.cache_key = Some("key".to_owned());
        for assessment in stage.ask(assess) {
            prop_assert!((0.0..=1.0).contains(&assessment.score));
            for factor in assessment.factors.values() {
                prop_assert!((0.0..=1.0).contains(&factor));
            }
        }
        match stage.order(Auto) {
            Ok(ordered) => {
                let mut order = ordered.order;
                order.sort_unstable();
                prop_assert_eq!(&order, &(0..stage.actors.len()).collect::<Vec<_>>());
                prop_assert!(ordered.usable <= order.len());
                prop_assert!(ordered.usable > 0 || order.is_empty());
            }
            Err(Halt::Reject(rejection)) => {
                prop_assert!([402, 429].contains(&rejection.status));
            }
            Err(halt) => prop_assert!(false, "{:?}", halt),
        }
    }

    #[test]
    fn equal_questions_have_equal_answers(
        actors in proptest::collection::vec(any_actor(), 0..12),
        seed in any::<u64>(),
    ) {
        let order = || {
            let mut stage = Stage::new(actors.clone());
            stage.seed = seed;
            stage.order(Auto)
        };
        prop_assert_eq!(order(), order());
    }
}

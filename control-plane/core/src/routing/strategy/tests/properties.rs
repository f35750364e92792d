//! What holds of every strategy, whatever the configuration, the telemetry and the numbers say.

use proptest::prelude::{
    any, prop, prop_assert, prop_assert_eq, prop_compose, prop_oneof, proptest,
};
use proptest::strategy::Strategy as Generate;

use super::*;
use crate::config::ResetWindow;
use crate::routing::layers;

fn numbers() -> impl Generate<Value = Finite> {
    any::<f64>().prop_map(|number| Finite::new(number).unwrap_or(Finite::ONE))
}

fn shares() -> impl Generate<Value = Finite> {
    prop_oneof![
        4 => (0.0..=1.0_f64).prop_map(|share| Finite::new(share).unwrap_or(Finite::ZERO)),
        1 => numbers(),
    ]
}

fn moments() -> impl Generate<Value = Timestamp> {
    prop_oneof![
        4 => (0..60 * DAY_MS).prop_map(|ms| NOW.minus_ms(30 * DAY_MS).plus_ms(ms)),
        1 => any::<u64>().prop_map(Timestamp),
    ]
}

prop_compose! {
    fn windows()(used in shares(), resets_at in prop::option::of(moments())) -> QuotaWindow {
        QuotaWindow { used, resets_at, observed_at: None, }
    }
}

prop_compose! {
    fn quotas()(
        session in prop::option::of(windows()),
        weekly in prop::option::of(windows()),
        monthly in prop::option::of(windows()),
        used in prop::option::of(shares()),
        resets_at in prop::option::of(moments()),
        limit_reached in prop::bool::weighted(0.1),
        unreadable in any::<bool>(),
    ) -> QuotaSnapshot {
        QuotaSnapshot {
            session,
            weekly,
            monthly,
            used,
            resets_at,
            limit_reached,
            unreadable,
            ..QuotaSnapshot::default()
        }
    }
}

prop_compose! {
    fn performances()(
        requests in any::<u64>(),
        numbers in any::<[f64; 4]>(),
    ) -> Performance {
        let [success_rate, mean_latency_ms, p95_latency_ms, latency_std_dev_ms] = numbers;
        Performance {
            requests,
            success_rate: Some(success_rate),
            mean_latency_ms,
            p95_latency_ms,
            latency_std_dev_ms,
        }
    }
}

/// A candidate with whatever is known of it.
#[derive(Clone, Debug)]
struct Known {
    group: u32,
    weight: Finite,
    names: [u8; 3],
    has_connection: bool,
    eligible: bool,
    phase: Phase,
    quota: Option<QuotaSnapshot>,
    performance: Option<Performance>,
    requests: Option<u64>,
    info: ModelInfo,
}

prop_compose! {
    fn candidates()(
        (group, weight, names, has_connection) in (0..4_u32, numbers(), any::<[u8; 3]>(), any::<bool>()),
        eligible in any::<bool>(),
        phase in prop::sample::select(vec![
            Phase::Closed,
            Phase::Degraded,
            Phase::Open { retry_after_ms: 5 },
            Phase::HalfOpen { probe_out: true },
        ]),
        quota in prop::option::of(quotas()),
        performance in prop::option::of(performances()),
        requests in prop::option::of(any::<u64>()),
        input_price in prop::option::of(numbers()),
        context_window in prop::option::of(any::<u64>()),
        premium in prop::option::of(any::<bool>()),
    ) -> Known {
        Known {
            group,
            weight,
            names: names.map(|name| name % 4),
            has_connection,
            eligible,
            phase,
            quota,
            performance,
            requests,
            info: ModelInfo { input_price, context_window, premium, ..ModelInfo::default() },
        }
    }
}

prop_compose! {
    fn configs()(
        limits in any::<[Option<u32>; 2]>(),
        shares in prop::array::uniform4(prop::option::of(numbers())),
        reset_windows in prop::option::of(prop::sample::subsequence(
            vec![ResetWindow::Session, ResetWindow::Weekly, ResetWindow::Monthly], 0..=3,
        )),
        reset_window_tie_band_ms in any::<Option<u64>>(),
        switches in any::<[Option<bool>; 4]>(),
    ) -> ComboConfig {
        let [sticky_weighted_limit, sticky_round_robin_limit] = limits;
        let [session, weekly, band, guard] = shares;
        let [manifest_routing, include_session, session_stickiness, prompt_cache_affinity] = switches;
        ComboConfig {
            sticky_weighted_limit,
            sticky_round_robin_limit,
            reset_aware_session_weight: session,
            reset_aware_weekly_weight: weekly,
            reset_aware_tie_band_percent: band,
            reset_aware_exhaustion_guard_percent: guard,
            reset_windows,
            reset_window_include_session: include_session,
            reset_window_tie_band_ms,
            manifest_routing,
            session_stickiness,
            prompt_cache_affinity,
            ..ComboConfig::default()
        }
    }
}

prop_compose! {
    fn stages()(
        known in prop::collection::vec(candidates(), 0..30),
        config in configs(),
        seed in any::<u64>(),
        turn in any::<u64>(),
        cache_key in prop::option::of("[a-z]{0,8}"),
        session in prop::option::of(0..4_u8),
        good in prop::option::of((0..4_u8, prop::option::of(0..4_u8))),
        of_accounts in any::<bool>(),
    ) -> Stage {
        let mut stage = Stage::of("");
        stage.config = config;
        stage.seed = seed;
        stage.facts.cache_key = cache_key;
        stage.facts.tags = vec!["premium".to_owned()];
        if let Some(number) = session {
            stage.facts.session = Some("s".to_owned());
            stage.sessions.insert("s".to_owned(), connection(&format!("c{number}")));
        }
        stage.last_known_good = good.map(|(provider, account)| LastKnownGood {
            provider: ProviderId::new(format!("p{provider}")).unwrap(),
            connection: account.map(|account| connection(&format!("c{account}"))),
            at: NOW,
        });
        if of_accounts {
            stage.scope = Scope::Accounts(ProviderId::new("p0").unwrap());
        }
        for (number, known) in known.into_iter().enumerate() {
            stage.put(number, known);
        }
        for purpose in [
            TurnPurpose::RoundRobin,
            TurnPurpose::Weighted,
            TurnPurpose::StrictRandom,
            TurnPurpose::Tie,
        ] {
            stage.set_turn(purpose, turn);
        }
        stage
    }
}

impl Stage {
    fn put(&mut self, number: usize, known: Known) {
        let [provider, model, account] = known.names;
        self.actors.push(Actor {
            // Some have the same key, as nothing forbids.
            key: format!("k{}", number / 2),
            provider: ProviderId::new(format!("p{provider}")).unwrap(),
            model: ModelId::new(format!("m{model}")).unwrap(),
            connection: known
                .has_connection
                .then(|| connection(&format!("c{account}"))),
            group: known.group,
            weight: known.weight,
            eligible: known.eligible,
            phase: known.phase,
            target_requests: known.requests,
            connection_requests: known.requests.unwrap_or(0),
            performance: known.performance,
            combo_performance: known.performance,
            quota: known.quota,
            info: known.info,
            ..Actor::new("A")
        });
    }

    /// The order of a strategy from the turns as they are, and the same after the layers.
    fn both_orders(&self, strategy: Strategy) -> [Vec<usize>; 2] {
        let turns = self.counters.turns.borrow().clone();
        let result = self.ask(|question| {
            let walked: Vec<usize> = of(strategy).walk(question).unwrap().collect();
            assert_permutation(&walked, question.candidates.len());
            let ordered = of(strategy).order(question).unwrap();
            let mut layered = ordered.clone();
            layers::apply(&mut layered, question, strategy);
            [ordered.order, layered.order]
        });
        *self.counters.turns.borrow_mut() = turns;
        result
    }
}

fn assert_permutation(order: &[usize], count: usize) {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..count).collect::<Vec<_>>());
}

proptest! {
    #[test]
    fn every_strategy_gives_every_candidate_once_and_the_same_for_the_same(stage in stages()) {
        for strategy in Strategy::ALL.iter().copied() {
            let orders = stage.both_orders(strategy);
            for order in &orders {
                assert_permutation(order, stage.actors.len());
            }
            prop_assert_eq!(&stage.both_orders(strategy), &orders, "{:?}", strategy);
        }
    }

    #[test]
    fn the_rotation_goes_on_from_the_one_that_served(
        next in 0..1_u64 << 40,
        limit in 1..=1_000_u32,
        count in 1..50_usize,
        served in 0..50_usize,
    ) {
        let served = served % count;
        let raised = served_position(next, limit, count, served);
        prop_assert!(raised >= next);
        let rounds = u64::from(limit) * u64::try_from(count).unwrap();
        prop_assert!(raised <= next + rounds + u64::from(limit));
        let block = (raised - 1) / u64::from(limit);
        prop_assert_eq!(block % u64::try_from(count).unwrap(), u64::try_from(served).unwrap());
    }
}

//! Vectors and properties of `quota-share`.

use proptest::prelude::*;
use rstest::rstest;

use crate::config::Strategy;
use crate::ids::{ConnectionId, ModelId, ProviderId};
use crate::number::Finite;
use crate::routing::strategy::stage::{Actor, NOW, Stage, seen};
use crate::routing::strategy::{Deficits, Scope};
use crate::telemetry::{Performance, QuotaSnapshot, QuotaWindow};
use crate::time::Timestamp;

use super::MAX_DEFICITS;

const NAMES: [&str; 4] = ["A", "B", "C", "D"];

fn stage(weights: &[f64]) -> Stage {
    let actors = NAMES.iter().zip(weights);
    Stage::new(
        actors
            .map(|(name, weight)| Actor::new(name).weight(*weight))
            .collect(),
    )
}

fn keys(stage: &Stage) -> String {
    stage.written(Strategy::QuotaShare)
}

/// Heads of as many requests, of which each ends before the next or none does.
fn heads(stage: &mut Stage, requests: usize, released: bool) -> String {
    let mut heads = String::new();
    for _ in 0..requests {
        let head = stage.head(Strategy::QuotaShare);
        let actor = &mut stage.actors[head];
        heads.push_str(&actor.key);
        if !released {
            actor.in_flight += 1;
        }
    }
    heads
}

fn window(used: f64, resets_at: Option<Timestamp>) -> QuotaWindow {
    QuotaWindow {
        used: Finite::new(used).unwrap(),
        resets_at,
        observed_at: None,
    }
}

#[rstest]
#[case::vector_routing_v_qs1(&[2.0, 1.0], true, "ABAABAABA")]
#[case::vector_routing_v_qs2(&[50.0, 30.0, 20.0], true, "ABCAABACBA")]
#[case::vector_routing_v_qs3(&[1.0, 1.0, 1.0], true, "ABCABC")]
#[case::none_ends(&[3.0, 1.0], false, "ABB")]
#[case::no_weight_counts_as_one(&[0.0, -3.0, 1.0], true, "ABCABC")]
#[case::fractions(&[0.2, 0.1], true, "ABAABAABA")]
#[case::one(&[1.0], true, "AA")]
fn accounts_are_dispatched_in_turn(
    #[case] weights: &[f64],
    #[case] released: bool,
    #[case] expected: &str,
) {
    let mut stage = stage(weights);
    assert_eq!(heads(&mut stage, expected.len(), released), expected);
}

#[test]
fn the_one_to_which_most_was_owed_pays_even_if_another_serves() {
    let mut stage = stage(&[3.0, 1.0]);
    heads(&mut stage, 2, false);
    let deficits = stage.counters.deficits();
    assert_eq!((deficits["A"], deficits["B"]), (-2_000, 2_000));
}

#[test]
fn vector_routing_v_qs5_an_account_at_its_cap_goes_behind() {
    let mut stage = stage(&[1.0, 1.0]);
    stage.actors[0].cap = Some(1);
    stage.actors[0].in_flight = 1;
    assert_eq!(keys(&stage), "BA");
    assert!(!stage.counters.deficits().contains_key("A"));
}

#[test]
fn vector_routing_v_qs6_at_the_cap_of_all_nobody_goes_behind() {
    let mut stage = stage(&[2.0, 1.0]);
    for actor in &mut stage.actors {
        actor.cap = Some(1);
        actor.in_flight = 1;
    }
    assert_eq!(heads(&mut stage, 9, true), "ABAABAABA");
}

#[test]
fn vector_routing_v_qs7_a_used_up_account_goes_behind_until_its_reset() {
    let mut stage = stage(&[1.0, 1.0]);
    let end = NOW.plus_ms(60_000);
    stage.actors[0].quota = Some(QuotaSnapshot {
        session: Some(window(1.0, Some(end))),
        ..seen()
    });
    assert_eq!(keys(&stage), "BA");
    stage.now = end;
    assert_eq!(keys(&stage), "AB");
}

#[test]
fn vector_routing_v_qs8_a_single_account_at_its_cap_is_used() {
    let mut stage = stage(&[1.0]);
    stage.actors[0].cap = Some(1);
    stage.actors[0].in_flight = 1;
    assert_eq!(keys(&stage), "A");
    assert_eq!(stage.counters.deficits()["A"], 0);
}

#[rstest]
#[case::weekly(QuotaSnapshot { weekly: Some(window(1.2, None)), ..seen() }, "BA")]
#[case::weekly_of_the_model(
    QuotaSnapshot {
        weekly_by_model: vec![(ModelId::new("ma").unwrap(), window(1.0, None))],
        ..seen()
    },
    "BA"
)]
#[case::weekly_of_another_model(
    QuotaSnapshot {
        weekly_by_model: vec![(ModelId::new("mb").unwrap(), window(1.0, None))],
        ..seen()
    },
    "AB"
)]
#[case::monthly_is_no_bucket(
    QuotaSnapshot { monthly: Some(window(1.0, None)), ..seen() },
    "AB"
)]
#[case::nearly(QuotaSnapshot { session: Some(window(0.999, None)), ..seen() }, "AB")]
fn buckets_say_who_is_used_up(#[case] quota: QuotaSnapshot, #[case] expected: &str) {
    let mut stage = stage(&[1.0, 1.0]);
    stage.actors[0].quota = Some(quota);
    assert_eq!(keys(&stage), expected);
}

#[test]
fn without_a_connection_nothing_is_used_up() {
    let mut stage = stage(&[1.0, 1.0]);
    stage.actors[0].quota = Some(QuotaSnapshot {
        session: Some(window(1.0, None)),
        ..seen()
    });
    stage.actors[0].connection = None;
    assert_eq!(keys(&stage), "AB");
}

#[test]
fn the_last_ones_stand_by_what_keeps_them_back() {
    let mut stage = stage(&[1.0, 1.0, 1.0, 1.0]);
    stage.actors[0].eligible = false;
    stage.actors[1].quota = Some(QuotaSnapshot {
        weekly: Some(window(1.0, None)),
        ..seen()
    });
    stage.actors[2].cap = Some(2);
    stage.actors[2].in_flight = 2;
    assert_eq!(keys(&stage), "DCBA");
    stage.actors[3].eligible = false;
    assert_eq!(keys(&stage), "CBAD");
}

#[test]
fn who_was_kept_back_has_no_claim_to_a_burst() {
    let mut stage = stage(&[1.0, 1.0]);
    stage.actors[0].eligible = false;
    heads(&mut stage, 100, true);
    stage.actors[0].eligible = true;
    assert_eq!(heads(&mut stage, 4, true), "ABAB");
}

#[test]
fn the_next_of_the_last_is_the_first() {
    let mut stage = stage(&[1.0, 1.0, 1.0]);
    assert_eq!(heads(&mut stage, 2, true), "AB");
    stage.actors[2].in_flight = 5;
    assert_eq!(keys(&stage), "ABC");
}

#[test]
fn debts_of_targets_that_are_gone_are_dropped_at_the_limit() {
    let stage = stage(&[1.0, 1.0]);
    let gone = (0..MAX_DEFICITS).map(|number| (format!("gone-{number}"), 7));
    stage.counters.owe(gone.collect());
    stage.head(Strategy::QuotaShare);
    let left: Vec<String> = stage.counters.deficits().keys().cloned().collect();
    assert_eq!(left, ["A", "B"]);
}

#[test]
fn accounts_of_a_provider_keep_their_order() {
    let mut stage = stage(&[1.0, 1.0]);
    stage.scope = Scope::Accounts(ProviderId::new("p").unwrap());
    let ordered = stage.order(Strategy::QuotaShare).unwrap();
    assert_eq!((ordered.order, ordered.charge), (vec![0, 1], None));
}

prop_compose! {
    fn actor()(
        weight in -1.0..100.0_f64,
        eligible in any::<bool>(),
        cap in proptest::option::of(1..3_u32),
        in_flight in 0..3_u32,
        used in proptest::option::of(0.5..1.5_f64),
        connected in any::<bool>(),
    ) -> Actor {
        Actor {
            eligible,
            cap,
            in_flight,
            quota: used.map(|used| QuotaSnapshot {
                weekly: Some(window(used, None)),
                ..seen()
            }),
            connection: connected.then(|| ConnectionId::new("c").unwrap()),
            ..Actor::new("A").weight(weight)
        }
    }
}

proptest! {
    #[test]
    fn every_order_holds_everyone_once(actors in proptest::collection::vec(actor(), 0..12)) {
        let mut stage = Stage::new(actors);
        for (number, actor) in stage.actors.iter_mut().enumerate() {
            actor.key = format!("k{number}");
        }
        for _ in 0..5 {
            let mut order = stage.order(Strategy::QuotaShare).unwrap().order;
            order.sort_unstable();
            prop_assert_eq!(order, (0..stage.actors.len()).collect::<Vec<_>>());
            prop_assert_eq!(stage.counters.deficits().values().sum::<i64>(), 0);
        }
    }

    #[test]
    fn over_whole_rounds_each_gets_its_weight(
        weights in proptest::collection::vec(1..20_u32, 1..4),
        rounds in 1..4_u32,
    ) {
        let floats: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
        let mut stage = stage(&floats);
        let total = weights.iter().sum::<u32>() * rounds;
        let heads = heads(&mut stage, usize::try_from(total).unwrap(), true);
        for (name, weight) in NAMES.iter().zip(&weights) {
            let got = heads.matches(name).count();
            prop_assert_eq!(got, usize::try_from(weight * rounds).unwrap());
        }
        prop_assert!(stage.counters.deficits().values().all(|owed| *owed == 0));
    }
}

#[test]
fn what_was_sent_just_now_counts_unless_it_is_over_quickly() {
    let mut stage = stage(&[1.0, 1.0]);
    let a = stage.actors[0].connection.clone().unwrap();
    stage.counters.sent.insert(a, 1);
    assert_eq!(keys(&stage), "BA");
    // As much as telemetry tells of is not told twice.
    stage.actors[1].in_flight = 1;
    stage.counters.owe(Deficits::new());
    assert_eq!(keys(&stage), "AB");
    stage.actors[1].in_flight = 0;
    stage.counters.owe(Deficits::new());
    stage.actors[0].performance = Some(Performance {
        requests: 3,
        mean_latency_ms: 999.0,
        ..Performance::default()
    });
    assert_eq!(keys(&stage), "AB");
}

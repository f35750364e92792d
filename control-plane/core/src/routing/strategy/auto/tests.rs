//! Vectors and properties of `auto`.

use rstest::rstest;

use crate::breaker::Phase;
use crate::catalogue::{ModelInfo, Tier};
use crate::config::Strategy;
use crate::ids::ProviderId;
use crate::number::Finite;
use crate::routing::strategy::stage::{Actor, NOW, Stage, seen};
use crate::routing::{ExclusionReason, Rejection};
use crate::telemetry::{LastKnownGood, Performance, QuotaSnapshot, QuotaWindow};

use super::allowance::Allowance;
use super::weights::Pack;
use super::*;

mod budget_and_agreement;

const HALF_OPEN: Phase = Phase::HalfOpen { probe_out: false };
const OPEN: Phase = Phase::Open { retry_after_ms: 1 };

fn finite(number: f64) -> Finite {
    Finite::new(number).unwrap()
}

/// A reading of which only what the tables name is told.
fn reading(left: f64, cost: f64, p95_ms: f64, std_dev_ms: f64) -> Reading {
    Reading {
        eligible: true,
        phase: Phase::Closed,
        accounts: 1,
        rests_until: None,
        allowance: Allowance {
            left,
            unreadable: false,
            returns_at: None,
            interval_secs: 86_400.0,
        },
        reset_window_affinity: 0.5,
        cost,
        p95_ms,
        std_dev_ms,
        failure_rate: None,
        tier: Tier::Standard,
        tier_affinity: 0.5,
        task_fit: 0.5,
        specificity_match: 0.5,
        context_affinity: 0.5,
        cache_affinity: 0.0,
    }
}

/// The table of `routing.md` §9.7.
fn table() -> [Reading; 3] {
    [
        Reading {
            task_fit: 0.9,
            tier: Tier::Pro,
            failure_rate: Some(0.02),
            ..reading(0.8, 10.0, 2_000.0, 200.0)
        },
        Reading {
            task_fit: 0.6,
            tier: Tier::Free,
            accounts: 3,
            failure_rate: Some(0.10),
            ..reading(0.4, 1.0, 1_000.0, 100.0)
        },
        Reading {
            phase: HALF_OPEN,
            task_fit: 0.8,
            tier: Tier::Ultra,
            failure_rate: Some(0.0),
            context_affinity: 1.0,
            ..reading(1.0, 5.0, 4_000.0, 800.0)
        },
    ]
}

#[rstest]
#[case::vector_routing_v_au1(None, [0.6050, 0.6721, 0.5606], "BAC")]
#[case::vector_routing_v_au2(Some(Pack::ShipFast), [0.7147, 0.7288, 0.4711], "BAC")]
#[case::vector_routing_v_au3(Some(Pack::CostSaver), [0.5313, 0.7614, 0.5712], "BCA")]
#[case::vector_routing_v_au4(Some(Pack::QualityFirst), [0.7919, 0.7030, 0.5767], "ABC")]
#[case::vector_routing_v_au5(Some(Pack::OfflineFriendly), [0.7423, 0.6878, 0.6284], "ABC")]
#[case::vector_routing_v_au6(Some(Pack::ReliabilityFirst), [0.8124, 0.7821, 0.4998], "ABC")]
#[case::vector_routing_v_au7(Some(Pack::Chaos), [0.8387, 0.8101, 0.5072], "ABC")]
fn factors_and_weights_make_scores(
    #[case] pack: Option<Pack>,
    #[case] expected: [f64; 3],
    #[case] order: &str,
) {
    let readings = table();
    let largest = Largest::of(readings.iter());
    let weights = pack.map_or_else(Weights::default, Weights::pack);
    let scores = readings
        .each_ref()
        .map(|reading| weights.score(&largest.factors(reading)));
    for (score, expected) in scores.iter().zip(expected) {
        assert!((score - expected).abs() <= 0.000_05 + 1e-9, "{scores:?}");
    }
    let mut names = ['A', 'B', 'C'].into_iter().zip(scores).collect::<Vec<_>>();
    names.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    assert_eq!(
        names.iter().map(|(name, _)| *name).collect::<String>(),
        order
    );
}

#[rstest]
#[case::in_order(&|_: &mut Reading| {}, 1.0)]
#[case::excluded(&|reading: &mut Reading| reading.eligible = false, 0.5)]
#[case::unreadable(&|reading: &mut Reading| reading.allowance.unreadable = true, 0.5)]
#[case::both(
    &|reading: &mut Reading| {
        reading.eligible = false;
        reading.allowance.unreadable = true;
    },
    0.25
)]
fn who_is_in_a_bad_way_scores_less(#[case] change: &dyn Fn(&mut Reading), #[case] expected: f64) {
    let mut reading = reading(1.0, 1.0, 1.0, 1.0);
    change(&mut reading);
    assert_eq!(factors::multiplier(&reading), expected);
}

/// Candidates of one cost whose scores are about these: only the quota counts.
fn scored(scores: &[f64]) -> Stage {
    let actors = ["W", "X", "Y", "Z"].iter().zip(scores);
    let mut stage = Stage::new(
        actors
            .map(|(name, score)| Actor {
                quota: Some(QuotaSnapshot {
                    used: Some(finite(1.0 - score)),
                    ..seen()
                }),
                ..Actor::new(name)
            })
            .collect(),
    );
    let weights = [("quota".to_owned(), Finite::ONE)];
    stage.config.auto = Some(AutoConfig {
        weights: Some(weights.into()),
        exploration_rate: Some(Finite::ZERO),
        ..AutoConfig::default()
    });
    stage
}

fn auto(stage: &mut Stage) -> &mut AutoConfig {
    stage.config.auto.get_or_insert_default()
}

fn keys(stage: &Stage) -> String {
    stage.written(Strategy::Auto)
}

/// How often each is the head of the order, over as many seeds.
fn heads(stage: &mut Stage, requests: u32) -> [u32; 4] {
    let mut heads = [0; 4];
    for seed in 0..requests {
        stage.seed = seed.into();
        heads[stage.head(Strategy::Auto)] += 1;
    }
    heads
}

fn refusal(stage: &Stage) -> Rejection {
    match stage.order(Strategy::Auto) {
        Err(Halt::Reject(rejection)) => *rejection,
        other => panic!("{other:?}"),
    }
}

#[test]
fn vector_routing_v_au8_close_scores_share_the_requests() {
    let mut stage = scored(&[0.66, 0.655, 0.62, 0.60]);
    let [w, x, y, z] = heads(&mut stage, 10_000);
    assert!((4_300..4_700).contains(&w), "{w}");
    assert!((3_300..3_700).contains(&x), "{x}");
    assert!((1_800..2_200).contains(&(y + z)), "{y} {z}");
    assert!(y.abs_diff(z) <= 1, "{y} {z}");
}

#[test]
fn vector_routing_v_au9_a_clear_winner_gets_them_all() {
    let mut stage = scored(&[0.66, 0.655, 0.62, 0.55]);
    assert_eq!(heads(&mut stage, 1_000), [1_000, 0, 0, 0]);
    assert_eq!(keys(&stage), "WXYZ");
}

#[test]
fn equals_take_turns() {
    let mut stage = scored(&[0.5, 0.5, 0.5, 0.2]);
    assert_eq!(heads(&mut stage, 9), [3, 3, 3, 0]);
}

#[test]
fn any_candidate_is_explored_now_and_then() {
    let mut stage = scored(&[0.9, 0.6, 0.5, 0.4]);
    auto(&mut stage).exploration_rate = None;
    let share = |stage: &mut Stage| {
        let [w, others @ ..] = heads(stage, 20_000);
        assert!(others.iter().all(|head| *head > 0), "{others:?}");
        f64::from(20_000 - w) / 20_000.0 / 0.75
    };
    assert!((share(&mut stage) - 0.05).abs() < 0.01);
    let mut smart = stage.named("auto/smart");
    assert!((share(&mut smart) - 0.10).abs() < 0.01);
}

#[test]
fn in_an_incident_nothing_is_explored() {
    let mut stage = scored(&[0.9, 0.6, 0.5, 0.4]);
    auto(&mut stage).exploration_rate = Some(Finite::ONE);
    for actor in &mut stage.actors[2..] {
        actor.phase = OPEN;
    }
    let [_, x, ..] = heads(&mut stage, 100);
    assert!(x > 20, "{x}");
    stage.actors[1].phase = OPEN;
    stage.actors[1].eligible = false;
    assert_eq!(heads(&mut stage, 100), [100, 0, 0, 0]);
}

#[rstest]
#[case::score("score", "W")]
#[case::cost("cost", "Z")]
#[case::eco("eco", "Z")]
#[case::latency("latency", "Y")]
#[case::fast("fast", "Y")]
#[case::last_known_good("lkgp", "X")]
#[case::rules("rules", "W")]
#[case::elsewhere("nadir", "W")]
#[case::unknown("?", "W")]
fn the_router_picks(#[case] router: &str, #[case] expected: &str) {
    let mut stage = scored(&[0.9, 0.6, 0.5, 0.4]);
    auto(&mut stage).router = Some(router.to_owned());
    stage.actors[3].info.input_price = Some(finite(0.5));
    for (actor, (p95_ms, success_rate)) in
        stage
            .actors
            .iter_mut()
            .zip([(900.0, 1.0), (500.0, 0.5), (800.0, 1.0), (700.0, 0.8)])
    {
        actor.performance = Some(Performance {
            requests: 10,
            success_rate: Some(success_rate),
            mean_latency_ms: 1.0,
            p95_latency_ms: p95_ms,
            latency_std_dev_ms: 1.0,
        });
    }
    stage.last_known_good = Some(LastKnownGood {
        provider: ProviderId::new("px").unwrap(),
        connection: None,
        at: NOW,
    });
    let rest: String = "WXYZ"
        .chars()
        .filter(|name| !expected.contains(*name))
        .collect();
    assert_eq!(keys(&stage), format!("{expected}{rest}"));
}

#[rstest]
#[case::of_a_provider_that_is_gone("pq", false)]
#[case::behind_an_open_breaker("px", true)]
fn without_the_last_known_good_one_the_rules_decide(#[case] provider: &str, #[case] open: bool) {
    let mut stage = scored(&[0.9, 0.6, 0.5]);
    auto(&mut stage).router = Some("lkgp".to_owned());
    stage.last_known_good = Some(LastKnownGood {
        provider: ProviderId::new(provider).unwrap(),
        connection: None,
        at: NOW,
    });
    if open {
        stage.actors[1].phase = OPEN;
    }
    assert_eq!(stage.head(Strategy::Auto), 0);
}

#[rstest]
#[case::all_well(&|_: &mut Stage| {}, "WXYZ")]
#[case::excluded_by_a_gate(&|stage: &mut Stage| stage.actors[0].eligible = false, "XYZW")]
#[case::open(&|stage: &mut Stage| stage.actors[0].phase = OPEN, "XYZW")]
#[case::resting(
    &|stage: &mut Stage| stage.actors[0].adaptation_until = Some(NOW.plus_ms(1)),
    "XYZW"
)]
#[case::rested(&|stage: &mut Stage| stage.actors[0].adaptation_until = Some(NOW), "WXYZ")]
#[case::probing(&|stage: &mut Stage| stage.actors[0].phase = HALF_OPEN, "WXYZ")]
#[case::another_pool(
    &|stage: &mut Stage| auto(stage).candidate_pool = vec!["py".to_owned(), "pz".to_owned()],
    "YZWX"
)]
#[case::an_empty_pool(
    &|stage: &mut Stage| auto(stage).candidate_pool = vec!["pq".to_owned()],
    "WXYZ"
)]
#[case::a_low_score(&|stage: &mut Stage| {
    for actor in &mut stage.actors[..3] {
        actor.eligible = false;
    }
    stage.actors[3].quota = Some(QuotaSnapshot {
        used: Some(finite(0.81)),
        ..seen()
    });
}, "ZWXY")]
fn some_are_not_picked(#[case] change: &dyn Fn(&mut Stage), #[case] expected: &str) {
    let mut stage = scored(&[0.95, 0.8, 0.65, 0.5]);
    change(&mut stage);
    assert_eq!(keys(&stage), expected);
}

#[test]
fn who_scores_too_low_is_not_picked_while_another_is_well() {
    let mut stage = scored(&[0.19, 0.21]);
    auto(&mut stage).exploration_rate = Some(Finite::ONE);
    assert_eq!(heads(&mut stage, 50), [0, 50, 0, 0]);
    let mut both = scored(&[0.19, 0.20]);
    auto(&mut both).exploration_rate = Some(Finite::ONE);
    both.actors[1].eligible = false;
    assert_eq!(heads(&mut both, 50), [50, 0, 0, 0]);
}

#[test]
fn below_the_quota_cut_off_nobody_is_used() {
    let mut stage = scored(&[0.9, 0.2, 0.5, 0.4]);
    auto(&mut stage).quota_cutoff_percent = Some(finite(40.0));
    let ordered = stage.order(Strategy::Auto).unwrap();
    assert_eq!((ordered.order, ordered.usable), (vec![0, 2, 3, 1], 3));
    auto(&mut stage).quota_cutoff_percent = Some(finite(95.0));
    for (actor, ends_in_ms) in stage.actors.iter_mut().zip([60_000, 10_500, 0, 90_000]) {
        actor.quota = Some(QuotaSnapshot {
            weekly: Some(QuotaWindow {
                used: finite(0.5),
                resets_at: Some(NOW.plus_ms(ends_in_ms)),
                observed_at: None,
            }),
            monthly: Some(QuotaWindow {
                used: finite(0.2),
                resets_at: None,
                observed_at: None,
            }),
            ..seen()
        });
    }
    let rejection = refusal(&stage);
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (429, "quota_cutoff")
    );
    // An account is back when each of its windows that are below the cut-off began anew.
    for (actor, ends_in_ms) in stage.actors.iter_mut().zip([60_000, 10_500, 0, 90_000]) {
        let quota = actor.quota.as_mut().unwrap();
        quota.monthly = Some(QuotaWindow {
            used: finite(0.1),
            resets_at: Some(NOW.plus_ms(ends_in_ms + 20_000)),
            observed_at: None,
        });
    }
    assert_eq!(refusal(&stage).retry_after_secs, Some(20));
    assert_eq!(rejection.pool_size, 4);
}

#[test]
fn exactly_at_the_cut_off_an_account_is_used() {
    // 0.1 of 1 is not exactly a tenth.
    let mut stage = scored(&[0.1, 0.099]);
    auto(&mut stage).quota_cutoff_percent = Some(finite(10.0));
    let ordered = stage.order(Strategy::Auto).unwrap();
    assert_eq!((ordered.order, ordered.usable), (vec![0, 1], 1));
}

#[test]
fn exactly_at_the_least_score_a_target_is_well() {
    let mut stage = scored(&[0.2, 0.9]);
    stage.actors[0].quota.as_mut().unwrap().used = Some(finite(0.8));
    auto(&mut stage).exploration_rate = Some(Finite::ONE);
    let [low, high, ..] = heads(&mut stage, 100);
    assert!(low > 20 && high > 20, "{low} {high}");
}

#[test]
fn what_a_gate_excludes_is_no_reason_not_to_refuse() {
    // A could be used but for the cut-off; of B nothing is known but that a gate excludes it.
    let mut stage = scored(&[0.3, 0.9]);
    stage.actors[1].eligible = false;
    auto(&mut stage).quota_cutoff_percent = Some(finite(50.0));
    stage.actors[0].quota.as_mut().unwrap().resets_at = Some(NOW.plus_ms(7_000));
    let rejection = refusal(&stage);
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (429, Some(7))
    );
    // When gates exclude all, what they say counts.
    stage.actors[0].eligible = false;
    assert_eq!(stage.order(Strategy::Auto).unwrap().order, [1, 0]);
}

#[test]
fn the_router_score_explores_who_is_not_of_the_pool_too() {
    let mut stage = scored(&[0.9, 0.6, 0.5, 0.4]);
    auto(&mut stage).router = Some("score".to_owned());
    auto(&mut stage).exploration_rate = Some(Finite::ONE);
    auto(&mut stage).candidate_pool = vec!["pw".to_owned()];
    stage.actors[3].eligible = false;
    let [w, x, y, z] = heads(&mut stage, 300);
    assert!([w, x, y].iter().all(|head| *head > 60), "{w} {x} {y}");
    assert_eq!(z, 0);
    auto(&mut stage).router = Some("rules".to_owned());
    assert_eq!(heads(&mut stage, 50), [50, 0, 0, 0]);
}

#[test]
fn layers_may_move_what_is_of_the_pool_and_nothing_else() {
    let mut stage = scored(&[0.9, 0.6, 0.5, 0.4]);
    auto(&mut stage).candidate_pool = vec!["pw".to_owned(), "px".to_owned()];
    assert_eq!(stage.order(Strategy::Auto).unwrap().movable, 2);
}

#[test]
fn the_mode_of_the_request_chooses_the_weights() {
    let mut stage = scored(&[0.9, 0.6, 0.5, 0.4]);
    stage.actors[3].info.input_price = Some(Finite::ZERO);
    assert_eq!(stage.head(Strategy::Auto), 0);
    stage.facts.mode = Some("cheap".to_owned());
    assert_eq!(stage.head(Strategy::Auto), 3);
    stage.facts.mode = Some("who knows".to_owned());
    assert_eq!(stage.head(Strategy::Auto), 0);
}

#[test]
fn unpinned_targets_are_expanded() {
    assert!(Auto.expands_accounts());
    assert_eq!(Stage::of("").written(Strategy::Auto), "");
}

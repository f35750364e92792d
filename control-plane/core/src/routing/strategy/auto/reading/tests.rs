//! What is assumed where nothing is known.

use rstest::rstest;

use crate::ids::ModelId;
use crate::routing::strategy::stage::{Actor, NOW, Stage, seen};
use crate::telemetry::{QuotaSnapshot, QuotaWindow};

use super::*;

fn performance(requests: u64, p95_ms: f64, std_dev_ms: f64, success_rate: f64) -> Performance {
    Performance {
        requests,
        success_rate: Some(success_rate),
        mean_latency_ms: p95_ms / 2.0,
        p95_latency_ms: p95_ms,
        latency_std_dev_ms: std_dev_ms,
    }
}

fn first(actors: Vec<Actor>) -> Reading {
    Stage::new(actors)
        .ask(|question| read(question, true))
        .remove(0)
}

fn finite(number: f64) -> Finite {
    Finite::new(number).unwrap()
}

#[rstest]
#[case::nothing_known(None, None, (1_500.0, 150.0, None))]
#[case::own_history(Some(performance(10, 800.0, 90.0, 0.9)), None, (800.0, 90.0, Some(0.1)))]
#[case::too_little_of_it(
    Some(performance(9, 800.0, 90.0, 0.9)),
    Some(performance(1, 600.0, 60.0, 0.5)),
    (600.0, 60.0, Some(0.5))
)]
#[case::steady(Some(performance(10, 800.0, 0.0, 1.0)), None, (800.0, 10.0, Some(0.0)))]
#[case::nothing_succeeded(Some(performance(10, 0.0, 0.0, 0.0)), None, (1_500.0, 150.0, Some(1.0)))]
#[case::ended_without_a_verdict(
    None,
    Some(Performance { requests: 1, ..Performance::default() }),
    (1_500.0, 150.0, None)
)]
#[case::no_numbers(
    Some(performance(10, f64::INFINITY, f64::NAN, f64::NAN)),
    None,
    (1_500.0, 150.0, None)
)]
#[case::no_deviation(Some(performance(10, 800.0, f64::NAN, 2.0)), None, (800.0, 80.0, Some(0.0)))]
fn performance_is_read(
    #[case] own: Option<Performance>,
    #[case] of_combo: Option<Performance>,
    #[case] expected: (f64, f64, Option<f64>),
) {
    let (p95_ms, std_dev_ms, failure_rate) = expected;
    let reading = first(vec![Actor {
        performance: own,
        combo_performance: of_combo,
        ..Actor::new("A")
    }]);
    assert_eq!((reading.p95_ms, reading.std_dev_ms), (p95_ms, std_dev_ms));
    let close = |(one, other): (f64, f64)| (one - other).abs() < 1e-9;
    assert_eq!(reading.failure_rate.is_some(), failure_rate.is_some());
    assert!(reading.failure_rate.zip(failure_rate).is_none_or(close));
}

#[test]
fn an_unknown_latency_is_the_median_of_the_known_ones() {
    let known = |name, p95_ms| Actor {
        performance: Some(performance(20, p95_ms, 5.0, 1.0)),
        ..Actor::new(name)
    };
    let reading = first(vec![
        Actor::new("A"),
        known("B", 9_000.0),
        known("C", 300.0),
        known("D", 400.0),
    ]);
    assert_eq!((reading.p95_ms, reading.std_dev_ms), (400.0, 40.0));
}

#[rstest]
#[case::unknown(None, None, 1.0)]
#[case::both(Some(finite(10.0)), Some(finite(20.0)), 14.0)]
#[case::only_input(Some(finite(3.0)), None, 3.0)]
#[case::only_output(None, Some(finite(4.0)), 4.0)]
#[case::free(Some(finite(0.0)), Some(finite(0.0)), 0.0)]
fn prices_make_a_cost(
    #[case] input_price: Option<Finite>,
    #[case] output_price: Option<Finite>,
    #[case] expected: f64,
) {
    let info = ModelInfo {
        input_price,
        output_price,
        ..ModelInfo::default()
    };
    assert_eq!(cost(&info), expected);
}

#[rstest]
#[case::anything(Intent::General, [None, None, None], 0.5, 0.5)]
#[case::general(Intent::General, [Some(finite(0.9)), None, Some(finite(0.7))], 0.7, 0.5)]
#[case::made_for_it(Intent::Coding, [Some(finite(0.9)), Some(finite(0.6)), Some(finite(0.7))], 0.9, 0.9)]
#[case::made_for_something_else(Intent::Coding, [Some(finite(0.5)), Some(finite(0.6)), Some(finite(0.7))], 0.5, 0.3)]
#[case::not_fit(Intent::Analysis, [Some(finite(0.5)), Some(finite(0.0)), None], 0.0, 0.2)]
#[case::fit_for_anything(Intent::Analysis, [None, None, Some(finite(0.8))], 0.8, 0.3)]
#[case::unknown(Intent::Coding, [None, None, None], 0.5, 0.3)]
fn fitness_is_stated_by_the_catalogue(
    #[case] intent: Intent,
    #[case] stated: [Option<Finite>; 3],
    #[case] fit: f64,
    #[case] specificity: f64,
) {
    let [coding, analysis, general] = stated;
    let info = ModelInfo {
        coding,
        analysis,
        general,
        ..ModelInfo::default()
    };
    assert_eq!(task_fit(&info, intent), fit);
    assert!((specificity_match(&info, intent) - specificity).abs() < 1e-12);
}

#[rstest]
#[case::no_tag(&[], Some(Tier::Ultra), 0.5)]
#[case::other_tags(&["eu"], Some(Tier::Ultra), 0.5)]
#[case::the_same(&["eu", "ultra"], Some(Tier::Ultra), 1.0)]
#[case::next(&["premium"], Some(Tier::Ultra), 0.7)]
#[case::unknown_is_standard(&["free"], None, 0.7)]
#[case::far(&["free"], Some(Tier::Pro), 0.3)]
fn a_tag_names_the_class_that_is_wanted(
    #[case] tags: &[&str],
    #[case] tier: Option<Tier>,
    #[case] expected: f64,
) {
    let mut stage = Stage::new(vec![Actor {
        info: ModelInfo {
            tier,
            ..ModelInfo::default()
        },
        ..Actor::new("A")
    }]);
    stage.facts.tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    let readings = stage.ask(|question| read(question, false));
    assert_eq!(readings[0].tier_affinity, expected);
}

#[rstest]
#[case::no_session(None, Some("ca"), [0.5, 0.5, 0.5])]
#[case::unknown_session(Some("s"), None, [0.5, 0.5, 0.5])]
#[case::bound(Some("s"), Some("ca"), [1.0, 0.1, 0.5])]
fn a_conversation_is_bound_to_a_connection(
    #[case] session: Option<&str>,
    #[case] connection: Option<&str>,
    #[case] expected: [f64; 3],
) {
    let unpinned = Actor {
        connection: None,
        ..Actor::new("C")
    };
    let mut stage = Stage::new(vec![Actor::new("A"), Actor::new("B"), unpinned]);
    stage.facts.session = session.map(str::to_owned);
    if let Some(name) = connection {
        let connection = ConnectionId::new(name).unwrap();
        stage.sessions.insert("s".to_owned(), connection);
    }
    let readings = stage.ask(|question| read(question, false));
    let found: Vec<f64> = readings
        .iter()
        .map(|reading| reading.context_affinity)
        .collect();
    assert_eq!(found, expected);
}

#[rstest]
#[case::by_key(Some("pk-123"), true, Some(2))]
#[case::by_another_key(Some("pk-456"), true, Some(1))]
#[case::no_key(None, true, None)]
#[case::nobody_asks(Some("pk-123"), false, None)]
fn one_keeps_the_prompt_in_its_cache(
    #[case] key: Option<&str>,
    #[case] counts: bool,
    #[case] expected: Option<usize>,
) {
    let actors = ["acc-1", "acc-2", "acc-3"].map(|name| Actor {
        connection: Some(ConnectionId::new(name).unwrap()),
        ..Actor::new(name)
    });
    let mut stage = Stage::new(actors.to_vec());
    stage.facts.cache_key = key.map(str::to_owned);
    let readings = stage.ask(|question| read(question, counts));
    let winners: Vec<usize> = (0..3)
        .filter(|index| readings[*index].cache_affinity > 0.0)
        .collect();
    assert_eq!(winners, Vec::from_iter(expected));
}

#[test]
fn quotas_that_are_soon_lost_are_urgent() {
    let ends_in = |ms| QuotaWindow {
        used: Finite::ZERO,
        resets_at: Some(NOW.plus_ms(ms)),
        observed_at: None,
    };
    let reading = first(vec![Actor {
        quota: Some(QuotaSnapshot {
            session: Some(ends_in(9_000_000)),
            weekly: Some(ends_in(0)),
            ..seen()
        }),
        ..Actor::new("A")
    }]);
    // Half of the session is over; the week is.
    assert!((reading.reset_window_affinity - (0.35 * 0.5 + 0.65)).abs() < 1e-9);
    assert_eq!(first(vec![Actor::new("A")]).reset_window_affinity, 0.5);
}

mod allowances {
    use super::*;

    fn window(used: f64, ends_in_ms: Option<u64>) -> QuotaWindow {
        QuotaWindow {
            used: finite(used),
            resets_at: ends_in_ms.map(|ms| NOW.plus_ms(ms)),
            observed_at: None,
        }
    }

    fn snapshot() -> QuotaSnapshot {
        seen()
    }

    #[rstest]
    #[case::nothing_said(snapshot(), 1.0)]
    #[case::overall(QuotaSnapshot { used: Some(finite(0.3)), ..snapshot() }, 0.7)]
    #[case::the_tightest(
        QuotaSnapshot { session: Some(window(0.2, None)), weekly: Some(window(0.9, None)), ..snapshot() },
        0.1
    )]
    #[case::over(QuotaSnapshot { monthly: Some(window(1.5, None)), ..snapshot() }, 0.0)]
    #[case::begun_anew(
        QuotaSnapshot { session: Some(window(1.0, Some(0))), weekly: Some(window(0.4, Some(1))), ..snapshot() },
        0.6
    )]
    #[case::of_the_model(
        QuotaSnapshot {
            weekly_by_model: vec![(ModelId::new("ma").unwrap(), window(0.8, None))],
            ..snapshot()
        },
        0.2
    )]
    #[case::of_another_model(
        QuotaSnapshot {
            weekly_by_model: vec![(ModelId::new("mb").unwrap(), window(0.8, None))],
            ..snapshot()
        },
        1.0
    )]
    #[case::limit_reached(
        QuotaSnapshot { limit_reached: true, session: Some(window(0.1, Some(1))), ..snapshot() },
        0.0
    )]
    #[case::unreadable(QuotaSnapshot { unreadable: true, ..snapshot() }, 0.0)]
    fn what_is_left_is_that_of_the_tightest_window(
        #[case] quota: QuotaSnapshot,
        #[case] expected: f64,
    ) {
        let model = ModelId::new("ma").unwrap();
        let allowance = Allowance::of(Some(&quota), &model, 0.0, NOW);
        assert!((allowance.left - expected).abs() < 1e-12, "{allowance:?}");
        assert_eq!(allowance.unreadable, quota.unreadable);
    }

    #[rstest]
    #[case::unknown(snapshot(), 86_400.0)]
    #[case::session(QuotaSnapshot { session: Some(window(0.0, None)), weekly: Some(window(0.0, None)), ..snapshot() }, 18_000.0)]
    #[case::weekly(QuotaSnapshot { weekly: Some(window(0.0, None)), ..snapshot() }, 604_800.0)]
    #[case::monthly(QuotaSnapshot { monthly: Some(window(0.0, None)), ..snapshot() }, 2_592_000.0)]
    fn the_shortest_window_is_the_interval(#[case] quota: QuotaSnapshot, #[case] expected: f64) {
        let model = ModelId::new("ma").unwrap();
        let allowance = Allowance::of(Some(&quota), &model, 0.0, NOW);
        assert_eq!(allowance.interval_secs, expected);
    }
}

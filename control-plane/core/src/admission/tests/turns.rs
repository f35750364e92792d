//! Who goes first of several data planes that wait.

use super::*;

/// A data plane of which a request waits.
fn waits(plane: u64) -> PlaneIncarnation {
    PlaneIncarnation(plane)
}

#[test]
fn a_place_that_comes_free_goes_to_the_data_plane_that_waits_longest() {
    let limits = PaceLimits {
        concurrent: Some(1),
        ..FREE
    };
    let mut pace = Pace::default();
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limits, at(0)),
        Admitted::Now
    );
    assert_eq!(look(&mut pace, waits(2), limits, at(1)), Admitted::Full);
    assert_eq!(look(&mut pace, waits(1), limits, at(2)), Admitted::Full);
    // The data plane that frees it hears of it first, and does not take it.
    pace.running().release(attempt(1, 1));
    assert_eq!(look(&mut pace, waits(1), limits, at(100)), Admitted::Full);
    assert_eq!(
        admit(&mut pace, attempt(1, 2), limits, at(100)),
        Admitted::Full
    );
    assert_eq!(
        admit(&mut pace, attempt(3, 1), limits, at(100)),
        Admitted::Full
    );
    assert_eq!(look(&mut pace, waits(2), limits, at(200)), Admitted::Now);
    assert_eq!(
        admit(&mut pace, attempt(2, 1), limits, at(210)),
        Admitted::Now
    );
    // It stands last now, and the other one is next.
    assert_eq!(look(&mut pace, waits(2), limits, at(211)), Admitted::Full);
    pace.running().release(attempt(2, 1));
    assert_eq!(look(&mut pace, waits(2), limits, at(212)), Admitted::Full);
    assert_eq!(look(&mut pace, waits(1), limits, at(300)), Admitted::Now);
    assert_eq!(
        admit(&mut pace, attempt(1, 3), limits, at(301)),
        Admitted::Now
    );
}

#[test]
fn data_planes_with_backlogs_take_turns() {
    let limits = PaceLimits {
        concurrent: Some(1),
        ..FREE
    };
    let mut pace = Pace::default();
    let mut went = Vec::new();
    let mut runs = attempt(1, 0);
    assert_eq!(admit(&mut pace, runs, limits, at(0)), Admitted::Now);
    for number in 1..=9 {
        let ends = at(2_000 * number);
        for before in [1_900, 1_300, 700, 100] {
            for plane in 1..=3 {
                let found = look(&mut pace, waits(plane), limits, ends.minus_ms(before));
                assert_eq!(found, Admitted::Full);
            }
        }
        pace.running().release(runs);
        // The one that ended it asks first, each time.
        let first = runs.plane.0;
        for plane in [first, first % 3 + 1, (first + 1) % 3 + 1] {
            let asks = attempt(plane, number);
            if look(&mut pace, asks.plane, limits, ends) == Admitted::Now
                && admit(&mut pace, asks, limits, ends.plus_ms(3)) == Admitted::Now
            {
                went.push(plane);
                runs = asks;
            }
        }
    }
    assert_eq!(went.len(), 9);
    for plane in 1..=3 {
        assert_eq!(
            went.iter().filter(|it| **it == plane).count(),
            3,
            "{went:?}"
        );
    }
}

#[rstest]
#[case::a_minute(PaceLimits { per_minute: Some(60), ..FREE }, 60)]
#[case::apart(PaceLimits { apart_ms: 1_000, ..FREE }, 1)]
fn whoever_waits_longest_goes_first_at_a_pace(#[case] limits: PaceLimits, #[case] burst: u64) {
    let mut pace = Pace::default();
    for number in 1..=burst {
        assert_eq!(
            admit(&mut pace, attempt(1, number), limits, at(0)),
            Admitted::Now
        );
    }
    let next = Admitted::NotBefore(at(1_000));
    let after = Admitted::NotBefore(at(2_000));
    assert_eq!(look(&mut pace, waits(2), limits, at(1)), next);
    assert_eq!(look(&mut pace, waits(1), limits, at(2)), after);
    let late = attempt(1, burst + 1);
    assert_eq!(admit(&mut pace, late, limits, at(1_000)), after);
    assert_eq!(look(&mut pace, waits(2), limits, at(1_005)), Admitted::Now);
    assert_eq!(
        admit(&mut pace, attempt(2, 1), limits, at(1_008)),
        Admitted::Now
    );
    let found = look(&mut pace, waits(2), limits, at(1_009));
    assert!(
        matches!(found, Admitted::NotBefore(then) if then > at(2_100)),
        "{found:?}"
    );
    assert_eq!(look(&mut pace, waits(1), limits, at(2_008)), Admitted::Now);
    assert_eq!(admit(&mut pace, late, limits, at(2_010)), Admitted::Now);
}

#[rstest]
#[case::at_once(PaceLimits { concurrent: Some(1), ..FREE })]
#[case::a_minute(PaceLimits { per_minute: Some(1), ..FREE })]
fn nothing_stays_free_for_long_for_one_that_left(#[case] limits: PaceLimits) {
    let mut pace = Pace::default();
    assert_eq!(look(&mut pace, waits(1), limits, at(0)), Admitted::Now);
    assert_ne!(
        admit(&mut pace, attempt(2, 1), limits, at(1)),
        Admitted::Now
    );
    assert!(pace.ends_at(limits) >= at(WORD_TTL_MS));
    let then = at(WORD_TTL_MS);
    assert_eq!(admit(&mut pace, attempt(2, 1), limits, then), Admitted::Now);
}

#[test]
fn a_word_lasts_as_long_as_its_data_plane_looks_and_is_seldom_said_again() {
    let limits = PaceLimits {
        concurrent: Some(1),
        ..FREE
    };
    let mut pace = Pace::default();
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limits, at(0)),
        Admitted::Now
    );
    let (mut writes, mut before) = (0, pace.clone());
    for ms in (200..=20_000).step_by(200) {
        assert_eq!(look(&mut pace, waits(1), limits, at(ms)), Admitted::Full);
        if ms > 1_000 {
            assert_eq!(look(&mut pace, waits(2), limits, at(ms)), Admitted::Full);
        }
        writes += u32::from(pace != before);
        before = pace.clone();
    }
    assert!(writes <= 50, "{writes}");
    pace.running().release(attempt(1, 1));
    assert_eq!(
        look(&mut pace, waits(2), limits, at(20_001)),
        Admitted::Full
    );
    assert_eq!(look(&mut pace, waits(1), limits, at(20_001)), Admitted::Now);
}

#[test]
fn only_so_many_data_planes_are_known_to_wait() {
    let limits = PaceLimits {
        concurrent: Some(1),
        ..FREE
    };
    let mut pace = Pace::default();
    for plane in 1..=1_000 {
        look(&mut pace, waits(plane), limits, at(0));
    }
    let bytes = serde_json::to_vec(&pace).unwrap().len();
    assert!(bytes < 8 * 1_024, "{bytes}");
}

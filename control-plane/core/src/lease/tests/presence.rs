//! The data plane's side alone.

use rstest::rstest;

use crate::lease::{Grant, Presence, RENEWALS_APART_MS, RegistrationNumbers};

use super::table::at;

const GRANT: Grant = Grant {
    lease_ms: 60_000,
    horizon_ms: 30_000,
    guard_ms: 2_000,
};

/// The first of its incarnation.
fn first() -> Presence {
    Presence::new(&RegistrationNumbers::of_new_incarnation())
}

/// One attempt has asked at 0, and is granted that.
fn asked(grant: Grant) -> Presence {
    let mut presence = first();
    let number = presence.ask();
    presence.granted(number, at(0), grant);
    presence
}

#[rstest]
#[case::the_horizon_is_near(GRANT, 28_000)]
#[case::the_lease_is_near(Grant { lease_ms: 5_000, ..GRANT }, 3_000)]
#[case::without_a_guard(Grant { guard_ms: 0, ..GRANT }, 30_000)]
#[case::nothing_is_left(Grant { lease_ms: 2_000, ..GRANT }, 0)]
fn nothing_starts_in_the_guard_before_an_end(#[case] grant: Grant, #[case] ms: u64) {
    let mut presence = asked(grant);
    assert!(!presence.start(at(ms)));
    assert_eq!(presence.may_start(at(ms.saturating_sub(1))), ms > 0);
}

#[test]
fn nothing_starts_that_has_not_asked_or_was_not_granted() {
    let mut presence = first();
    presence.ask();
    assert!(!presence.start(at(0)));
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    assert!(!presence.start(at(1)));
}

#[test]
fn with_the_authority_away_a_further_attempt_starts_on_what_was_granted() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    presence.ask();
    assert!(presence.start(at(27_999)));
    presence.ask();
    assert!(!presence.start(at(28_000)));
}

#[test]
fn what_is_in_flight_is_cut_at_the_horizon() {
    let mut presence = asked(GRANT);
    assert_eq!((presence.cut_at(), presence.renew_at()), (None, None));
    assert!(presence.start(at(1)));
    assert_eq!(
        (presence.cut_at(), presence.renew_at()),
        (Some(at(30_000)), Some(at(10_000)))
    );
}

#[test]
fn a_renewal_moves_renewal_and_cut() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    presence.granted(presence.number(), at(10_000), GRANT);
    assert_eq!(
        (presence.cut_at(), presence.renew_at()),
        (Some(at(40_000)), Some(at(20_000)))
    );
}

#[test]
fn an_older_answer_says_nothing() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    presence.granted(
        1,
        at(500),
        Grant {
            horizon_ms: 9_000,
            ..GRANT
        },
    );
    presence.granted(1, at(499), GRANT);
    assert_eq!(presence.cut_at(), Some(at(9_500)));
}

#[test]
fn renewals_keep_a_distance() {
    let mut presence = asked(Grant {
        horizon_ms: 1_500,
        ..GRANT
    });
    assert!(!presence.start(at(0)));
    let mut presence = asked(Grant {
        horizon_ms: 1_500,
        guard_ms: 100,
        ..GRANT
    });
    assert!(presence.start(at(0)));
    assert_eq!(presence.renew_at(), Some(at(RENEWALS_APART_MS)));
    assert_eq!(presence.cut_at(), Some(at(1_500)));
}

#[test]
fn vector_sessions_62_a_lease_that_is_extended_in_its_last_moments_is_heard_of() {
    // Without a drain: 600 ms are left of lease and horizon, and nothing renews before 100 ms are.
    let left = |ms: u64| Grant {
        lease_ms: ms,
        horizon_ms: ms,
        guard_ms: 500,
    };
    let mut presence = asked(left(600));
    assert!(presence.start(at(1)));
    let mut extended_after = None;
    while let Some(renew_at) = presence.renew_at() {
        if renew_at < at(500) {
            let ms = 600 - renew_at.ms_since(at(0));
            presence.granted(1, renew_at, left(ms));
        } else {
            extended_after = Some(renew_at);
            presence.granted(1, renew_at, GRANT);
            break;
        }
    }
    let extended_after = extended_after.unwrap();
    assert!(extended_after < at(600));
    assert_eq!(presence.cut_at(), Some(extended_after.plus_ms(30_000)));
}

#[rstest]
#[case::as_it_is_told(false)]
#[case::without_answers(true)]
fn the_last_questions_before_a_horizon_are_few(#[case] away: bool) {
    let grant = |ms: u64| Grant {
        lease_ms: 0,
        horizon_ms: ms,
        guard_ms: 0,
    };
    let mut presence = asked(Grant {
        lease_ms: 1_000,
        ..grant(1_000)
    });
    assert!(presence.start(at(0)));
    let mut asked_at = Vec::new();
    while let Some(renew_at) = presence.renew_at() {
        asked_at.push(renew_at.ms_since(at(0)));
        if away {
            presence.put_off_renewal(renew_at);
        } else {
            presence.granted(1, renew_at, grant(at(1_000).remaining_ms(renew_at)));
        }
    }
    assert_eq!(asked_at, [500, 750, 875, 937, 987]);
}

#[test]
fn a_renewal_without_an_answer_is_tried_again() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    presence.put_off_renewal(at(10_050));
    assert_eq!(presence.renew_at(), Some(at(11_050)));
}

#[test]
fn the_registration_is_deleted_when_nothing_is_in_flight_or_about_to_be() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    presence.ask();
    assert_eq!(presence.finish(), None);
    assert_eq!(presence.give_up(), Some(1));
    assert_eq!(presence.number(), 2);
}

#[test]
fn who_asks_after_a_delete_registers_anew() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    assert_eq!(presence.finish(), Some(1));
    assert_eq!(presence.ask(), 2);
    // An answer to what was deleted comes late.
    presence.granted(1, at(2), GRANT);
    assert!(!presence.start(at(3)));
    presence.granted(2, at(3), GRANT);
    assert!(presence.start(at(3)));
}

#[test]
fn a_lease_that_is_over_starts_nothing_and_lets_go_on_what_runs() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    presence.bar(at(5_000));
    let number = presence.ask();
    assert!(!presence.may_start(at(5_000)));
    presence.granted(number, at(4_999), GRANT);
    assert!(!presence.may_start(at(5_000)));
    assert_eq!(presence.cut_at(), Some(at(34_999)));
    presence.granted(number, at(5_000), GRANT);
    assert!(presence.may_start(at(5_000)));
}

#[test]
fn a_lost_registration_cuts_at_once() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    presence.lose(2, at(6), at(7));
    assert_eq!(presence.cut_at(), Some(at(30_000)));
    presence.lose(1, at(6), at(7));
    assert_eq!(
        (presence.cut_at(), presence.renew_at()),
        (Some(at(7)), None)
    );
    assert!(!presence.may_start(at(7)));
}

/// The clock goes on before what was cut has ended.
#[test]
fn nothing_is_renewed_after_a_loss() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    presence.lose(1, at(12_000), at(12_001));
    assert_eq!(
        (presence.cut_at(), presence.renew_at()),
        (Some(at(12_001)), None)
    );
}

#[test]
fn a_loss_that_was_asked_about_before_a_newer_grant_cuts_nothing() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    presence.granted(1, at(5_000), GRANT);
    presence.lose(1, at(4_999), at(5_001));
    assert_eq!(presence.cut_at(), Some(at(35_000)));
    presence.lose(1, at(5_000), at(5_001));
    assert_eq!(presence.cut_at(), Some(at(5_001)));
}

#[test]
fn a_grant_that_was_asked_for_before_a_loss_revives_nothing() {
    let mut presence = asked(GRANT);
    assert!(presence.start(at(1)));
    presence.lose(1, at(5_000), at(5_001));
    presence.granted(1, at(4_999), GRANT);
    assert_eq!(presence.cut_at(), Some(at(5_001)));
    assert!(!presence.may_start(at(5_001)));
}

#[test]
fn a_presence_that_is_made_anew_does_not_count_anew() {
    let numbers = RegistrationNumbers::of_new_incarnation();
    let mut presence = Presence::new(&numbers);
    let mut seen = Vec::new();
    for dropped in [false, true, false, true, true] {
        if dropped {
            presence = Presence::new(&numbers.clone());
        }
        let number = presence.ask();
        assert_eq!(presence.give_up(), Some(number));
        seen.push(number);
    }
    assert!(
        seen.is_sorted_by(|before, after| before < after),
        "{seen:?}"
    );
}

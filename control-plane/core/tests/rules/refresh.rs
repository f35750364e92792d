//! `failure-state.md` §3.9: when a token is refreshed, vector 41.

use rstest::rstest;
use tidegate_core::classify::{Reason, TerminalKind};
use tidegate_core::cooldown::{LastError, Terminal};
use tidegate_core::refresh::{FailedRefresh, MAX_PAUSE_MS, TokenCondition, TokenState};
use tidegate_core::settings::TokenRefreshSettings;
use tidegate_core::state::ConnectionState;
use tidegate_core::time::Timestamp;

const MINUTE_MS: u64 = 60_000;

#[rstest]
#[case::vector_failure_41(the_pause_doubles_and_the_third_failure_is_the_last)]
#[case::first(an_expired_connection_is_tried_at_once)]
#[case::off(nothing_is_tried_while_it_is_switched_off)]
#[case::ended(a_banned_account_is_left_alone)]
#[case::renewed(a_new_token_forgets_every_failure)]
#[case::absurd(absurd_numbers_do_not_overflow)]
fn schedule(#[case] run: fn()) {
    run();
}

fn the_pause_doubles_and_the_third_failure_is_the_last() {
    let settings = TokenRefreshSettings::default();
    let expired = TokenCondition::Expired;
    let mut token = TokenState {
        retries: 1,
        last_retry_at: Some(Timestamp(0)),
        ..TokenState::default()
    };
    assert!(!token.is_due(expired, &settings, Timestamp(599_999)));
    assert!(token.is_due(expired, &settings, Timestamp(600_000)));

    assert_eq!(
        token.fail(expired, Timestamp(600_000)),
        FailedRefresh::Counted
    );
    assert_eq!(token.retries, 2);
    let next = Timestamp(600_000 + 20 * MINUTE_MS);
    assert_eq!(token.next_attempt(expired, &settings), Some(next));
    assert!(!token.is_due(expired, &settings, next.minus_ms(1)));

    assert_eq!(token.fail(expired, next), FailedRefresh::Inactive);
    for condition in [
        expired,
        TokenCondition::Good,
        TokenCondition::Refused,
        TokenCondition::Missing,
    ] {
        assert_eq!(token.next_attempt(condition, &settings), None);
    }
}

fn an_expired_connection_is_tried_at_once() {
    let settings = TokenRefreshSettings::default();
    let mut token = TokenState::default();
    // A failure before it expired is no retry.
    assert_eq!(
        token.fail(TokenCondition::Good, Timestamp(1_000)),
        FailedRefresh::KeptActive
    );
    assert_eq!((token.retries, token.last_retry_at), (0, None));
    assert!(token.is_due(TokenCondition::Expired, &settings, Timestamp(1_001)));
    assert_eq!(
        token.fail(TokenCondition::Expired, Timestamp(2_000)),
        FailedRefresh::Counted
    );
    assert_eq!(
        token.next_attempt(TokenCondition::Expired, &settings),
        Some(Timestamp(2_000 + 10 * MINUTE_MS))
    );
}

fn nothing_is_tried_while_it_is_switched_off() {
    let settings = TokenRefreshSettings {
        enabled: false,
        ..TokenRefreshSettings::default()
    };
    let token = TokenState::default();
    assert_eq!(token.next_attempt(TokenCondition::Expired, &settings), None);
}

fn a_banned_account_is_left_alone() {
    let settings = TokenRefreshSettings::default();
    let token = TokenState::of_new_token(Timestamp(0), Some(1));
    assert_eq!(token.next_attempt(TokenCondition::Ended, &settings), None);
}

fn a_new_token_forgets_every_failure() {
    let mut token = TokenState::default();
    token.fail(TokenCondition::Expired, Timestamp(1));
    token.fail(TokenCondition::Good, Timestamp(2));
    assert_ne!(token, TokenState::default());
    let token = TokenState::of_new_token(Timestamp(10_000), Some(3_600_000));
    assert_eq!(
        (token.retries, token.failures, token.expires_at),
        (0, 0, Some(Timestamp(3_610_000)))
    );
}

fn absurd_numbers_do_not_overflow() {
    let settings = TokenRefreshSettings {
        sweep_interval_ms: u64::MAX,
        retry_base_ms: u64::MAX,
        margin_ms: u64::MAX,
        ..TokenRefreshSettings::default()
    };
    let token = TokenState {
        failures: u32::MAX,
        last_failure_at: Some(Timestamp(5)),
        retries: 2,
        last_retry_at: Some(Timestamp(5)),
        ..TokenState::of_new_token(Timestamp(u64::MAX - 1), Some(u64::MAX))
    };
    assert_eq!(
        token.next_attempt(TokenCondition::Refused, &settings),
        Some(Timestamp(5 + MAX_PAUSE_MS))
    );
    assert_eq!(
        token.next_attempt(TokenCondition::Expired, &settings),
        Some(Timestamp(u64::MAX))
    );
    assert!(
        token
            .next_attempt(TokenCondition::Good, &settings)
            .is_some()
    );
}

/// A token of so many minutes is renewed so many minutes after it was asked for.
#[rstest]
#[case::an_hour_less_the_margin(Some(60), Some(55))]
#[case::half_of_a_short_life(Some(4), Some(2))]
#[case::no_life(Some(0), None)]
#[case::unknown_end(None, None)]
fn a_token_is_renewed_before_it_runs_out(
    #[case] life_minutes: Option<u64>,
    #[case] renewed_after_minutes: Option<u64>,
) {
    let settings = TokenRefreshSettings::default();
    let start = Timestamp(1_000_000);
    let token = TokenState::of_new_token(start, life_minutes.map(|it| it * MINUTE_MS));
    assert_eq!(
        token.next_attempt(TokenCondition::Good, &settings),
        renewed_after_minutes.map(|it| start.plus_ms(it * MINUTE_MS))
    );
}

/// Pauses in minutes between failed refreshes of a token that still works.
#[rstest]
#[case(1, 1)]
#[case(2, 2)]
#[case(3, 4)]
#[case(7, 60)]
#[case(1_000, 60)]
fn failures_of_a_working_token_are_paced(#[case] failures: u32, #[case] minutes: u64) {
    let settings = TokenRefreshSettings::default();
    let mut token = TokenState::default();
    for _ in 0..failures {
        let failed = token.fail(TokenCondition::Refused, Timestamp(0));
        assert_eq!(failed, FailedRefresh::KeptActive);
    }
    assert_eq!(
        token.next_attempt(TokenCondition::Refused, &settings),
        Some(Timestamp(minutes * MINUTE_MS))
    );
}

fn hot(terminal: Option<TerminalKind>, status: Option<u16>) -> ConnectionState {
    ConnectionState {
        terminal: terminal.map(|kind| Terminal {
            kind,
            since: Timestamp(1),
            credential_version: 2,
            switched_off: false,
        }),
        last_error: status.map(|status| LastError {
            status,
            reason: Reason::AuthError,
            at: Timestamp(1),
            origin: None,
        }),
        credential_version: 2,
        ..ConnectionState::default()
    }
}

#[rstest]
#[case::well(None, None, 2, TokenCondition::Good)]
#[case::none_yet(None, None, 0, TokenCondition::Missing)]
#[case::expired(Some(TerminalKind::Expired), Some(401), 2, TokenCondition::Expired)]
#[case::refused(None, Some(401), 2, TokenCondition::Refused)]
#[case::forbidden(None, Some(403), 2, TokenCondition::Good)]
#[case::banned(Some(TerminalKind::Banned), Some(403), 2, TokenCondition::Ended)]
#[case::of_an_older_credential(Some(TerminalKind::Expired), Some(401), 3, TokenCondition::Good)]
fn what_the_hot_state_says_about_a_token(
    #[case] terminal: Option<TerminalKind>,
    #[case] status: Option<u16>,
    #[case] credential_version: u64,
    #[case] expected: TokenCondition,
) {
    let state = hot(terminal, status);
    assert_eq!(TokenCondition::of(&state, credential_version), expected);
}

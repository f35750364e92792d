//! `failure-state.md` §8: terminal states and refusals, vectors 34, 35, 39, 40, 42, 43, 71, 72.

use rstest::rstest;
use tidegate_core::classify::TerminalKind::{self, Banned, CreditsExhausted, Expired};
use tidegate_core::outcome::Outcome;
use tidegate_core::settings::ProviderClass;
use tidegate_core::settings::ProviderClass::{Apikey, Oauth};
use tidegate_core::state::Event;
use tidegate_core::time::Timestamp;

use super::world::{World, answer, status, terminal, with_header};

const INSUFFICIENT_QUOTA: &str = r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","code":"insufficient_quota"}}"#;

#[rstest]
#[case::vector_failure_34(Apikey, answer(401, "invalid api key"), Expired)]
#[case::vector_failure_35(Apikey, status(402), CreditsExhausted)]
#[case::vector_failure_42(Apikey, answer(500, "Your account has been deactivated"), Banned)]
#[case::vector_failure_43(Apikey, answer(429, INSUFFICIENT_QUOTA), CreditsExhausted)]
#[case::invalid_credentials_of_a_key(Apikey, answer(401, "Invalid credentials"), Expired)]
#[case::plain_401_of_oauth(Oauth, status(401), Expired)]
#[case::unexplained_403_of_oauth(Oauth, status(403), Banned)]
#[case::suspended_for_billing(Apikey, answer(403, "suspended: unpaid invoice"), CreditsExhausted)]
fn a_verdict_ends_the_connection(
    #[case] class: ProviderClass,
    #[case] outcome: Outcome,
    #[case] kind: TerminalKind,
) {
    let mut world = World::named("openai", class);
    world.fail(1_000, outcome);
    assert_eq!(
        world.c1().terminal.as_ref().map(|terminal| terminal.kind),
        Some(kind)
    );
    assert_eq!(world.cooldown(), (None, 0));
    let before = world.c1().terminal.clone();
    world.fail(2_000, Outcome::Success);
    assert_eq!(world.c1().terminal, before, "a success does not end it");
}

#[rstest]
#[case::decision_14(answer(401, "Invalid credentials"))]
#[case::project(answer(403, "API has not been used in project 1 before"))]
#[case::region(answer(403, "User location is not supported for the API use."))]
fn a_recoverable_refusal_of_oauth_is_not_terminal(#[case] outcome: Outcome) {
    let mut world = World::new(Oauth);
    world.policy.renews_tokens = true;
    world.fail(1_000, outcome);
    assert_eq!(world.c1().terminal, None);
    assert!(world.c1().last_error.is_some());
}

/// It would be used again and again, and refused each time.
#[test]
fn a_stale_token_that_nothing_renews_has_expired() {
    let mut world = World::new(Oauth);
    world.fail(1_000, answer(401, "Invalid credentials"));
    let terminal = world.c1().terminal.as_ref();
    assert_eq!(terminal.map(|terminal| terminal.kind), Some(Expired));
}

#[rstest]
#[case::vector_failure_39(three_refusals_are_a_ban)]
#[case::vector_failure_40(a_success_ends_the_streak)]
#[case::vector_failure_71(a_new_credential_clears_a_terminal_state)]
#[case::vector_failure_72(other_changes_clear_nothing)]
#[case::guard(a_terminal_verdict_passes_a_running_cooldown)]
#[case::credential(a_verdict_counts_for_the_credential_it_was_observed_with)]
#[case::refreshed(a_refreshed_token_ends_only_what_the_old_one_caused)]
#[case::noticed(a_newer_credential_is_noticed_by_its_first_failure)]
#[case::operator(an_operator_ends_it_only_by_name)]
#[case::streak_in_flight(refusals_in_flight_are_one)]
#[case::streak_memory(a_refusal_a_day_later_begins_anew)]
fn terminal_states(#[case] run: fn()) {
    run();
}

fn refused() -> Outcome {
    answer(
        403,
        r#"{"error":{"type":"forbidden","message":"Request not allowed"}}"#,
    )
}

fn three_refusals_are_a_ban() {
    let mut world = World::named("claude", Oauth);
    world.fail(0, refused());
    assert_eq!(world.cooldown(), (Some(300_000), 0));
    world.fail(60_000, refused());
    assert_eq!(world.c1().refusals.count, 1, "the same episode");
    assert_eq!(world.cooldown(), (Some(300_000), 0));
    world.fail(300_001, refused());
    assert_eq!(world.cooldown(), (Some(1_200_001), 0));
    world.fail(1_200_002, refused());
    assert_eq!(
        world.c1().terminal.as_ref().map(|terminal| terminal.kind),
        Some(Banned)
    );
    assert_eq!(world.c1().refusals.count, 0, "the streak is forgotten");
}

fn a_success_ends_the_streak() {
    let mut world = World::named("claude", Oauth);
    world.fail(0, refused());
    world.fail(300_000, Outcome::Success);
    assert_eq!(world.c1().refusals.count, 0);
    world.fail(400_000, refused());
    assert_eq!(world.c1().refusals.count, 1);
    assert_eq!(world.cooldown(), (Some(700_000), 0));
}

fn refusals_in_flight_are_one() {
    let mut world = World::named("claude", Oauth);
    let attempts: Vec<_> = (0..3).map(|_| world.send("c1")).collect();
    for (attempt, at) in attempts.iter().zip([0, 400_000, 2_000_000]) {
        world.end(attempt, at, refused());
    }
    assert_eq!(world.c1().refusals.count, 1);
    assert_eq!(world.c1().terminal, None);
}

fn a_refusal_a_day_later_begins_anew() {
    let mut world = World::named("claude", Oauth);
    world.fail(0, refused());
    world.fail(86_400_000, refused());
    assert_eq!(world.c1().refusals.count, 1);
}

fn a_new_credential_clears_a_terminal_state() {
    for kind in [Banned, Expired, CreditsExhausted] {
        let mut world = World::new(Apikey);
        let state = world.connection_mut("c1");
        state.terminal = Some(terminal(kind));
        state.cooldown.backoff_level = 3;
        let event = Event::CredentialReplaced {
            connection: world.config("c1").id.clone(),
            credential_version: 1,
        };
        assert!(world.event(Some("c1"), &event, Timestamp(1)).changed);
        assert!(world.c1().is_clean());
        assert_eq!(world.c1().credential_version, 1);
    }
}

fn other_changes_clear_nothing() {
    for kind in [Banned, Expired, CreditsExhausted] {
        let mut world = World::new(Apikey);
        world.connection_mut("c1").terminal = Some(terminal(kind));
        let before = world.c1().clone();
        world.config("c1").priority = 1;
        let event = Event::CredentialReplaced {
            connection: world.config("c1").id.clone(),
            credential_version: 0,
        };
        assert!(!world.event(Some("c1"), &event, Timestamp(1)).changed);
        world.fail(2, Outcome::Success);
        assert_eq!(*world.c1(), before);
    }
}

fn a_refreshed_token_ends_only_what_the_old_one_caused() {
    for (kind, ends) in [(Expired, true), (Banned, false), (CreditsExhausted, false)] {
        let mut world = World::new(Oauth);
        world.connection_mut("c1").terminal = Some(terminal(kind));
        let event = Event::TokenRefreshed {
            connection: world.config("c1").id.clone(),
            credential_version: 1,
        };
        assert!(world.event(Some("c1"), &event, Timestamp(1)).changed);
        assert_eq!(world.c1().terminal.is_none(), ends, "{kind:?}");
        assert_eq!(world.c1().credential_version, 1);
        assert!(!world.event(Some("c1"), &event, Timestamp(2)).changed);
    }

    let mut world = World::new(Oauth);
    world.fail(1_000, status(429));
    let cooling = world.c1().cooldown.clone();
    let refreshed = |world: &mut World, credential_version| {
        let event = Event::TokenRefreshed {
            connection: world.config("c1").id.clone(),
            credential_version,
        };
        world.event(Some("c1"), &event, Timestamp(2_000))
    };
    refreshed(&mut world, 1);
    assert_eq!(world.c1().cooldown, cooling, "the account is still limited");
    assert!(world.c1().last_error.is_some());

    let mut world = World::new(Oauth);
    world.policy.renews_tokens = true;
    world.fail(1_000, answer(401, "Invalid credentials"));
    assert!(world.c1().last_error.is_some());
    refreshed(&mut world, 1);
    assert!(world.c1().is_clean());
}

fn a_terminal_verdict_passes_a_running_cooldown() {
    let mut world = World::new(Apikey);
    let in_flight = world.send("c1");
    world.fail(0, with_header(429, "retry-after", "60"));
    world.end(&in_flight, 1_000, status(401));
    assert_eq!(
        world.c1().terminal.as_ref().map(|terminal| terminal.kind),
        Some(Expired)
    );
}

fn a_verdict_counts_for_the_credential_it_was_observed_with() {
    let mut world = World::new(Apikey);
    let old = world.send("c1");
    let event = Event::CredentialReplaced {
        connection: world.config("c1").id.clone(),
        credential_version: 1,
    };
    world.event(Some("c1"), &event, Timestamp(0));
    for outcome in [status(401), status(402), answer(403, "Forbidden")] {
        assert!(!world.end(&old, 1_000, outcome).changed);
    }
    let new = world.send("c1");
    world.end(&new, 2_000, status(401));
    assert_eq!(
        world
            .c1()
            .terminal
            .as_ref()
            .map(|terminal| terminal.credential_version),
        Some(1)
    );
}

fn a_newer_credential_is_noticed_by_its_first_failure() {
    let mut world = World::new(Apikey);
    world.connection_mut("c1").terminal = Some(terminal(Expired));
    let mut attempt = world.send("c1");
    attempt.credential_version = 1;
    world.end(&attempt, 1_000, status(503));
    assert_eq!(world.c1().terminal, None);
    assert_eq!(world.cooldown(), (Some(4_000), 1));
    assert_eq!(world.c1().credential_version, 1);
}

fn an_operator_ends_it_only_by_name() {
    let mut world = World::new(Apikey);
    world.connection_mut("c1").terminal = Some(terminal(Banned));
    let reset = |world: &mut World, terminal_too| {
        let event = Event::ResetConnection {
            connection: world.config("c1").id.clone(),
            terminal_too,
        };
        world.event(Some("c1"), &event, Timestamp(1))
    };
    assert!(!reset(&mut world, false).changed);
    assert!(reset(&mut world, true).changed);
    assert!(world.c1().is_clean());
}

//! `routing.md` §12 and the waiting of §5.0.

use rstest::rstest;

use super::*;
use crate::settings::{ComboCooldownWaitSettings, WaitForCooldownSettings};

fn defaults() -> WaitPolicy {
    WaitPolicy::for_combos(&ComboCooldownWaitSettings::default())
}

fn timer(reason: Reason, remaining_ms: u64, hint_ms: Option<u64>) -> CoolingTimer {
    CoolingTimer {
        remaining_ms,
        hint_ms,
        reason: Some(reason),
    }
}

fn first_wait(timers: impl IntoIterator<Item = CoolingTimer>) -> Option<u64> {
    cooldown_wait(&defaults(), 0, 0, timers, 0)
}

use Reason::{QuotaExhausted, RateLimitExceeded};

#[test]
fn vector_routing_v_cw1() {
    let wait = first_wait([timer(RateLimitExceeded, 59_000, Some(60_000))]);
    assert_eq!(wait, Some(60_050));
    // 239 950 of the budget are left: enough for a wait of 89 950 only after this one, not after three more.
    let again = |waited_ms| {
        let timers = [timer(RateLimitExceeded, 59_000, Some(60_000))];
        cooldown_wait(&defaults(), 1, waited_ms, timers, 0)
    };
    assert_eq!(again(60_050), Some(60_050));
    assert_eq!(again(300_000 - 60_050), Some(60_050));
    assert_eq!(again(300_000 - 60_049), None);
}

#[test]
fn vector_routing_v_cw2() {
    assert_eq!(first_wait([timer(QuotaExhausted, 2_000, None)]), None);
}

#[test]
fn vector_routing_v_cw3() {
    let wait = first_wait([timer(RateLimitExceeded, 1_200, Some(500))]);
    assert_eq!(wait, Some(1_250));
}

#[test]
fn vector_routing_v_cw3b() {
    let wait = first_wait([timer(RateLimitExceeded, 1_200, None)]);
    assert_eq!(wait, Some(1_250));
}

#[test]
fn vector_routing_v_cw4() {
    let wait = first_wait([timer(RateLimitExceeded, 1_000, Some(90_000))]);
    assert_eq!(wait, None);
}

#[test]
fn vector_routing_v_cw5() {
    let timers = [timer(RateLimitExceeded, 1_000, None)];
    assert_eq!(cooldown_wait(&defaults(), 4, 0, timers, 0), Some(1_050));
    assert_eq!(cooldown_wait(&defaults(), 5, 0, timers, 0), None);
}

#[test]
fn vector_routing_v_cw6() {
    let timers = [timer(RateLimitExceeded, 70_000, None)];
    let wait = |waits: u32| cooldown_wait(&defaults(), waits, u64::from(waits) * 70_050, timers, 0);
    assert_eq!(wait(3), Some(70_050));
    assert_eq!(wait(4), None);
}

#[test]
fn vector_routing_v_cw7() {
    for reason in [Reason::AuthError, Reason::NotFound, Reason::Unknown] {
        assert_eq!(first_wait([timer(reason, 1_000, None)]), None, "{reason:?}");
    }
    let nobody_knows = CoolingTimer {
        reason: None,
        ..timer(Reason::Unknown, 1_000, None)
    };
    assert_eq!(first_wait([nobody_knows]), None);
}

#[test]
fn vector_routing_v_cw8() {
    let mut world = World::combo(&["p1/k1"], &["p1/m"], json!({}), no_waits());
    let journey = world.run(|_, _| answer(429, "", Some("20")));
    assert_eq!(journey.attempts, ["p1/k1/m"]);
    assert!(journey.waits.is_empty());
    let rejection = journey.rejection();
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (429, Some(20))
    );
}

#[test]
fn vector_routing_v_cw9() {
    let mut world = World::combo(&["p1/k1", "p2/k2"], &["p1/a", "p2/b"], json!({}), json!({}));
    let journey = world.run(|_, before| {
        if before < 2 {
            answer(429, "", Some("60"))
        } else {
            status(422)
        }
    });
    assert_eq!(journey.cooldown_waits(), [60_050]);
    assert_eq!(journey.attempts, ["p1/k1/a", "p2/k2/b", "p1/k1/a"]);

    let mut world = World::combo(
        &["p1/k1", "p2/k2"],
        &["p1/a", "p2/b"],
        json!({}),
        json!({"comboCooldownWait": {"maxAttempts": 1}}),
    );
    let journey = world.run(|_, _| answer(429, "", Some("60")));
    assert_eq!(journey.cooldown_waits(), [60_050]);
    assert_eq!(
        journey.attempts,
        ["p1/k1/a", "p2/k2/b", "p1/k1/a", "p2/k2/b"]
    );
}

#[test]
fn vector_routing_v_cw10() {
    let policy = WaitPolicy::for_combos(&ComboCooldownWaitSettings {
        max_wait_ms: 999_999,
        ..ComboCooldownWaitSettings::default()
    });
    assert_eq!(policy.max_wait_ms, 300_000);
}

#[test]
fn vector_routing_v_cw11() {
    let policy = WaitPolicy::for_combos(&ComboCooldownWaitSettings {
        max_wait_ms: 5_000,
        budget_ms: 100,
        ..ComboCooldownWaitSettings::default()
    });
    assert_eq!(policy.budget_ms, 5_000);
}

#[test]
fn vector_routing_v_cw13() {
    let wait = first_wait([
        timer(QuotaExhausted, 1_000, None),
        timer(RateLimitExceeded, 2_000, None),
    ]);
    assert_eq!(wait, Some(2_050));
}

#[rstest]
#[case::max_wait(json!({"maxWaitMs": 0}))]
#[case::max_attempts(json!({"maxAttempts": 0}))]
#[case::enabled(json!({"enabled": false}))]
fn each_limit_at_zero_switches_waiting_off(#[case] settings: Value) {
    let settings: ComboCooldownWaitSettings = serde_json::from_value(settings).unwrap();
    let policy = WaitPolicy::for_combos(&settings);
    let timers = [timer(RateLimitExceeded, 1_000, None)];
    assert_eq!(cooldown_wait(&policy, 0, 0, timers, 0), None);
}

#[rstest]
#[case::none(0, 10_050)]
#[case::some(1_004, 11_054)]
#[case::most(1_005, 11_055)]
#[case::wraps(1_006, 10_050)]
fn jitter_adds_up_to_a_tenth(#[case] random: u64, #[case] expected: u64) {
    let timers = [timer(RateLimitExceeded, 10_000, None)];
    assert_eq!(
        cooldown_wait(&defaults(), 0, 0, timers, random),
        Some(expected)
    );
}

#[test]
fn jitter_stays_within_the_longest_wait() {
    let timers = [timer(RateLimitExceeded, 89_950, None)];
    assert_eq!(
        cooldown_wait(&defaults(), 0, 0, timers, 8_999),
        Some(90_000)
    );
}

#[test]
fn a_request_that_names_no_combo_waits_by_its_own_settings() {
    let policy = WaitPolicy::for_others(&WaitForCooldownSettings::default());
    assert_eq!((policy.max_wait_ms, policy.max_waits), (90_000, 5));

    let document = |wait: Value| {
        json!({
            "providers": [{"id": "p1", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
            "connections": [{"id": "k1", "provider": "p1"}],
            "settings": {"waitForCooldown": wait, "comboCooldownWait": {"enabled": false}},
        })
    };
    let mut world = World::of(document(json!({})), "p1/m");
    world.connection_state("k1", cooling(4_000, Reason::ServerError));
    let journey = world.run(|_, _| Reply::Success);
    assert_eq!(journey.cooldown_waits(), [4_050]);
    assert_eq!(journey.attempts, ["p1/k1/m"]);

    let mut world = World::of(document(json!({"maxRetryWaitSec": 4})), "p1/m");
    world.connection_state("k1", cooling(4_000, Reason::ServerError));
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (503, Some(4))
    );
}

#[test]
fn a_terminal_account_is_not_waited_for() {
    let mut world = World::combo(&["p1/k1"], &["p1/m"], json!({}), json!({}));
    let mut state = cooling(4_000, Reason::ServerError);
    state.terminal = Some(crate::cooldown::Terminal {
        kind: crate::classify::TerminalKind::Banned,
        since: START,
        credential_version: 1,
        switched_off: false,
    });
    world.connection_state("k1", state);
    assert_eq!(world.reject().status, 404);
}

#[test]
fn an_account_is_waited_for_until_its_last_timer_ends() {
    let mut world = World::combo(&["p1/k1", "p2/k2"], &["p1/m", "p2/m"], json!({}), json!({}));
    world.connection_state("k1", cooling(1_000, Reason::QuotaExhausted));
    world.connection_state("k2", cooling(9_000, Reason::ServerError));
    let Decision::Wait(wait) = world.decide() else {
        panic!("expected a wait, got {:?}", world.decide());
    };
    assert_eq!((wait.wait_ms, wait.kind), (9_050, WaitKind::Cooldown));
}

#[test]
fn a_breaker_is_waited_for_once_and_only_before_anything_was_sent() {
    let mut world = World::combo(&["p1/k1"], &["p1/m"], json!({}), json!({}));
    world.open_breaker("p1", 5_000);
    let journey = world.run(|_, _| Reply::Success);
    assert_eq!(journey.cooldown_waits(), [5_050]);
    assert_eq!(journey.attempts, ["p1/k1/m"]);

    let mut world = World::combo(&["p1/k1"], &["p1/m"], json!({}), json!({}));
    world.so_far.waits = 1;
    world.open_breaker("p1", 5_000);
    assert_eq!(world.reject().status, 503);
}

#[test]
fn an_upstream_hint_alone_is_waited_for() {
    let mut world = World::combo(&["p1/k1"], &["p1/m"], json!({}), json!({})).without_cooling();
    let journey = world.run(|_, before| {
        if before == 0 {
            answer(429, "", Some("7"))
        } else {
            Reply::Success
        }
    });
    // The same target is tried again after 2 s, since nothing cools; then the hint would have been obeyed.
    assert_eq!(journey.attempts.len(), 2);

    let mut world =
        World::combo(&["p1/k1"], &["p1/m"], json!({"maxRetries": 0}), json!({})).without_cooling();
    let journey = world.run(|_, before| {
        if before == 0 {
            answer(429, "", Some("7"))
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.cooldown_waits(), [7_050]);
}

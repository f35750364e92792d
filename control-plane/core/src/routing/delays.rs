//! When a request waits: for a cooldown, before a retry, before the next target.

use crate::classify::Reason;
use crate::config::Config;
use crate::lockout;
use crate::time::Timestamp;

use super::accounts::{Past, Scene};
use super::driver::{Driver, reject};
use super::exhaustion::Exhaustion;
use super::progress::Progress;
use super::resolve::{Route, resolve_request};
use super::wait::{CoolingTimer, cooldown_wait};
use super::{
    AttemptsSoFar, Decision, ExclusionReason, PriorAttempt, RequestFacts, Wait, WaitKind, terminal,
};

/// Statuses after which the next target may be kept waiting (`routing.md` §5.3, 10).
const DELAYED: [u16; 3] = [502, 503, 504];
/// A cooldown longer than this is no hiccup, and nothing is gained by waiting before another target is asked, in ms.
const LONGEST_HICCUP_MS: u64 = 5_000;

impl Driver<'_> {
    /// Until when the next target is kept waiting after a failure whose cooldown is short: `fallbackDelayMs`, but not
    /// longer than that cooldown.
    pub(super) fn fallback_due(&self, last: &PriorAttempt) -> Option<Timestamp> {
        let delay_ms = self.scene.route.terms.fallback_delay_ms;
        if delay_ms == 0
            || self.scene.input.so_far.no_wait
            || !DELAYED.contains(&last.classification.status)
        {
            return None;
        }
        let attempt = &last.attempt;
        let state = self
            .scene
            .view
            .connection(&attempt.provider, &attempt.connection)?;
        let at = last.failed_at;
        let lock = lockout::covering(&state.locks, &attempt.provider, &attempt.model, at);
        let ends = [state.cooldown.until, lock.map(|lock| lock.until)];
        let cooldown_ms = ends
            .into_iter()
            .flatten()
            .map(|end| end.remaining_ms(at))
            .max()?;
        (1..=LONGEST_HICCUP_MS)
            .contains(&cooldown_ms)
            .then(|| at.plus_ms(cooldown_ms.min(delay_ms)))
    }

    /// The time of the request is up before such a wait is over.
    fn ends_within(&self, wait_ms: u64) -> bool {
        self.remaining_ms().is_some_and(|left| wait_ms >= left)
    }

    /// What is left of the time of the request, in ms; `None` without a limit.
    pub(super) fn remaining_ms(&self) -> Option<u64> {
        let Scene { input, route, .. } = self.scene;
        left_ms(route, input.so_far)
    }

    /// Waits until the soonest of what cools down can be used again, if the settings allow it.
    pub(super) fn wait_for_cooldown(&self) -> Option<Decision> {
        let Scene { input, route, .. } = self.scene;
        let so_far = input.so_far;
        if so_far.no_wait
            || so_far.spent() >= route.terms.max_global_attempts
            || so_far.waits >= route.terms.wait.max_waits
        {
            return None;
        }
        let wait_ms = cooldown_wait(
            &route.terms.wait,
            so_far.waits,
            so_far.waited_ms,
            self.soonest_timer(),
            input.random,
        )?;
        if self.ends_within(wait_ms) {
            return None;
        }
        Some(Decision::Wait(Wait {
            wait_ms,
            kind: WaitKind::Cooldown,
        }))
    }

    /// What can be waited for soonest, of all accounts of all targets. An account that something else excludes too, which
    /// does not end by itself, is none.
    fn soonest_timer(&self) -> Option<CoolingTimer> {
        let Scene { input, route, .. } = self.scene;
        let now = input.now;
        let so_far = input.so_far;
        // A breaker is waited for once, and only by a request that sent nothing (`routing.md` §12.2).
        let breaker_too = so_far.attempts.is_empty() && so_far.waits == 0;
        // Who took its whole time in any pass so far is not asked again after the wait.
        let exhaustion = Exhaustion::begin(so_far, u32::MAX);
        let past = Past::of_fresh_target(&exhaustion);
        let failures = Progress::last_attempts(so_far);
        let mut soonest: Option<CoolingTimer> = None;
        let ordered = self.sequence.after(None);
        for target in ordered.filter_map(|index| route.targets.get(index)) {
            self.scene
                .for_each_account(target, past, now, |connection, hits| {
                    // A request under a lease goes to its connection, whatever else comes free.
                    let leased = input.facts.leased.as_ref();
                    if leased.is_some_and(|leased| *leased != connection.id) {
                        return;
                    }
                    let failure = failures.iter().rev().find(|failure| {
                        failure.attempt.connection == connection.id
                            && failure.attempt.model == target.model
                    });
                    let mut timer = CoolingTimer {
                        remaining_ms: 0,
                        hint_ms: failure.and_then(|failure| hint_remaining_ms(failure, now)),
                        reason: failure.map(|failure| failure.classification.reason),
                    };
                    for hit in hits {
                        let reason = match hit.reason {
                            ExclusionReason::CircuitOpen if breaker_too => {
                                Some(Reason::ServerError)
                            }
                            ExclusionReason::ProviderCooldown
                            | ExclusionReason::EgressLocked
                            | ExclusionReason::ConnectionCooldown
                            | ExclusionReason::ModelLockout => hit.cause,
                            _ => return,
                        };
                        if !reason.is_some_and(super::wait::is_worth_waiting) {
                            return;
                        }
                        let remaining_ms = hit.until.map_or(0, |until| until.remaining_ms(now));
                        timer.remaining_ms = timer.remaining_ms.max(remaining_ms);
                        timer.reason = reason;
                    }
                    if soonest.is_none_or(|soonest| timer.is_sooner_than(soonest)) {
                        soonest = Some(timer);
                    }
                });
        }
        soonest
    }

    pub(super) fn wait_until(&self, due: Timestamp, kind: WaitKind) -> Decision {
        let Scene { input, route, .. } = self.scene;
        if input.so_far.spent() >= route.terms.max_global_attempts {
            return reject(terminal::too_many_attempts(input, route));
        }
        // A clock that stepped back must not make the delay longer than it is.
        let longest = route
            .terms
            .retry_delay_ms
            .max(route.terms.set_retry_delay_ms)
            .max(route.terms.fallback_delay_ms);
        let wait_ms = due.remaining_ms(input.now).min(longest);
        if self.ends_within(wait_ms) {
            return reject(terminal::timed_out(input, route));
        }
        Decision::Wait(Wait { wait_ms, kind })
    }
}

/// What is left of the time of a request, in ms; `None` without a limit (`routing.md` §5.5).
#[must_use]
pub fn remaining_ms(config: &Config, facts: &RequestFacts, so_far: &AttemptsSoFar) -> Option<u64> {
    left_ms(&resolve_request(config, facts)?, so_far)
}

fn left_ms(route: &Route<'_>, so_far: &AttemptsSoFar) -> Option<u64> {
    let limit = route.terms.timeout_ms?;
    Some(limit.saturating_sub(so_far.elapsed_ms))
}

/// What is left of the wait that an upstream asked for.
pub(super) fn hint_remaining_ms(failure: &PriorAttempt, now: Timestamp) -> Option<u64> {
    let hint = failure.classification.hint?;
    let remaining = failure.failed_at.plus_ms(hint.wait_ms).remaining_ms(now);
    (remaining > 0).then_some(remaining)
}

//! The walk over targets and accounts: one step of it per decision (`routing.md` §5).
//!
//! Every decision walks the current pass again from the target of the last attempt. Nothing is remembered, so
//! a delay before a retry is served by the clock: asked before it is over, the answer is to wait for the rest
//! of it; asked after, the retry is dispatched.
//!
//! What ends a request before its targets are used up: a fault of the client's own (decision 50), a client
//! that left, and an input too large when every remaining target is the same model.

use crate::classify::{Classification, Reason};
use crate::ids::{ProviderId, Shard};
use crate::time::Timestamp;
use crate::version::{Mark, Version};

use super::accounts::{Account, Past, Scene};
use super::exclusion::Exclusions;
use super::exhaustion::{Exhaustion, effect, is_input_bound};
use super::order::Sequence;
use super::private_view::PrivateView;
use super::progress::{Progress, Tries, results};
use super::resolve::{Route, resolve_request};
use super::strategy::Halt;
use super::wait::{CoolingTimer, cooldown_wait};
use super::{
    Decision, Dispatch, ExclusionReason, Input, PriorAttempt, Rejection, Wait, WaitKind, plan,
    terminal,
};

/// Decides the next step of a request.
#[must_use]
pub fn decide(input: &Input<'_>) -> Decision {
    match resolve_request(input.config, input.facts) {
        None => reject(terminal::unknown_model(&input.facts.model)),
        Some(route) => {
            let view = PrivateView::new(input, &route);
            let scene = Scene {
                input,
                route: &route,
                view: &view,
            };
            Driver::decide(scene)
        }
    }
}

/// Whether, after this decision, a combo goes on from its last failure to another target of the same provider,
/// so that the provider's breaker does not count the failure (`failure-state.md` §1.6).
#[must_use]
pub fn next_target_same_provider(
    route: &Route<'_>,
    last: &PriorAttempt,
    decision: &Decision,
) -> bool {
    match decision {
        Decision::Dispatch(next) if route.combo.is_some() => {
            moved_on_at_provider(last, &next.provider, next.pass, next.target)
        }
        Decision::Dispatch(_)
        | Decision::Wait(_)
        | Decision::Reject(_)
        | Decision::TakeTurn(_)
        | Decision::Plan(_) => false,
    }
}

/// The next attempt is at another target of the same pass and provider.
pub(super) fn moved_on_at_provider(
    last: &PriorAttempt,
    provider: &ProviderId,
    pass: u32,
    target: u32,
) -> bool {
    *provider == last.attempt.provider && pass == last.pass && target != last.target
}

fn reject(rejection: Rejection) -> Decision {
    Decision::Reject(Box::new(rejection))
}

/// The request ends with its last failure, whatever targets are left.
fn ends_request(scene: &Scene<'_>, last: &PriorAttempt) -> bool {
    let Classification { status, reason, .. } = last.classification;
    if status == 499 || reason == Reason::ClientFault {
        return true;
    }
    let tried = |index: usize| {
        let of_pass = |attempt: &&PriorAttempt| attempt.pass == last.pass;
        scene
            .input
            .so_far
            .attempts
            .iter()
            .rev()
            .take_while(of_pass)
            .any(|attempt| position(attempt) == index)
    };
    is_input_bound(&last.classification)
        && scene
            .route
            .targets
            .iter()
            .enumerate()
            .all(|(index, target)| target.model == last.attempt.model || tried(index))
}

/// What a walk over the targets of a pass came to.
enum Walked<'a> {
    /// An account to use.
    Found(Found<'a>),
    /// An account to use for a retry on the same target, not before this.
    RetryAt(Timestamp),
    /// Nothing.
    Nothing(Exclusions),
}

struct Found<'a> {
    account: Account<'a>,
    target: usize,
    excluded: Exclusions,
}

pub(super) struct Driver<'a> {
    scene: Scene<'a>,
    sequence: Sequence,
}

impl<'a> Driver<'a> {
    /// Decides on a route.
    pub(super) fn decide(scene: Scene<'a>) -> Decision {
        let Scene { input, route, .. } = scene;
        if let Some(plan) = &route.plan {
            return Decision::Plan(plan.clone());
        }
        if route.targets.is_empty() && plan::makes_plans(route) {
            return reject(terminal::no_steps(route));
        }
        if let Some(last) = input.so_far.attempts.last()
            && ends_request(&scene, last)
        {
            return reject(terminal::of_client(
                last,
                input.so_far.attempts.len(),
                route,
            ));
        }
        let decided = Sequence::of(&scene).and_then(|sequence| Driver { scene, sequence }.next());
        match decided {
            Ok(decision) => decision,
            Err(Halt::TakeTurn(key)) => Decision::TakeTurn(key),
            Err(Halt::Reject(rejection)) => Decision::Reject(rejection),
        }
    }

    fn next(&self) -> Result<Decision, Halt> {
        let Scene { input, route, .. } = self.scene;
        let progress = Progress::of(input.so_far, &route.terms);
        let excluded = match self.walk(progress.attempts, input.now)? {
            Walked::Found(found) => return Ok(self.dispatch(found, progress.pass)),
            Walked::RetryAt(due) => return Ok(self.wait_for_retry(due)),
            Walked::Nothing(excluded) => excluded,
        };
        if let Some(decision) = self.repeat_set(&progress)? {
            return Ok(decision);
        }
        if let Some(decision) = self.wait_for_cooldown() {
            return Ok(decision);
        }
        Ok(reject(self.final_answer(excluded)))
    }

    /// Walks the targets from the one of the last attempt on, as it would be at `at`.
    fn walk(&self, attempts: &'a [PriorAttempt], at: Timestamp) -> Result<Walked<'a>, Halt> {
        let Scene { input, route, .. } = self.scene;
        let targets: &'a [_] = &route.targets;
        let mut exhaustion = Exhaustion::default();
        let mut excluded = Exclusions::default();
        let mut begun = None;
        if let Some(last) = attempts.last() {
            let start = position(last);
            begun = Some(start);
            for result in results(attempts).filter(|result| position(result) != start) {
                if let Some(target) = targets.get(position(result)) {
                    exhaustion.add(target, result, input.config);
                }
            }
            if let Some(walked) = self.same_target(attempts, &exhaustion, at, &mut excluded)? {
                return Ok(walked);
            }
            if let Some(target) = targets.get(start) {
                exhaustion.add(target, last, input.config);
            }
        }
        let past = Past::of_fresh_target(&exhaustion);
        for index in self.sequence.after(begun) {
            let Some(target) = targets.get(index) else {
                continue;
            };
            if let Some(account) = self.scene.choose(target, past, at, &mut excluded)? {
                return Ok(Walked::Found(Found {
                    account,
                    target: index,
                    excluded,
                }));
            }
        }
        Ok(Walked::Nothing(excluded))
    }

    /// Another account of the target of the last attempt, or a retry on it.
    fn same_target(
        &self,
        attempts: &'a [PriorAttempt],
        exhaustion: &Exhaustion<'_>,
        at: Timestamp,
        excluded: &mut Exclusions,
    ) -> Result<Option<Walked<'a>>, Halt> {
        let Some(index) = attempts.last().map(position) else {
            return Ok(None);
        };
        let Some(target) = self.scene.route.targets.get(index) else {
            return Ok(None);
        };
        let pinned = target.connection.is_some();
        let Some(tries) = Tries::of_last_target(attempts, pinned) else {
            return Ok(None);
        };
        if tries.loop_goes_on(pinned) {
            let past = Past {
                exhaustion,
                tried: &tries.tried,
                retry: false,
            };
            if let Some(account) = self.scene.choose(target, past, at, excluded)? {
                return Ok(Some(Walked::Found(Found {
                    account,
                    target: index,
                    excluded: std::mem::take(excluded),
                })));
            }
        }
        if !self.may_retry(&tries, index) {
            return Ok(None);
        }
        // The gates are asked for the moment of the retry: a cooldown that outlasts the delay drops it.
        let due = tries
            .last
            .failed_at
            .plus_ms(self.scene.route.terms.retry_delay_ms);
        let past = Past {
            exhaustion,
            tried: &[],
            retry: true,
        };
        let mut at_retry = Exclusions::default();
        let account = self
            .scene
            .choose(target, past, at.max(due), &mut at_retry)?;
        Ok(account.map(|account| {
            if due > at {
                Walked::RetryAt(due)
            } else {
                Walked::Found(Found {
                    account,
                    target: index,
                    excluded: at_retry,
                })
            }
        }))
    }

    /// Whether the target may be tried again after its last failure (`routing.md` §5.2).
    fn may_retry(&self, tries: &Tries<'_>, index: usize) -> bool {
        let Scene { input, route, .. } = self.scene;
        let classification = &tries.last.classification;
        let per_model_quota = input
            .config
            .provider(&tries.last.attempt.provider)
            .is_some_and(|entry| {
                let connection = input.config.connection(&tries.last.attempt.connection);
                entry
                    .policy
                    .keeps_quota_per_model(connection.map(AsRef::as_ref))
            });
        let (_, exhausted) = effect(classification, per_model_quota);
        let another_target = self.sequence.after(Some(index)).next().is_some();
        // A stream that never became ready is the only 504 that neither the breaker counts nor the network
        // explains; it took its whole time limit once already.
        let never_ready = classification.status == 504
            && !classification.counts_for_breaker
            && !classification.network;
        route.terms.retryable.contains(&classification.status)
            && tries.retries < route.terms.max_retries
            && !exhausted
            && !never_ready
            && !classification.request_scoped
            && classification.reason != Reason::Local
            && !(route.terms.failover_before_retry && another_target)
    }

    /// Walks the whole list again after a pass in which attempts failed (`routing.md` §1.5, `maxSetRetries`).
    fn repeat_set(&self, progress: &Progress<'_>) -> Result<Option<Decision>, Halt> {
        let Some(last) = progress.attempts.last() else {
            return Ok(None);
        };
        // Sending the same faulty request to the same targets gives the same answers (`routing.md` §5.5).
        let same_fault =
            results(progress.attempts).all(|result| result.classification.status == 400);
        if progress.set_retries_left == 0 || same_fault {
            return Ok(None);
        }
        let now = self.scene.input.now;
        let due = last
            .failed_at
            .plus_ms(self.scene.route.terms.set_retry_delay_ms);
        let Walked::Found(found) = self.walk(&[], now.max(due))? else {
            return Ok(None);
        };
        if due > now {
            return Ok(Some(self.wait_for_retry(due)));
        }
        Ok(Some(self.dispatch(found, progress.pass.saturating_add(1))))
    }

    /// Waits until the soonest of what cools down can be used again, if the settings allow it.
    fn wait_for_cooldown(&self) -> Option<Decision> {
        let Scene { input, route, .. } = self.scene;
        let so_far = input.so_far;
        if so_far.spent() >= route.terms.max_global_attempts
            || so_far.waits >= route.terms.wait.max_waits
        {
            return None;
        }
        let wait_ms = cooldown_wait(
            &route.terms.wait,
            so_far.waits,
            so_far.waited_ms,
            self.timers(),
            input.random,
        )?;
        Some(Decision::Wait(Wait {
            wait_ms,
            kind: WaitKind::Cooldown,
        }))
    }

    /// What each account of each target could be waited for. An account that something else excludes too, which
    /// does not end by itself, is none.
    fn timers(&self) -> Vec<CoolingTimer> {
        let Scene { input, route, .. } = self.scene;
        let now = input.now;
        let so_far = input.so_far;
        // A breaker is waited for once, and only by a request that sent nothing (`routing.md` §12.2).
        let breaker_too = so_far.attempts.is_empty() && so_far.waits == 0;
        let exhaustion = Exhaustion::default();
        let past = Past::of_fresh_target(&exhaustion);
        let failures = Progress::last_attempts(so_far);
        let mut timers = Vec::new();
        let ordered = self.sequence.after(None);
        for target in ordered.filter_map(|index| route.targets.get(index)) {
            self.scene
                .for_each_account(target, past, now, |connection, hits| {
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
                    timers.push(timer);
                });
        }
        timers
    }

    fn wait_for_retry(&self, due: Timestamp) -> Decision {
        let Scene { input, route, .. } = self.scene;
        if input.so_far.spent() >= route.terms.max_global_attempts {
            return reject(terminal::too_many_attempts(input, route));
        }
        // A clock that stepped back must not make the delay longer than it is.
        let longest = route
            .terms
            .retry_delay_ms
            .max(route.terms.set_retry_delay_ms);
        Decision::Wait(Wait {
            wait_ms: due.remaining_ms(input.now).min(longest),
            kind: WaitKind::RetryDelay,
        })
    }

    fn dispatch(&self, found: Found<'_>, pass: u32) -> Decision {
        let Scene { input, route, .. } = self.scene;
        if input.so_far.spent() >= route.terms.max_global_attempts {
            return reject(terminal::too_many_attempts(input, route));
        }
        let Found {
            account,
            target,
            excluded,
        } = found;
        let Some(model) = route.targets.get(target).map(|target| &target.model) else {
            return reject(self.final_answer(excluded));
        };
        let provider = &account.entry.provider.id;
        let needs_probe = account.phase.needs_probe();
        Decision::Dispatch(Dispatch {
            provider: provider.clone(),
            connection: account.connection.id.clone(),
            model: model.clone(),
            needs_probe,
            report_at_readiness: needs_probe || !account.clean,
            decided_on: input.view.version(Shard::of_provider(provider)),
            epoch: self.epoch(provider),
            pass,
            target: u32::try_from(target).unwrap_or(u32::MAX),
            excluded: excluded.into_list(),
            order: self.sequence.carried(),
            charge: self.sequence.charge.clone(),
            raise: None,
        })
    }

    /// The epoch that others know, not one that this request's private copy might have begun.
    fn epoch(&self, provider: &ProviderId) -> Version {
        match self.scene.input.view.provider(provider) {
            Some(state) => match state.breaker.epoch {
                Mark::At(version) => version,
                Mark::Never | Mark::ThisWrite => Version::default(),
            },
            None => Version::default(),
        }
    }

    fn final_answer(&self, excluded: Exclusions) -> Rejection {
        let Scene { input, route, .. } = self.scene;
        let attempts = Progress::last_attempts(input.so_far);
        if attempts.is_empty() {
            terminal::nothing_dispatched(input, route, excluded)
        } else {
            terminal::all_failed(input, route, attempts, excluded)
        }
    }
}

/// Where in the list the attempt's target is.
fn position(attempt: &PriorAttempt) -> usize {
    usize::try_from(attempt.target).unwrap_or(usize::MAX)
}

/// What is left of the wait that an upstream asked for.
pub(super) fn hint_remaining_ms(failure: &PriorAttempt, now: Timestamp) -> Option<u64> {
    let hint = failure.classification.hint?;
    let remaining = failure.failed_at.plus_ms(hint.wait_ms).remaining_ms(now);
    (remaining > 0).then_some(remaining)
}

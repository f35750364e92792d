//! The walk over targets and accounts: one step of it per decision (`routing.md` §5).
//!
//! Every decision walks the current pass again from the target of the last attempt. Nothing is remembered, so
//! a delay before a retry is served by the clock: asked before it is over, the answer is to wait for the rest
//! of it; asked after, the retry is dispatched.
//!
//! What ends a request before its targets are used up is in `endings`, what it waits for in `delays`.

use crate::classify::Reason;
use crate::ids::ProviderId;
use crate::time::Timestamp;

use super::accounts::{Account, Past, Scene};
use super::emergency::is_emergency;
use super::endings::{ends_request, is_protected, is_same_fault};
use super::exclusion::Exclusions;
use super::exhaustion::{Exhaustion, effect};
use super::order::Sequence;
use super::private_view::PrivateView;
use super::progress::{Progress, Tries, first_of_block, results};
use super::reordered::found_again;
use super::resolve::{Route, resolve_request};
use super::strategy::Halt;
use super::{Decision, Input, PriorAttempt, Rejection, WaitKind, plan, terminal};

/// Decides the next step of a request.
#[must_use]
pub fn decide(input: &Input<'_>) -> Decision {
    match resolve_request(input.config, input.facts) {
        None => reject(terminal::unknown_model(&input.facts.model)),
        Some(route) => {
            let so_far = found_again(input, &route);
            let input = Input {
                so_far: &so_far,
                ..*input
            };
            let view = PrivateView::new(&input, &route);
            Driver::decide(Scene::new(&input, &route, &view))
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
        | Decision::ReadPin(_)
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

pub(super) fn reject(rejection: Rejection) -> Decision {
    Decision::Reject(Box::new(rejection))
}

/// What a walk over the targets of a pass came to.
enum Walked<'a> {
    /// An account to use.
    Found(Found<'a>),
    /// An account to use for a retry on the same target, not before this.
    RetryAt(Timestamp),
    /// Nothing, and the walk may not go on from the target of the last attempt.
    Protected,
    /// Nothing.
    Nothing(Exclusions),
}

/// An account to use.
pub(super) struct Found<'a> {
    /// The account.
    pub(super) account: Account<'a>,
    /// Position of its target.
    pub(super) target: usize,
    /// What was excluded on the way.
    pub(super) excluded: Exclusions,
}

pub(super) struct Driver<'a> {
    pub(super) scene: Scene<'a>,
    pub(super) sequence: Sequence,
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
        let attempts = &input.so_far.attempts;
        if let Some(last) = attempts.last() {
            if is_emergency(last) {
                return reject(terminal::after_emergency(input, route));
            }
            if ends_request(&scene, last) {
                return reject(terminal::of_client(input, route, last));
            }
        } else if let Some(reason) = scene.filters.emptied_by() {
            return reject(terminal::filtered_out(&scene, reason));
        }
        let decided = Sequence::of(&scene).and_then(|sequence| Driver { scene, sequence }.next());
        match decided {
            Ok(decision) => decision,
            Err(Halt::TakeTurn(key)) => Decision::TakeTurn(key),
            Err(Halt::ReadPin(key)) => Decision::ReadPin(key),
            Err(Halt::Reject(rejection)) => Decision::Reject(rejection),
        }
    }

    fn next(&self) -> Result<Decision, Halt> {
        let Scene { input, route, .. } = self.scene;
        if self.remaining_ms() == Some(0) {
            return Ok(reject(terminal::timed_out(input, route)));
        }
        let progress = Progress::of(input.so_far, &route.terms);
        if let Some(last) = input.so_far.attempts.last()
            && input.so_far.budget_spent
        {
            return Ok(reject(terminal::retry_budget_spent(input, route, last)));
        }
        if is_same_fault(progress.attempts) {
            return Ok(reject(self.final_answer(Exclusions::default())));
        }
        let excluded = match self.walk(progress.attempts, input.now)? {
            Walked::Found(found) => return Ok(self.go_on(found, &progress)),
            Walked::RetryAt(due) => return Ok(self.wait_until(due, WaitKind::RetryDelay)),
            Walked::Protected => {
                let tried = tail_of_target(progress.attempts);
                return Ok(reject(terminal::protected(input, route, tried)));
            }
            Walked::Nothing(excluded) => excluded,
        };
        if input.view.reserves_pool() && excluded.any_reserved() {
            // What comes last comes before anything that takes time or money.
            return Ok(reject(self.final_answer(excluded)));
        }
        if let Some(decision) = self.repeat_set(&progress)? {
            return Ok(decision);
        }
        if let Some(decision) = self.wait_for_cooldown() {
            return Ok(decision);
        }
        if let Some(decision) = self.last_resort(&progress, &excluded)? {
            return Ok(decision);
        }
        Ok(reject(self.final_answer(excluded)))
    }

    /// Dispatches, but for a delay before another target than that of the last attempt.
    fn go_on(&self, found: Found<'_>, progress: &Progress<'_>) -> Decision {
        if let Some(last) = progress.attempts.last()
            && position(last) != found.target
            && let Some(due) = self.fallback_due(last)
            && due > self.scene.input.now
        {
            return self.wait_until(due, WaitKind::FallbackDelay);
        }
        self.dispatch(found, progress.pass)
    }

    /// Walks the targets from the one of the last attempt on, as it would be at `at`.
    fn walk(&self, attempts: &'a [PriorAttempt], at: Timestamp) -> Result<Walked<'a>, Halt> {
        let Scene { input, route, .. } = self.scene;
        let targets: &'a [_] = &route.targets;
        let first = first_of_block(input.so_far, &route.terms);
        let mut exhaustion = Exhaustion::begin(input.so_far, first);
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
                if is_protected(route.strategy, target, tail_of_target(attempts)) {
                    return Ok(Walked::Protected);
                }
                exhaustion.add(target, last, input.config);
            }
        }
        let past = Past::of_fresh_target(&exhaustion);
        // A target that is kept waiting is looked at as it will be then.
        let due = attempts.last().and_then(|last| self.fallback_due(last));
        let at = due.map_or(at, |due| at.max(due));
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
        // The gates are asked for the moment of the retry: a cooldown that outlasts the delay drops it, also when the
        // answer to that is a longer wait, before another target.
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
        let account = self.scene.choose(target, past, due, &mut at_retry)?;
        let must_wait = due > at;
        if must_wait && !self.scene.input.so_far.no_wait {
            return Ok(account.map(|_| Walked::RetryAt(due)));
        }
        if account.is_none() || must_wait {
            return Ok(None);
        }
        let mut now = Exclusions::default();
        let account = self.scene.choose(target, past, at, &mut now)?;
        Ok(account.map(|account| {
            Walked::Found(Found {
                account,
                target: index,
                excluded: now,
            })
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
        // A target that took its whole time is not tried again.
        let all_expired =
            results(progress.attempts).all(|result| terminal::is_expired(&result.classification));
        if progress.set_retries_left == 0 || same_fault || all_expired {
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
            let may_wait = !self.scene.input.so_far.no_wait;
            return Ok(may_wait.then(|| self.wait_until(due, WaitKind::FallbackDelay)));
        }
        Ok(Some(self.dispatch(found, progress.pass.saturating_add(1))))
    }

    pub(super) fn final_answer(&self, excluded: Exclusions) -> Rejection {
        let Scene { input, route, .. } = self.scene;
        let attempts = Progress::last_attempts(input.so_far);
        if attempts.is_empty() {
            terminal::nothing_dispatched(input, route, excluded)
        } else {
            terminal::all_failed(input, route, attempts, excluded)
        }
    }
}

/// The attempts at the target of the last one, since the walk came to it.
fn tail_of_target(attempts: &[PriorAttempt]) -> &[PriorAttempt] {
    attempts
        .chunk_by(|one, next| one.target == next.target)
        .last()
        .unwrap_or_default()
}

/// Where in the list the attempt's target is.
pub(super) fn position(attempt: &PriorAttempt) -> usize {
    usize::try_from(attempt.target).unwrap_or(usize::MAX)
}

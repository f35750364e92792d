//! Where a request is: which pass over the targets, which target, which try.
//!
//! Nothing is kept between decisions, so all of it is read from the attempts. Passes are numbered through:
//! each cooldown wait begins a block of `1 + maxSetRetries` of them. Within a target, a *round* is one run of
//! the account loop (`routing.md` §5.0); it ends when a failure does not say "another account" or when no
//! account is left. A round of a pinned target is one attempt. Every round after the first is a same-target
//! retry.

use crate::ids::ConnectionId;

use super::resolve::Terms;
use super::{AttemptsSoFar, PriorAttempt};

/// The pass a request is in and the attempts made in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress<'a> {
    /// Number of the pass.
    pub(super) pass: u32,
    /// Attempts of this pass, in order.
    pub(super) attempts: &'a [PriorAttempt],
    /// Set retries that may still follow this pass.
    pub(super) set_retries_left: u32,
}

impl<'a> Progress<'a> {
    /// Reads it from what happened so far.
    pub(super) fn of(so_far: &'a AttemptsSoFar, terms: &Terms) -> Self {
        let first = first_of_block(so_far, terms);
        let last_pass = so_far.attempts.last().map_or(0, |attempt| attempt.pass);
        let pass = last_pass.max(first);
        Self {
            pass,
            attempts: attempts_of_pass(&so_far.attempts, pass),
            set_retries_left: terms
                .max_set_retries
                .saturating_sub(pass.saturating_sub(first)),
        }
    }

    /// The attempts of the last pass in which there were any: the outcomes that the final answer rests on.
    pub(super) fn last_attempts(so_far: &'a AttemptsSoFar) -> &'a [PriorAttempt] {
        let pass = so_far.attempts.last().map_or(0, |attempt| attempt.pass);
        attempts_of_pass(&so_far.attempts, pass)
    }
}

/// Number of the first pass since the last cooldown wait.
pub(super) fn first_of_block(so_far: &AttemptsSoFar, terms: &Terms) -> u32 {
    let block = terms.max_set_retries.saturating_add(1);
    so_far.waits.saturating_mul(block)
}

fn attempts_of_pass(attempts: &[PriorAttempt], pass: u32) -> &[PriorAttempt] {
    tail_while(attempts, |attempt| attempt.pass == pass)
}

fn tail_while(attempts: &[PriorAttempt], keep: impl Fn(&PriorAttempt) -> bool) -> &[PriorAttempt] {
    let kept = attempts
        .iter()
        .rev()
        .take_while(|attempt| keep(attempt))
        .count();
    attempts
        .get(attempts.len().saturating_sub(kept)..)
        .unwrap_or_default()
}

/// The last attempt of each run of equal targets: the results of the account loops, after their retries.
pub(super) fn results(attempts: &[PriorAttempt]) -> impl Iterator<Item = &PriorAttempt> {
    attempts
        .chunk_by(|one, next| one.target == next.target)
        .filter_map(|run| run.last())
}

/// The tries of one target.
#[derive(Clone, Debug)]
pub(super) struct Tries<'a> {
    /// The last attempt.
    pub(super) last: &'a PriorAttempt,
    /// Accounts tried in the last round.
    pub(super) tried: Vec<&'a ConnectionId>,
    /// Rounds so far less one.
    pub(super) retries: u32,
}

impl<'a> Tries<'a> {
    /// The tries of the target that the last attempt was at; `None` when there was no attempt.
    pub(super) fn of_last_target(attempts: &'a [PriorAttempt], pinned: bool) -> Option<Self> {
        let last = attempts.last()?;
        let of_target = tail_while(attempts, |attempt| attempt.target == last.target);
        let mut tried: Vec<&ConnectionId> = Vec::new();
        let mut rounds: u32 = 0;
        let mut round_ended = true;
        for attempt in of_target {
            let connection = &attempt.attempt.connection;
            if round_ended || tried.contains(&connection) {
                rounds = rounds.saturating_add(1);
                tried.clear();
            }
            tried.push(connection);
            round_ended = pinned || !attempt.classification.account_fallback;
        }
        Some(Self {
            last,
            tried,
            retries: rounds.saturating_sub(1),
        })
    }

    /// The account loop goes on: the last failure says "another account", and the target is not pinned.
    pub(super) fn loop_goes_on(&self, pinned: bool) -> bool {
        !pinned && self.last.classification.account_fallback
    }
}

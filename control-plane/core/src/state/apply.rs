//! The one way hot state changes (`architecture.md` §3, One rule book).
//!
//! [`apply`] is total: whatever the values and the event are, in whatever order and however often events come,
//! it answers and keeps the invariants. It is pure, so a decision applies the earlier failures of its own
//! request to a private copy with the same code ([`apply_classified`]).
//!
//! Everything that has a length is counted from when the outcome was seen, never from when the report arrived;
//! an outcome from the future counts as seen now. How old a report may be is the caller's matter.

mod connection;
mod egress;
mod gate;
mod lease;
mod provider;

use crate::breaker::Breaker;
use crate::classify::{Classification, ClassifyContext, Origin, classify};
use crate::config::Connection;
use crate::ids::{AttemptId, ConnectionId, ProviderId};
use crate::outcome::{Attempt, AttemptOutcome, Outcome};
use crate::settings::ProviderPolicy;
use crate::time::Timestamp;

use super::{ConnectionState, Event, ProviderState, Transition, TransitionKind};

/// The two values an event concerns. `connection` is absent for events of the provider alone.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The provider's value.
    pub provider: &'a mut ProviderState,
    /// The connection's value and configuration.
    pub connection: Option<(&'a Connection, &'a mut ConnectionState)>,
}

/// What applying an event did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Either value is another than before. What changes nothing is not written.
    pub changed: bool,
    /// Changes worth keeping in history.
    pub transitions: Vec<Transition>,
    /// For an outcome: how it was classified.
    pub classification: Option<Classification>,
    /// For `TakeProbe`: the attempt now holds the probe.
    pub probe_granted: bool,
}

/// An attempt whose end has been judged.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// The attempt.
    pub attempt: &'a Attempt,
    /// What its end meant.
    pub classification: &'a Classification,
    /// When it ended, in the store's time.
    pub at: Timestamp,
    /// As in [`AttemptOutcome::next_target_same_provider`].
    pub next_target_same_provider: bool,
    /// As in [`AttemptOutcome::combo`].
    pub combo: bool,
    /// As in [`AttemptOutcome::count`].
    pub count: u32,
}

/// Applies one event to the values it concerns.
///
/// `now` is the store's time, `policy` the one in force now. An event that names a connection other than the
/// subject's leaves the connection's value alone.
pub fn apply(
    subject: Subject<'_>,
    event: &Event,
    now: Timestamp,
    policy: &ProviderPolicy,
    provider: &ProviderId,
) -> Applied {
    match event {
        Event::Outcome(outcome) => apply_outcome(subject, outcome, now, policy, provider),
        Event::TakeProbe { attempt } => {
            take_probe(subject.provider, *attempt, now, policy, provider)
        }
        Event::RenewProbe { attempt } => {
            let log = Log::new(provider, now, Some(*attempt));
            let breaker = &mut subject.provider.breaker;
            let before = breaker.clone();
            breaker.renew_probe(*attempt, now, &policy.breaker);
            log.applied(before != *breaker)
        }
        Event::ReturnProbe { attempt } => {
            let mut log = Log::new(provider, now, Some(*attempt));
            let breaker = &mut subject.provider.breaker;
            let before = breaker.clone();
            breaker.return_probe(*attempt);
            log.breaker(&before, breaker);
            log.applied(before != *breaker)
        }
        Event::ResetBreaker => {
            let mut log = Log::new(provider, now, None);
            let breaker = &mut subject.provider.breaker;
            let before = breaker.clone();
            breaker.reset();
            log.breaker(&before, breaker);
            log.applied(before != *breaker)
        }
        Event::ResetGate => {
            let log = Log::new(provider, now, None);
            let before = subject.provider.gate.clone();
            subject.provider.gate.clear();
            log.applied(before != subject.provider.gate)
        }
        Event::ResetEgressLocks => {
            let log = Log::new(provider, now, None);
            let before = subject.provider.egress_locks.clone();
            subject.provider.egress_locks.clear();
            log.applied(before != subject.provider.egress_locks)
        }
        Event::ResetConnection {
            connection,
            terminal_too,
        } => with_connection(subject, connection, provider, now, |state| {
            connection::reset(state, *terminal_too)
        }),
        Event::ClearLocks { connection, model } => {
            with_connection(subject, connection, provider, now, |state| {
                crate::lockout::clear(&mut state.locks, provider, model.as_ref());
                false
            })
        }
        Event::CredentialReplaced {
            connection,
            credential_version,
        } => with_connection(subject, connection, provider, now, |state| {
            connection::adopt_credential(state, *credential_version)
        }),
        Event::TokenRefreshed {
            connection,
            credential_version,
        } => with_connection(subject, connection, provider, now, |state| {
            connection::adopt_refreshed_token(state, *credential_version)
        }),
        Event::LeaseShown { connection, lease } => {
            let mut log = Log::new(provider, now, None);
            let named = subject
                .connection
                .filter(|(config, _)| config.id == *connection);
            let changed =
                named.is_some_and(|(_, state)| lease::shown(state, connection, lease, &mut log));
            log.applied(changed)
        }
    }
}

/// Applies an outcome that has been classified already: the earlier failures of a request to the private copy
/// of its decision (`architecture.md` §2, Decide).
pub fn apply_classified(
    subject: Subject<'_>,
    judged: &Judged<'_>,
    now: Timestamp,
    policy: &ProviderPolicy,
    provider: &ProviderId,
) -> Applied {
    let attempt = judged.attempt;
    if attempt.synthetic {
        return Applied::default();
    }
    let judged = &Judged {
        at: judged.at.min(now),
        count: judged.count.max(1),
        ..*judged
    };
    let mut log = Log::new(provider, judged.at, Some(attempt.id));
    log.origin.clone_from(&judged.classification.origin);
    let Subject {
        provider: provider_state,
        connection,
    } = subject;
    let connection = connection.filter(|(config, _)| config.id == attempt.connection);
    let breaker_before = provider_state.breaker.clone();
    let heard = provider::hears(&breaker_before, attempt);
    let mut changed = false;
    match connection {
        Some((config, state)) => {
            let before = state.clone();
            provider::outcome(
                &mut provider_state.breaker,
                Some(&mut state.last_counted_failure_at),
                judged,
                &policy.breaker,
            );
            connection::outcome(state, config, judged, policy, &mut log);
            let locks = &mut provider_state.egress_locks;
            changed |= egress::outcome(locks, config, state, judged, policy, &mut log);
            changed |= gate::outcome(
                &mut provider_state.gate,
                Some((config, state)),
                judged,
                heard,
                policy,
                &mut log,
            );
            changed |= before != *state;
        }
        None => {
            provider::outcome(&mut provider_state.breaker, None, judged, &policy.breaker);
            let gate = &mut provider_state.gate;
            changed |= gate::outcome(gate, None, judged, heard, policy, &mut log);
        }
    }
    log.breaker(&breaker_before, &provider_state.breaker);
    changed |= breaker_before != provider_state.breaker;
    log.applied(changed)
}

/// Applies an outcome as [`apply`] does, for callers who hold it without an event around it.
pub fn apply_outcome(
    subject: Subject<'_>,
    outcome: &AttemptOutcome,
    now: Timestamp,
    policy: &ProviderPolicy,
    provider: &ProviderId,
) -> Applied {
    let at = outcome.occurred_at.min(now);
    let attempt = &outcome.attempt;
    let connection = subject.connection.as_ref().map(|(config, _)| *config);
    let context = ClassifyContext::of(provider, policy, &attempt.model, at)
        .on(connection.filter(|config| config.id == attempt.connection));
    let classification = classify(&outcome.outcome, &context);
    let mut applied = if is_success_on_clean_state(&subject, outcome) {
        Applied::default()
    } else {
        let judged = Judged {
            attempt,
            classification: &classification,
            at,
            next_target_same_provider: outcome.next_target_same_provider,
            combo: outcome.combo,
            count: outcome.count,
        };
        apply_classified(subject, &judged, now, policy, provider)
    };
    applied.classification = Some(classification);
    applied
}

/// The common case, told apart without copying any value: there is nothing a success could change.
fn is_success_on_clean_state(subject: &Subject<'_>, outcome: &AttemptOutcome) -> bool {
    outcome.outcome == Outcome::Success
        && subject.provider.is_clean()
        && subject
            .connection
            .as_ref()
            .is_none_or(|(_, state)| state.is_clean() && state.last_counted_failure_at.is_none())
}

fn take_probe(
    state: &mut ProviderState,
    attempt: AttemptId,
    now: Timestamp,
    policy: &ProviderPolicy,
    provider: &ProviderId,
) -> Applied {
    let mut log = Log::new(provider, now, Some(attempt));
    let breaker = &mut state.breaker;
    let before = breaker.clone();
    let granted = breaker.take_probe(attempt, now, &policy.breaker);
    log.breaker(&before, breaker);
    let mut applied = log.applied(before != *breaker);
    applied.probe_granted = granted;
    applied
}

/// Runs a change of the named connection's value; it says whether the connection is as new after it.
fn with_connection(
    subject: Subject<'_>,
    named: &ConnectionId,
    provider: &ProviderId,
    now: Timestamp,
    change: impl FnOnce(&mut ConnectionState) -> bool,
) -> Applied {
    let mut log = Log::new(provider, now, None);
    let Some((_, state)) = subject.connection.filter(|(config, _)| config.id == *named) else {
        return log.applied(false);
    };
    let before = state.clone();
    if change(state) {
        log.connection(named, TransitionKind::Cleared);
    }
    let changed = before != *state;
    log.applied(changed)
}

/// Collects the transitions of one event.
struct Log<'a> {
    provider: &'a ProviderId,
    at: Timestamp,
    attempt: Option<AttemptId>,
    origin: Option<Origin>,
    transitions: Vec<Transition>,
}

impl<'a> Log<'a> {
    fn new(provider: &'a ProviderId, at: Timestamp, attempt: Option<AttemptId>) -> Self {
        Self {
            provider,
            at,
            attempt,
            origin: None,
            transitions: Vec::new(),
        }
    }

    fn breaker(&mut self, before: &Breaker, after: &Breaker) {
        let from = before.status.wire_name();
        let to = after.status.wire_name();
        if from != to {
            self.push(
                None,
                TransitionKind::Breaker {
                    from: from.to_owned(),
                    to: to.to_owned(),
                    failure_count: after.failure_count,
                },
            );
        }
    }

    fn provider(&mut self, kind: TransitionKind) {
        self.push(None, kind);
    }

    fn connection(&mut self, connection: &ConnectionId, kind: TransitionKind) {
        self.push(Some(connection.clone()), kind);
    }

    fn push(&mut self, connection: Option<ConnectionId>, kind: TransitionKind) {
        self.transitions.push(Transition {
            at: self.at,
            provider: self.provider.clone(),
            connection,
            kind,
            attempt: self.attempt,
            origin: self.origin.clone(),
        });
    }

    fn applied(self, changed: bool) -> Applied {
        Applied {
            changed,
            transitions: self.transitions,
            ..Applied::default()
        }
    }
}

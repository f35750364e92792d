//! Taking a permit for a decision, and what follows when there is none.
//!
//! A connection whose permits are all out is skipped, as gate 10 says, and the decision is made anew. What was skipped
//! is remembered, because strategies differ in what they do when nothing else is left (`routing.md` §8.3, §11.4).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tidegate_core::ids::{AttemptId, ConnectionId, ProviderId};
use tidegate_core::permit::{self, WaitTerms};
use tidegate_core::routing::{
    Decision, Dispatch, MAX_QUEUE_DEPTH, MAX_QUEUE_TIMEOUT_MS, PermitDemand, PermitPolicy,
    PermitQueue, Wait, WaitEnd, WaitKind,
};

use crate::permits::{PoolName, Taken, Waited};
use crate::telemetry::metrics::PermitGrant;

use super::grants::Question;
use super::{Decider, NoAnswer};

/// Connections that one request may wait for in vain before it is sent.
pub(crate) const MAX_WAITED: usize = 64;
/// How long a pool is waited for that could not be asked within a decision, in ms.
const ASK_AGAIN_MS: u64 = 1_000;

/// What an attempt may have to do with permits.
#[derive(Clone, Debug, Default)]
pub(crate) struct PermitPast {
    /// An earlier attempt of the request that still holds one.
    pub(crate) replaces: Option<AttemptId>,
    /// The connection whose permit this attempt waited for and got.
    pub(crate) granted: Option<ConnectionId>,
    /// Connections whose permit it waited for in vain.
    pub(crate) waited_in_vain: BTreeSet<ConnectionId>,
    /// Those of them whose queue was full.
    pub(crate) queues_full: BTreeSet<ConnectionId>,
}

impl PermitPast {
    /// The attempt waited for some permit.
    pub(super) fn has_waited(&self) -> bool {
        self.granted.is_some() || !self.waited_in_vain.is_empty()
    }

    /// It waited for this connection's permit in vain.
    pub(super) fn waited_for(&self, connection: &ConnectionId) -> bool {
        self.waited_in_vain.contains(connection)
    }

    /// Some wait was in vain because its time was over.
    fn has_timed_out(&self) -> bool {
        let is_full = |connection| self.queues_full.contains(connection);
        !self.waited_in_vain.iter().all(is_full)
    }
}

/// What a data plane hands to the call that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ticket {
    pub(crate) provider: ProviderId,
    pub(crate) connection: ConnectionId,
    queue_depth: u32,
    timeout_ms: u64,
    /// The time that the request had left, if it has a limit.
    #[serde(default)]
    left_ms: Option<u64>,
}

/// How a wait for the permit of a ticket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The attempt holds it.
    Granted,
    /// As many wait as may.
    QueueFull,
    /// It did not come free in time, or there is nothing to wait for any more.
    InVain,
    /// This replica ends; another one is to be asked.
    Draining,
}

impl Ticket {
    /// As it travels.
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads one back; `None` when it is none of ours.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The terms of one that waited so long in another replica. The time that its request has left is counted anew.
    fn terms(&self, waited_ms: u64) -> WaitTerms {
        let left_ms = self.left_ms.unwrap_or(u64::MAX);
        let limit_ms = self.timeout_ms.min(MAX_QUEUE_TIMEOUT_MS);
        let waited_ms = waited_ms.min(limit_ms);
        WaitTerms {
            depth: self.queue_depth.min(MAX_QUEUE_DEPTH),
            timeout_ms: limit_ms.min(waited_ms.saturating_add(left_ms)),
            waited_ms,
        }
    }
}

/// A dispatch that got no permit.
#[derive(Debug)]
struct Skipped {
    dispatch: Box<Dispatch>,
    policy: PermitPolicy,
    /// Nobody knows whether one is free.
    unknown: bool,
}

/// Connections without a free permit, in the order in which they were wanted.
#[derive(Debug, Default)]
pub(super) struct Passed {
    skipped: Vec<Skipped>,
}

/// A decision with what it has to do with permits.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) decision: Decision,
    /// The attempt holds a permit of the connection it is sent to.
    pub(super) permit: bool,
    /// What to wait for.
    pub(super) ticket: Option<Ticket>,
}

impl Granted {
    /// A decision that sends nothing.
    pub(super) fn without(decision: Decision) -> Self {
        Self {
            decision,
            permit: false,
            ticket: None,
        }
    }

    /// A dispatch.
    pub(super) fn dispatch(dispatch: Box<Dispatch>, permit: bool) -> Self {
        Self {
            decision: Decision::Dispatch(dispatch),
            permit,
            ticket: None,
        }
    }
}

impl Passed {
    /// Keeps a dispatch that got no permit. `unknown`: nobody knows whether one is free.
    pub(super) fn push(&mut self, dispatch: Box<Dispatch>, demand: PermitDemand, unknown: bool) {
        self.skipped.push(Skipped {
            dispatch,
            policy: demand.policy,
            unknown,
        });
    }

    /// Nothing was passed over.
    pub(super) fn is_empty(&self) -> bool {
        self.skipped.is_empty()
    }

    /// What is done instead of a decision that sends nothing, by a request that has `left_ms` left, if it has a limit.
    pub(super) fn instead(
        &mut self,
        decision: Decision,
        past: &PermitPast,
        left_ms: Option<u64>,
    ) -> Granted {
        if let Decision::Wait(Wait {
            kind: WaitKind::RetryDelay | WaitKind::FallbackDelay,
            ..
        }) = decision
        {
            return Granted::without(decision);
        }
        let waited = |skipped: &Skipped| past.waited_for(&skipped.dispatch.connection);
        let in_vain = self
            .skipped
            .iter()
            .position(|skipped| match skipped.policy {
                PermitPolicy::WaitThenSend(queue) => waited(skipped) || queue.depth == 0,
                PermitPolicy::WaitThenSkip(_)
                | PermitPolicy::WaitThenRefuse(_)
                | PermitPolicy::Skip => false,
            });
        if let Some(index) = in_vain {
            let dispatch = self.skipped.swap_remove(index).dispatch;
            return Granted::dispatch(dispatch, false);
        }
        // Whoever waited as long as it may is refused, whatever else is full.
        let is_over = |skipped: &Skipped| {
            matches!(skipped.policy, PermitPolicy::WaitThenRefuse(_)) && past.has_timed_out()
        };
        let to_wait_for =
            (self.skipped.iter()).filter(|skipped| !waited(skipped) && !is_over(skipped));
        let queued = to_wait_for.clone().find_map(|skipped| {
            let queue = skipped.policy.queue().filter(|queue| queue.depth > 0)?;
            Some((skipped, queue))
        });
        let rejected = matches!(decision, Decision::Reject(_));
        let asked_again = || {
            let unknown = to_wait_for.clone().find(|skipped| skipped.unknown)?;
            // Not a place in the queue: only what is free.
            let queue = PermitQueue {
                depth: 0,
                timeout_ms: ASK_AGAIN_MS,
            };
            Some((unknown, queue))
        };
        let waits_more = past.waited_in_vain.len() < MAX_WAITED;
        let wait = queued.or_else(|| asked_again().filter(|_| rejected));
        match wait.filter(|_| waits_more) {
            Some((skipped, queue)) => {
                // Whoever cannot be sent in time need not wait longer (`routing.md` §5.5).
                let wait_ms = queue.timeout_ms.min(left_ms.unwrap_or(u64::MAX));
                Granted {
                    decision: Decision::Wait(Wait {
                        wait_ms,
                        kind: WaitKind::Permit,
                    }),
                    permit: false,
                    ticket: Some(Ticket {
                        provider: skipped.dispatch.provider.clone(),
                        connection: skipped.dispatch.connection.clone(),
                        queue_depth: queue.depth,
                        timeout_ms: queue.timeout_ms,
                        left_ms,
                    }),
                }
            }
            None => Granted::without(self.refused(decision, past)),
        }
    }

    /// The answer says how the wait ended, where the request waited for an account as an account's gate has it.
    fn refused(&self, decision: Decision, past: &PermitPast) -> Decision {
        let waited_at_gate = self.skipped.iter().any(|skipped| {
            matches!(skipped.policy, PermitPolicy::WaitThenRefuse(_))
                && past.waited_for(&skipped.dispatch.connection)
        });
        match decision {
            Decision::Reject(rejection) if waited_at_gate => {
                let end = if past.has_timed_out() {
                    WaitEnd::TimedOut
                } else {
                    WaitEnd::QueueFull
                };
                Decision::Reject(Box::new(rejection.after_wait(end)))
            }
            decision => decision,
        }
    }
}

impl Decider {
    /// Takes the permit that a dispatch needs.
    pub(super) async fn take_permit(
        &self,
        dispatch: &Dispatch,
        demand: PermitDemand,
        attempt: AttemptId,
        past: &PermitPast,
        deadline: Instant,
    ) -> Taken {
        let pool = pool_of(dispatch);
        self.permits
            .take(&pool, attempt, past.replaces, demand.cap, deadline)
            .await
    }

    /// Connections of a provider that have no permit for the attempt.
    pub(super) async fn full_connections(
        &self,
        question: &Question<'_>,
        provider: &ProviderId,
    ) -> BTreeSet<ConnectionId> {
        let entry = question.current.config.provider(provider);
        let connections = entry.into_iter().flat_map(|entry| &entry.connections);
        let pools: Vec<_> = connections
            .filter_map(|connection| {
                let pool = PoolName {
                    provider: provider.clone(),
                    connection: connection.id.clone(),
                };
                Some((pool, permit::cap(connection)?))
            })
            .collect();
        let (attempt, replaces) = (question.attempt, question.permits.replaces);
        let limit = self.limits.store_call;
        self.permits
            .full_of(pools, attempt, replaces, limit, question.deadline)
            .await
    }

    /// Gives back a permit whose attempt goes elsewhere.
    pub(super) fn return_permit(&self, dispatch: &Dispatch, attempt: AttemptId) {
        self.permits.release(&pool_of(dispatch), attempt);
    }

    /// A request of a quota pool goes on without a permit.
    pub(super) fn goes_unheld(&self, dispatch: &Dispatch, attempt: AttemptId) {
        self.metrics.permit(PermitGrant::Unheld);
        if let Some(left_out) = self.unheld_lines.lock().tell(self.clock.now()) {
            tracing::warn!(
                %attempt,
                connection = %dispatch.connection,
                left_out,
                "no permit came free in time; the request goes on without one"
            );
        }
    }

    /// Waits for the permit of a ticket, `waited_ms` of it having passed in another replica.
    pub(crate) async fn await_permit(
        self: &Arc<Self>,
        attempt: AttemptId,
        ticket: &Ticket,
        waited_ms: u64,
    ) -> Result<Awaited, NoAnswer> {
        let config = self.config.config().ok_or(NoAnswer::NotReady)?;
        let connection = config.connection(&ticket.connection);
        let Some(cap) = connection.and_then(|connection| permit::cap(connection)) else {
            // There is nothing to wait for any more.
            return Ok(Awaited::InVain);
        };
        let pool = PoolName {
            provider: ticket.provider.clone(),
            connection: ticket.connection.clone(),
        };
        let terms = ticket.terms(waited_ms);
        Ok(match self.permits.wait(&pool, attempt, cap, terms).await {
            Waited::Granted => Awaited::Granted,
            // Where nobody may wait, none was free.
            Waited::QueueFull if terms.depth > 0 => Awaited::QueueFull,
            Waited::QueueFull | Waited::TimedOut => Awaited::InVain,
            Waited::Draining => Awaited::Draining,
        })
    }
}

fn pool_of(dispatch: &Dispatch) -> PoolName {
    PoolName {
        provider: dispatch.provider.clone(),
        connection: dispatch.connection.clone(),
    }
}

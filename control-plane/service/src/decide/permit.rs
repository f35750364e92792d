//! Taking a permit for a decision, and what follows when there is none.
//!
//! A connection whose permits are all out is skipped, as gate 10 says, and the decision is made anew. What was skipped
//! is remembered, because strategies differ in what they do when nothing else is left (`routing.md` §8.3, §11.4).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tidegate_core::ids::{AttemptId, ConnectionId, ProviderId};
use tidegate_core::permit;
use tidegate_core::routing::{
    Decision, Dispatch, MAX_QUEUE_DEPTH, MAX_QUEUE_TIMEOUT_MS, PermitDemand, PermitPolicy,
    PermitQueue, Wait, WaitKind,
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
}

impl PermitPast {
    /// The attempt waited for some permit.
    pub(super) fn has_waited(&self) -> bool {
        self.granted.is_some() || !self.waited_in_vain.is_empty()
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

    fn queue(&self) -> PermitQueue {
        PermitQueue {
            depth: self.queue_depth.min(MAX_QUEUE_DEPTH),
            timeout_ms: self.timeout_ms.min(MAX_QUEUE_TIMEOUT_MS),
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
        waited_in_vain: &BTreeSet<ConnectionId>,
        left_ms: Option<u64>,
    ) -> Granted {
        if let Decision::Wait(Wait {
            kind: WaitKind::RetryDelay | WaitKind::FallbackDelay,
            ..
        }) = decision
        {
            return Granted::without(decision);
        }
        let waited = |skipped: &Skipped| waited_in_vain.contains(&skipped.dispatch.connection);
        let in_vain = self
            .skipped
            .iter()
            .position(|skipped| match skipped.policy {
                PermitPolicy::WaitThenSend(queue) => waited(skipped) || queue.depth == 0,
                PermitPolicy::WaitThenSkip(_) | PermitPolicy::Skip => false,
            });
        if let Some(index) = in_vain {
            let dispatch = self.skipped.swap_remove(index).dispatch;
            return Granted::dispatch(dispatch, false);
        }
        let to_wait_for = self.skipped.iter().filter(|skipped| !waited(skipped));
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
        let waits_more = waited_in_vain.len() < MAX_WAITED;
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
                        timeout_ms: wait_ms,
                    }),
                }
            }
            None => Granted::without(decision),
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

    /// Waits for the permit of a ticket. `None` when this replica ends and another one is to be asked.
    pub(crate) async fn await_permit(
        self: &Arc<Self>,
        attempt: AttemptId,
        ticket: &Ticket,
    ) -> Result<Option<bool>, NoAnswer> {
        let config = self.config.config().ok_or(NoAnswer::NotReady)?;
        let connection = config.connection(&ticket.connection);
        let Some(cap) = connection.and_then(|connection| permit::cap(connection)) else {
            // There is nothing to wait for any more.
            return Ok(Some(false));
        };
        let pool = PoolName {
            provider: ticket.provider.clone(),
            connection: ticket.connection.clone(),
        };
        let waited = self.permits.wait(&pool, attempt, cap, ticket.queue()).await;
        Ok(match waited {
            Waited::Granted => Some(true),
            Waited::QueueFull | Waited::TimedOut => Some(false),
            Waited::Draining => None,
        })
    }
}

fn pool_of(dispatch: &Dispatch) -> PoolName {
    PoolName {
        provider: dispatch.provider.clone(),
        connection: dispatch.connection.clone(),
    }
}

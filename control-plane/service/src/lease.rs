//! Exclusive leases: what clients ask for, where their requests go, and what data planes have in flight
//! (`sessions-and-streams.md` §1, decisions 40 to 42).
//!
//! | room | what it does |
//! |---|---|
//! | here | what all of it works on, and its limits |
//! | `lifecycle` | acquire, renew, release, status |
//! | `placing` | where a request under a lease goes |
//! | `placed` | where requests were placed last, while the store is away |
//! | `in_flight` | fences and what is registered |
//! | `selection` | what ordinary selection says, from the view of this replica |
//! | `keys` | which keys may lease |
//! | `mirror`, `upkeep` | what requests without a lease see of leases, in the hot state |
//!
//! The rules are [`tidegate_core::lease`], run by the durable store in its transactions; here they are given what ordinary
//! selection says of this moment.
//!
//! **Stance:** fail-closed. A call that the durable store does not answer within [`STORE_LIMIT`] gives no lease and lets
//! nothing be sent. It may have happened all the same, so every call may be repeated.
//!
//! Owners come here as hashes; neither log lines nor metrics have them.

mod in_flight;
mod keys;
mod lifecycle;
pub(crate) mod mirror;
mod placed;
pub(crate) mod placing;
pub(crate) mod selection;
pub(crate) mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::config::Config;
use tidegate_core::lease::{Lease, LeaseError, LeaseId};
use tidegate_core::pace::LinePace;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStore, DurableStoreError};
use tokio::time::timeout;

use crate::clock::{Clock, local_now};
use crate::config::Published;
use crate::fleet::Gatherer;
use crate::telemetry::lease_call_metrics::{LeaseAction, LeaseAnswer};
use crate::telemetry::metrics::Metrics;
use crate::view::View;

use mirror::Mirror;
use placed::Placed;

pub(crate) use lifecycle::AcquireAsked;

/// Limit of a call to the durable store (decision 54).
pub(crate) const STORE_LIMIT: Duration = Duration::from_millis(500);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseFault {
    /// This replica has no configuration or no view yet.
    #[error("this replica is not ready to answer for leases")]
    NotReady,
    /// The durable store.
    #[error(transparent)]
    Durable(#[from] DurableStoreError),
    /// The durable store, in silence.
    #[error("the durable store did not answer in time")]
    Late,
}

/// An answer about leases, or why it is not known.
pub(crate) type Answered<T> = Result<Result<T, LeaseError>, LeaseFault>;

/// What leases work on.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) durable: Arc<dyn DurableStore>,
    pub(crate) view: Arc<View>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) config: Arc<Published>,
    pub(crate) fleet: Arc<Gatherer>,
    pub(crate) mirror: Arc<Mirror>,
    pub(crate) metrics: Arc<Metrics>,
}

/// Leases.
#[derive(Debug)]
pub(crate) struct Leases {
    durable: Arc<dyn DurableStore>,
    view: Arc<View>,
    clock: Arc<Clock>,
    config: Arc<Published>,
    fleet: Arc<Gatherer>,
    mirror: Arc<Mirror>,
    metrics: Arc<Metrics>,
    placed: Placed,
    /// How often a line tells of a store that does not answer.
    fault_lines: Mutex<LinePace>,
}

impl Leases {
    /// Of these parts.
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            durable,
            view,
            clock,
            config,
            fleet,
            mirror,
            metrics,
        } = parts;
        Self {
            durable,
            view,
            clock,
            config,
            fleet,
            mirror,
            metrics,
            placed: Placed::default(),
            fault_lines: Mutex::default(),
        }
    }

    fn config_now(&self) -> Result<Arc<Config>, LeaseFault> {
        self.config.config().ok_or(LeaseFault::NotReady)
    }

    /// Counts an answer to a client, and tells of one that is missing.
    async fn counted<T>(
        &self,
        action: LeaseAction,
        answer: impl Future<Output = Answered<T>>,
    ) -> Answered<T> {
        let began = local_now();
        let answer = answer.await;
        let word = match &answer {
            Ok(Ok(_)) => LeaseAnswer::Granted,
            Ok(Err(error)) => LeaseAnswer::of(*error),
            Err(fault) => self.fault(action, fault),
        };
        self.count(action, word, began);
        answer
    }

    fn count(&self, action: LeaseAction, answer: LeaseAnswer, began: std::time::Instant) {
        let took = local_now().saturating_duration_since(began);
        self.metrics.lease_calls.count(action, answer, took);
    }

    fn fault(&self, action: LeaseAction, fault: &LeaseFault) -> LeaseAnswer {
        if let Some(left_out) = self.fault_lines.lock().tell(self.clock.now()) {
            tracing::warn!(
                action = action.as_str(),
                error = %fault,
                left_out,
                "nobody knows about leases at the moment"
            );
        }
        LeaseAnswer::Unknown
    }

    /// Shows a lease that began, was extended, moved or ended, as the store told at `read_at`, its own time. Nobody is told
    /// of it before (decision 42b).
    async fn show(&self, lease: &Lease, read_at: Timestamp) {
        // One is never too many.
        let _left_out = self.mirror.show(std::slice::from_ref(lease), read_at).await;
    }

    fn remember(&self, lease: &Lease, read_at: Timestamp) {
        let now = local_now();
        let left = Duration::from_millis(lease.expires_at.remaining_ms(read_at));
        self.placed
            .remember(lease.name(), &lease.key, &lease.connection, now + left, now);
    }
}

/// The id of a new row.
fn new_id() -> LeaseId {
    LeaseId(rand::random())
}

async fn limited<T>(
    call: impl Future<Output = Result<T, DurableStoreError>>,
) -> Result<T, LeaseFault> {
    match timeout(STORE_LIMIT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_elapsed) => Err(LeaseFault::Late),
    }
}

//! What strategies know of the past: counts, latencies, quotas, who is busy (decision 37).
//!
//! All of it is fleet-wide with a delay of about a second, and may be missing: strategies say what they do without it.
//!
//! | room | what it holds |
//! |---|---|
//! | [`track`] | outcomes and latencies of one thing, with decay |
//! | [`aggregate`] | what one process saw, and how that is added to what others saw |
//! | [`fleet`] | the sum of it as decisions read it |
//! | [`quota`] | quotas: from headers, and from several who tell them |

pub mod aggregate;
pub mod fleet;
pub mod quota;
pub mod track;

use std::fmt::Debug;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use crate::number::Finite;
use crate::time::Timestamp;

/// Outcomes and latencies of something, smoothed over the recent past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Performance {
    /// Attempts that ended: ever, or within the time that was asked about.
    pub requests: u64,
    /// Share of those that ended with a verdict that succeeded, 0..=1; `None` when none did: a client's own fault, or one
    /// that left, says nothing of the upstream (decision 50).
    pub success_rate: Option<f64>,
    /// Mean latency of the successful ones until the answer was ready, in ms.
    pub mean_latency_ms: f64,
    /// Their 95th percentile, in ms.
    pub p95_latency_ms: f64,
    /// Their standard deviation, in ms.
    pub latency_std_dev_ms: f64,
}

/// One window of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaWindow {
    /// Share that is used, 0..=1.
    pub used: Finite,
    /// When the window begins anew.
    pub resets_at: Option<Timestamp>,
    /// When this was true, where that was before the moment of its snapshot.
    pub observed_at: Option<Timestamp>,
}

/// What is known of an account's quotas (decision 39).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaSnapshot {
    /// The window of 5 hours.
    pub session: Option<QuotaWindow>,
    /// The window of 7 days.
    pub weekly: Option<QuotaWindow>,
    /// The window of 30 days.
    pub monthly: Option<QuotaWindow>,
    /// Windows of 7 days of single models (`7d:<model>`).
    pub weekly_by_model: Vec<(ModelId, QuotaWindow)>,
    /// Share of everything that is used, 0..=1, where no window is named.
    pub used: Option<Finite>,
    /// When everything begins anew, where no window is named.
    pub resets_at: Option<Timestamp>,
    /// When `used` and `resets_at` were true, where that was before the moment of the snapshot.
    pub unnamed_observed_at: Option<Timestamp>,
    /// The provider says that the limit is reached.
    pub limit_reached: bool,
    /// The quota was asked for and could not be read.
    pub unreadable: bool,
    /// When this was true; of windows that have a moment of their own, that.
    pub observed_at: Timestamp,
}

impl QuotaSnapshot {
    /// It says nothing of any window.
    #[must_use]
    pub fn names_no_window(&self) -> bool {
        let of_all = [self.session, self.weekly, self.monthly];
        of_all.iter().all(Option::is_none) && self.weekly_by_model.is_empty()
    }
}

/// The last target of a combo that served (`routing.md` §8.15).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastKnownGood {
    /// Provider.
    pub provider: ProviderId,
    /// Account.
    pub connection: Option<ConnectionId>,
    /// When.
    pub at: Timestamp,
}

/// Reads telemetry. Nothing here waits.
pub trait Telemetry: Debug {
    /// The moment that this is the state of. Two states of one process with the same moment are the same.
    fn as_of(&self) -> Timestamp {
        Timestamp::default()
    }
    /// Attempts of a combo that ended at a target, by its execution key (`routing.md` §8.8).
    fn target_requests(&self, combo: &ComboName, key: &str) -> Option<u64>;
    /// How a model did within a combo (`routing.md` §8.6).
    fn of_combo(
        &self,
        combo: &ComboName,
        provider: &ProviderId,
        model: &ModelId,
    ) -> Option<Performance>;
    /// How a connection did with a model, in all requests of the last 24 hours.
    fn of_connection(&self, connection: &ConnectionId, model: &ModelId) -> Option<Performance>;
    /// Requests a connection ever ended.
    fn connection_requests(&self, connection: &ConnectionId) -> u64;
    /// Requests under way on a connection in the whole fleet.
    fn in_flight(&self, connection: &ConnectionId) -> u32;
    /// Quotas of a connection.
    fn quota(&self, connection: &ConnectionId) -> Option<Arc<QuotaSnapshot>>;
    /// The last target of a combo that served.
    fn last_known_good(&self, combo: &ComboName) -> Option<LastKnownGood>;
    /// Most tools that a provider was seen to take (`routing.md` §13.3).
    fn tool_limit(&self, provider: &ProviderId) -> Option<u32>;
    /// The connection that served the last turn of a conversation (`routing.md` §10.1).
    fn session_connection(&self, session: &str) -> Option<ConnectionId>;
    /// There is no room to count this target of a combo, so that no count of it does not mean none.
    fn leaves_out_target(&self, _combo: &ComboName, _key: &str) -> bool {
        false
    }
    /// There is no room to keep anything of this connection, so that nothing known of it does not mean nothing happened.
    fn leaves_out_connection(&self, _connection: &ConnectionId) -> bool {
        false
    }
    /// Until when `auto` leaves a target of a combo alone (`routing.md` §9.1, adaptation; §9.4, self-healing).
    fn adaptation_until(&self, combo: &ComboName, key: &str) -> Option<Timestamp>;
}

/// Nothing is known of anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTelemetry;

impl Telemetry for NoTelemetry {
    fn target_requests(&self, _combo: &ComboName, _key: &str) -> Option<u64> {
        None
    }

    fn of_combo(
        &self,
        _combo: &ComboName,
        _provider: &ProviderId,
        _model: &ModelId,
    ) -> Option<Performance> {
        None
    }

    fn of_connection(&self, _connection: &ConnectionId, _model: &ModelId) -> Option<Performance> {
        None
    }

    fn connection_requests(&self, _connection: &ConnectionId) -> u64 {
        0
    }

    fn in_flight(&self, _connection: &ConnectionId) -> u32 {
        0
    }

    fn quota(&self, _connection: &ConnectionId) -> Option<Arc<QuotaSnapshot>> {
        None
    }

    fn last_known_good(&self, _combo: &ComboName) -> Option<LastKnownGood> {
        None
    }

    fn tool_limit(&self, _provider: &ProviderId) -> Option<u32> {
        None
    }

    fn session_connection(&self, _session: &str) -> Option<ConnectionId> {
        None
    }

    fn adaptation_until(&self, _combo: &ComboName, _key: &str) -> Option<Timestamp> {
        None
    }
}

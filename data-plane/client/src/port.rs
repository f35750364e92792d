//! The words between the phases of a request and the control plane: what is asked, what is answered, what
//! a snapshot holds. Types only; whoever answers is free to be a channel, a local decision or a test.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tidegate_core::admission::{PaceLimits, Place, Told};
use tidegate_core::classify::Classification;
use tidegate_core::config::Config;
use tidegate_core::ids::{AttemptId, ComboName, ConnectionId, EgressId, ModelId, ProviderId};
use tidegate_core::outcome::{Attempt, Outcome};
use tidegate_core::routing::{
    AttemptsSoFar, Counters, Exclusion, Plan, Rejection, RequestFacts, WaitKind,
};
use tidegate_core::settings::AttemptLimits;
use tidegate_core::telemetry::QuotaSnapshot;
use tidegate_core::telemetry::aggregate::End;
use tidegate_core::time::Timestamp;
use tidegate_telemetry::TraceContext;

/// Configuration and credentials at one version. Immutable; a newer one replaces it whole.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The validated configuration.
    pub config: Arc<Config>,
    /// The credential of each connection that has one.
    pub credentials: BTreeMap<ConnectionId, Credential>,
    /// Grows when credentials change while the configuration does not.
    pub credentials_revision: u64,
    /// Whose turn it is, for decisions made here.
    pub counters: Arc<Counters>,
}

/// The secret of one connection.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Grows by one with each new credential of the connection (decision 9).
    pub version: u64,
    /// The secret itself; shown by nothing.
    pub secret: SecretString,
}

/// Asks where the next attempt of a request may go.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The attempt that would be sent.
    pub attempt: AttemptId,
    /// The request.
    pub facts: Arc<RequestFacts>,
    /// The client asked for a stream.
    pub stream: bool,
    /// Everything that happened before, without `last_failure`.
    pub so_far: Arc<AttemptsSoFar>,
    /// The failure that led here, raw; absent on the first call and after a wait.
    pub last_failure: Option<LastFailure>,
    /// The identity the attempt would leave under (decision 23).
    pub egress: Option<EgressId>,
    /// An earlier attempt of the request whose permit is still held: on the same connection it is handed over.
    pub replaces: Option<AttemptId>,
    /// What was waited for since the last attempt was sent.
    pub waited: PermitWaits,
    /// Whose question it is.
    pub origin: Origin,
}

/// Whose question it is, for logs and traces. It decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The request, as the client was told.
    pub request_id: String,
    /// Its trace, if it has one.
    pub trace: Option<TraceContext>,
}

/// Permits that a request waited for (decision 44).
#[derive(Clone, Debug, Default)]
pub struct PermitWaits {
    /// Whose permit this attempt waited for and holds.
    pub granted: Option<ConnectionId>,
    /// Those whose permit was waited for in vain.
    pub in_vain: Vec<ConnectionId>,
    /// Those of them that had no room for another one that waits.
    pub queues_full: Vec<ConnectionId>,
}

/// A permit to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitWait {
    /// The provider of the connection.
    pub provider: ProviderId,
    /// The connection that the permit is of.
    pub connection: ConnectionId,
    /// Longest wait, from when the answer came.
    pub limit: Duration,
    /// What the control plane wants to hear again; it means nothing here.
    pub ticket: Vec<u8>,
    /// For how long it was waited for at a replica that is gone; zero for a wait that begins.
    pub waited: Duration,
}

/// How a wait for a permit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitWaited {
    /// The attempt holds it.
    Granted,
    /// It did not come free in time.
    InVain,
    /// As many wait for it as may.
    QueueFull,
    /// Whoever was asked is gone; the next question finds out.
    Broken,
}

/// A failure that nobody has classified yet.
#[derive(Clone, Debug)]
pub struct LastFailure {
    /// The attempt.
    pub attempt: Attempt,
    /// How it ended.
    pub outcome: Outcome,
    /// When, in the store's time as known here.
    pub occurred_at: Timestamp,
    /// Pass over the targets, as dispatched.
    pub pass: u32,
    /// Position of its target, as dispatched.
    pub target: u32,
}

/// What to do next. There always is an answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The step.
    pub decision: Step,
    /// What `last_failure` meant, to be added to the attempts so far; absent without one.
    pub classification: Option<Classification>,
    /// When that failure happened, in the store's time, to be added with it.
    pub failed_at: Timestamp,
    /// The request goes on to a target of the provider that just failed; goes into its report.
    pub next_target_same_provider: bool,
    /// The request named a combo; goes into every report.
    pub combo: bool,
    /// Decided here, without the control plane.
    pub local: bool,
}

/// One step of a request.
#[derive(Clone, Debug)]
pub enum Step {
    /// Send the attempt.
    Dispatch(Box<Dispatch>),
    /// Wait, then ask again.
    Wait {
        /// Why; a cooldown wait counts in [`AttemptsSoFar::waits`].
        kind: WaitKind,
        /// How long, from when the answer came.
        wait: Duration,
    },
    /// Wait for a permit with an attempt of its own, then ask again: with that attempt if it was granted.
    AwaitPermit(Box<PermitWait>),
    /// Answer the client.
    Reject(Box<Rejection>),
    /// Make requests of their own to several steps of the combo.
    Plan(Box<Plan>),
}

/// Where and how an attempt is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The attempt as it must be reported.
    pub attempt: Attempt,
    /// Pass over the targets, for [`LastFailure::pass`].
    pub pass: u32,
    /// Position of the target, for [`LastFailure::target`].
    pub target: u32,
    /// The attempt holds a permit of its connection, which is given back when its body has ended.
    pub permit: bool,
    /// Execution key of the target, for telemetry.
    pub target_key: String,
    /// The combo it is a target of.
    pub combo: Option<ComboName>,
    /// The verdict is reported as soon as there is one, not with the next batch.
    pub report_at_readiness: bool,
    /// Excluded before this target was chosen, in order.
    pub excluded: Vec<Exclusion>,
    /// Limits of the attempt.
    pub deadlines: Deadlines,
    /// The order of the targets, for [`AttemptsSoFar::follow`].
    pub order: Vec<u32>,
    /// Version of the configuration that the order and the position of the target belong to.
    pub order_version: u64,
    /// Of the request's tools only so many are sent (decision 33).
    pub max_tools: Option<u32>,
    /// The last resort when money or quota is used up: the answer may have so many tokens (decision 34).
    pub emergency_max_tokens: Option<u32>,
}

/// Limits of one attempt (`sessions-and-streams.md` §4.6). `None` = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// Dialling.
    pub connect: Option<Duration>,
    /// From dispatch to response headers.
    pub headers: Option<Duration>,
    /// From response headers to the first ready event.
    pub readiness: Option<Duration>,
    /// Between two useful events.
    pub idle: Option<Duration>,
    /// Between two parts of a body that is no stream.
    pub body: Option<Duration>,
    /// From dispatch to the end of the body.
    pub attempt: Option<Duration>,
    /// From dispatch until the answer is ready, of a stream until its headers. Then the attempt is given up without
    /// blame (`routing.md` §1.5, `targetTimeoutMs`).
    pub target: Option<Duration>,
}

impl From<AttemptLimits> for Deadlines {
    fn from(limits: AttemptLimits) -> Self {
        let limit = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
        let AttemptLimits {
            connect_ms,
            headers_ms,
            readiness_ms,
            idle_ms,
            body_ms,
            attempt_ms,
        } = limits;
        Self {
            connect: limit(connect_ms),
            headers: limit(headers_ms),
            readiness: limit(readiness_ms),
            idle: limit(idle_ms),
            body: limit(body_ms),
            attempt: limit(attempt_ms),
            target: None,
        }
    }
}

/// Something that strategies want to know of (decisions 37 and 39).
#[derive(Clone, Debug)]
pub enum Observation {
    /// An attempt is under way on a connection.
    Began(ConnectionId),
    /// It is not any more: its body has ended, or it failed.
    Over(ConnectionId),
    /// There is a verdict about an attempt.
    Ended(End),
    /// An answer told of quotas of a connection.
    Quota(ConnectionId, QuotaSnapshot),
    /// An answer told how many tools a provider takes, at this moment (`routing.md` §13.3).
    ToolLimit(ProviderId, u32, Timestamp),
}

/// A success that may call for a note to whoever goes on with the conversation (`routing.md` §8.4).
#[derive(Clone, Debug)]
pub struct Success {
    /// Provider that served.
    pub provider: ProviderId,
    /// Connection that served.
    pub connection: ConnectionId,
    /// The upstream's model id.
    pub model: ModelId,
    /// What its answer told of quotas.
    pub quota: Option<QuotaSnapshot>,
}

/// Asks whether a request may go to its connection now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionAsk {
    /// The provider of the connection.
    pub provider: ProviderId,
    /// The connection.
    pub connection: ConnectionId,
    /// The upstream's model id.
    pub model: ModelId,
    /// Its limits, as this data plane's configuration has them.
    pub limits: PaceLimits,
    /// Only asks; nothing is counted.
    pub look: bool,
}

/// What an answer told of its upstream's limits on a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lesson {
    /// The connection.
    pub connection: ConnectionId,
    /// The upstream's model id.
    pub model: ModelId,
    /// What it told.
    pub told: Told,
    /// Which one of the counted requests it answered ([`Running::place`]).
    pub place: Option<Place>,
    /// When that request was sent.
    pub sent_at: Timestamp,
}

/// Whether a request may go to its connection now.
#[derive(Debug)]
pub enum Admission {
    /// It may.
    Now(Running),
    /// Not before this has passed.
    NotBefore(Duration),
    /// The same, because the upstream told that little or nothing is left for the model.
    Spent(Duration),
    /// Not before a request that is under way ends.
    Full,
    /// Nobody answers, but the control plane is not gone: the next decision finds out.
    Unknown,
}

/// A request that counts among those that may be under way at once on its connection, until this is dropped.
pub struct Running {
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
    place: Option<Place>,
}

impl Running {
    /// Nothing is counted.
    #[must_use]
    pub fn uncounted() -> Self {
        Self {
            end: None,
            place: None,
        }
    }

    /// `end` is called when this is dropped.
    #[must_use]
    pub fn until(end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self {
            end: Some(Box::new(end)),
            place: None,
        }
    }

    /// Calls `then` after its end.
    #[must_use]
    pub fn and_then(self, then: impl FnOnce() + Send + Sync + 'static) -> Self {
        let place = self.place;
        let until = Self::until(move || {
            drop(self);
            then();
        });
        until.at(place)
    }

    /// The same, as this one of the requests that are counted because of what an upstream told.
    #[must_use]
    pub fn at(mut self, place: Option<Place>) -> Self {
        self.place = place;
        self
    }

    /// Which one it is of the requests that are counted because of what an upstream told.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.place
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Running")
            .field("is_counted", &self.end.is_some())
            .field("place", &self.place)
            .finish()
    }
}

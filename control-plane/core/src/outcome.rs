//! What an attempt was and what was seen of its end: facts, never a judgement.
//!
//! A data plane describes; [`crate::classify`] judges (`architecture.md` §2, Judge). Faults of our own
//! making carry their provenance as a variant of [`Outcome`], so no text of an upstream can imitate one
//! (decision 5).

mod code;

use serde::{Deserialize, Serialize};

use crate::ids::{AttemptId, ConnectionId, EgressId, ModelId, ProviderId};
use crate::time::Timestamp;
use crate::version::Version;

pub use code::{CommonFailure, FailureCode, PassedLimits};

/// Most bytes of an upstream's error body that are kept and looked at.
pub const MAX_BODY_BYTES: usize = 8 * 1024;
/// Most headers of an upstream's answer that are kept.
pub const MAX_HEADERS: usize = 32;
/// Longest kept header value in bytes.
pub const MAX_HEADER_BYTES: usize = 512;

/// One upstream call for one target, with everything a late outcome must be compared with (decision 9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Who made the attempt and its number; the idempotency key of its grants.
    pub id: AttemptId,
    /// Where it went.
    pub provider: ProviderId,
    /// With which credential.
    pub connection: ConnectionId,
    /// The upstream's model id.
    pub model: ModelId,
    /// The version of the provider's shard the decision rested on.
    pub decided_on: Version,
    /// The breaker's epoch at the decision; the default when the breaker never changed.
    pub epoch: Version,
    /// Which credential of the connection was used; grows by one with each new credential.
    pub credential_version: u64,
    /// Under which egress identity the request left, if known (decision 23).
    pub egress: Option<EgressId>,
    /// The attempt holds the breaker's half-open probe.
    pub probe: bool,
    /// Probe, shadow, dry-run or test traffic: changes no state (decision 6).
    pub synthetic: bool,
}

/// How an attempt ended, as the data plane saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The first useful event of a stream, or a whole body, arrived with a 2xx status.
    Success,
    /// The upstream answered with an error: a status outside 2xx, or an error as the first event of a
    /// 200 stream (decision 16).
    Response(UpstreamError),
    /// No answer arrived.
    Transport(TransportFault),
    /// An answer began and its stream failed.
    Stream(StreamFault),
    /// We ended the attempt ourselves; says nothing about the upstream.
    Local(LocalFault),
    /// The client went away before there was a verdict.
    ClientAbort,
}

/// An error as the upstream sent it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamError {
    /// The HTTP status; 200 when the error was the first event of a stream.
    pub status: u16,
    /// Chosen headers, names in lower case, at most [`MAX_HEADERS`] with values of at most
    /// [`MAX_HEADER_BYTES`].
    pub headers: Vec<(String, String)>,
    /// The first [`MAX_BODY_BYTES`] of the body, invalid UTF-8 replaced.
    pub body: String,
    /// The error was the first event of a 200 stream.
    pub embedded: bool,
}

/// Why no answer arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportFault {
    /// The name did not resolve.
    Resolve,
    /// The connection was refused or not made in time.
    Connect,
    /// The TLS handshake failed.
    Tls,
    /// The connection broke before the response headers were complete.
    Reset,
    /// The response headers did not arrive in time.
    HeadersTimeout,
    /// What arrived was not HTTP.
    Protocol,
    /// A configured egress proxy could not be reached.
    ProxyUnreachable,
}

impl TransportFault {
    /// Whether the fault lies in the network layer, where one fault shows on every connection of a
    /// provider at once (`failure-state.md` §1.6, de-duplication).
    #[must_use]
    pub fn is_network(self) -> bool {
        match self {
            Self::Resolve | Self::Connect | Self::Tls | Self::ProxyUnreachable => true,
            Self::Reset | Self::HeadersTimeout | Self::Protocol => false,
        }
    }
}

/// Why a stream that began did not become, or stay, a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamFault {
    /// No ready event within the readiness time limit.
    ReadinessTimeout,
    /// The stream ended before its first ready event.
    EarlyEof,
    /// The stream broke, or ended without its terminal event, after bytes had reached the client.
    Truncated,
    /// No useful event within the idle time limit.
    IdleTimeout,
    /// The attempt's absolute deadline passed.
    DeadlineExceeded,
    /// It went on, but with less text than the throughput watchdog asks for (`sessions-and-streams.md` §4.2).
    ThroughputTooLow,
}

impl StreamFault {
    /// The code that clients see (`sessions-and-streams.md` §4.2, §4.6).
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::ReadinessTimeout => "STREAM_READINESS_TIMEOUT",
            Self::EarlyEof => "STREAM_EARLY_EOF",
            Self::Truncated => "stream_terminated",
            Self::IdleTimeout => "stream_idle_timeout",
            Self::DeadlineExceeded => "attempt_deadline_exceeded",
            Self::ThroughputTooLow => "STREAM_THROUGHPUT_TOO_LOW",
        }
    }
}

/// Faults of our own making (decision 5). They never reach breaker, cooldown or lockout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalFault {
    /// A local queue was full.
    QueueFull,
    /// The execution limit passed before the upstream answered.
    ExecutionExpired,
    /// The time that a combo gives one of its targets passed (`routing.md` §5.3).
    TargetExpired,
    /// A permit was not granted in time, or its queue was full.
    PermitRefused,
    /// The request was not, or no longer, allowed to use its connection.
    LeaseConflict,
    /// The control plane did not answer and the request may not be decided locally.
    ControlPlaneUnreachable,
    /// A fault inside Tidegate.
    Internal,
}

/// One report: an attempt, its end and when it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptOutcome {
    /// The attempt.
    pub attempt: Attempt,
    /// What was seen.
    pub outcome: Outcome,
    /// When it was seen, in the store's time. For coalesced successes the last one.
    pub occurred_at: Timestamp,
    /// The request goes on to a target of the same provider, which vetoes the breaker on the combo
    /// path (`failure-state.md` §1.6).
    pub next_target_same_provider: bool,
    /// The request named a combo, which is what the lockout switch looks at (decision 20).
    pub combo: bool,
    /// How many equal outcomes this one stands for; 1 unless successes were coalesced.
    pub count: u32,
}

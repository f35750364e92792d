//! What an outcome means: the one judgement of the product (`failure-state.md` §3.3).
//!
//! [`Classification`] is a pure function of the outcome and of what is configured; it knows no state. How
//! long a ladder step is, whether a failure is a duplicate and whether it counts at all is decided where
//! the classification is applied ([`crate::state`]).

use serde::{Deserialize, Serialize};

/// Why something is excluded or failed (`failure-state.md` §0, reason vocabulary).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A quota is used up.
    QuotaExhausted,
    /// Too many requests for now.
    RateLimitExceeded,
    /// The model has no capacity.
    ModelCapacity,
    /// The upstream failed.
    ServerError,
    /// The credential was refused.
    AuthError,
    /// The model or path does not exist there.
    NotFound,
    /// An account without credits, as the reason of a model lock.
    Credits,
    /// Access to a model was refused, as the reason of a model lock.
    Forbidden,
    /// A provider refused the request of an OAuth account as such (`failure-state.md` §3.9).
    RequestRejected,
    /// The client's own fault (decision 50).
    ClientFault,
    /// A fault of our own.
    Local,
    /// None of the above.
    Unknown,
}

/// States of a connection that need a human or a new credential (`failure-state.md` §3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminalKind {
    /// The credential is no longer valid.
    Expired,
    /// The account has no credits.
    CreditsExhausted,
    /// The provider banned the account.
    Banned,
}

/// Where a retry hint was found; decides whether it may exceed the operator's cap (`failure-state.md` §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HintSource {
    /// A response header.
    Header,
    /// A google `RetryInfo` detail.
    GoogleRetryInfo,
    /// Structured JSON or prose of the body.
    Body,
}

/// A wait that the upstream asked for, already capped (decision 4) and positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RetryHint {
    /// How long to wait from the moment the outcome was seen, in ms.
    pub wait_ms: u64,
    /// Where it was found.
    pub source: HintSource,
}

/// How long a cooldown caused by a failure lasts (`failure-state.md` §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CooldownLength {
    /// The next step of the ladder; the level rises by one.
    Ladder,
    /// Exactly what the upstream asked for; the level becomes 0 (decision 12).
    Hint(u64),
    /// A fixed number of ms; the level stays.
    Flat(u64),
    /// The class's base cooldown; the level stays.
    Base,
}

/// How long a model lock lasts (`failure-state.md` §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockLength {
    /// The lockout's ladder over the given base, in ms.
    Ladder {
        /// First step of the ladder, in ms.
        base_ms: u64,
    },
    /// An exact length in ms. Only an authoritative one may exceed the operator's cap.
    Exact {
        /// Length in ms.
        ms: u64,
        /// The length comes from a transport header or google `RetryInfo`.
        authoritative: bool,
    },
}

/// What a failure does to the state of the connection it happened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consequence {
    /// Nothing, not even the last error: the client's or our own fault.
    Nothing,
    /// Only the last error is recorded.
    RecordError,
    /// The connection cools down.
    CoolConnection(CooldownLength),
    /// The connection needs a human or a new credential.
    EndConnection(TerminalKind),
    /// Only the model is locked on this connection.
    LockModel(LockLength),
}

/// What an outcome means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Classification {
    /// The status after restatement; 502 or 503 for transport faults, 499 for a client that left.
    pub status: u16,
    /// Why it failed; meaningless for a success.
    pub reason: Reason,
    /// The outcome was a success.
    pub success: bool,
    /// Another account of the same provider may be tried.
    pub account_fallback: bool,
    /// What becomes of the connection.
    pub consequence: Consequence,
    /// The failure is one the breaker counts, before de-duplication and the same-provider veto
    /// (`failure-state.md` §1.6).
    pub counts_for_breaker: bool,
    /// The failure lies in the network layer and is de-duplicated per provider.
    pub network: bool,
    /// The failure concerns this request only: it fills no exhaustion set and is not retried on the same target
    /// (`routing.md` §4.2).
    pub request_scoped: bool,
    /// What the upstream asked for, for the client's Retry-After (decision 13).
    pub hint: Option<RetryHint>,
}

//! What an outcome means: the one judgement of the product (`failure-state.md` §3.3).
//!
//! [`Classification`] is a pure function of the outcome and of what is configured; it knows no state. How
//! long a ladder step is, whether a failure is a duplicate and whether it counts at all is decided where
//! the classification is applied ([`crate::state`]).
//!
//! | room | what it holds |
//! |---|---|
//! | `evidence` | what of an answer is looked at, bounded and in lower case |
//! | `phrases` | the words of upstreams, as data |
//! | `words` | which of them a text contains, in one pass |
//! | `hints` | how long an upstream asks to wait |
//! | `restate` | statuses that do not mean what they say, as data |
//! | `rules` | what single providers and operators mean |
//! | `status` | the rules, in their order |
//! | `verdict` | what a rule answers |
//! | `quota` | the rules about quotas |

mod evidence;
mod hints;
mod phrases;
mod quota;
mod restate;
mod rules;
mod status;
mod verdict;
mod words;

use serde::{Deserialize, Serialize};

use crate::config::{Config, Connection};
use crate::daily_reset::DailyReset;
use crate::ids::{ModelId, ProviderId, RuleId};
use crate::outcome::{Attempt, LocalFault, Outcome, StreamFault, TransportFault};
use crate::settings::{ProviderClass, ProviderPolicy, RuleScope};
use crate::time::Timestamp;

pub(crate) use hints::reset_at;
pub use hints::retry_after_ms;
pub use rules::RuleBook;
pub(crate) use rules::RuleBooks;

use evidence::Evidence;
use verdict::Verdict;

/// What classification needs to know besides the outcome.
#[derive(Clone, Copy, Debug)]
pub struct ClassifyContext<'a> {
    /// The provider, whose id some rules name.
    pub provider: &'a ProviderId,
    /// Its class.
    pub class: ProviderClass,
    /// The quota is kept per model (`failure-state.md` §3.4).
    pub per_model_quota: bool,
    /// A refused access token can be renewed (`failure-state.md` §3.9).
    pub renews_tokens: bool,
    /// A 429 speaks of the address it was asked from, not of the model (`failure-state.md` §6).
    pub egress_bucketed: bool,
    /// Retry hints become cooldowns (decision 12).
    pub trust_hints: bool,
    /// The model that was asked for.
    pub model: &'a ModelId,
    /// First step of the class's ladder, in ms; also of model locks that no combo recorded.
    pub base_cooldown_ms: u64,
    /// When the outcome was seen, in the store's time; absolute hints are measured from it.
    pub now: Timestamp,
    /// When the provider's quotas of a day begin anew.
    pub daily_reset: &'a DailyReset,
    /// What is known about this provider alone.
    pub rules: &'a RuleBook,
}

impl<'a> ClassifyContext<'a> {
    /// The context of an outcome seen `at` a moment, under a provider's policy.
    #[must_use]
    pub fn of(
        provider: &'a ProviderId,
        policy: &'a ProviderPolicy,
        model: &'a ModelId,
        at: Timestamp,
    ) -> Self {
        Self {
            provider,
            class: policy.class,
            per_model_quota: policy.per_model_quota,
            renews_tokens: policy.renews_tokens,
            egress_bucketed: !policy.egress_family.is_empty(),
            trust_hints: policy.cooldown.trust_hints,
            model,
            base_cooldown_ms: policy.cooldown.base_ms,
            now: at,
            daily_reset: &policy.lockout.daily_reset,
            rules: &policy.rules,
        }
    }

    /// The context of how an attempt ended, seen `at` a moment; `None` where its provider is configured no more.
    #[must_use]
    pub fn of_attempt(config: &'a Config, attempt: &'a Attempt, at: Timestamp) -> Option<Self> {
        let entry = config.provider(&attempt.provider)?;
        let connection = config.connection(&attempt.connection);
        let context = Self::of(&attempt.provider, &entry.policy, &attempt.model, at);
        Some(context.on(connection.map(AsRef::as_ref)))
    }

    /// The same on a connection, which may say for itself how its quota is kept and that it does not cool.
    #[must_use]
    pub fn on(self, connection: Option<&Connection>) -> Self {
        let says = connection.and_then(|connection| connection.per_model_quota);
        Self {
            per_model_quota: says.unwrap_or(self.per_model_quota),
            egress_bucketed: self.egress_bucketed
                && !connection.is_some_and(|connection| connection.disable_cooling),
            ..self
        }
    }
}

/// Statuses that a breaker counts (`failure-state.md` §1.6). Not 429.
pub const TRIP_STATUSES: [u16; 5] = [408, 500, 502, 503, 504];

/// Why something is excluded or failed (`failure-state.md` §0, reason vocabulary).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

impl Reason {
    /// A quota or a rate that is used up.
    #[must_use]
    pub fn is_a_limit(self) -> bool {
        matches!(self, Self::QuotaExhausted | Self::RateLimitExceeded)
    }
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

/// Which rule judged a failure, for people. Where no rule spoke there is none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The provider rule that chose reason and scope, else the restatement that changed the status.
    pub rule: RuleId,
    /// The status that the upstream sent, if it was restated (`failure-state.md` §5.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_status: Option<u16>,
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
    /// The provider is left alone for so many ms, or for its class's `providerCooldownMs` (decision 18); of the
    /// connection only the last error is recorded.
    HoldProvider(Option<u64>),
    /// The connection's refusal streak grows; its length decides how long the connection cools, or that it
    /// is banned (`failure-state.md` §3.9, request_rejected streak).
    CountRefusal,
}

/// What an outcome means.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// A wait in ms, told to the client alone, of a restated failure whose upstream asked for none
    /// (`failure-state.md` §5.2). It is never read back as a hint (decision 12).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertised_ms: Option<u64>,
    /// What a provider rule acts on, if one judged and its scope is honoured (decision 18). It then decides alone:
    /// no model lock is added to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RuleScope>,
    /// The model whose quota of the day is used up, by the name the text gives it, else the one asked for
    /// (`failure-state.md` §7.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_model: Option<ModelId>,
    /// Which rule spoke, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Money or quota is used up: a 402, or a text that says so (`routing.md` §13.4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over_budget: bool,
}

impl Classification {
    /// How long a client is told to wait, in ms from when the failure was seen (`routing.md` §6).
    #[must_use]
    pub fn client_wait_ms(&self) -> Option<u64> {
        self.hint.map(|hint| hint.wait_ms).or(self.advertised_ms)
    }

    /// A quota that is used up on this connection alone, as an honoured rule says (`failure-state.md` §5.4).
    #[must_use]
    pub fn is_connection_quota(&self) -> bool {
        self.scope == Some(RuleScope::Connection) && self.reason == Reason::QuotaExhausted
    }

    /// Whether it speaks of the address that was asked from, where the provider limits by address
    /// (`failure-state.md` §6): an upstream's own 429 about a limit, and one that cools the connection.
    #[must_use]
    pub fn limits_egress(&self) -> bool {
        let restated = self
            .origin
            .as_ref()
            .is_some_and(|origin| origin.original_status.is_some_and(|status| status != 429));
        self.status == 429
            && !restated
            && self.reason.is_a_limit()
            && matches!(self.consequence, Consequence::CoolConnection(_))
    }

    /// Whether a configured egress proxy could not be reached: counted for combos only and exempt from the
    /// same-provider veto (`failure-state.md` §1.6). No other network fault has status 503.
    #[must_use]
    pub fn is_proxy_unreachable(&self) -> bool {
        self.network && self.status == 503
    }
}

/// Builds what texts are looked through with, so that the first failure does not wait for it. Without it the first
/// call of [`classify`] builds it.
pub fn prepare() {
    words::prepare();
}

/// Says what an outcome means. Total, linear in the size of the outcome, and the same for the same arguments.
#[must_use]
pub fn classify(outcome: &Outcome, context: &ClassifyContext<'_>) -> Classification {
    match outcome {
        Outcome::Success => success(),
        Outcome::Response(error) => {
            let evidence = Evidence::of(error, context);
            let classification = Classification {
                over_budget: evidence.status == 402 || context.rules.speaks_of_budget(&evidence),
                ..status::judge(&evidence).into_classification(evidence.status, evidence.hint)
            };
            match evidence.restated {
                Some(restated) => restated.mark(classification, error.status),
                None => classification,
            }
        }
        Outcome::Transport(fault) => transport(*fault, context),
        Outcome::Stream(fault) => stream(*fault, context),
        Outcome::Local(fault) => local(*fault),
        Outcome::ClientAbort => Verdict::nothing(Reason::Unknown).into_classification(499, None),
    }
}

fn success() -> Classification {
    Classification {
        success: true,
        ..Verdict::nothing(Reason::Unknown).into_classification(200, None)
    }
}

/// No answer at all: 502, or 503 when it was our proxy (`failure-state.md` §3.3).
fn transport(fault: TransportFault, context: &ClassifyContext<'_>) -> Classification {
    let status = match fault {
        TransportFault::ProxyUnreachable => 503,
        TransportFault::Resolve
        | TransportFault::Connect
        | TransportFault::Tls
        | TransportFault::Reset
        | TransportFault::HeadersTimeout
        | TransportFault::Protocol => 502,
    };
    let evidence = Evidence::without_answer(status, context);
    Classification {
        network: fault.is_network(),
        ..status::judge(&evidence).into_classification(status, None)
    }
}

/// A stream that failed. One that never became ready says little about the provider, and the absolute deadline and the
/// least throughput are limits of our own: none is counted by the breaker (`failure-state.md` §1.6), and the latter
/// two, which the upstream knows nothing of, are only recorded (`sessions-and-streams.md` §9). A stream that breaks
/// later is an ordinary failure (decision 8).
fn stream(fault: StreamFault, context: &ClassifyContext<'_>) -> Classification {
    let (status, counted) = match fault {
        StreamFault::EarlyEof | StreamFault::Truncated => (502, true),
        StreamFault::IdleTimeout => (504, true),
        StreamFault::ReadinessTimeout => (504, false),
        StreamFault::DeadlineExceeded | StreamFault::ThroughputTooLow => {
            return Verdict::record(Reason::ServerError)
                .without_breaker()
                .into_classification(504, None);
        }
    };
    let evidence = Evidence::without_answer(status, context);
    let classification = status::judge(&evidence).into_classification(status, None);
    Classification {
        counts_for_breaker: counted && classification.counts_for_breaker,
        ..classification
    }
}

/// A fault of our own: it touches nothing (decision 5).
fn local(fault: LocalFault) -> Classification {
    let (status, another_account) = match fault {
        LocalFault::QueueFull => (429, true),
        LocalFault::PermitRefused => (503, true),
        // A target that hangs would take its whole time limit with each of its accounts: the next target is asked
        // (`routing.md` §5.3, 2a).
        LocalFault::ExecutionExpired | LocalFault::TargetExpired => (504, false),
        LocalFault::LeaseConflict => (409, false),
        LocalFault::ControlPlaneUnreachable => (503, false),
        LocalFault::Internal => (500, false),
    };
    Classification {
        account_fallback: another_account,
        ..Verdict::nothing(Reason::Local).into_classification(status, None)
    }
}

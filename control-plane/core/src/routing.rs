//! Where an attempt may go: one pure function of (configuration, view, facts, what happened so far, now,
//! random number). Grants are taken after it, by whoever called it.
//!
//! | room | what it holds |
//! |---|---|
//! | `resolve`, `pool`, `filters` | from the model name of a request to targets, accounts of them where a strategy needs them, those that can take it |
//! | `plan`, `fusion`, `pipeline` | combos that need several answers to one request |
//! | `order`, `units`, [`strategy`] | the order in which targets and accounts are tried |
//! | `pinned` | accounts that sessions are kept together on |
//! | `occupied` | accounts that other sessions are using |
//! | `layers` | what may reorder targets afterwards: conversations and equal prompts stay with their account |
//! | `turns`, `recent` | counters that strategies take turns with, and what was sent just now |
//! | `private_view`, `full_view` | the view with the request's own failures in it, and with what has no permit left |
//! | `gates`, `quota`, `exclusion` | the ordered list of reasons to skip an account, and what was skipped |
//! | `exhaustion` | what earlier attempts of the same request rule out |
//! | `progress`, `reordered` | which pass and target the request is at, also when the configuration changed meanwhile |
//! | `accounts` | the accounts of a target and the choice among them |
//! | `driver`, `endings`, `delays`, `dispatching` | targets and retries; what ends them early; what is waited for; what is sent |
//! | `permits` | whether a dispatch needs a permit |
//! | `lease_pool` | what may be leased comes last for others, where leases cannot be seen |
//! | `wait` | waiting for a cooldown instead of failing |
//! | [`body`], [`intent`] | what a request's body says; what it is about |
//! | [`relay`] | `context-relay`: what a conversation came to follows it to another account |
//! | `selection`, `leasable` | what leases ask: which connections would be used, and whether one will do |
//! | `emergency` | the last resort when money or quota is used up |
//! | `terminal`, `wording` | the final answer when nothing is left |
//! | `key_policy` | what a key may ask for, where nothing is sent yet |
//! | `explain` | all of it laid open for people |

mod accounts;
mod availability;
pub mod body;
mod delays;
mod dispatching;
mod driver;
mod emergency;
mod endings;
mod exclusion;
mod exhaustion;
mod explain;
mod filters;
mod full_view;
mod fusion;
mod gates;
pub mod intent;
mod key_policy;
mod layers;
mod leasable;
mod lease_pool;
mod occupied;
mod order;
mod permits;
mod pinned;
mod pipeline;
mod plan;
mod pool;
mod private_view;
mod progress;
mod quota;
mod rankings;
mod recent;
pub mod relay;
mod reordered;
mod resolve;
mod selection;
pub mod strategy;
mod terminal;
#[cfg(test)]
mod tests;
mod turns;
mod units;
mod wait;
mod wording;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::affinity::{PinKey, PinReading, PinWrite};
use crate::classify::{Classification, Origin, Reason};
use crate::config::{ApiKey, BudgetFallback, Config, Protocol};
use crate::ids::{ComboName, ConnectionId, EgressId, ModelId, ProviderId, Shard};
use crate::lease::{LeaseError, LeaseName};
use crate::number::Finite;
use crate::outcome::Attempt;
use crate::session_key::SessionKey;
use crate::state::{ConnectionState, ProviderState};
use crate::telemetry::Telemetry;
use crate::time::Timestamp;
use crate::version::Version;

use strategy::{Charge, TurnKey, Turns};

pub use availability::{Availability, ModelAvailability, TargetAvailability};
pub use delays::remaining_ms;
pub use driver::{decide, next_target_same_provider};
pub use emergency::EMERGENCY_TARGET;
pub use exclusion::MAX_EXCLUSIONS;
pub use explain::{ExplainedTarget, Explanation, MAX_EXPLAINED, availability, explain};
pub use full_view::WithFull;
pub use fusion::{Panel, PanelResult, Shortfall};
pub use key_policy::refused_by_key;
pub use leasable::uses_several_connections;
pub use lease_pool::decide_cut_off;
pub use occupied::{MAX_OCCUPIED, minds_occupancy};
pub use permits::{
    MAX_QUEUE_DEPTH, MAX_QUEUE_TIMEOUT_MS, PermitDemand, PermitPolicy, PermitQueue, WaitEnd,
};
pub use pinned::pin_key;
pub use pipeline::{StageFault, stage_failure};
pub use plan::{FusionPlan, PipelinePlan, PipelineStage, Plan, PlanMember};
pub use reordered::UNKNOWN_TARGET;
pub use resolve::{Route, resolve, resolve_request};
pub use selection::{OrdinarySelection, Speaks, ordinary_selection};
pub use terminal::ALL_MODELS_FAILED;
pub use turns::{Counters, DecisionTurns};
pub use wait::{CoolingTimer, WaitPolicy, cooldown_wait};

/// Hot state as decisions read it. Absent means: nothing ever happened there.
pub trait View {
    /// The provider's value.
    fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>>;
    /// A connection's value.
    fn connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>>;
    /// Up to which version the view of a shard is complete.
    fn version(&self, shard: Shard) -> Version;
    /// All permits of a connection are out, as far as this decision found out (`routing.md` §3, gate 10).
    fn is_full(&self, _connection: &ConnectionId) -> bool {
        false
    }
    /// Requests without a lease stay away from connections that some key may lease, as with `leases.reservePool`.
    fn reserves_pool(&self) -> bool {
        false
    }

    /// The pin of a session. Who knows none places sessions by what is eligible alone.
    fn pin(&self, _key: &PinKey) -> PinReading {
        PinReading::Read(None)
    }
}

/// What routing needs to know of a request.
#[derive(Clone, Debug)]
pub struct RequestFacts {
    /// The client's key; absent where keys are not required.
    pub key: Option<Arc<ApiKey>>,
    /// The model or combo the client named.
    pub model: String,
    /// The lease that a request of a key with the scope `lease:exclusive` names.
    pub lease: Option<LeaseName>,
    /// The protocol the client speaks.
    pub protocol: Protocol,
    /// The operator's `X-OmniRoute-Connection`: only this connection.
    pub forced_connection: Option<ConnectionId>,
    /// The connection of the request's lease, once it is placed: nothing is sent elsewhere. The others are not excluded,
    /// they are not looked at.
    pub leased: Option<ConnectionId>,
    /// The connection whose permit the request waited for and holds: it goes there or is decided anew. The others are not
    /// excluded, they are not looked at.
    pub granted: Option<ConnectionId>,
    /// Only this top-level step of the combo: the request is a part of a [`Plan`].
    pub member: Option<u32>,
    /// The part is asked together with others, which need not wait for it: a member of a panel, not its judge.
    pub of_panel: bool,
    /// It asks for an embedding, not for an answer.
    pub embedding: bool,
    /// Tools that the request offers.
    pub tools: u32,
    /// `tool_choice` is `none`.
    pub tools_forbidden: bool,
    /// It holds images.
    pub vision: bool,
    /// It asks for an answer in a JSON schema.
    pub structured_output: bool,
    /// Estimate of its input tokens.
    pub estimated_tokens: Option<u64>,
    /// What equal prompt prefixes have in common (`routing.md` §8.17), at most 4,096 bytes.
    pub cache_key: Option<String>,
    /// What the turns of a conversation have in common (`routing.md` §10.1).
    pub session: Option<String>,
    /// The session that its client says it belongs to (`sessions-and-streams.md` §2.1).
    pub session_key: Option<SessionKey>,
    /// What it is about.
    pub intent: Intent,
    /// `X-OmniRoute-Mode`.
    pub mode: Option<String>,
    /// `X-OmniRoute-Budget` in USD.
    pub budget: Option<Finite>,
    /// `X-OmniRoute-Budget-Fallback`.
    pub budget_fallback: Option<BudgetFallback>,
    /// Tags that targets must have, where any target has them.
    pub tags: Vec<String>,
}

/// What a request is about (`routing.md` §9.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Intent {
    /// Anything.
    #[default]
    General,
    /// Writing code.
    Coding,
    /// Reasoning.
    Analysis,
}

impl RequestFacts {
    /// Whether leases say where it goes: its key may lease, and it names one. Every other request stays off connections
    /// that are leased.
    #[must_use]
    pub fn is_managed(&self) -> bool {
        self.lease.is_some() && self.key.as_ref().is_some_and(|key| key.may_lease())
    }

    /// A request of which nothing else is known.
    #[must_use]
    pub fn new(model: impl Into<String>, protocol: Protocol) -> Self {
        Self {
            key: None,
            model: model.into(),
            lease: None,
            protocol,
            forced_connection: None,
            leased: None,
            granted: None,
            member: None,
            of_panel: false,
            embedding: false,
            tools: 0,
            tools_forbidden: false,
            vision: false,
            structured_output: false,
            estimated_tokens: None,
            cache_key: None,
            session: None,
            session_key: None,
            intent: Intent::default(),
            mode: None,
            budget: None,
            budget_fallback: None,
            tags: Vec::new(),
        }
    }
}

/// An earlier attempt of the same request, as classified when it failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorAttempt {
    /// The attempt.
    pub attempt: Attempt,
    /// What its failure meant.
    pub classification: Classification,
    /// When it failed, in the store's time.
    pub failed_at: Timestamp,
    /// Which pass over the targets it belonged to, from 0; each cooldown wait begins a new pass.
    pub pass: u32,
    /// Position of its target in the resolved list.
    pub target: u32,
}

/// Everything about a request that happened before this decision. The control plane keeps nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptsSoFar {
    /// Failed attempts in order.
    pub attempts: Vec<PriorAttempt>,
    /// The last of them is what this question brings: it is reported once the answer is known, so nobody has counted it.
    #[serde(skip)]
    pub last_is_new: bool,
    /// Cooldown waits taken.
    pub waits: u32,
    /// Time spent in them, in ms.
    pub waited_ms: u64,
    /// The order of the targets, as positions in the resolved list, from the first dispatch on; those it does not name
    /// are not tried. Empty: as listed.
    pub order: Vec<u32>,
    /// Version of the configuration that the order and the positions of targets belong to; 0: not known, and they are
    /// taken as they are ([`AttemptsSoFar::follow`]).
    pub order_version: u64,
    /// Attempts of other parts of the same [`Plan`]; they count for the cap on attempts and for nothing else.
    pub elsewhere: u32,
    /// Age of the request, in ms.
    pub elapsed_ms: u64,
    /// It cannot wait: too many requests wait already (decision 28). Cooldowns are then not waited for, and what comes
    /// after a delay is left out.
    pub no_wait: bool,
    /// The retry budget of its combo is spent (decision 49): nothing is sent after a failure.
    pub budget_spent: bool,
    /// Providers whose retry budget is spent: after a failure nothing is sent to them.
    pub spent_providers: Vec<ProviderId>,
    /// OAuth accounts that other sessions of its data plane are using at the moment, and how many; at most
    /// [`MAX_OCCUPIED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub occupied: Vec<(ConnectionId, u32)>,
}

impl AttemptsSoFar {
    /// What counts for the cap on attempts (`routing.md` §1.5, `maxGlobalAttempts`).
    fn spent(&self) -> usize {
        let elsewhere = usize::try_from(self.elsewhere).unwrap_or(usize::MAX);
        self.attempts.len().saturating_add(elsewhere)
    }
}

/// Everything a decision depends on.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Configuration.
    pub config: &'a Config,
    /// Hot state.
    pub view: &'a dyn View,
    /// The request.
    pub facts: &'a RequestFacts,
    /// What happened to the request before.
    pub so_far: &'a AttemptsSoFar,
    /// The identity that the next attempt would leave under; nothing known excludes nothing (decision 23).
    pub egress: Option<&'a EgressId>,
    /// The store's time.
    pub now: Timestamp,
    /// What is known of the past.
    pub telemetry: &'a dyn Telemetry,
    /// Whose turn it is.
    pub turns: &'a dyn Turns,
    /// Any number; jitter and the draws of strategies come from it.
    pub random: u64,
    /// Whether a credential is known for a connection. One without is as good as switched off.
    pub has_credential: &'a dyn Fn(&ConnectionId) -> bool,
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Input")
            .field("config", &self.config.version)
            .field("facts", self.facts)
            .field("so_far", self.so_far)
            .field("egress", &self.egress)
            .field("now", &self.now)
            .field("random", &self.random)
            .finish_non_exhaustive()
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send an attempt.
    Dispatch(Box<Dispatch>),
    /// Wait, then ask again.
    Wait(Wait),
    /// Answer the client.
    Reject(Box<Rejection>),
    /// Fetch a number that all replicas count together, then decide again with it.
    TakeTurn(TurnKey),
    /// Read this pin, then decide again with it.
    ReadPin(PinKey),
    /// Make requests of their own to several steps.
    Plan(Box<Plan>),
}

/// Where an attempt goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Provider.
    pub provider: ProviderId,
    /// Connection.
    pub connection: ConnectionId,
    /// The upstream's model id.
    pub model: ModelId,
    /// The breaker is half-open: the attempt may be sent only with the probe.
    pub needs_probe: bool,
    /// The connection has a limit: the attempt may be sent only with a permit.
    pub permit: Option<PermitDemand>,
    /// The connection is not clean, so the attempt's verdict is reported at readiness at once.
    pub report_at_readiness: bool,
    /// Version of the provider's shard this rests on.
    pub decided_on: Version,
    /// The breaker's epoch.
    pub epoch: Version,
    /// Pass over the targets, for [`PriorAttempt::pass`].
    pub pass: u32,
    /// Position of the target, for [`PriorAttempt::target`].
    pub target: u32,
    /// Its execution key, for what is counted of it (`routing.md` §1.3).
    pub target_key: Arc<str>,
    /// The combo it is a target of.
    pub combo: Option<ComboName>,
    /// What was excluded before this one was chosen, in order, at most [`MAX_EXCLUSIONS`].
    pub excluded: Vec<Exclusion>,
    /// For [`AttemptsSoFar::order`].
    pub order: Vec<u32>,
    /// What this dispatch costs its target; if somebody else changed what is owed since, the decision is made anew.
    pub charge: Option<Charge>,
    /// Longest time until the answer is ready, of a stream until its headers, in ms. The attempt is then given up as one
    /// of our own, since it is a limit of ours.
    pub timeout_ms: Option<u64>,
    /// The request offers more tools than the target takes: only the first so many are sent (decision 33).
    pub max_tools: Option<u32>,
    /// It is the last resort (`routing.md` §13.4): the answer may have so many tokens.
    pub emergency_max_tokens: Option<u32>,
    /// A counter that is raised to at least this number, because another target than the one whose turn it was serves.
    pub raise: Option<(TurnKey, u64)>,
    /// What becomes of the pin of its session.
    pub pin: Option<PinWrite>,
}

/// A wait before the next decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How long, in ms.
    pub wait_ms: u64,
    /// Why.
    pub kind: WaitKind,
}

/// Why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitKind {
    /// Every target cools down; the wait counts in [`AttemptsSoFar::waits`].
    Cooldown,
    /// Before a retry on the same target, for which a permit is kept.
    RetryDelay,
    /// Before a repeat of the list or, after some failures, the next target.
    FallbackDelay,
    /// For a permit of a connection; taken outside of decisions.
    Permit,
}

/// One target or account that may not be used now (`routing.md` §3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exclusion {
    /// Provider.
    pub provider: ProviderId,
    /// Connection, when the exclusion is one connection's.
    pub connection: Option<ConnectionId>,
    /// Model.
    pub model: ModelId,
    /// Which gate.
    pub reason: ExclusionReason,
    /// When it ends by itself, if it does, in the store's time.
    pub until: Option<Timestamp>,
    /// Why the state that excludes was entered.
    pub cause: Option<Reason>,
    /// Which rule had a hand in it, if one did.
    pub origin: Option<Origin>,
}

/// The gates in their order, with the word that stands for each on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExclusionReason {
    /// It lacks a tag that the request asks for (`routing.md` §2, 4c).
    TagMismatch,
    /// The model is known not to take what the request holds (4h).
    CapabilityMismatch,
    /// The model's known window is smaller than the input (4i).
    ContextWindow,
    /// 0a: the key or the step of the combo may not use it.
    NotAllowed,
    /// 0b: it speaks another protocol.
    ProtocolMismatch,
    /// 0c: terminal state.
    Terminal(crate::classify::TerminalKind),
    /// 0d: switched off, or without a credential.
    Disabled,
    /// 1: the provider's breaker does not admit.
    CircuitOpen,
    /// 2: combos leave the provider or the connection alone.
    ProviderCooldown,
    /// 2a: the provider refuses the identity that the attempt would leave under.
    EgressLocked,
    /// 3: the connection cools down.
    ConnectionCooldown,
    /// 3a: some key may lease it, and requests without a lease stay away from it.
    Reserved,
    /// 3a: it is leased, and the request has no lease.
    Leased,
    /// 4: ruled out by an earlier attempt of this request.
    RequestExhaustion,
    /// 5: the model is locked.
    ModelLockout,
    /// 4a: the provider's retry budget is spent (decision 49).
    RetryBudget,
    /// 6: too little of the account's quota is left.
    QuotaCutoff,
    /// 8: the connection or provider does not serve the model, or there is no connection at all.
    Unavailable,
    /// 10: all permits of the connection are out.
    ConcurrencyCap,
    /// `auto` with a strict budget: it is estimated to cost more.
    OverBudget,
}

/// The final answer when nothing (more) can be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// HTTP status.
    pub status: u16,
    /// Stable machine code.
    pub code: String,
    /// OpenAI error type.
    pub error_type: String,
    /// For people; without secrets.
    pub message: String,
    /// Retry-After in whole seconds.
    pub retry_after_secs: Option<u64>,
    /// Pass the last upstream error's body through unchanged (decision 50).
    pub pass_through: bool,
    /// Why nothing is left (`routing.md` §7).
    pub terminal_reason: String,
    /// How many targets were looked at.
    pub pool_size: u32,
    /// How many attempts were made.
    pub attempted: u32,
    /// What was excluded, in order, at most [`MAX_EXCLUSIONS`].
    pub excluded: Vec<Exclusion>,
    /// The rule of leases that refuses, if one does; its answer is the client's.
    pub lease: Option<LeaseError>,
}

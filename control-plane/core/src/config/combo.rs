//! Combos as people write them: named ordered lists of steps, a strategy and how the targets are walked.

use serde::{Deserialize, Serialize};

use crate::ids::ComboName;
use crate::number::Finite;

use super::{Legacy, Step};

/// A named ordered list of steps and how it is walked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Combo {
    /// Unique name; a model of this name is shadowed.
    pub name: ComboName,
    /// Order of the targets.
    #[serde(default)]
    pub strategy: Strategy,
    /// The steps.
    pub steps: Vec<Step>,
    /// Overrides of the combo defaults.
    #[serde(default, skip_serializing_if = "ComboConfig::is_empty")]
    pub config: ComboConfig,
}

/// In which order targets are tried (`routing.md` §8).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Strategy {
    /// As written.
    #[default]
    Priority,
    /// One step drawn by weight, the rest by weight.
    Weighted,
    /// In turn.
    RoundRobin,
    /// As written; carries a summary of the conversation to another account.
    ContextRelay,
    /// As written; a target is left when it is used up.
    FillFirst,
    /// The better of two drawn ones.
    P2c,
    /// Shuffled.
    Random,
    /// The least used first.
    LeastUsed,
    /// The cheapest input first.
    CostOptimized,
    /// The quota that would be lost soonest first.
    ResetAware,
    /// The quota that begins anew soonest first.
    ResetWindow,
    /// The most quota left first.
    Headroom,
    /// Dealt from a deck that all replicas share.
    StrictRandom,
    /// Scored by sixteen factors.
    Auto,
    /// The last one that served first.
    Lkgp,
    /// The largest context window first.
    ContextOptimized,
    /// The same account for the same prompt prefix.
    CacheOptimized,
    /// All at once, and one model judges.
    Fusion,
    /// One after the other, each with the answer of the one before.
    Pipeline,
    /// Several clients share few accounts fairly; for combos that quota pools make.
    #[serde(skip_deserializing)]
    QuotaShare,
}

/// One list of all strategies with their words: a variant that is missing does not compile.
macro_rules! strategies {
    ($($variant:ident => $word:literal,)+) => {
        impl Strategy {
            /// Every strategy.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its word in documents and headers.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

strategies! {
    Priority => "priority",
    Weighted => "weighted",
    RoundRobin => "round-robin",
    ContextRelay => "context-relay",
    FillFirst => "fill-first",
    P2c => "p2c",
    Random => "random",
    LeastUsed => "least-used",
    CostOptimized => "cost-optimized",
    ResetAware => "reset-aware",
    ResetWindow => "reset-window",
    Headroom => "headroom",
    StrictRandom => "strict-random",
    Auto => "auto",
    Lkgp => "lkgp",
    ContextOptimized => "context-optimized",
    CacheOptimized => "cache-optimized",
    Fusion => "fusion",
    Pipeline => "pipeline",
    QuotaShare => "quota-share",
}

/// How an account is chosen among a provider's connections (decision 25). The same code as the strategies of combos.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AccountStrategy {
    /// Lowest priority number first, then in the order written.
    #[default]
    FillFirst,
    /// In turn.
    RoundRobin,
    /// The better of two drawn ones.
    P2c,
    /// Shuffled.
    Random,
    /// Dealt from a deck that all replicas share.
    StrictRandom,
    /// The least used first.
    LeastUsed,
    /// The most quota left first.
    Headroom,
    /// The quota that would be lost soonest first.
    ResetAware,
}

impl AccountStrategy {
    /// The combo strategy whose code it uses.
    #[must_use]
    pub fn strategy(self) -> Strategy {
        match self {
            Self::FillFirst => Strategy::FillFirst,
            Self::RoundRobin => Strategy::RoundRobin,
            Self::P2c => Strategy::P2c,
            Self::Random => Strategy::Random,
            Self::StrictRandom => Strategy::StrictRandom,
            Self::LeastUsed => Strategy::LeastUsed,
            Self::Headroom => Strategy::Headroom,
            Self::ResetAware => Strategy::ResetAware,
        }
    }
}

/// How references to other combos are resolved (`routing.md` §1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum NestedComboMode {
    /// The targets of the other combo stand in its place.
    #[default]
    Flatten,
    /// The other combo is one unit that orders its targets itself.
    Execute,
}

/// A window of a quota, as named in `resetWindows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ResetWindow {
    /// 5 hours.
    Session,
    /// 7 days.
    Weekly,
    /// 30 days.
    Monthly,
}

/// Members of `combo.config` (`routing.md` §1.5). The same members stand in `settings.comboDefaults` and
/// `settings.comboProviderOverrides`; of all that name a member, the combo's own counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComboConfig {
    /// Same-target retries, 0..=10; default 1. A failure that cools the account for longer than `retryDelayMs`, or locks
    /// the model, is not followed by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// Wait before a same-target retry, 0..=60 000; default 2 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_delay_ms: Option<u64>,
    /// Wait before the next target after 502, 503 and 504, 0..=60 000; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_delay_ms: Option<u64>,
    /// Repeats of the whole list after every target failed, 0..=10; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_set_retries: Option<u32>,
    /// Wait before such a repeat, 0..=60 000; default 2 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_retry_delay_ms: Option<u64>,
    /// Cap on all attempts of a request, 1..=200; default 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_global_attempts: Option<u32>,
    /// Time limit of one attempt, of a stream until its headers, 1 000..=600 000; default 120 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_timeout_ms: Option<u64>,
    /// Time limit of a request over all targets, 0..=600 000; default 0 = only the safety limit of 10 minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub combo_timeout_ms: Option<u64>,
    /// How deep references are followed, 1..=10; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_combo_depth: Option<u32>,
    /// What a reference stands for; default `flatten`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nested_combo_mode: Option<NestedComboMode>,
    /// `round-robin`: requests at once per target, 1..=32 (no effect: the cap is a connection's `maxConcurrent`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency_per_model: Option<u32>,
    /// Longest wait for a permit, 0..=600 000; default 30 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_timeout_ms: Option<u64>,
    /// Most requests that wait for a permit, 0..=100; default 20; 0 = never wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
    /// Explicit `true`: never retry on the same target while another exists (`routing.md` §5.2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover_before_retry: Option<bool>,
    /// `weighted`: requests that stay with a drawn step, 1..=1 000; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sticky_weighted_limit: Option<u32>,
    /// `round-robin`: requests that stay with a target, 1..=1 000; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sticky_round_robin_limit: Option<u32>,
    /// `context-relay`: share of a quota from which the conversation is summed up, 0..=1; default 0.85.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff_threshold: Option<Finite>,
    /// `context-relay`: model that sums up; default the one that served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff_model: Option<String>,
    /// `context-relay`: providers it is done for; default `codex`, the only one it acts on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff_providers: Option<Vec<String>>,
    /// `context-relay`: messages that are summed up, 5..=100; default 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_messages_for_summary: Option<u32>,
    /// `reset-aware`: weight of the session window, at least 0; default 0.35.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_aware_session_weight: Option<Finite>,
    /// `reset-aware`: weight of the weekly window, at least 0; default 0.65.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_aware_weekly_weight: Option<Finite>,
    /// `reset-aware`: scores this close to the best take turns, in percent points, 0..=100; default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_aware_tie_band_percent: Option<Finite>,
    /// `reset-aware`: session quota left below which an account is held back, in percent, 0..=100; default 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_aware_exhaustion_guard_percent: Option<Finite>,
    /// `reset-window`: windows that count; default `weekly`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_windows: Option<Vec<ResetWindow>>,
    /// `reset-window`: the session window counts too; default no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_window_include_session: Option<bool>,
    /// `reset-window`: ends this close to the first take turns, 0..=3 600 000; default 60 000; 0 = never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_window_tie_band_ms: Option<u64>,
    /// `cost-optimized`: a request that wants a premium model gets one while there is one; default no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest_routing: Option<bool>,
    /// Accounts are expanded before the strategy orders; `false` does not keep strategies from it that need it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_aware_expansion: Option<bool>,
    /// Targets that cannot take the request are tried rather than none; default no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compat_filter_fail_open: Option<bool>,
    /// Later turns of a conversation go to the connection that served the last one (`routing.md` §10.1), and accounts are
    /// expanded for it; default no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_stickiness: Option<bool>,
    /// Equal prompt prefixes go to the same target (`routing.md` §10.2); default no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_cache_affinity: Option<bool>,
    /// Order of the top-level steps by tiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub composite_tiers: Option<CompositeTiers>,
    /// Share of the requests under way that may be retries (decision 49), 0..=1; default 0.2; 0 = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_budget_ratio: Option<Finite>,
    /// `fusion` members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fusion: Option<FusionConfig>,
    /// `auto` members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<AutoConfig>,
    /// Accepted without effect.
    #[serde(skip_serializing)]
    pub timeout_ms: Legacy,
    /// Accepted without effect.
    #[serde(skip_serializing)]
    pub health_check_enabled: Legacy,
    /// Accepted without effect.
    #[serde(skip_serializing)]
    pub health_check_timeout_ms: Legacy,
}

impl ComboConfig {
    /// Nothing is overridden.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Order of top-level steps by tiers (`routing.md` §1.6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CompositeTiers {
    /// The tier that is tried first.
    pub default_tier: String,
    /// Tiers by name, at most 64.
    pub tiers: std::collections::BTreeMap<String, CompositeTier>,
}

/// One tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CompositeTier {
    /// Id of the step.
    pub step_id: String,
    /// The tier that is tried next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_tier: Option<String>,
}

/// Members of `combo.config.fusion` (`routing.md` §8.18).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FusionConfig {
    /// The model that judges, `provider/model`; default the first of the panel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge_model: Option<String>,
    /// Answers after which stragglers are waited for only a while; 1..=1 000, brought into 2..=panel; default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_panel: Option<u32>,
    /// How long they are waited for, 0..=600 000; default 8 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub straggler_grace_ms: Option<u64>,
    /// Longest time for the panel, 1..=600 000; default 90 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panel_hard_timeout_ms: Option<u64>,
}

/// Members of `combo.config.auto` (`routing.md` §9).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AutoConfig {
    /// Weights of factors by name; negative ones are refused; default as in `routing.md` §9.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<std::collections::BTreeMap<String, Finite>>,
    /// A pack that replaces all weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode_pack: Option<String>,
    /// How one is picked: `rules` (default), `score`, `cost`, `latency`, `sla-aware`, `lkgp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router: Option<String>,
    /// Providers that may be picked; empty = all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidate_pool: Vec<String>,
    /// Share of requests that try any candidate, 0..=1; default 0.05.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exploration_rate: Option<Finite>,
    /// Most a request may cost, in USD, above 0; default no cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_cap: Option<Finite>,
    /// Over the cap: `cheapest` (default) or `strict`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_fallback: Option<BudgetFallback>,
    /// Accounts below this share of quota are left out, in percent, 0..=100; default no cut-off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_cutoff_percent: Option<Finite>,
    /// `sla-aware`: p95 latency in ms; default 2 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sla_latency_ms: Option<Finite>,
    /// `sla-aware`: share of failures, 0..=1; default 0.05.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sla_error_rate: Option<Finite>,
    /// `sla-aware`: cost in USD per million tokens; default no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sla_cost: Option<Finite>,
    /// `sla-aware`: who violates least comes first; default no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard_constraints: Option<bool>,
}

/// What `auto` does when nothing fits the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum BudgetFallback {
    /// The cheapest is used.
    #[default]
    Cheapest,
    /// The request is refused with 402.
    Strict,
}

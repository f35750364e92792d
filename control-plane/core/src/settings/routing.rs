//! Settings of how requests are routed: the quota cut-off, the retry budget and the emergency fallback.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::{MAX_ENTRIES, Violations};
use crate::ids::{ModelId, ProviderId};
use crate::number::Finite;
use crate::telemetry::quota::window::WindowName;

use super::member::{Bounds, Member};
use super::{Overrides, Settings};

/// Whether there is an emergency fallback where nobody says.
pub(super) const EMERGENCY_FALLBACK_ENABLED: bool = true;
/// Most phrases of the emergency fallback.
const MAX_PHRASES: usize = 64;
/// Longest phrase, in characters.
const MAX_PHRASE_CHARACTERS: usize = 200;

/// Members of `quotaPreflight`.
pub(super) const QUOTA_PREFLIGHT: &[Member] = &[
    Member::flag("enabled"),
    Member::whole("defaultThresholdPercent", Bounds::same(0, 99)),
    Member::whole("warnThresholdPercent", Bounds::same(0, 100)),
    Member::entries("providerWindowDefaults"),
];

/// Members of `retryBudget`.
pub(super) const RETRY_BUDGET: &[Member] = &[
    Member::share("ratio"),
    Member::whole("minConcurrent", Bounds::same(0, 10_000)),
];

/// Members of `routing`.
pub(super) const ROUTING: &[Member] = &[Member::whole(
    "maxWaitingPerDataPlane",
    Bounds::same(0, 100_000),
)];

/// Members of `emergencyFallback`.
pub(super) const EMERGENCY_FALLBACK: &[Member] = &[
    Member::flag("enabled"),
    Member::text("provider"),
    Member::text("model"),
    Member::whole("maxOutputTokens", Bounds::same(1, 1_000_000)),
    Member::entries("phrases"),
];

/// `routing` (decision 28).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RoutingSettings {
    /// Requests of a data plane that wait at once for a cooldown to end, or before a retry; those beyond get the answer
    /// that there is without a wait.
    pub max_waiting_per_data_plane: u32,
}

impl Default for RoutingSettings {
    fn default() -> Self {
        Self {
            max_waiting_per_data_plane: 1_000,
        }
    }
}

/// `quotaPreflight` (`routing.md` §3, gate 6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QuotaPreflightSettings {
    /// Accounts with too little quota left are left out before anything is sent to them.
    pub enabled: bool,
    /// What is too little, in percent of a quota window that is left.
    pub default_threshold_percent: u32,
    /// At how much a quota is shown as low, in percent of a window that is left; at least one more than what is too
    /// little.
    pub warn_threshold_percent: u32,
    /// What is too little by provider, for those of its windows that are named: `session`, `weekly`, `monthly`; 0 to 100.
    pub provider_window_defaults: BTreeMap<ProviderId, QuotaWindowThresholds>,
}

/// Percents of the windows of a provider. An unset one is as `defaultThresholdPercent` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QuotaWindowThresholds {
    /// Of the window of 5 hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u32>,
    /// Of the windows of 7 days, that of a model included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weekly: Option<u32>,
    /// Of the window of 30 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monthly: Option<u32>,
}

impl QuotaPreflightSettings {
    /// What is too little of a window of a provider, in percent.
    pub(crate) fn threshold_percent(&self, provider: &ProviderId, window: WindowName) -> u32 {
        let thresholds = self.provider_window_defaults.get(provider);
        let of_window = thresholds.and_then(|thresholds| match window {
            WindowName::Session => thresholds.session,
            WindowName::Weekly => thresholds.weekly,
            WindowName::Monthly => thresholds.monthly,
            WindowName::Unnamed => None,
        });
        of_window.unwrap_or(self.default_threshold_percent)
    }

    /// At how much of a window of a provider its quota is low, in percent.
    pub(crate) fn warn_percent(&self, provider: &ProviderId, window: WindowName) -> u32 {
        let too_little = self.threshold_percent(provider, window);
        self.warn_threshold_percent
            .max(too_little.saturating_add(1))
            .min(100)
    }
}

/// `retryBudget` (decision 49). A combo may set its own `retryBudgetRatio`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RetryBudgetSettings {
    /// Share of the requests in flight that may be retries, per combo and per provider; 0 = no limit.
    pub ratio: Finite,
    /// Retries in flight that are always allowed, in the whole fleet.
    pub min_concurrent: u32,
}

/// `emergencyFallback` (`routing.md` §13.4, decisions 34 and 50).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EmergencyFallbackSettings {
    /// A request that fails because money or quota is used up goes to the model below, once and never with tools.
    /// Unset = as the environment says, else yes. It needs a connection at the provider.
    pub enabled: Option<bool>,
    /// Provider of the model.
    pub provider: String,
    /// The model.
    pub model: String,
    /// Longest answer it is asked for, in tokens.
    pub max_output_tokens: u32,
    /// Texts of an answer that say that money or quota is used up, compared without regard to case; at most 64 of 1 to
    /// 200 characters. A 402 says so without any.
    pub phrases: Vec<String>,
}

impl Default for QuotaPreflightSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            default_threshold_percent: 2,
            warn_threshold_percent: 20,
            provider_window_defaults: BTreeMap::new(),
        }
    }
}

impl Default for RetryBudgetSettings {
    fn default() -> Self {
        Self {
            ratio: Finite::new(0.2).unwrap_or(Finite::ZERO),
            min_concurrent: 10,
        }
    }
}

impl Default for EmergencyFallbackSettings {
    fn default() -> Self {
        Self {
            enabled: None,
            provider: "nvidia".to_owned(),
            model: "openai/gpt-oss-120b".to_owned(),
            max_output_tokens: 4_096,
            phrases: [
                "insufficient funds",
                "budget exceeded",
                "quota exceeded",
                "billing",
                "payment required",
                "out of credits",
                "no credits",
                "credit limit",
                "spending limit",
                "saldo insuficiente",
                "sem créditos",
                "limite de gastos",
            ]
            .map(str::to_owned)
            .to_vec(),
        }
    }
}

impl Settings {
    /// Fills in what the environment decides.
    pub(crate) fn with_overrides(mut self, overrides: &Overrides) -> Self {
        let enabled = &mut self.emergency_fallback.enabled;
        *enabled = Some(
            enabled
                .or(overrides.emergency_fallback())
                .unwrap_or(EMERGENCY_FALLBACK_ENABLED),
        );
        self.request_queue.fill_in(overrides);
        self.streams.fill_in(overrides.named());
        self.stream_recovery.fill_in(overrides.named());
        self
    }
}

/// Everything that is out of bounds.
pub(super) fn conflicts(settings: &Settings, found: &mut Violations) {
    window_thresholds(&settings.quota_preflight, found);
    let fallback = &settings.emergency_fallback;
    if let Err(error) = ProviderId::new(&fallback.provider) {
        found.push("emergencyFallback.provider", error.to_string());
    }
    if let Err(error) = ModelId::new(&fallback.model) {
        found.push("emergencyFallback.model", error.to_string());
    }
    let phrases = &fallback.phrases;
    if !found.at_most("emergencyFallback.phrases", phrases.len(), MAX_PHRASES) {
        return;
    }
    for (index, phrase) in phrases.iter().enumerate() {
        let characters = phrase.chars().count();
        if phrase.trim().is_empty() || characters > MAX_PHRASE_CHARACTERS {
            found.push(
                format!("emergencyFallback.phrases[{index}]"),
                format!(
                    "must have 1 to {MAX_PHRASE_CHARACTERS} characters and not be blank, has {characters}"
                ),
            );
        }
    }
}

fn window_thresholds(settings: &QuotaPreflightSettings, found: &mut Violations) {
    let path = "quotaPreflight.providerWindowDefaults";
    let providers = &settings.provider_window_defaults;
    if !found.at_most(path, providers.len(), MAX_ENTRIES) {
        return;
    }
    for (provider, thresholds) in providers {
        for (name, percent) in [
            ("session", thresholds.session),
            ("weekly", thresholds.weekly),
            ("monthly", thresholds.monthly),
        ] {
            if let Some(percent) = percent.filter(|percent| *percent > 100) {
                found.push(
                    format!("{path}.{provider}.{name}"),
                    format!("must be between 0 and 100, is {percent}"),
                );
            }
        }
    }
}

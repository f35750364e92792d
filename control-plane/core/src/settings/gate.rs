//! Settings of the opt-in provider cooldown gate (`failure-state.md` §2).

use serde::{Deserialize, Serialize};

/// `providerCooldown`. What is unset is what the environment says, else the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProviderCooldownSettings {
    /// The gate is looked at; off by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// First cooldown of a connection, 0..=300 000; default 5 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_retry_cooldown_ms: Option<u64>,
    /// Longest cooldown of a connection, 0..=3 600 000 and at least the first; default 300 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retry_cooldown_ms: Option<u64>,
    /// For class `oauth`.
    pub oauth: GateClassSettings,
    /// For class `apikey`.
    pub apikey: GateClassSettings,
    /// For class `local`.
    pub local: GateClassSettings,
}

/// One class of `providerCooldown` (`failure-state.md` §2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GateClassSettings {
    /// Failures within the window that cool the provider, 1..=1 000; unset = the class's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_failure_threshold: Option<u32>,
    /// Length of the sliding window, 1 000..=86 400 000; unset = the class's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_failure_window_ms: Option<u64>,
    /// How long the provider cools, 1 000..=86 400 000; unset = the class's default. Also the cooldown of a
    /// rule with scope `provider` that states none, whether or not the gate is on (decision 18).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_cooldown_ms: Option<u64>,
}

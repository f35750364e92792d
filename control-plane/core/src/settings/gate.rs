//! Settings of the opt-in provider cooldown gate (`failure-state.md` §2): names, bounds, and what they come to for
//! a provider.

use serde::{Deserialize, Serialize};

use crate::config::Violations;
use crate::gate::GatePolicy;

use super::member::{Bounds, Member};
use super::{Overrides, ProviderClass};

/// Failures within the window.
pub(super) const FAILURES: Bounds = Bounds::same(1, 1_000);
/// Length of the window and of the provider's cooldown, in ms.
pub(super) const SPAN_MS: Bounds = Bounds::same(1_000, 86_400_000);
/// First cooldown of a connection, in ms. What is stored and the environment may say more than the API takes.
pub(super) const FIRST_RETRY_MS: Bounds = Bounds::wider_stored((0, 300_000), (0, 3_600_000));
/// Longest cooldown of a connection, in ms, likewise.
pub(super) const LONGEST_RETRY_MS: Bounds = Bounds::wider_stored((0, 3_600_000), (0, 86_400_000));

/// Members of `providerCooldown` (`sessions-and-streams.md` §3.3).
pub(super) const MEMBERS: &[Member] = &[
    Member::flag("enabled"),
    Member::whole("minRetryCooldownMs", FIRST_RETRY_MS),
    Member::whole("maxRetryCooldownMs", LONGEST_RETRY_MS),
    Member::members("oauth", CLASS),
    Member::members("apikey", CLASS),
    Member::members("local", CLASS),
];

const CLASS: &[Member] = &[
    Member::whole("providerFailureThreshold", FAILURES),
    Member::whole("providerFailureWindowMs", SPAN_MS),
    Member::whole("providerCooldownMs", SPAN_MS),
];

const DEFAULT_MIN_RETRY_MS: u64 = 5_000;
const DEFAULT_MAX_RETRY_MS: u64 = 300_000;

/// `providerCooldown`. What is unset is what the environment says, else the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

impl ProviderCooldownSettings {
    /// The numbers that hold for a class.
    pub(super) fn policy(&self, class: ProviderClass, overrides: &Overrides) -> GatePolicy {
        let environment = overrides.gate();
        let of_class = overrides.gate_of(class);
        let stored = self.of(class);
        let defaults = class_defaults(class);
        let first_ms = self
            .min_retry_cooldown_ms
            .or(environment.min_retry_cooldown_ms)
            .unwrap_or(DEFAULT_MIN_RETRY_MS);
        let longest_ms = self
            .max_retry_cooldown_ms
            .or(environment.max_retry_cooldown_ms)
            .unwrap_or(DEFAULT_MAX_RETRY_MS);
        GatePolicy {
            enabled: self.enabled.or(environment.enabled).unwrap_or(false),
            failure_threshold: stored
                .provider_failure_threshold
                .or(of_class.failure_threshold)
                .unwrap_or(defaults.failure_threshold),
            failure_window_ms: stored
                .provider_failure_window_ms
                .or(of_class.failure_window_ms)
                .unwrap_or(defaults.failure_window_ms),
            cooldown_ms: stored
                .provider_cooldown_ms
                .or(of_class.cooldown_ms)
                .unwrap_or(defaults.cooldown_ms),
            min_retry_cooldown_ms: first_ms,
            max_retry_cooldown_ms: longest_ms.max(first_ms),
        }
    }

    /// Adds what does not fit together.
    pub(super) fn conflicts(&self, found: &mut Violations) {
        let first = self.first_ms();
        if let Some(longest) = self.max_retry_cooldown_ms
            && longest < first
        {
            found.push(
                "providerCooldown.maxRetryCooldownMs",
                format!("must be at least minRetryCooldownMs ({first}), is {longest}"),
            );
        }
    }

    /// Makes it fit.
    pub(super) fn reconcile(&mut self) {
        let first = self.first_ms();
        self.max_retry_cooldown_ms = self.max_retry_cooldown_ms.map(|longest| longest.max(first));
    }

    fn first_ms(&self) -> u64 {
        self.min_retry_cooldown_ms.unwrap_or(DEFAULT_MIN_RETRY_MS)
    }

    fn of(&self, class: ProviderClass) -> &GateClassSettings {
        match class {
            ProviderClass::Oauth => &self.oauth,
            ProviderClass::Apikey => &self.apikey,
            ProviderClass::Local => &self.local,
        }
    }
}

/// What is built in for one class (`failure-state.md` §2.1).
struct ClassDefaults {
    failure_threshold: u32,
    failure_window_ms: u64,
    cooldown_ms: u64,
}

fn class_defaults(class: ProviderClass) -> ClassDefaults {
    let (failure_threshold, failure_window_ms, cooldown_ms) = match class {
        ProviderClass::Oauth => (10, 900_000, 300_000),
        ProviderClass::Apikey => (15, 1_800_000, 600_000),
        ProviderClass::Local => (2, 300_000, 60_000),
    };
    ClassDefaults {
        failure_threshold,
        failure_window_ms,
        cooldown_ms,
    }
}

//! What acts, member by member, and who said so: built in, environment or document
//! (`sessions-and-streams.md` §3.3, precedence).

use serde_json::{Map, Value};

use super::member::{Member, Shape};
use super::members::SECTIONS;
use super::policy::class_policies;
use super::{
    BreakerClassSettings, CooldownClassSettings, GateClassSettings, Overrides, ProviderClass,
    Settings, StoredReading,
};

/// One member as it acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// Its path, for example `providerBreaker.apikey.failureThreshold`.
    pub path: String,
    /// What acts; null = unset, and nothing takes its place.
    pub value: Value,
    /// Who said so.
    pub source: Source,
}

/// Who said what acts, from the lowest to the highest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody: the default of the product, of the provider's class where there are several.
    BuiltIn,
    /// The environment variable of this name.
    Environment(String),
    /// The document.
    Stored,
}

/// The sections as they act, as one document (`GET /api/resilience`). A member that is unset is null.
#[must_use]
pub fn sections(settings: &Settings, overrides: &Overrides) -> Map<String, Value> {
    match serde_json::to_value(resolved(settings, overrides)) {
        Ok(Value::Object(members)) => members,
        // As in `Settings::violations`: settings can always be written.
        Ok(_) | Err(_) => Map::new(),
    }
}

/// Every member with what acts, in the order of the sections.
#[must_use]
pub fn effective(reading: &StoredReading, overrides: &Overrides) -> Vec<EffectiveSetting> {
    let resolved = sections(&reading.settings, overrides);
    let mut all = Vec::new();
    let walk = Walk {
        written: Some(&reading.members),
        resolved: Some(&resolved),
        overrides,
    };
    walk.members(&[], SECTIONS, &mut all);
    all
}

/// The settings with everything filled in that a class or the environment decides.
fn resolved(settings: &Settings, overrides: &Overrides) -> Settings {
    let mut all = settings.clone().with_overrides(overrides);
    let breaker = &mut all.provider_breaker;
    let cooldown = &mut all.connection_cooldown;
    let gate = &mut all.provider_cooldown;
    let classes = [
        (
            ProviderClass::Oauth,
            &mut breaker.oauth,
            &mut cooldown.oauth,
            &mut gate.oauth,
        ),
        (
            ProviderClass::Apikey,
            &mut breaker.apikey,
            &mut cooldown.apikey,
            &mut gate.apikey,
        ),
        (
            ProviderClass::Local,
            &mut breaker.local,
            &mut cooldown.local,
            &mut gate.local,
        ),
    ];
    for (class, breaker, cooldown, gate_class) in classes {
        let (breaker_policy, cooldown_policy) = class_policies(settings, class, overrides);
        *breaker = BreakerClassSettings {
            degradation_threshold: Some(breaker_policy.degradation_threshold),
            failure_threshold: Some(breaker_policy.failure_threshold),
            reset_timeout_ms: Some(breaker_policy.reset_timeout_ms),
        };
        *cooldown = CooldownClassSettings {
            base_cooldown_ms: Some(cooldown_policy.base_ms),
            use_upstream_retry_hints: Some(cooldown_policy.trust_hints),
            use_upstream_429_breaker_hints: cooldown.use_upstream_429_breaker_hints,
            max_backoff_steps: Some(cooldown_policy.max_backoff_steps),
        };
        let gate_policy = settings.provider_cooldown.policy(class, overrides);
        *gate_class = GateClassSettings {
            provider_failure_threshold: Some(gate_policy.failure_threshold),
            provider_failure_window_ms: Some(gate_policy.failure_window_ms),
            provider_cooldown_ms: Some(gate_policy.cooldown_ms),
        };
        // The same for every class.
        gate.enabled = Some(gate_policy.enabled);
        gate.min_retry_cooldown_ms = Some(gate_policy.min_retry_cooldown_ms);
        gate.max_retry_cooldown_ms = Some(gate_policy.max_retry_cooldown_ms);
    }
    all
}

/// Where the walk is in what is written and in what acts.
struct Walk<'a> {
    written: Option<&'a Map<String, Value>>,
    resolved: Option<&'a Map<String, Value>>,
    overrides: &'a Overrides,
}

impl Walk<'_> {
    fn members(&self, path: &[&str], known: &[Member], all: &mut Vec<EffectiveSetting>) {
        for member in known {
            let path: Vec<&str> = path.iter().copied().chain([member.name]).collect();
            let written = self.written.and_then(|members| members.get(member.name));
            let resolved = self.resolved.and_then(|members| members.get(member.name));
            if let Shape::Members(known) = member.shape {
                let inner = Self {
                    written: written.and_then(Value::as_object),
                    resolved: resolved.and_then(Value::as_object),
                    overrides: self.overrides,
                };
                inner.members(&path, known, all);
                continue;
            }
            let source = if written.is_some_and(|value| !value.is_null()) {
                Source::Stored
            } else {
                self.overrides
                    .variable_of(&path)
                    .map_or(Source::BuiltIn, Source::Environment)
            };
            all.push(EffectiveSetting {
                path: path.join("."),
                value: resolved.cloned().unwrap_or(Value::Null),
                source,
            });
        }
    }
}

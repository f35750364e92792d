//! The environment's say in some numbers (`failure-state.md` §1.1, §2, `sessions-and-streams.md` §3.3): above what is built in, below
//! what the document says.
//!
//! The environment is an argument here, since the rules read nothing themselves. A value that is not a
//! number, negative or, where 0 has no meaning, 0 counts as unset; one out of bounds is brought into them,
//! and fractions are cut off (`sessions-and-streams.md` §3.3).

pub(super) mod named;

use super::ProviderClass;
use super::gate::{FAILURES, FIRST_RETRY_MS, LONGEST_RETRY_MS, SPAN_MS};
use super::member::Bounds;
use super::members::{RESET_TIMEOUT_MS, THRESHOLD};
use super::number::truncated_text;
use super::request_queue::{MAX_QUEUE_DEPTH, MAX_WAIT_MS};

use named::Named;

const CIRCUIT_BREAKER: &str = "OMNIROUTE_CIRCUIT_BREAKER_";
const PROVIDER_BREAKER: &str = "OMNIROUTE_PROVIDER_BREAKER_";
const PROVIDER_COOLDOWN: &str = "PROVIDER_COOLDOWN_";
const EMERGENCY_FALLBACK: &str = "OMNIROUTE_EMERGENCY_FALLBACK";
const RATE_LIMIT_MAX_WAIT_MS: &str = "RATE_LIMIT_MAX_WAIT_MS";
const RATE_LIMIT_MAX_QUEUE_DEPTH: &str = "RATE_LIMIT_MAX_QUEUE_DEPTH";
const MULTIPLIER: Bounds = Bounds::same(1, 1_000);
const CYCLES: Bounds = Bounds::same(0, 1_000);

/// What the environment overrides, per class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    oauth: BreakerOverrides,
    apikey: BreakerOverrides,
    local: BreakerOverrides,
    gate: GateOverrides,
    gate_oauth: GateClassOverrides,
    gate_apikey: GateClassOverrides,
    gate_local: GateClassOverrides,
    emergency_fallback: Option<bool>,
    max_wait_ms: Option<u64>,
    max_queue_depth: Option<u64>,
    named: Named,
}

/// What the environment overrides of the cooldown gate for every class. `None` leaves what is built in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateOverrides {
    /// `PROVIDER_COOLDOWN_ENABLED`: `true`, `1` and `on` mean yes, everything else means no.
    pub enabled: Option<bool>,
    /// `PROVIDER_COOLDOWN_MIN_MS`.
    pub min_retry_cooldown_ms: Option<u64>,
    /// `PROVIDER_COOLDOWN_MAX_MS`.
    pub max_retry_cooldown_ms: Option<u64>,
}

/// What the environment overrides of the cooldown gate for one class. The contract's names begin with
/// `OMNIROUTE_PROVIDER_BREAKER_`, but the breaker itself never reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateClassOverrides {
    /// `OMNIROUTE_PROVIDER_BREAKER_<CLASS>_FAILURE_THRESHOLD`.
    pub failure_threshold: Option<u32>,
    /// `OMNIROUTE_PROVIDER_BREAKER_<CLASS>_FAILURE_WINDOW_MS`.
    pub failure_window_ms: Option<u64>,
    /// `OMNIROUTE_PROVIDER_BREAKER_<CLASS>_COOLDOWN_MS`.
    pub cooldown_ms: Option<u64>,
}

/// What the environment overrides for one class of providers. `None` leaves what is built in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakerOverrides {
    /// `OMNIROUTE_CIRCUIT_BREAKER_<CLASS>_THRESHOLD`.
    pub failure_threshold: Option<u32>,
    /// `OMNIROUTE_CIRCUIT_BREAKER_<CLASS>_RESET_MS`.
    pub reset_timeout_ms: Option<u64>,
    /// `OMNIROUTE_PROVIDER_BREAKER_<CLASS>_DEGRADATION_THRESHOLD`; not for `LOCAL`.
    pub degradation_threshold: Option<u32>,
    /// `OMNIROUTE_PROVIDER_BREAKER_<CLASS>_MAX_BACKOFF_MULTIPLIER`; not for `LOCAL`.
    pub max_backoff_multiplier: Option<u32>,
    /// `OMNIROUTE_PROVIDER_BREAKER_<CLASS>_BACKOFF_ESCALATION_COUNT`; not for `LOCAL`.
    pub escalate_after_cycles: Option<u32>,
}

impl Overrides {
    /// Picks the known names out of an environment. Everything else is ignored, and so is a value that is no
    /// number.
    pub fn from_environment<N, V>(variables: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut overrides = Self::default();
        for (name, value) in variables {
            overrides.set(name.as_ref(), value.as_ref());
        }
        overrides
    }

    /// Whether a variable of this name is one of the contract's that act here. Others may hold secrets: whoever hands an
    /// environment on hands on these only.
    #[must_use]
    pub fn reads(name: &str) -> bool {
        let of_class =
            |prefix| class_member(name, prefix).is_some_and(|(_, member)| !member.is_empty());
        let others = [
            EMERGENCY_FALLBACK,
            RATE_LIMIT_MAX_WAIT_MS,
            RATE_LIMIT_MAX_QUEUE_DEPTH,
        ];
        let of_gate = name.strip_prefix(PROVIDER_COOLDOWN);
        others.contains(&name)
            || of_class(CIRCUIT_BREAKER)
            || of_class(PROVIDER_BREAKER)
            || of_gate.is_some_and(|member| ["ENABLED", "MIN_MS", "MAX_MS"].contains(&member))
            || named::reads(name)
    }

    /// The overrides of a class.
    #[must_use]
    pub fn of(&self, class: ProviderClass) -> &BreakerOverrides {
        match class {
            ProviderClass::Oauth => &self.oauth,
            ProviderClass::Apikey => &self.apikey,
            ProviderClass::Local => &self.local,
        }
    }

    /// The overrides of the cooldown gate that hold for every class.
    #[must_use]
    pub fn gate(&self) -> &GateOverrides {
        &self.gate
    }

    /// The overrides of the cooldown gate of a class.
    #[must_use]
    pub fn gate_of(&self, class: ProviderClass) -> &GateClassOverrides {
        match class {
            ProviderClass::Oauth => &self.gate_oauth,
            ProviderClass::Apikey => &self.gate_apikey,
            ProviderClass::Local => &self.gate_local,
        }
    }

    /// `OMNIROUTE_EMERGENCY_FALLBACK`: `false` and `0` mean no, everything else means yes (`routing.md` §13.4).
    #[must_use]
    pub fn emergency_fallback(&self) -> Option<bool> {
        self.emergency_fallback
    }

    /// `RATE_LIMIT_MAX_WAIT_MS`: from 1 ms.
    #[must_use]
    pub fn max_wait_ms(&self) -> Option<u64> {
        self.max_wait_ms
    }

    /// `RATE_LIMIT_MAX_QUEUE_DEPTH`.
    #[must_use]
    pub fn max_queue_depth(&self) -> Option<u64> {
        self.max_queue_depth
    }

    /// What variables with names of their own say.
    pub(super) fn named(&self) -> &Named {
        &self.named
    }

    /// The variable that decides a member of the settings, when one does.
    pub(super) fn variable_of(&self, path: &[&str]) -> Option<String> {
        match *path {
            ["emergencyFallback", "enabled"] => self
                .emergency_fallback
                .is_some()
                .then(|| EMERGENCY_FALLBACK.to_owned()),
            ["requestQueue", "maxWaitMs"] => self
                .max_wait_ms
                .is_some()
                .then(|| RATE_LIMIT_MAX_WAIT_MS.to_owned()),
            ["requestQueue", "maxQueueDepth"] => self
                .max_queue_depth
                .is_some()
                .then(|| RATE_LIMIT_MAX_QUEUE_DEPTH.to_owned()),
            ["providerBreaker", class, member] => self.variable_of_breaker(class, member),
            ["providerCooldown", class, member] => self.variable_of_gate(class, member),
            ["providerCooldown", member] => {
                let gate = &self.gate;
                let (is_set, name) = match member {
                    "enabled" => (gate.enabled.is_some(), "ENABLED"),
                    "minRetryCooldownMs" => (gate.min_retry_cooldown_ms.is_some(), "MIN_MS"),
                    "maxRetryCooldownMs" => (gate.max_retry_cooldown_ms.is_some(), "MAX_MS"),
                    _ => return None,
                };
                is_set.then(|| format!("{PROVIDER_COOLDOWN}{name}"))
            }
            _ => self.named.variable_of(path).map(str::to_owned),
        }
    }

    fn variable_of_breaker(&self, class: &str, member: &str) -> Option<String> {
        let (class, word) = class_of(class)?;
        let breaker = self.of(class);
        let (is_set, prefix, name) = match member {
            "failureThreshold" => (
                breaker.failure_threshold.is_some(),
                CIRCUIT_BREAKER,
                "THRESHOLD",
            ),
            "resetTimeoutMs" => (
                breaker.reset_timeout_ms.is_some(),
                CIRCUIT_BREAKER,
                "RESET_MS",
            ),
            "degradationThreshold" => (
                breaker.degradation_threshold.is_some(),
                PROVIDER_BREAKER,
                "DEGRADATION_THRESHOLD",
            ),
            _ => return None,
        };
        is_set.then(|| format!("{prefix}{word}_{name}"))
    }

    fn variable_of_gate(&self, class: &str, member: &str) -> Option<String> {
        let (class, word) = class_of(class)?;
        let gate = self.gate_of(class);
        let (is_set, name) = match member {
            "providerFailureThreshold" => (gate.failure_threshold.is_some(), "FAILURE_THRESHOLD"),
            "providerFailureWindowMs" => (gate.failure_window_ms.is_some(), "FAILURE_WINDOW_MS"),
            "providerCooldownMs" => (gate.cooldown_ms.is_some(), "COOLDOWN_MS"),
            _ => return None,
        };
        is_set.then(|| format!("{PROVIDER_BREAKER}{word}_{name}"))
    }

    fn set(&mut self, name: &str, value: &str) {
        if name == EMERGENCY_FALLBACK {
            let value = value.trim();
            self.emergency_fallback = Some(
                !["false", "0"]
                    .iter()
                    .any(|no| value.eq_ignore_ascii_case(no)),
            );
            return;
        }
        let number = parse_number(value);
        let positive = number.filter(|number| *number > 0);
        if name == RATE_LIMIT_MAX_WAIT_MS {
            self.max_wait_ms = within_u64(positive, MAX_WAIT_MS);
        } else if name == RATE_LIMIT_MAX_QUEUE_DEPTH {
            self.max_queue_depth = within_u64(number, MAX_QUEUE_DEPTH);
        } else if let Some((class, member)) = class_member(name, CIRCUIT_BREAKER) {
            let class = self.breaker_mut(class);
            match member {
                "THRESHOLD" => class.failure_threshold = within_u32(positive, THRESHOLD),
                "RESET_MS" => class.reset_timeout_ms = within_u64(positive, RESET_TIMEOUT_MS),
                _ => {}
            }
        } else if let Some((class, member)) = class_member(name, PROVIDER_BREAKER) {
            self.set_provider_breaker(class, member, number);
        } else if let Some(member) = name.strip_prefix(PROVIDER_COOLDOWN) {
            let gate = &mut self.gate;
            match member {
                "ENABLED" => gate.enabled = Some(is_switched_on(value)),
                "MIN_MS" => gate.min_retry_cooldown_ms = within_u64(number, FIRST_RETRY_MS),
                "MAX_MS" => gate.max_retry_cooldown_ms = within_u64(number, LONGEST_RETRY_MS),
                _ => {}
            }
        } else {
            self.named.set(name, value);
        }
    }

    /// The contract gives numbers of the gate to every class, numbers of the breaker not to the local one.
    fn set_provider_breaker(&mut self, class: ProviderClass, member: &str, number: Option<i128>) {
        let positive = number.filter(|number| *number > 0);
        let gate = match class {
            ProviderClass::Oauth => &mut self.gate_oauth,
            ProviderClass::Apikey => &mut self.gate_apikey,
            ProviderClass::Local => &mut self.gate_local,
        };
        match member {
            "FAILURE_THRESHOLD" => gate.failure_threshold = within_u32(positive, FAILURES),
            "FAILURE_WINDOW_MS" => gate.failure_window_ms = within_u64(positive, SPAN_MS),
            "COOLDOWN_MS" => gate.cooldown_ms = within_u64(positive, SPAN_MS),
            _ => {}
        }
        if class == ProviderClass::Local {
            return;
        }
        let breaker = self.breaker_mut(class);
        match member {
            "DEGRADATION_THRESHOLD" => {
                breaker.degradation_threshold = within_u32(positive, THRESHOLD);
            }
            "MAX_BACKOFF_MULTIPLIER" => {
                breaker.max_backoff_multiplier = within_u32(positive, MULTIPLIER);
            }
            "BACKOFF_ESCALATION_COUNT" => {
                breaker.escalate_after_cycles = within_u32(number, CYCLES);
            }
            _ => {}
        }
    }

    fn breaker_mut(&mut self, class: ProviderClass) -> &mut BreakerOverrides {
        match class {
            ProviderClass::Oauth => &mut self.oauth,
            ProviderClass::Apikey => &mut self.apikey,
            ProviderClass::Local => &mut self.local,
        }
    }
}

/// A class by its name in the settings, and its word in variables.
fn class_of(name: &str) -> Option<(ProviderClass, &'static str)> {
    match name {
        "oauth" => Some((ProviderClass::Oauth, "OAUTH")),
        "apikey" => Some((ProviderClass::Apikey, "API_KEY")),
        "local" => Some((ProviderClass::Local, "LOCAL")),
        _ => None,
    }
}

/// The class that a variable names after the prefix, and the rest of its name.
fn class_member<'name>(name: &'name str, prefix: &str) -> Option<(ProviderClass, &'name str)> {
    let rest = name.strip_prefix(prefix)?;
    let classes = [
        ("OAUTH_", ProviderClass::Oauth),
        ("API_KEY_", ProviderClass::Apikey),
        ("LOCAL_", ProviderClass::Local),
    ];
    classes
        .into_iter()
        .find_map(|(word, class)| Some((class, rest.strip_prefix(word)?)))
}

fn is_switched_on(value: &str) -> bool {
    let value = value.trim();
    ["true", "1", "on"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

/// A non-negative finite number without its fraction.
fn parse_number(value: &str) -> Option<i128> {
    if value.trim().starts_with('-') {
        return None;
    }
    truncated_text(value)
}

fn within_u32(number: Option<i128>, bounds: Bounds) -> Option<u32> {
    u32::try_from(bounds.clamp(number?)).ok()
}

fn within_u64(number: Option<i128>, bounds: Bounds) -> Option<u64> {
    number.map(|number| bounds.clamp(number))
}

//! The environment's say in the breaker's numbers (`failure-state.md` §1.1): above what is built in, below
//! what the document says.
//!
//! The environment is an argument here, since the rules read nothing themselves. A value that is not a
//! number, negative or, where 0 has no meaning, 0 counts as unset; one out of bounds is brought into them,
//! and fractions are cut off (`sessions-and-streams.md` §3.3).

use std::ops::RangeInclusive;

use super::ProviderClass;
use super::bounds::{RESET_TIMEOUT_MS, THRESHOLD};

const MULTIPLIER: RangeInclusive<u32> = 1..=1_000;
const CYCLES: RangeInclusive<u32> = 0..=1_000;

/// What the environment overrides, per class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    oauth: BreakerOverrides,
    apikey: BreakerOverrides,
    local: BreakerOverrides,
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

    /// The overrides of a class.
    #[must_use]
    pub fn of(&self, class: ProviderClass) -> &BreakerOverrides {
        match class {
            ProviderClass::Oauth => &self.oauth,
            ProviderClass::Apikey => &self.apikey,
            ProviderClass::Local => &self.local,
        }
    }

    fn set(&mut self, name: &str, value: &str) {
        let number = parse_number(value);
        let positive = number.filter(|number| *number > 0);
        if let Some((class, member)) = self.member(name, "OMNIROUTE_CIRCUIT_BREAKER_") {
            match member {
                "THRESHOLD" => class.failure_threshold = within(positive, &THRESHOLD),
                "RESET_MS" => {
                    class.reset_timeout_ms = positive
                        .map(|ms| ms.clamp(*RESET_TIMEOUT_MS.start(), *RESET_TIMEOUT_MS.end()));
                }
                _ => {}
            }
        } else if let Some((class, member)) = self.member(name, "OMNIROUTE_PROVIDER_BREAKER_") {
            match member {
                "DEGRADATION_THRESHOLD" => {
                    class.degradation_threshold = within(positive, &THRESHOLD);
                }
                "MAX_BACKOFF_MULTIPLIER" => {
                    class.max_backoff_multiplier = within(positive, &MULTIPLIER);
                }
                "BACKOFF_ESCALATION_COUNT" => {
                    class.escalate_after_cycles = within(number, &CYCLES);
                }
                _ => {}
            }
        }
    }

    /// The class that a variable names after the prefix, and the rest of its name.
    fn member<'name>(
        &mut self,
        name: &'name str,
        prefix: &str,
    ) -> Option<(&mut BreakerOverrides, &'name str)> {
        let rest = name.strip_prefix(prefix)?;
        if let Some(member) = rest.strip_prefix("OAUTH_") {
            return Some((&mut self.oauth, member));
        }
        if let Some(member) = rest.strip_prefix("API_KEY_") {
            return Some((&mut self.apikey, member));
        }
        // The contract gives a local class to the first family of names only.
        let member = rest.strip_prefix("LOCAL_")?;
        (prefix == "OMNIROUTE_CIRCUIT_BREAKER_").then_some((&mut self.local, member))
    }
}

/// A non-negative finite number without its fraction; `u64::MAX` when it is larger.
fn parse_number(value: &str) -> Option<u64> {
    let value = value.trim();
    if let Ok(number) = value.parse::<u64>() {
        return Some(number);
    }
    let number = value.parse::<f64>().ok()?;
    if !number.is_finite() || number < 0.0 {
        return None;
    }
    Some(format!("{:.0}", number.trunc()).parse().unwrap_or(u64::MAX))
}

fn within(number: Option<u64>, bounds: &RangeInclusive<u32>) -> Option<u32> {
    let number = u32::try_from(number?).unwrap_or(u32::MAX);
    Some(number.clamp(*bounds.start(), *bounds.end()))
}

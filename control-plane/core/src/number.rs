//! Numbers with a fraction in documents that are compared and hashed: weights, prices, shares.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

/// A number that is neither infinite nor `NaN`, so that equality and order are total.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Finite(f64);

/// The number is infinite or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a finite number")]
pub struct NotFinite;

impl Finite {
    /// Zero.
    pub const ZERO: Self = Self(0.0);
    /// One.
    pub const ONE: Self = Self(1.0);

    /// Checks the number.
    ///
    /// # Errors
    /// [`NotFinite`] for infinities and `NaN`.
    pub fn new(number: f64) -> Result<Self, NotFinite> {
        if number.is_finite() {
            // One zero, so that equal numbers hash alike.
            Ok(Self(number + 0.0))
        } else {
            Err(NotFinite)
        }
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Finite {
    type Error = NotFinite;

    fn try_from(number: f64) -> Result<Self, NotFinite> {
        Self::new(number)
    }
}

impl From<Finite> for f64 {
    fn from(number: Finite) -> Self {
        number.0
    }
}

impl From<u32> for Finite {
    fn from(number: u32) -> Self {
        Self(f64::from(number))
    }
}

impl PartialEq for Finite {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Finite {}

impl PartialOrd for Finite {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Finite {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Hash for Finite {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl fmt::Display for Finite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Finite {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Finite".into()
    }

    fn json_schema(_generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "number"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_and_nan_are_refused() {
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Finite::new(number), Err(NotFinite));
        }
        assert_eq!(Finite::new(-0.0), Ok(Finite::ZERO));
    }
}

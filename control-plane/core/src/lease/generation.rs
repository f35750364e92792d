//! Which lease of an owner: a number that grows with every new one (`sessions-and-streams.md` §1.6).

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::LeaseError;

/// Largest generation: what a client in JavaScript can count to, 2⁵³ − 1.
pub const MAX_GENERATION: u64 = (1 << 53) - 1;

/// The number of a lease among those of its owner, from 1 to [`MAX_GENERATION`]. It stays when the lease moves to
/// another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Generation(u64);

/// A number is not a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a generation is from 1 to {MAX_GENERATION}")]
pub struct GenerationError;

impl Generation {
    /// The one after the last that the owner ever had; `None` when there are no more. The last is kept for each owner
    /// as long as the owner's token may be used: counted from rows that are trimmed, it would fall.
    #[must_use]
    pub fn after(last: Option<Self>) -> Option<Self> {
        let next = last.map_or(1, |last| last.0.saturating_add(1));
        Self::try_from(next).ok()
    }

    /// Of the value of `X-OmniRoute-Lease-Generation`: decimal digits, the first not 0.
    ///
    /// # Errors
    /// [`LeaseError::ContextInvalid`] for everything else, a missing header included.
    pub fn of_header(value: Option<&[u8]>) -> Result<Self, LeaseError> {
        value
            .filter(|digits| digits.iter().all(u8::is_ascii_digit) && !digits.starts_with(b"0"))
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok())
            .and_then(|number| Self::try_from(number).ok())
            .ok_or(LeaseError::ContextInvalid)
    }

    /// Of the member `generation` of a body: a whole number. `1.0` is one, as JSON knows no other kind of number.
    ///
    /// # Errors
    /// [`LeaseError::ActionInvalid`] for everything else.
    pub fn of_json(value: Option<&Value>) -> Result<Self, LeaseError> {
        let number = value.and_then(|value| value.as_u64().or_else(|| whole(value.as_f64()?)));
        number
            .and_then(|number| Self::try_from(number).ok())
            .ok_or(LeaseError::ActionInvalid)
    }

    /// The number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A number without a fraction that is small enough to be exact.
fn whole(number: f64) -> Option<u64> {
    format!("{number}")
        .parse()
        .ok()
        .filter(|whole| *whole <= MAX_GENERATION)
}

impl TryFrom<u64> for Generation {
    type Error = GenerationError;

    fn try_from(number: u64) -> Result<Self, GenerationError> {
        if (1..=MAX_GENERATION).contains(&number) {
            Ok(Self(number))
        } else {
            Err(GenerationError)
        }
    }
}

impl From<Generation> for u64 {
    fn from(generation: Generation) -> Self {
        generation.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::one("1", Some(1))]
    #[case::the_largest("9007199254740991", Some(MAX_GENERATION))]
    #[case::leading_zero("01", None)]
    #[case::sign("+1", None)]
    #[case::fraction("1.0", None)]
    #[case::zero("0", None)]
    #[case::negative("-1", None)]
    #[case::too_large("9007199254740992", None)]
    #[case::far_too_large("99999999999999999999999999", None)]
    #[case::empty("", None)]
    #[case::space(" 1", None)]
    #[case::other_digits("١", None)]
    fn vector_sessions_18_a_header_holds_plain_digits(
        #[case] value: &str,
        #[case] number: Option<u64>,
    ) {
        let read = Generation::of_header(Some(value.as_bytes())).map(Generation::number);
        assert_eq!(read, number.ok_or(LeaseError::ContextInvalid));
    }

    #[test]
    fn vector_sessions_18_a_missing_header_is_refused() {
        assert_eq!(Generation::of_header(None), Err(LeaseError::ContextInvalid));
    }

    #[rstest]
    #[case::one(json!(1), Some(1))]
    #[case::one_with_an_empty_fraction(json!(1.0), Some(1))]
    #[case::the_largest(json!(MAX_GENERATION), Some(MAX_GENERATION))]
    #[case::zero(json!(0), None)]
    #[case::negative(json!(-1), None)]
    #[case::fraction(json!(1.5), None)]
    #[case::text(json!("1"), None)]
    #[case::too_large(json!(9_007_199_254_740_992_u64), None)]
    #[case::too_large_as_a_fraction(json!(9_007_199_254_740_992.0), None)]
    #[case::huge(json!(1e300), None)]
    #[case::null(json!(null), None)]
    #[case::list(json!([1]), None)]
    fn vector_sessions_06_a_body_holds_a_whole_number(
        #[case] value: Value,
        #[case] number: Option<u64>,
    ) {
        let read = Generation::of_json(Some(&value)).map(Generation::number);
        assert_eq!(read, number.ok_or(LeaseError::ActionInvalid));
    }

    #[test]
    fn a_missing_member_is_refused() {
        assert_eq!(Generation::of_json(None), Err(LeaseError::ActionInvalid));
    }

    #[test]
    fn generations_grow_by_one_and_end() {
        let first = Generation::after(None);
        assert_eq!(first.map(Generation::number), Some(1));
        assert_eq!(Generation::after(first).map(Generation::number), Some(2));
        let last = Generation::try_from(MAX_GENERATION).unwrap();
        assert_eq!(Generation::after(Some(last)), None);
    }
}

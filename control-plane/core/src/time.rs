//! Time as the rules see it: an argument, in whole milliseconds of the store's clock.

use serde::{Deserialize, Serialize};

/// A moment of the store's clock, in milliseconds since the Unix epoch. Arithmetic saturates
/// (decision 4). Lengths of time are plain `u64` milliseconds with a name that ends in `_ms`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The moment `ms` later, at most the last representable one.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// The moment `ms` earlier, at least the epoch.
    #[must_use]
    pub fn minus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// How long after `earlier` this is, in ms; 0 when it is not after it.
    #[must_use]
    pub fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// How long from `now` until this moment, in ms; 0 when it has passed.
    #[must_use]
    pub fn remaining_ms(self, now: Self) -> u64 {
        self.0.saturating_sub(now.0)
    }

    /// UTC with milliseconds (`sessions-and-streams.md` §0). A moment past the year 9999 is told as the last one before.
    #[must_use]
    pub fn iso(self) -> String {
        let at = i64::try_from(self.0)
            .ok()
            .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
            .unwrap_or(jiff::Timestamp::MAX);
        at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
    }
}

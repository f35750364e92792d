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
}

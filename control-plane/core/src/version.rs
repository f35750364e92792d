//! The only version there is: (incarnation, revision) (`architecture.md` §3, Revision).
//!
//! A shard's *incarnation* changes when its store lost its memory or was swapped; its *revision* counts
//! the writes within. Together they order every value ever written in the shard. There is no counter
//! per key, so nothing restarts when a key expires.
//!
//! A rule that changes a value does not know the version its change will get, since the store hands it
//! out. It writes [`Mark::ThisWrite`]; whoever reads the value back resolves the mark to the version the
//! value was stored under ([`Mark::resolve`]).

use serde::{Deserialize, Serialize};

/// One life of a shard's store. Larger than any earlier one and at least the store's time in ms when it began.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

/// The number of a write within an incarnation, from 1.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

/// When something was written, as (incarnation, revision) of its shard. Ordered by incarnation first.
/// The default is before everything that was ever written.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version {
    /// The life of the shard's store.
    pub incarnation: Incarnation,
    /// The write within that life.
    pub revision: Revision,
}

impl Version {
    /// A version from its two numbers.
    #[must_use]
    pub fn new(incarnation: u64, revision: u64) -> Self {
        Self {
            incarnation: Incarnation(incarnation),
            revision: Revision(revision),
        }
    }
}

/// The version at which a part of a value last changed in a way that later events must be compared with:
/// an escalation (episode rule, decision 9) or a change of the breaker's epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// It never changed, or nothing of it stands any more.
    #[default]
    Never,
    /// It changes with the write that is being prepared; nobody can have decided after it.
    ThisWrite,
    /// It changed with this write.
    At(Version),
}

impl Mark {
    /// Replaces [`Mark::ThisWrite`] by the version under which the value was found in the store.
    pub fn resolve(&mut self, stored_under: Version) {
        if *self == Self::ThisWrite {
            *self = Self::At(stored_under);
        }
    }

    /// Whether an attempt that was decided on `decided_on` was decided after this change, so that it
    /// saw it. What never changed was seen by everybody.
    #[must_use]
    pub fn seen_by(self, decided_on: Version) -> bool {
        match self {
            Self::Never => true,
            Self::ThisWrite => false,
            Self::At(version) => decided_on >= version,
        }
    }

    /// The later of two marks.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        match (self, other) {
            (Self::ThisWrite, _) | (_, Self::ThisWrite) => Self::ThisWrite,
            (Self::Never, mark) | (mark, Self::Never) => mark,
            (Self::At(one), Self::At(two)) => Self::At(one.max(two)),
        }
    }
}

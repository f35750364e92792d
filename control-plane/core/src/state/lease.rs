//! What everybody sees of a lease: that its connection is held, and until when (decision 42b).
//!
//! A lease lives in the durable store, and only there is decided who has it. Decisions about requests without a lease
//! read the hot state, so a lease is shown there: in the value of its connection, without its owner. What is shown may
//! come late, twice and in any order, from whoever saw the row; [`LeaseMirror::order`] says which of two is the later
//! state, so that all who see both agree.

use serde::{Deserialize, Serialize};

use crate::lease::{Lease, LeaseId};
use crate::time::Timestamp;

/// Two ends of one lease that are nearer than this are the same, in ms: whoever reads the row puts its end into the
/// store's time anew, and no more than a call takes lies between two readings.
const SAME_END_MS: u64 = 500;

/// A lease as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseMirror {
    /// Which row of the durable store.
    #[serde(with = "id_text")]
    pub lease: LeaseId,
    /// Its place in the order in which the durable store made rows. 0 where a replica of an earlier release showed it.
    #[serde(default)]
    pub sequence: u64,
    /// When the owner got the connection, in the durable store's time; it tells the later of two rows without a place.
    pub since: Timestamp,
    /// When it ends that nobody extends, in the hot store's time.
    pub until: Timestamp,
    /// When it ended before that, in the hot store's time.
    pub ended_at: Option<Timestamp>,
}

impl LeaseMirror {
    /// A row that the durable store told at `read_at`, its own time, when it was `now` in the hot store's.
    #[must_use]
    pub fn of(lease: &Lease, read_at: Timestamp, now: Timestamp) -> Self {
        let here = |at: Timestamp| {
            if at >= read_at {
                now.plus_ms(at.remaining_ms(read_at))
            } else {
                now.minus_ms(read_at.remaining_ms(at))
            }
        };
        Self {
            lease: lease.id,
            sequence: lease.sequence,
            since: lease.acquired_at,
            until: here(lease.expires_at),
            ended_at: lease.ended.map(|ended| here(ended.at)),
        }
    }

    /// The same lease, ended at `at`: its row has.
    #[must_use]
    pub fn ended(&self, at: Timestamp) -> Self {
        Self {
            ended_at: self.ended_at.or(Some(at)),
            ..self.clone()
        }
    }

    /// Until when it keeps others off the connection; `None` when it does not, or no longer.
    #[must_use]
    pub fn holds_until(&self, now: Timestamp) -> Option<Timestamp> {
        (self.ended_at.is_none() && self.until > now).then_some(self.until)
    }

    /// The larger is the later state: of two rows the one that was made later, of one row its end, else the later expiry.
    fn order(&self) -> (u64, Timestamp, LeaseId, Option<Timestamp>, Timestamp) {
        let Self {
            sequence,
            since,
            lease,
            ended_at,
            until,
        } = *self;
        (sequence, since, lease, ended_at, until)
    }

    /// The later state of two; of equal ones either.
    #[must_use]
    pub fn later<'a>(one: Option<&'a Self>, other: Option<&'a Self>) -> Option<&'a Self> {
        if one.map(Self::order) >= other.map(Self::order) {
            one
        } else {
            other
        }
    }

    /// Whether to show this where `shown` is seen. What has passed need not be shown where nothing holds, nor the same end
    /// again; the end of a lease that nobody has seen must be, since an older state of it may still be under way.
    #[must_use]
    pub fn is_news(&self, shown: Option<&Self>, now: Timestamp) -> bool {
        let holds = shown.is_some_and(|shown| shown.holds_until(now).is_some());
        if self.until <= now && !holds {
            return false;
        }
        let Some(shown) = shown else {
            return true;
        };
        if shown.lease != self.lease {
            return self.order() > shown.order();
        }
        match (shown.ended_at, self.ended_at) {
            (Some(_), _) => false,
            (None, Some(_)) => true,
            (None, None) => self.until > shown.until.plus_ms(SAME_END_MS),
        }
    }
}

/// Ids as in the durable store: 32 hexadecimal digits. JSON readers are not at home in numbers of 128 bits.
mod id_text {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::lease::LeaseId;

    pub(super) fn serialize<S: Serializer>(id: &LeaseId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LeaseId, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = u128::from_str_radix(&text, 16).ok().filter(|_| digits);
        id.map(LeaseId)
            .ok_or_else(|| D::Error::custom("a lease id is 32 hexadecimal digits"))
    }
}

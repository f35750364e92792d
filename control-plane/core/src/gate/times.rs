//! When the failures of a window happened: sorted, bounded, and short when written down.

use std::collections::VecDeque;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::Timestamp;

/// Most times that are kept, which is also the highest threshold.
pub const MAX_FAILURE_TIMES: usize = 1_000;

/// Moments in order, at most [`MAX_FAILURE_TIMES`], the newest ones. The same moment may occur several times.
///
/// Written down as the first moment and the distance from each to the next, in ms: a burst of a thousand failures
/// takes a few bytes each, and it is then that the value is written most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureTimes(VecDeque<Timestamp>);

impl FailureTimes {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The newest moment.
    #[must_use]
    pub fn newest(&self) -> Option<Timestamp> {
        self.0.back().copied()
    }

    /// How many are after `begin`.
    #[must_use]
    pub fn count_after(&self, begin: Timestamp) -> usize {
        let before = self.0.partition_point(|time| *time <= begin);
        self.0.len().saturating_sub(before)
    }

    /// Adds a moment and keeps the newest `most`. Constant time for the newest, which is the usual case. Says
    /// whether anything changed, which a moment older than all that are kept does not.
    pub fn insert(&mut self, at: Timestamp, most: usize) -> bool {
        let place = self.0.partition_point(|time| *time <= at);
        self.0.insert(place, at);
        let dropped = self.keep_newest(most);
        place >= dropped || dropped > 1
    }

    /// Drops every moment up to and including `end`. Says whether there was one.
    pub fn drop_until(&mut self, end: Timestamp) -> bool {
        let before = self.0.len();
        while self.0.front().is_some_and(|time| *time <= end) {
            self.0.pop_front();
        }
        self.0.len() != before
    }

    /// The moments of both, each as often as in the one that has it more often.
    #[must_use]
    pub(crate) fn union(&self, other: &Self) -> Self {
        let (mut one, mut two) = (
            self.0.iter().copied().peekable(),
            other.0.iter().copied().peekable(),
        );
        let mut all = Self::default();
        loop {
            let next = match (one.peek(), two.peek()) {
                (None, None) => break,
                (Some(first), Some(second)) if first == second => {
                    two.next();
                    one.next()
                }
                (Some(first), Some(second)) if first > second => two.next(),
                (Some(_), _) => one.next(),
                (None, Some(_)) => two.next(),
            };
            all.0.extend(next);
        }
        all.keep_newest(MAX_FAILURE_TIMES);
        all
    }

    /// Drops the oldest beyond `most` and says how many those were.
    fn keep_newest(&mut self, most: usize) -> usize {
        let surplus = self.0.len().saturating_sub(most.min(MAX_FAILURE_TIMES));
        self.0.drain(..surplus);
        surplus
    }
}

impl FromIterator<Timestamp> for FailureTimes {
    fn from_iter<I: IntoIterator<Item = Timestamp>>(times: I) -> Self {
        let mut sorted: Vec<Timestamp> = times.into_iter().collect();
        sorted.sort_unstable();
        let mut all = Self(sorted.into());
        all.keep_newest(MAX_FAILURE_TIMES);
        all
    }
}

impl Serialize for FailureTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut last = Timestamp::default();
        serializer.collect_seq(self.0.iter().map(|time| {
            let distance = time.ms_since(last);
            last = *time;
            distance
        }))
    }
}

impl<'de> Deserialize<'de> for FailureTimes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let distances = Vec::<u64>::deserialize(deserializer)?;
        let mut last = Timestamp::default();
        Ok(distances
            .into_iter()
            .map(|distance| {
                last = last.plus_ms(distance);
                last
            })
            .collect())
    }
}

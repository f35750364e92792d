//! Where a follower stands in one shard, and when it must doubt that.

use std::collections::VecDeque;

use tidegate_core::ids::Shard;
use tidegate_core::version::{Revision, Version};
use tidegate_store::hot::{Change, Followed};

use crate::reply::StreamEntry;

/// Where a follower stands in a shard.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) shard: Shard,
    at: Version,
    /// The shard has reached this by its own account, so the stream must lead there.
    reached: Version,
}

impl Place {
    pub(super) fn new(shard: Shard, at: Version) -> Self {
        Self {
            shard,
            at,
            reached: at,
        }
    }

    /// Entries after this id are to be read next.
    pub(super) fn stream_id(&self) -> String {
        format!("{}-{}", self.at.incarnation.0, self.at.revision.0)
    }

    /// Goes to where the shard is now, which may have come there by any way.
    pub(super) fn start_again(&mut self, shard_is_at: Version, told: &mut VecDeque<Followed>) {
        self.at = shard_is_at;
        self.reached = shard_is_at;
        told.push_back(Followed::Doubt(self.shard));
    }

    /// The shard says that it is at this version.
    pub(super) fn compare(&mut self, shard_is_at: Version, told: &mut VecDeque<Followed>) {
        let can_lead_there = shard_is_at.incarnation == self.at.incarnation
            && shard_is_at.revision >= self.at.revision;
        if can_lead_there {
            self.reached = shard_is_at;
        } else {
            self.start_again(shard_is_at, told);
        }
    }

    /// The stream's entries after [`Self::stream_id`], as far as they were read.
    pub(super) fn advance(&mut self, entries: Vec<StreamEntry>, told: &mut VecDeque<Followed>) {
        if entries.is_empty() {
            // The stream ends here, but the shard is further: the entries in between are gone.
            if self.at.incarnation == self.reached.incarnation && self.at < self.reached {
                self.start_again(self.reached, told);
            }
            return;
        }
        let mut changes = Vec::new();
        for entry in entries {
            let (version, change) = match entry {
                StreamEntry::Begin(incarnation) => {
                    let begun = Version {
                        incarnation,
                        revision: Revision(0),
                    };
                    (begun, None)
                }
                StreamEntry::Change(change) => (change.version, Some(change)),
                StreamEntry::Unknown(version) => (version, None),
            };
            let directly_after = version.incarnation == self.at.incarnation
                && self.at.revision.0.checked_add(1) == Some(version.revision.0);
            let may_have_missed = !directly_after || change.is_none();
            self.at = version;
            if may_have_missed {
                self.tell(&mut changes, told);
                told.push_back(Followed::Doubt(self.shard));
            }
            changes.extend(change);
        }
        self.reached = self.reached.max(self.at);
        self.tell(&mut changes, told);
    }

    fn tell(&self, changes: &mut Vec<Change>, told: &mut VecDeque<Followed>) {
        if !changes.is_empty() {
            told.push_back(Followed::Changes(self.shard, std::mem::take(changes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::version::Incarnation;

    fn shard() -> Shard {
        Shard::new(3).unwrap()
    }

    fn change(incarnation: u64, revision: u64) -> Change {
        Change {
            version: Version::new(incarnation, revision),
            entries: vec![],
            marks: vec![],
        }
    }

    fn entry(incarnation: u64, revision: u64) -> StreamEntry {
        StreamEntry::Change(change(incarnation, revision))
    }

    fn changes(versions: &[(u64, u64)]) -> Followed {
        let changes = versions.iter().map(|(one, two)| change(*one, *two));
        Followed::Changes(shard(), changes.collect())
    }

    fn place(incarnation: u64, revision: u64) -> Place {
        Place::new(shard(), Version::new(incarnation, revision))
    }

    #[test]
    fn numbers_in_a_row_are_told_without_doubt() {
        let (mut place, mut told) = (place(5, 2), VecDeque::new());
        place.compare(Version::new(5, 4), &mut told);
        place.advance(vec![entry(5, 3), entry(5, 4)], &mut told);
        place.advance(vec![], &mut told);
        place.compare(Version::new(5, 4), &mut told);
        place.advance(vec![entry(5, 5)], &mut told);
        assert_eq!(told, [changes(&[(5, 3), (5, 4)]), changes(&[(5, 5)])]);
        assert_eq!(place.stream_id(), "5-5");
    }

    #[test]
    fn a_missing_number_is_doubted_before_what_follows_it() {
        let (mut place, mut told) = (place(5, 2), VecDeque::new());
        place.advance(vec![entry(5, 3), entry(5, 6), entry(5, 7)], &mut told);
        let doubt = Followed::Doubt(shard());
        assert_eq!(
            told,
            [changes(&[(5, 3)]), doubt, changes(&[(5, 6), (5, 7)])]
        );
    }

    #[test]
    fn an_empty_stream_of_a_shard_that_went_on_is_doubted_once() {
        let (mut place, mut told) = (place(5, 2), VecDeque::new());
        place.compare(Version::new(5, 9), &mut told);
        assert_eq!(told, []);
        place.advance(vec![], &mut told);
        place.advance(vec![], &mut told);
        assert_eq!(told, [Followed::Doubt(shard())]);
        assert_eq!(place.stream_id(), "5-9");
    }

    #[test]
    fn a_shard_that_went_back_or_lives_another_life_is_doubted_once() {
        for now in [(5, 1), (4, 9), (6, 0), (0, 0)] {
            let now = Version::new(now.0, now.1);
            let (mut place, mut told) = (place(5, 2), VecDeque::new());
            place.compare(now, &mut told);
            place.compare(now, &mut told);
            assert_eq!(told, [Followed::Doubt(shard())], "{now:?}");
        }
    }

    #[test]
    fn a_beginning_is_doubted_and_followed() {
        let (mut place, mut told) = (place(5, 2), VecDeque::new());
        let begin = StreamEntry::Begin(Incarnation(8));
        place.advance(vec![entry(5, 3), begin, entry(8, 1)], &mut told);
        let doubt = Followed::Doubt(shard());
        assert_eq!(told, [changes(&[(5, 3)]), doubt, changes(&[(8, 1)])]);
    }

    #[test]
    fn what_is_not_understood_is_doubted_and_passed() {
        let (mut place, mut told) = (place(5, 2), VecDeque::new());
        let unknown = StreamEntry::Unknown(Version::new(5, 3));
        place.advance(vec![unknown, entry(5, 4)], &mut told);
        assert_eq!(told, [Followed::Doubt(shard()), changes(&[(5, 4)])]);
    }
}

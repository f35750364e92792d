//! Rankings of accounts, made for a state of telemetry and kept until there is a newer one.
//!
//! Making one takes a look at every account, which among 100,000 takes longer than a decision may. So whoever renews
//! telemetry ranks anew as well ([`Counters::rank`](super::Counters::rank)), and decisions take what is there. Where
//! nobody does, or not soon enough, the first decision that finds the ranking too old makes it; who comes meanwhile takes
//! the old one and does not wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

use crate::time::Timestamp;

use super::strategy::Ranking;

/// How much older than telemetry a ranking may be, in ms: within that time what was sent just now stands in for what
/// telemetry knows since.
const MAX_AGE_MS: u64 = 1_000;

/// The ranking of one provider's accounts.
#[derive(Debug, Default)]
pub(super) struct KeptRanking {
    ranking: ArcSwapOption<Ranking>,
    being_made: AtomicBool,
}

impl KeptRanking {
    /// Takes the place of the ranking that was kept.
    pub(super) fn put(&self, ranking: Ranking) {
        self.ranking.store(Some(Arc::new(ranking)));
    }

    /// The ranking for telemetry of this moment or a little before, or an older one while another makes it.
    pub(super) fn get(&self, as_of: Timestamp, make: &dyn Fn() -> Ranking) -> Arc<Ranking> {
        let kept = self.ranking.load_full();
        match kept {
            Some(kept) if as_of.ms_since(kept.as_of) < MAX_AGE_MS => kept,
            Some(old) if self.being_made.swap(true, Ordering::AcqRel) => old,
            _ => {
                let made = Arc::new(make());
                self.ranking.store(Some(Arc::clone(&made)));
                self.being_made.store(false, Ordering::Release);
                made
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp(second * MAX_AGE_MS)
    }

    fn of(second: u64) -> Ranking {
        Ranking {
            as_of: at(second),
            ..Ranking::default()
        }
    }

    #[test]
    fn a_ranking_is_made_once_and_serves_until_it_is_too_old() {
        let kept = KeptRanking::default();
        let made = Cell::new(0);
        let get = |second| {
            kept.get(at(second), &|| {
                made.set(made.get() + 1);
                of(second)
            })
        };
        assert_eq!(
            [get(1).as_of, get(1).as_of, get(2).as_of],
            [1, 1, 2].map(at)
        );
        assert_eq!(made.get(), 2);
        let young = Timestamp(at(3).0 - 1);
        assert_eq!(kept.get(young, &|| panic!("it is young")).as_of, at(2));
        kept.put(of(3));
        assert_eq!(get(3).as_of, at(3));
        assert_eq!(made.get(), 2, "it was put there");
    }

    #[test]
    fn who_comes_while_one_is_made_takes_the_old_one() {
        let kept = KeptRanking::default();
        kept.get(at(1), &|| of(1));
        let made = kept.get(at(2), &|| {
            let meanwhile = kept.get(at(2), &|| panic!("made twice at once"));
            assert_eq!(meanwhile.as_of, at(1));
            of(2)
        });
        assert_eq!(made.as_of, at(2));
    }
}

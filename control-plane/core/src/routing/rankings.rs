//! Rankings of accounts, made once for each state of telemetry and kept until there is a newer one.
//!
//! Making one takes a look at every account. Whoever first finds telemetry newer makes it; who comes meanwhile takes the
//! old one and does not wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

use crate::time::Timestamp;

use super::strategy::Ranking;

/// The ranking of one provider's accounts.
#[derive(Debug, Default)]
pub(super) struct KeptRanking {
    ranking: ArcSwapOption<Ranking>,
    being_made: AtomicBool,
}

impl KeptRanking {
    /// The ranking for telemetry of this moment, or an older one while another makes it.
    pub(super) fn get(&self, as_of: Timestamp, make: &dyn Fn() -> Ranking) -> Arc<Ranking> {
        let kept = self.ranking.load_full();
        match kept {
            Some(kept) if kept.as_of == as_of => kept,
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

    fn of(second: u64) -> Ranking {
        Ranking {
            as_of: Timestamp(second),
            ..Ranking::default()
        }
    }

    #[test]
    fn a_ranking_is_made_once_for_each_state_of_telemetry() {
        let kept = KeptRanking::default();
        let made = Cell::new(0);
        let get = |second| {
            kept.get(Timestamp(second), &|| {
                made.set(made.get() + 1);
                of(second)
            })
        };
        assert_eq!(
            [get(1).as_of, get(1).as_of, get(2).as_of],
            [1, 1, 2].map(Timestamp)
        );
        assert_eq!(made.get(), 2);
    }

    #[test]
    fn who_comes_while_one_is_made_takes_the_old_one() {
        let kept = KeptRanking::default();
        kept.get(Timestamp(1), &|| of(1));
        let made = kept.get(Timestamp(2), &|| {
            let meanwhile = kept.get(Timestamp(2), &|| panic!("made twice at once"));
            assert_eq!(meanwhile.as_of, Timestamp(1));
            of(2)
        });
        assert_eq!(made.as_of, Timestamp(2));
    }
}

//! Values and counters of one shard outside its change stream.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::time::Timestamp;

use crate::hot::{Cell, Swap, SwapOutcome, SwapRefusal};

/// Most values of a shard that may be forgotten early; of more, those go first that end first.
const MAX_SHEDDABLE: usize = 8_192;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Cells {
    values: BTreeMap<String, Cell>,
    turns: BTreeMap<String, Turn>,
    /// The last version, of whichever value: one that went and came back within a millisecond has another.
    last: u64,
    /// What ends when, so that the ended can be found without a search.
    expiry: BTreeSet<(Timestamp, Ends)>,
    /// Values that may be forgotten early, by their end.
    sheddable: BTreeSet<(Timestamp, String)>,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    next: u64,
    expires_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ends {
    Value(String),
    Turn(String),
}

impl Cells {
    /// Does what the script of swaps does.
    pub(super) fn swap(&mut self, swap: Swap, now: Timestamp) -> SwapOutcome {
        self.prune(now);
        let found = self.values.get(&swap.key);
        let standing = found.map(|cell| cell.version);
        let refusal = if now > swap.not_after {
            Some(SwapRefusal::Late)
        } else if standing != swap.expected {
            Some(SwapRefusal::Conflict)
        } else {
            None
        };
        if let Some(reason) = refusal {
            return SwapOutcome::Refused {
                reason,
                found: found.cloned(),
                now,
            };
        }
        let after = self.last.max(standing.unwrap_or_default());
        let version = now.0.saturating_mul(1_000).max(after.saturating_add(1));
        self.last = version;
        let cell = Cell {
            version,
            schema: swap.schema,
            payload: swap.payload,
            expires_at: swap.expires_at,
        };
        let key = swap.key;
        self.forget(&key);
        if swap.sheddable {
            self.sheddable.insert((swap.expires_at, key.clone()));
        }
        self.expiry
            .insert((swap.expires_at, Ends::Value(key.clone())));
        self.values.insert(key, cell);
        while self.sheddable.len() > MAX_SHEDDABLE {
            let Some((_, key)) = self.sheddable.pop_first() else {
                break;
            };
            self.forget(&key);
        }
        SwapOutcome::Swapped { version, now }
    }

    /// What stands under the key.
    pub(super) fn get(&mut self, key: &str, now: Timestamp) -> Option<Cell> {
        self.prune(now);
        self.values.get(key).cloned()
    }

    /// The next number of a counter, which is kept until `expires_at`.
    pub(super) fn next_turn(&mut self, key: &str, now: Timestamp, expires_at: Timestamp) -> u64 {
        self.prune(now);
        let number = self.turns.get(key).map_or(0, |turn| turn.next);
        let turn = Turn {
            next: number.saturating_add(1),
            expires_at,
        };
        let ends = Ends::Turn(key.to_owned());
        if let Some(old) = self.turns.insert(key.to_owned(), turn) {
            self.expiry.remove(&(old.expires_at, ends.clone()));
        }
        self.expiry.insert((expires_at, ends));
        number
    }

    fn forget(&mut self, key: &str) {
        if let Some(old) = self.values.remove(key) {
            let end = old.expires_at;
            self.expiry.remove(&(end, Ends::Value(key.to_owned())));
            self.sheddable.remove(&(end, key.to_owned()));
        }
    }

    /// Forgets what has ended. A value is there up to and including its last millisecond.
    fn prune(&mut self, now: Timestamp) {
        while self.expiry.first().is_some_and(|(end, _)| *end < now) {
            match self.expiry.pop_first() {
                Some((_, Ends::Value(key))) => self.forget(&key),
                Some((_, Ends::Turn(key))) => {
                    self.turns.remove(&key);
                }
                None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::ids::Shard;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn swap(cells: &mut Cells, key: &str, lasts_ms: u64, sheddable: bool) {
        let swap = Swap {
            shard: Shard::of_name(key),
            key: key.to_owned(),
            expected: cells.get(key, NOW).map(|cell| cell.version),
            schema: 1,
            payload: Vec::new(),
            expires_at: NOW.plus_ms(lasts_ms),
            not_after: NOW,
            sheddable,
        };
        let outcome = cells.swap(swap, NOW);
        assert!(matches!(outcome, SwapOutcome::Swapped { .. }));
    }

    #[test]
    fn of_too_many_that_may_be_forgotten_the_first_to_end_go() {
        let mut cells = Cells::default();
        swap(&mut cells, "kept", 1, false);
        for number in 0..MAX_SHEDDABLE {
            let lasts_ms = 10_000_u64.saturating_sub(u64::try_from(number).unwrap());
            swap(&mut cells, &format!("{number}"), lasts_ms, true);
        }
        // Written again it is no further one, and ends last.
        let last = (MAX_SHEDDABLE - 1).to_string();
        swap(&mut cells, &last, 20_000, true);
        let second_last = (MAX_SHEDDABLE - 2).to_string();
        assert!(cells.get(&second_last, NOW).is_some());
        swap(&mut cells, "further", 20_000, true);
        assert_eq!(cells.get(&second_last, NOW), None);
        for there in ["kept", "0", last.as_str(), "further"] {
            assert!(cells.get(there, NOW).is_some(), "{there}");
        }
        assert_eq!(cells.sheddable.len(), MAX_SHEDDABLE);
        assert_eq!(cells.values.len(), MAX_SHEDDABLE + 1);
        assert_eq!(cells.expiry.len(), MAX_SHEDDABLE + 1);
    }
}

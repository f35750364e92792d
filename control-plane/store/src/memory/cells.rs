//! Values and counters of one shard outside its change stream.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::time::Timestamp;

use crate::hot::{Cell, Swap, SwapOutcome, SwapRefusal};

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Cells {
    values: BTreeMap<String, Cell>,
    turns: BTreeMap<String, Turn>,
    /// What ends when, so that the ended can be found without a search.
    expiry: BTreeSet<(Timestamp, Ends)>,
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
        let after = standing.map_or(0, |version| version.saturating_add(1));
        let version = now.0.saturating_mul(1_000).max(after);
        let cell = Cell {
            version,
            schema: swap.schema,
            payload: swap.payload,
            expires_at: swap.expires_at,
        };
        let ends = Ends::Value(swap.key.clone());
        if let Some(old) = self.values.insert(swap.key, cell) {
            self.expiry.remove(&(old.expires_at, ends.clone()));
        }
        self.expiry.insert((swap.expires_at, ends));
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

    /// Forgets what has ended. A value is there up to and including its last millisecond.
    fn prune(&mut self, now: Timestamp) {
        while self.expiry.first().is_some_and(|(end, _)| *end < now) {
            match self.expiry.pop_first() {
                Some((_, Ends::Value(key))) => {
                    self.values.remove(&key);
                }
                Some((_, Ends::Turn(key))) => {
                    self.turns.remove(&key);
                }
                None => break,
            }
        }
    }
}

//! Whose turn it is: counters per combo and provider, kept by each process that decides.
//!
//! **No lock on the way to a decision:** the table is made anew when a configuration comes into force, with the
//! counters of the one before, and each counter is an atomic number. Each process starts at a number of its own, so that
//! replicas do not all begin with the same target (decision 51).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::config::{Config, Strategy};
use crate::ids::ComboName;
use crate::random::Random;

use super::Dispatch;
use super::strategy::{Charge, Deficits, Scope, TurnKey, TurnPurpose, Turns};

/// Starting positions are below this, so that there is room to count.
const START_BELOW: u64 = 1 << 20;

/// The counters of a configuration.
#[derive(Debug, Default)]
pub struct Counters {
    scopes: BTreeMap<Scope, Arc<ScopeCounters>>,
}

#[derive(Debug)]
struct ScopeCounters {
    round_robin: AtomicU64,
    weighted: AtomicU64,
    tie: AtomicU64,
    tiers: [AtomicU64; 3],
    /// Stands in for the shared counter while that cannot be asked.
    strict_random: AtomicU64,
    deficits: ArcSwap<Deficits>,
}

impl ScopeCounters {
    fn new(random: &mut Random) -> Self {
        let mut start = || AtomicU64::new(random.next_u64() % START_BELOW);
        Self {
            round_robin: start(),
            weighted: start(),
            tie: start(),
            tiers: [start(), start(), start()],
            strict_random: start(),
            deficits: ArcSwap::default(),
        }
    }

    fn counter(&self, purpose: TurnPurpose) -> &AtomicU64 {
        match purpose {
            TurnPurpose::RoundRobin => &self.round_robin,
            TurnPurpose::Weighted => &self.weighted,
            TurnPurpose::Tie => &self.tie,
            TurnPurpose::StrictRandom => &self.strict_random,
            TurnPurpose::Tier(tier) => self.tiers.get(usize::from(tier)).unwrap_or(&self.tie),
        }
    }
}

impl Counters {
    /// The counters that the configuration needs; those that `previous` has go on.
    #[must_use]
    pub fn of(config: &Config, previous: Option<&Self>, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let combos = config
            .combos
            .values()
            .filter(|entry| counts(entry.combo.strategy))
            .map(|entry| Scope::Combo(entry.combo.name.clone()));
        let accounts = config
            .providers
            .values()
            .filter(|entry| counts(entry.provider.account_strategy.strategy()))
            .map(|entry| Scope::Accounts(entry.provider.id.clone()));
        let scopes = combos
            .chain(accounts)
            .map(|scope| {
                let known = previous.and_then(|previous| previous.scopes.get(&scope));
                let counters = match known {
                    Some(counters) => Arc::clone(counters),
                    None => Arc::new(ScopeCounters::new(&mut random)),
                };
                (scope, counters)
            })
            .collect();
        Self { scopes }
    }

    /// Counts a dispatch in: what it costs its target, and whose turn is next. `false` when somebody else changed
    /// what is owed since, so that the decision must be made anew.
    #[must_use]
    pub fn settle(&self, dispatch: &Dispatch) -> bool {
        if let Some(charge) = &dispatch.charge
            && !self.charge(charge)
        {
            return false;
        }
        if let Some((key, to)) = &dispatch.raise
            && let Some(counter) = self.counter(key)
        {
            counter.fetch_max(*to, Ordering::AcqRel);
        }
        true
    }

    fn charge(&self, charge: &Charge) -> bool {
        let scope = Scope::Combo(charge.combo.clone());
        let Some(counters) = self.scopes.get(&scope) else {
            return true;
        };
        let after = Arc::new(charge.after.clone());
        let found = counters.deficits.compare_and_swap(&charge.before, after);
        Arc::ptr_eq(&found, &charge.before)
    }

    fn counter(&self, key: &TurnKey) -> Option<&AtomicU64> {
        let counters = self.scopes.get(&key.scope)?;
        Some(counters.counter(key.purpose))
    }
}

fn counts(strategy: Strategy) -> bool {
    !super::strategy::of(strategy).keeps_order()
}

/// The turns of one decision.
#[derive(Debug)]
pub struct DecisionTurns<'a> {
    counters: &'a Counters,
    taken: RefCell<BTreeMap<TurnKey, u64>>,
    /// Nothing is counted: the decision is not carried out.
    peeks: bool,
    /// Shared counters are asked elsewhere.
    shared: bool,
}

impl<'a> DecisionTurns<'a> {
    /// Counts here, and asks for shared numbers ([`DecisionTurns::fetched`]).
    #[must_use]
    pub fn new(counters: &'a Counters) -> Self {
        Self {
            counters,
            taken: RefCell::default(),
            peeks: false,
            shared: true,
        }
    }

    /// Counts everything here, for a process that has nobody to share with.
    #[must_use]
    pub fn alone(counters: &'a Counters) -> Self {
        Self {
            shared: false,
            ..Self::new(counters)
        }
    }

    /// Shows what would come next, and counts nothing.
    #[must_use]
    pub fn peeking(counters: &'a Counters) -> Self {
        Self {
            peeks: true,
            shared: false,
            ..Self::new(counters)
        }
    }

    /// A number that was fetched; `None`: it could not be, and is counted here.
    pub fn fetched(&self, key: TurnKey, turn: Option<u64>) {
        let turn = turn.unwrap_or_else(|| self.count(&key));
        self.taken.borrow_mut().insert(key, turn);
    }

    fn count(&self, key: &TurnKey) -> u64 {
        match self.counters.counter(key) {
            Some(counter) if self.peeks => counter.load(Ordering::Acquire),
            Some(counter) => counter.fetch_add(1, Ordering::AcqRel),
            None => 0,
        }
    }
}

impl Turns for DecisionTurns<'_> {
    fn take(&self, key: &TurnKey) -> Option<u64> {
        if let Some(turn) = self.taken.borrow().get(key) {
            return Some(*turn);
        }
        if self.shared && key.purpose.is_shared() {
            return None;
        }
        let turn = self.count(key);
        self.taken.borrow_mut().insert(key.clone(), turn);
        Some(turn)
    }

    fn peek(&self, key: &TurnKey) -> u64 {
        self.counters
            .counter(key)
            .map_or(0, |counter| counter.load(Ordering::Acquire))
    }

    fn deficits(&self, combo: &ComboName) -> Arc<Deficits> {
        let scope = Scope::Combo(combo.clone());
        match self.counters.scopes.get(&scope) {
            Some(counters) => counters.deficits.load_full(),
            None => Arc::default(),
        }
    }
}

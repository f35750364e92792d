//! Whose turn it is: counters per combo and provider, kept by each process that decides.
//!
//! **No lock on the way to a decision:** the table is made anew when a configuration comes into force, with the
//! counters of the one before, and each counter is an atomic number. Each process starts at a number of its own, so that
//! replicas do not all begin with the same target (decision 51).
//!
//! A turn is taken by a decision that sends a request. One that waits or refuses shows whose turn it is and takes none, or
//! the rotation would run on while nothing is sent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::config::{Config, Strategy};
use crate::ids::{ComboName, ConnectionId, ProviderId};
use crate::random::Random;
use crate::telemetry::Telemetry;
use crate::time::Timestamp;

use super::Dispatch;
use super::rankings::KeptRanking;
use super::recent::Recent;
use super::strategy::{Deficits, Ranking, Scope, TurnKey, TurnPurpose, Turns};

/// How often a decision is made anew because others were faster at what it rests on.
const MAX_CONFLICTS: u32 = 16;
/// Starting positions are below this, so that there is room to count.
const START_BELOW: u64 = 1 << 20;

/// The counters of a configuration.
#[derive(Debug, Default)]
pub struct Counters {
    scopes: BTreeMap<Scope, Arc<ScopeCounters>>,
    /// What was sent just now ([`Recent`]) to the accounts of `quota-share` combos, and of providers whose least used
    /// account is first.
    sent: BTreeMap<ConnectionId, Arc<AtomicU64>>,
    /// The same of the targets of `least-used` combos, by execution key.
    sent_to_targets: BTreeMap<ComboName, BTreeMap<Arc<str>, Arc<AtomicU64>>>,
    /// Providers whose least used account is first.
    rankings: BTreeMap<ProviderId, KeptRanking>,
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
        let shared = config
            .combos
            .values()
            .filter(|entry| entry.combo.strategy == Strategy::QuotaShare)
            .flat_map(|entry| entry.targets.iter())
            .filter_map(|target| target.connection.as_ref());
        let ranked = || {
            let providers = config.providers.values();
            providers
                .filter(|entry| entry.provider.account_strategy.strategy() == Strategy::LeastUsed)
        };
        let of_ranked = ranked().flat_map(|entry| &entry.connections);
        let sent = shared
            .chain(of_ranked.map(|connection| &connection.id))
            .map(|connection| {
                let known = previous.and_then(|previous| previous.sent.get(connection));
                (connection.clone(), known.cloned().unwrap_or_default())
            })
            .collect();
        let least_used = config
            .combos
            .values()
            .filter(|entry| entry.combo.strategy == Strategy::LeastUsed);
        let sent_to_targets = least_used
            .map(|entry| {
                let name = &entry.combo.name;
                let known = previous.and_then(|previous| previous.sent_to_targets.get(name));
                let targets = entry.targets.iter().map(|target| {
                    let known = known.and_then(|known| known.get(&target.key));
                    (Arc::clone(&target.key), known.cloned().unwrap_or_default())
                });
                (name.clone(), targets.collect())
            })
            .collect();
        Self {
            scopes,
            sent,
            sent_to_targets,
            // The positions in a ranking are those of this configuration.
            rankings: ranked()
                .map(|entry| (entry.provider.id.clone(), KeptRanking::default()))
                .collect(),
        }
    }

    /// There are accounts to be ranked ([`Counters::rank`]).
    #[must_use]
    pub fn has_rankings(&self) -> bool {
        !self.rankings.is_empty()
    }

    /// Ranks the accounts of providers whose least used one is first, by this telemetry. Takes a look at every account of
    /// such providers, so it is for those who renew telemetry and not for decisions. `config` is the one that the counters
    /// are of.
    pub fn rank(&self, config: &Config, telemetry: &dyn Telemetry) {
        for (provider, kept) in &self.rankings {
            if let Some(entry) = config.provider(provider) {
                let accounts = entry
                    .connections
                    .iter()
                    .map(|connection| Some(&connection.id));
                kept.put(Ranking::of(accounts, telemetry));
            }
        }
    }

    fn of_target(&self, combo: &ComboName, key: &str) -> Option<&AtomicU64> {
        Some(self.sent_to_targets.get(combo)?.get(key)?)
    }

    /// Counts a dispatch in that is sent now.
    fn count_in(&self, dispatch: &Dispatch, now: Timestamp) {
        if let Some((key, to)) = &dispatch.raise
            && let Some(counter) = self.counter(key)
        {
            counter.fetch_max(*to, Ordering::AcqRel);
        }
        let of_combo = dispatch.combo.as_ref();
        let of_target = of_combo.and_then(|combo| self.of_target(combo, &dispatch.target_key));
        let of_account = self.sent.get(&dispatch.connection).map(AsRef::as_ref);
        for sent in of_target.into_iter().chain(of_account) {
            sent.update(Ordering::AcqRel, Ordering::Acquire, |bits| {
                Recent::from_bits(bits).sent(now).to_bits()
            });
        }
    }

    /// Takes from a target what the dispatch costs it. `false` when somebody else changed what is owed since.
    fn charge(&self, dispatch: &Dispatch) -> bool {
        let Some(charge) = &dispatch.charge else {
            return true;
        };
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
    /// What is owed, as it was when it was first asked for.
    owed: RefCell<BTreeMap<ComboName, Arc<Deficits>>>,
    /// How often somebody else was faster.
    conflicts: Cell<u32>,
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
            owed: RefCell::default(),
            conflicts: Cell::default(),
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

    /// Counts a dispatch in: what it costs its target, whose turn is next, and that it is sent now. `false` when somebody
    /// else changed what is owed since it was asked for, so that the decision must be made anew; it then finds what is
    /// owed by now. That ends: under a storm of equal requests an order that is a little unfair beats none.
    #[must_use]
    pub fn settle(&self, dispatch: &Dispatch, now: Timestamp) -> bool {
        if !self.counters.charge(dispatch) {
            self.owed.borrow_mut().clear();
            let before = self.conflicts.get();
            self.conflicts.set(before.saturating_add(1));
            if before < MAX_CONFLICTS {
                return false;
            }
        }
        self.counters.count_in(dispatch, now);
        true
    }

    /// The same for a dispatch that holds what another decision would lose, a probe or a permit: it is sent, whoever was
    /// faster.
    pub fn settle_anyway(&self, dispatch: &Dispatch, now: Timestamp) {
        let _ = self.counters.charge(dispatch);
        self.counters.count_in(dispatch, now);
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
        if let Some(owed) = self.owed.borrow().get(combo) {
            return Arc::clone(owed);
        }
        let scope = Scope::Combo(combo.clone());
        let owed = match self.counters.scopes.get(&scope) {
            Some(counters) => counters.deficits.load_full(),
            None => Arc::default(),
        };
        let known = Arc::clone(&owed);
        self.owed.borrow_mut().insert(combo.clone(), known);
        owed
    }

    fn sent_just_now(&self, connection: &ConnectionId, now: Timestamp) -> u32 {
        let sent = self.counters.sent.get(connection);
        sent.map_or(0, |sent| count(sent, now))
    }

    fn sent_to_target(&self, combo: &ComboName, key: &str, now: Timestamp) -> u32 {
        let sent = self.counters.of_target(combo, key);
        sent.map_or(0, |sent| count(sent, now))
    }

    fn ranking(
        &self,
        provider: &ProviderId,
        as_of: Timestamp,
        make: &dyn Fn() -> Ranking,
    ) -> Arc<Ranking> {
        match self.counters.rankings.get(provider) {
            Some(kept) => kept.get(as_of, make),
            None => Arc::new(make()),
        }
    }
}

fn count(sent: &AtomicU64, now: Timestamp) -> u32 {
    Recent::from_bits(sent.load(Ordering::Acquire)).count(now)
}

/// Shows whose turn would be next, and takes none.
pub(super) struct Peeking<'a>(pub(super) &'a dyn Turns);

impl Turns for Peeking<'_> {
    fn take(&self, key: &TurnKey) -> Option<u64> {
        Some(self.0.peek(key))
    }

    fn peek(&self, key: &TurnKey) -> u64 {
        self.0.peek(key)
    }

    fn deficits(&self, combo: &ComboName) -> Arc<Deficits> {
        self.0.deficits(combo)
    }

    fn sent_just_now(&self, connection: &ConnectionId, now: Timestamp) -> u32 {
        self.0.sent_just_now(connection, now)
    }

    fn sent_to_target(&self, combo: &ComboName, key: &str, now: Timestamp) -> u32 {
        self.0.sent_to_target(combo, key, now)
    }

    fn ranking(
        &self,
        provider: &ProviderId,
        as_of: Timestamp,
        make: &dyn Fn() -> Ranking,
    ) -> Arc<Ranking> {
        self.0.ranking(provider, as_of, make)
    }
}

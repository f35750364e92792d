//! Strategies: in which order targets are tried (`routing.md` §8).
//!
//! A strategy is one module here and one line in [`of`]. It orders [`Candidate`]s: targets of a combo, or accounts of a
//! provider, with the same code (decision 25). It gives *all* of them in its order; what the gates exclude is skipped
//! afterwards. The few that must know who is excluded before they order ask [`Question::is_eligible`].
//!
//! Strategies are pure: the past is [`Telemetry`], chance is [`Random`], and whose turn it is comes from [`Turns`].

pub mod auto;
mod cache_optimized;
mod candidates;
mod context_optimized;
mod cost_optimized;
pub(super) mod headroom;
mod least_used;
mod left_out;
mod lkgp;
mod p2c;
pub(super) mod place;
mod priority;
pub(super) mod quota;
mod quota_share;
mod random;
pub(crate) mod rendezvous;
mod reset_aware;
mod reset_window;
pub(super) mod round_robin;
pub(super) mod score;
mod seed;
#[cfg(test)]
mod stage;
mod strict_random;
#[cfg(test)]
mod tests;
mod tie;
mod walk;
pub(super) mod weighted;

use std::fmt::Debug;
use std::sync::Arc;

use crate::affinity::PinKey;
use crate::breaker::Phase;
use crate::catalogue::Catalogue;
use crate::config::{ComboConfig, Strategy};
use crate::ids::{ComboName, ConnectionId, ProviderId};
use crate::random::Random;
use crate::telemetry::Telemetry;
use crate::time::Timestamp;

pub use candidates::{Candidate, Candidates};
pub use least_used::Ranking;
pub use round_robin::{batch_limit, served_position};
pub use walk::Walk;

use seed::Seed;

use super::{Rejection, RequestFacts};

/// Whose order is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Targets of a combo.
    Combo(ComboName),
    /// Accounts of a provider.
    Accounts(ProviderId),
}

/// A counter that gives each asker the next number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TurnKey {
    /// Of whom.
    pub scope: Scope,
    /// For what.
    pub purpose: TurnPurpose,
}

/// What turns are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TurnPurpose {
    /// `round-robin`: position in the rotation. Per replica (decision 51).
    RoundRobin,
    /// `weighted`: which draw is in force. Per replica.
    Weighted,
    /// `strict-random`: position in the sequence of decks. Shared by all replicas.
    StrictRandom,
    /// `reset-aware`, `reset-window`: who of equals is first. Per replica.
    Tie,
    /// `auto`: who of a tier is first. Per replica.
    Tier(u8),
}

impl TurnPurpose {
    /// All replicas count together.
    #[must_use]
    pub fn is_shared(self) -> bool {
        matches!(self, Self::StrictRandom)
    }
}

/// What is owed to each candidate of a `quota-share` combo, by key (`routing.md` §11.3).
pub type Deficits = std::collections::BTreeMap<String, i64>;

/// Counters and debts. Within one decision every question has one answer, however often it is asked.
pub trait Turns {
    /// Takes the next number. `None`: it is counted elsewhere and has to be fetched first ([`Halt::TakeTurn`]).
    fn take(&self, key: &TurnKey) -> Option<u64>;
    /// The number that would be taken next.
    fn peek(&self, key: &TurnKey) -> u64;
    /// What is owed.
    fn deficits(&self, combo: &ComboName) -> Arc<Deficits>;
    /// Requests that this process sent to a connection just now, so that telemetry may not tell of them yet.
    fn sent_just_now(&self, connection: &ConnectionId, now: Timestamp) -> u32;
    /// The same of a target of a combo, by its execution key.
    fn sent_to_target(&self, combo: &ComboName, key: &str, now: Timestamp) -> u32;
    /// The accounts of a provider as telemetry of this moment or a little before ranks them, made where none is kept.
    fn ranking(
        &self,
        provider: &ProviderId,
        as_of: Timestamp,
        make: &dyn Fn() -> Ranking,
    ) -> Arc<Ranking>;
}

/// A change of what is owed; takes effect only if nobody changed it since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Of which combo.
    pub combo: ComboName,
    /// As it was when the order was made.
    pub before: Arc<Deficits>,
    /// As it is to be.
    pub after: Deficits,
}

/// Everything an order depends on.
#[expect(
    missing_debug_implementations,
    reason = "made and used within one decision"
)]
pub struct Question<'a> {
    /// Whose order.
    pub scope: &'a Scope,
    /// What is to be ordered.
    pub candidates: Candidates<'a>,
    /// The combo's members after the cascade; for accounts the defaults.
    pub config: &'a ComboConfig,
    /// Prices and abilities.
    pub catalogue: &'a Catalogue,
    /// The request.
    pub facts: &'a RequestFacts,
    /// Hot state as far as strategies look at it.
    pub conditions: &'a dyn Conditions,
    /// The past.
    pub telemetry: &'a dyn Telemetry,
    /// Whose turn.
    pub turns: &'a dyn Turns,
    /// Chance; the same for every question of a decision.
    pub seed: u64,
    /// The store's time.
    pub now: Timestamp,
}

/// What holds of candidates now.
pub trait Conditions {
    /// No gate excludes the candidate.
    fn is_eligible(&self, candidate: usize) -> bool;
    /// Gates exclude the candidate, but nothing that does not end by itself.
    fn cools(&self, candidate: usize) -> bool;
    /// Where the breaker of its provider stands.
    fn phase(&self, candidate: usize) -> Phase;
    /// `maxConcurrent` of its connection, where it has one and a limit.
    fn max_concurrent(&self, candidate: usize) -> Option<u32>;
    /// How many accounts its provider has.
    fn accounts(&self, candidate: usize) -> usize;
}

impl<'a> Question<'a> {
    /// A fresh sequence of random numbers, the same each time it is asked for within a decision. Each combo and each
    /// provider has one of its own, so that what is drawn for one says nothing of what is drawn for another.
    #[must_use]
    pub fn random(&self) -> Random {
        Seed::of(self.scope).with_number(self.seed).random()
    }

    /// Takes the next turn of this scope.
    fn take(&self, purpose: TurnPurpose) -> Result<u64, Halt> {
        let key = TurnKey {
            scope: self.scope.clone(),
            purpose,
        };
        self.turns.take(&key).ok_or(Halt::TakeTurn(key))
    }

    /// All positions, ascending by `key`; equals stay in the order of the candidates.
    fn sorted_by<K: Ord>(&self, key: impl Fn(Candidate<'a>) -> K) -> Vec<usize> {
        let mut keyed: Vec<(K, usize)> = self
            .candidates
            .iter()
            .enumerate()
            .map(|(index, candidate)| (key(candidate), index))
            .collect();
        keyed.sort();
        keyed.into_iter().map(|(_, index)| index).collect()
    }
}

/// All positions in order, but for this one, which is first.
fn first_of(count: usize, first: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    place::to_front(&mut order, first);
    order
}

/// An order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Positions in [`Question::candidates`], each exactly once.
    pub order: Vec<usize>,
    /// How many of them, from the first on, may be used; those behind are only told.
    pub usable: usize,
    /// How many of them, from the first on, may change places with each other for other reasons than the strategy's.
    pub movable: usize,
    /// What the order costs the first of it.
    pub charge: Option<Charge>,
}

impl From<Vec<usize>> for Ordered {
    fn from(order: Vec<usize>) -> Self {
        Self {
            usable: order.len(),
            movable: order.len(),
            order,
            charge: None,
        }
    }
}

/// Why there is no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// A number has to be fetched first; then the decision is made anew.
    TakeTurn(TurnKey),
    /// A pin has to be read first; then the decision is made anew.
    ReadPin(PinKey),
    /// The request ends with this answer.
    Reject(Box<Rejection>),
}

/// A way to order.
pub trait Order: Debug + Sync {
    /// Unpinned targets are expanded to the accounts of their provider first.
    fn expands_accounts(&self) -> bool {
        false
    }

    /// The order is that of the combo, so nothing needs to be asked for it.
    fn keeps_order(&self) -> bool {
        false
    }

    /// It may rule candidates out or refuse the request ([`Ordered::usable`], [`Halt::Reject`]), so a single candidate
    /// is put to it too.
    fn rules_out(&self) -> bool {
        false
    }

    /// The order depends on which connection served the combo last (`routing.md` §8.15), so that a change of it is worth
    /// telling everybody at once.
    fn follows_last_served(&self, _config: &ComboConfig) -> bool {
        false
    }

    /// Orders all candidates.
    ///
    /// # Errors
    /// [`Halt`]: something must happen first, or the request ends here.
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt>;

    /// The same order, as far as somebody walks it. Who can say who is next without looking at all candidates does: it
    /// is asked for accounts, of which the first that may be used is all that is needed.
    ///
    /// # Errors
    /// [`Halt`], as [`Order::order`].
    fn walk(&self, question: &Question<'_>) -> Result<Walk, Halt> {
        Ok(self.order(question)?.order.into())
    }
}

/// The code of a strategy.
#[must_use]
pub fn of(strategy: Strategy) -> &'static dyn Order {
    match strategy {
        // `fusion` and `pipeline` send to all targets, as a plan says that is made elsewhere.
        Strategy::Priority
        | Strategy::FillFirst
        | Strategy::ContextRelay
        | Strategy::Fusion
        | Strategy::Pipeline => &priority::Priority,
        Strategy::Weighted => &weighted::Weighted,
        Strategy::RoundRobin => &round_robin::RoundRobin,
        Strategy::P2c => &p2c::PowerOfTwoChoices,
        Strategy::Random => &random::Shuffled,
        Strategy::LeastUsed => &least_used::LeastUsed,
        Strategy::CostOptimized => &cost_optimized::CostOptimized,
        Strategy::ResetAware => &reset_aware::ResetAware,
        Strategy::ResetWindow => &reset_window::ResetWindows,
        Strategy::Headroom => &headroom::Headroom,
        Strategy::StrictRandom => &strict_random::StrictRandom,
        Strategy::Lkgp => &lkgp::LastKnownGoodFirst,
        Strategy::ContextOptimized => &context_optimized::ContextOptimized,
        Strategy::CacheOptimized => &cache_optimized::CacheOptimized,
        Strategy::Auto => &auto::Auto,
        Strategy::QuotaShare => &quota_share::QuotaShare,
    }
}

//! In which order the targets of a request are tried: made once, at the first dispatch, and carried along by the
//! request from then on, so that no later decision orders anew.

use crate::breaker::Phase;
use crate::config::{ComboTarget, Connection};
use crate::permit;

use super::accounts::{Scene, Surroundings};
use super::layers;
use super::pinned;
use super::progress::{Progress, results};
use super::reordered::is_stale;
use super::resolve::NOTHING_SET;
use super::strategy::{
    self, Candidate, Candidates, Charge, Conditions, Halt, Ordered, Question, Scope, Walk,
};
use super::turns::Peeking;
use super::units;

/// The order of a request's targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sequence {
    /// Positions in the list of targets, without those that are ruled out; empty = all as listed.
    positions: Vec<u32>,
    /// How many targets are in the order.
    len: usize,
    /// Where the walk goes on from a target that is not in the order.
    resumes_at: usize,
    /// What the first dispatch in this order costs.
    pub(super) charge: Option<Charge>,
}

impl Sequence {
    /// The order of this request: the one it carries along, else a new one.
    ///
    /// # Errors
    /// [`Halt`] of the combo's strategy.
    pub(super) fn of(scene: &Scene<'_>) -> Result<Self, Halt> {
        let sequence = Self::by_strategy(scene)?;
        let so_far = scene.input.so_far;
        let with_last = |sequence: Self| sequence.with_limited_last(scene).with_pool_last(scene);
        if is_stale(scene.input) {
            Ok(with_last(sequence).with_tried_first(scene))
        } else if so_far.order.is_empty() && so_far.attempts.is_empty() {
            Ok(with_last(sequence))
        } else {
            Ok(sequence)
        }
    }

    /// Targets that were tried in this pass in front of the others, as they were tried, so that the walk goes on behind
    /// them.
    fn with_tried_first(self, scene: &Scene<'_>) -> Self {
        let progress = Progress::of(scene.input.so_far, &scene.route.terms);
        let mut order: Vec<usize> = Vec::with_capacity(self.len);
        for result in results(progress.attempts) {
            let tried = usize::try_from(result.target).unwrap_or(usize::MAX);
            if self.rank(tried).is_some() && !order.contains(&tried) {
                order.push(tried);
            }
        }
        let resumes_at = order.len();
        let rest: Vec<usize> = self
            .after(None)
            .filter(|index| !order.contains(index))
            .collect();
        order.extend(rest);
        Self {
            positions: order.into_iter().map(position).collect(),
            resumes_at,
            ..self
        }
    }

    /// Targets that take fewer tools than the request offers behind the others, otherwise as before (decision 33).
    fn with_limited_last(self, scene: &Scene<'_>) -> Self {
        let is_limited = |index: &usize| {
            let target = scene.route.targets.get(*index);
            target.is_some_and(|target| scene.tool_limit_below(target).is_some())
        };
        if scene.input.facts.tools == 0 {
            return self;
        }
        self.with_last(is_limited)
    }

    /// Targets behind the others that only what is reserved could serve, where that comes last, so that the walk still
    /// comes to them after the others failed.
    fn with_pool_last(self, scene: &Scene<'_>) -> Self {
        let needs_pool = |index: &usize| {
            let target = scene.route.targets.get(*index);
            target.is_some_and(|target| scene.needs_reserved(target))
        };
        if !scene.input.view.reserves_pool() {
            return self;
        }
        self.with_last(needs_pool)
    }

    /// Some targets behind the others, otherwise as before.
    fn with_last(self, is_last: impl Fn(&usize) -> bool) -> Self {
        let (last, mut free): (Vec<usize>, Vec<usize>) = self.after(None).partition(is_last);
        if last.is_empty() || free.is_empty() {
            return self;
        }
        free.extend(last);
        Self {
            positions: free.into_iter().map(position).collect(),
            ..self
        }
    }

    fn by_strategy(scene: &Scene<'_>) -> Result<Self, Halt> {
        let len = scene.route.targets.len();
        let ordering = strategy::of(scene.route.strategy);
        let carried = &scene.input.so_far.order;
        let nests = !scene.route.units.is_empty();
        let is_whole = carried.len() == len || ordering.rules_out() || nests;
        if is_whole && names_each_once(carried, len) {
            return Ok(Self {
                positions: carried.clone(),
                len: carried.len(),
                resumes_at: carried.len(),
                charge: None,
            });
        }
        let as_listed = Self {
            positions: Vec::new(),
            len,
            resumes_at: len,
            charge: None,
        };
        let is_stale = is_stale(scene.input);
        // A request that made attempts without an order had the order of the list.
        let begun = !scene.input.so_far.attempts.is_empty() && !is_stale;
        let Some(combo) = scene.route.combo else {
            return Ok(as_listed);
        };
        let keeps_order = ordering.keeps_order()
            && !nests
            && !layers::any(scene.route.config)
            && !pinned::orders(scene);
        let has_choice = len > 1 || ordering.rules_out();
        if keeps_order || begun || !has_choice {
            return Ok(as_listed);
        }
        let scope = Scope::Combo(combo.combo.name.clone());
        let candidates: Vec<Candidate<'_>> = scene.route.targets.iter().map(candidate).collect();
        // The first dispatch follows at once where anything can be used; else the request waits, or ends. A request that
        // is put in order anew took its turn and paid already.
        let takes_turn = !is_stale
            && scene
                .route
                .targets
                .iter()
                .any(|target| scene.has_eligible_account(target));
        let peeking = Peeking(scene.input.turns);
        let question = Question {
            scope: &scope,
            candidates: Candidates::Targets(&candidates),
            config: scene.route.config,
            catalogue: &scene.input.config.catalogue,
            facts: scene.input.facts,
            conditions: &TargetConditions { scene },
            telemetry: scene.input.telemetry,
            turns: if takes_turn {
                scene.input.turns
            } else {
                &peeking
            },
            seed: scene.input.random,
            now: scene.input.now,
        };
        let mut ordered = if nests {
            units::order(scene, combo, takes_turn)?
        } else {
            ordering.order(&question)?
        };
        ordered.order.truncate(ordered.usable);
        layers::apply(&mut ordered, &question, scene.route.strategy);
        pinned::lead(scene, &mut ordered)?;
        Ok(Self {
            len: ordered.order.len(),
            resumes_at: ordered.order.len(),
            positions: positions(&ordered),
            charge: ordered.charge.filter(|_| !is_stale),
        })
    }

    /// Targets in order, from behind this position of the list on; from the first on for `None`.
    pub(super) fn after(&self, target: Option<usize>) -> impl Iterator<Item = usize> {
        let begun = match target {
            None => 0,
            Some(target) => match self.rank(target) {
                Some(rank) => rank.saturating_add(1),
                None => self.resumes_at,
            },
        };
        (begun..self.len).map(|rank| self.at(rank))
    }

    /// For [`super::AttemptsSoFar::order`].
    pub(super) fn carried(&self) -> Vec<u32> {
        self.positions.clone()
    }

    fn at(&self, rank: usize) -> usize {
        match self.positions.get(rank) {
            Some(position) => usize::try_from(*position).unwrap_or(usize::MAX),
            None => rank,
        }
    }

    fn rank(&self, target: usize) -> Option<usize> {
        if self.positions.is_empty() {
            return Some(target).filter(|rank| *rank < self.len);
        }
        (0..self.len).find(|rank| self.at(*rank) == target)
    }
}

/// The accounts of a target in the order of its provider's strategy. `None`: in the order they have.
pub(super) fn accounts(
    scene: &Scene<'_>,
    target: &ComboTarget,
    accounts: &[std::sync::Arc<Connection>],
    surroundings: &Surroundings<'_>,
    is_eligible: &dyn Fn(&Connection) -> bool,
) -> Result<Option<Walk>, Halt> {
    let Some(entry) = scene.input.config.provider(&target.provider) else {
        return Ok(None);
    };
    let ordering = strategy::of(entry.provider.account_strategy.strategy());
    if ordering.keeps_order() || accounts.len() < 2 {
        return Ok(None);
    }
    let scope = Scope::Accounts(target.provider.clone());
    let peeking = Peeking(scene.input.turns);
    // What is looked at as it will be later is waited for.
    let is_sent_now = surroundings.at <= scene.input.now;
    let walk = ordering.walk(&Question {
        scope: &scope,
        candidates: Candidates::Accounts {
            of: candidate(target),
            accounts,
        },
        config: &NOTHING_SET,
        catalogue: &scene.input.config.catalogue,
        facts: scene.input.facts,
        conditions: &AccountConditions {
            accounts,
            phase: surroundings.phase,
            is_eligible,
        },
        telemetry: scene.input.telemetry,
        turns: if is_sent_now {
            scene.input.turns
        } else {
            &peeking
        },
        seed: scene.input.random,
        now: scene.input.now,
    })?;
    Ok(Some(walk))
}

fn candidate(target: &ComboTarget) -> Candidate<'_> {
    Candidate {
        key: &target.key,
        provider: &target.provider,
        model: &target.model,
        connection: target.connection.as_ref(),
        group: target.group,
        weight: target.weight,
    }
}

fn positions(ordered: &Ordered) -> Vec<u32> {
    ordered.order.iter().copied().map(position).collect()
}

fn position(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Whether it names positions, each once; a request may carry anything.
fn names_each_once(order: &[u32], len: usize) -> bool {
    let mut seen = vec![false; len];
    !order.is_empty()
        && order.iter().all(|position| {
            let place = usize::try_from(*position)
                .ok()
                .and_then(|position| seen.get_mut(position));
            place.is_some_and(|seen| !std::mem::replace(seen, true))
        })
}

struct TargetConditions<'a> {
    scene: &'a Scene<'a>,
}

impl TargetConditions<'_> {
    fn target(&self, candidate: usize) -> Option<&ComboTarget> {
        self.scene.route.targets.get(candidate)
    }
}

impl Conditions for TargetConditions<'_> {
    fn is_eligible(&self, candidate: usize) -> bool {
        self.target(candidate)
            .is_some_and(|target| self.scene.has_eligible_account(target))
    }

    fn cools(&self, candidate: usize) -> bool {
        self.target(candidate)
            .is_some_and(|target| self.scene.cools(target))
    }

    fn phase(&self, candidate: usize) -> Phase {
        match self.target(candidate) {
            Some(target) => self.scene.phase(target),
            None => Phase::Closed,
        }
    }

    fn max_concurrent(&self, candidate: usize) -> Option<u32> {
        let connection = self.target(candidate)?.connection.as_ref()?;
        permit::cap(self.scene.input.config.connection(connection)?)
    }

    fn accounts(&self, candidate: usize) -> usize {
        self.target(candidate)
            .and_then(|target| self.scene.input.config.provider(&target.provider))
            .map_or(0, |entry| entry.connections.len())
    }
}

struct AccountConditions<'a> {
    accounts: &'a [std::sync::Arc<Connection>],
    phase: Phase,
    is_eligible: &'a dyn Fn(&Connection) -> bool,
}

impl Conditions for AccountConditions<'_> {
    fn is_eligible(&self, candidate: usize) -> bool {
        self.accounts
            .get(candidate)
            .is_some_and(|account| (self.is_eligible)(account))
    }

    // Only combos ask, of their targets.
    fn cools(&self, _candidate: usize) -> bool {
        false
    }

    fn phase(&self, _candidate: usize) -> Phase {
        self.phase
    }

    fn max_concurrent(&self, candidate: usize) -> Option<u32> {
        permit::cap(self.accounts.get(candidate)?)
    }

    fn accounts(&self, _candidate: usize) -> usize {
        self.accounts.len()
    }
}

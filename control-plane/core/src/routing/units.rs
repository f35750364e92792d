//! The order of a combo that leaves the order within the combos it refers to, to those (`routing.md` §1.6, `execute`).
//!
//! Its strategy orders units: targets, and combos as a whole. A combo is eligible while one of its targets is. Then each
//! combo orders what is in it by its own strategy and its own counters. Only the one that will be used takes a turn;
//! the others are ordered by whose turn would be next. A combo that refuses the request (its budget is spent, its
//! quotas are too low) drops out; if all do, the first refusal is the answer.

use crate::breaker::Phase;
use crate::config::{ComboConfig, ComboEntry, ComboTarget, Strategy, Unit};
use crate::ids::ComboName;

use super::accounts::Scene;
use super::strategy::{self, Candidate, Candidates, Conditions, Halt, Ordered, Question, Scope};
use super::turns::Peeking;

/// Positions of the targets in order, without those that are ruled out. `takes_turn`: the order will be used.
pub(super) fn order(
    scene: &Scene<'_>,
    combo: &ComboEntry,
    takes_turn: bool,
) -> Result<Ordered, Halt> {
    let level = Level {
        name: &combo.combo.name,
        strategy: scene.route.strategy,
        config: scene.route.config,
        units: &scene.route.units,
    };
    let mut positions = Vec::with_capacity(scene.route.targets.len());
    match level.order(scene, takes_turn, &mut positions)? {
        Some(refusal) if positions.is_empty() => Err(refusal),
        Some(_) | None => Ok(positions.into()),
    }
}

/// A combo that orders.
struct Level<'a> {
    name: &'a ComboName,
    strategy: Strategy,
    config: &'a ComboConfig,
    units: &'a [Unit],
}

impl Level<'_> {
    /// Adds the positions in order. The first refusal of a combo in it, if one refused; what it refers to is then
    /// missing.
    fn order(
        &self,
        scene: &Scene<'_>,
        takes_turn: bool,
        positions: &mut Vec<usize>,
    ) -> Result<Option<Halt>, Halt> {
        let conditions = UnitConditions {
            scene,
            units: self.units,
        };
        let mut refusal = None;
        // The first unit that can be used is the one whose turn counts.
        let mut is_found = !takes_turn;
        for index in self.sequence(scene, takes_turn, &conditions)? {
            let Some(unit) = self.units.get(index) else {
                continue;
            };
            let is_used = !is_found && conditions.is_eligible(index);
            is_found |= is_used;
            let Some(nested) = &unit.nested else {
                positions.extend(place(unit.start)..place(unit.end));
                continue;
            };
            let inner = Level {
                name: &nested.name,
                strategy: nested.strategy,
                config: &nested.config,
                units: &nested.units,
            };
            let refused = match inner.order(scene, is_used, positions) {
                Err(refused @ Halt::Reject(_)) => Some(refused),
                other => other?,
            };
            refusal = refusal.or(refused);
        }
        Ok(refusal)
    }

    /// Positions of the units in the order of the strategy, without those that it rules out.
    fn sequence(
        &self,
        scene: &Scene<'_>,
        takes_turn: bool,
        conditions: &UnitConditions<'_>,
    ) -> Result<Vec<usize>, Halt> {
        let ordering = strategy::of(self.strategy);
        let has_choice = self.units.len() > 1 || ordering.rules_out();
        if ordering.keeps_order() || !has_choice {
            return Ok((0..self.units.len()).collect());
        }
        let input = scene.input;
        let peeking = Peeking(input.turns);
        let scope = Scope::Combo(self.name.clone());
        let candidates: Vec<Candidate<'_>> = self
            .units
            .iter()
            .filter_map(|unit| Some(candidate(unit, conditions.targets(unit).first()?)))
            .collect();
        let mut ordered = ordering.order(&Question {
            scope: &scope,
            candidates: Candidates::Targets(&candidates),
            config: self.config,
            catalogue: &input.config.catalogue,
            facts: input.facts,
            conditions,
            telemetry: input.telemetry,
            turns: if takes_turn { input.turns } else { &peeking },
            seed: input.random,
            now: input.now,
        })?;
        ordered.order.truncate(ordered.usable);
        Ok(ordered.order)
    }
}

fn place(position: u32) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

/// A unit looks like its first target.
fn candidate<'a>(unit: &'a Unit, first: &'a ComboTarget) -> Candidate<'a> {
    Candidate {
        key: &unit.key,
        provider: &first.provider,
        model: &first.model,
        connection: first.connection.as_ref(),
        group: unit.group,
        weight: unit.weight,
    }
}

struct UnitConditions<'a> {
    scene: &'a Scene<'a>,
    units: &'a [Unit],
}

impl UnitConditions<'_> {
    fn targets(&self, unit: &Unit) -> &[ComboTarget] {
        let targets = &self.scene.route.targets;
        targets
            .get(place(unit.start)..place(unit.end))
            .unwrap_or_default()
    }

    fn of(&self, candidate: usize) -> &[ComboTarget] {
        match self.units.get(candidate) {
            Some(unit) => self.targets(unit),
            None => &[],
        }
    }
}

impl Conditions for UnitConditions<'_> {
    fn is_eligible(&self, candidate: usize) -> bool {
        self.of(candidate)
            .iter()
            .any(|target| self.scene.has_eligible_account(target))
    }

    fn cools(&self, candidate: usize) -> bool {
        let targets = self.of(candidate);
        !self.is_eligible(candidate) && targets.iter().any(|target| self.scene.cools(target))
    }

    fn phase(&self, candidate: usize) -> Phase {
        match self.of(candidate).first() {
            Some(target) => self.scene.phase(target),
            None => Phase::Closed,
        }
    }

    fn max_concurrent(&self, _candidate: usize) -> Option<u32> {
        None
    }

    fn accounts(&self, candidate: usize) -> usize {
        self.of(candidate)
            .first()
            .and_then(|target| self.scene.input.config.provider(&target.provider))
            .map_or(0, |entry| entry.connections.len())
    }
}

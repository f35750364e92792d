//! From a choice to a dispatch: everything that the attempt and later decisions need.

use std::sync::Arc;

use crate::config::{ComboTarget, Strategy};
use crate::ids::{ProviderId, Shard};
use crate::number::Finite;
use crate::version::{Mark, Version};

use super::accounts::{Account, Past, Scene};
use super::driver::{Driver, Found, position, reject};
use super::emergency::{self, EMERGENCY_TARGET};
use super::exclusion::Exclusions;
use super::exhaustion::Exhaustion;
use super::progress::Progress;
use super::resolve::Route;
use super::strategy::{Halt, Scope, TurnKey, TurnPurpose, round_robin, weighted};
use super::{Decision, Dispatch, Exclusion, permits, terminal};

impl Driver<'_> {
    /// The emergency target, once, when the request would fail for want of money or quota.
    pub(super) fn last_resort(
        &self,
        progress: &Progress<'_>,
        excluded: &Exclusions,
    ) -> Result<Option<Decision>, Halt> {
        let Scene { input, route, .. } = self.scene;
        let attempts = Progress::last_attempts(input.so_far);
        let Some(target) = emergency::target(input, route, attempts, excluded) else {
            return Ok(None);
        };
        if input.so_far.spent() >= route.terms.max_global_attempts {
            return Ok(None);
        }
        let exhaustion = Exhaustion::default();
        let past = Past::of_fresh_target(&exhaustion);
        let mut of_target = Exclusions::default();
        let account = self
            .scene
            .choose(&target, past, input.now, &mut of_target)?;
        let max_tokens = input.config.settings.emergency_fallback.max_output_tokens;
        Ok(account.map(|account| {
            let dispatch = self.dispatch_to(&account, &target, excluded.list().to_vec());
            Decision::Dispatch(Box::new(Dispatch {
                pass: progress.pass,
                target: EMERGENCY_TARGET,
                // It is no target of the combo, so nothing is counted of it there.
                combo: None,
                emergency_max_tokens: Some(max_tokens),
                charge: None,
                ..dispatch
            }))
        }))
    }

    pub(super) fn dispatch(&self, found: Found<'_>, pass: u32) -> Decision {
        let Scene { input, route, .. } = self.scene;
        if input.so_far.spent() >= route.terms.max_global_attempts {
            return reject(terminal::too_many_attempts(input, route));
        }
        let Found {
            account,
            target: index,
            excluded,
        } = found;
        let Some(target) = route.targets.get(index) else {
            return reject(self.final_answer(excluded));
        };
        Decision::Dispatch(Box::new(Dispatch {
            pass,
            target: u32::try_from(index).unwrap_or(u32::MAX),
            raise: self
                .rotation_goes_on_from(index)
                .or_else(|| self.draw_goes_on_from(target, index)),
            ..self.dispatch_to(&account, target, excluded.into_list())
        }))
    }

    fn dispatch_to(
        &self,
        account: &Account<'_>,
        target: &ComboTarget,
        excluded: Vec<Exclusion>,
    ) -> Dispatch {
        let Scene { input, route, .. } = self.scene;
        let provider = &account.entry.provider.id;
        let needs_probe = account.phase.needs_probe();
        Dispatch {
            provider: provider.clone(),
            connection: account.connection.id.clone(),
            model: target.model.clone(),
            needs_probe,
            permit: permits::demand(input.config, input.facts, route, account.connection),
            report_at_readiness: needs_probe || !account.clean,
            decided_on: input.view.version(Shard::of_provider(provider)),
            epoch: self.epoch(provider),
            pass: 0,
            target: 0,
            target_key: Arc::clone(&target.key),
            combo: route.combo.map(|entry| entry.combo.name.clone()),
            excluded,
            order: self.sequence.carried(),
            charge: self.sequence.charge.clone(),
            timeout_ms: shorter(route.terms.target_timeout_ms, self.remaining_ms()),
            max_tools: self.scene.tool_limit_below(target),
            emergency_max_tokens: None,
            raise: None,
            pin: account.pin.clone(),
        }
    }

    /// `round-robin`: where the rotation goes on when another target serves than the one whose turn it was, because that
    /// one failed or is excluded.
    fn rotation_goes_on_from(&self, target: usize) -> Option<(TurnKey, u64)> {
        let Scene { input, route, .. } = self.scene;
        let begun = match input.so_far.attempts.last() {
            Some(last) => position(last),
            None => self.sequence.after(None).next()?,
        };
        let combo = route.combo?;
        let begun = turn_of(route, begun)?;
        let served = turn_of(route, target)?;
        if route.strategy != Strategy::RoundRobin || begun == served {
            return None;
        }
        let count = match route.units.len() {
            0 => route.targets.len(),
            units => units,
        };
        let key = TurnKey {
            scope: Scope::Combo(combo.combo.name.clone()),
            purpose: TurnPurpose::RoundRobin,
        };
        let next = input.turns.peek(&key);
        let limit = round_robin::batch_limit(route.config);
        let to = round_robin::served_position(next, limit, count, served);
        Some((key, to))
    }

    /// `weighted` with a draw in force: which draw is in force from now on when another step serves than the drawn one,
    /// because that one failed or is excluded.
    fn draw_goes_on_from(&self, target: &ComboTarget, index: usize) -> Option<(TurnKey, u64)> {
        let Scene { input, route, .. } = self.scene;
        let limit = route.config.sticky_weighted_limit.unwrap_or(1);
        let combo = route.combo?;
        let last = input.so_far.attempts.last();
        let stays = last.is_some_and(|last| position(last) == index);
        if route.strategy != Strategy::Weighted || limit <= 1 || stays {
            return None;
        }
        let of_targets = || {
            route
                .targets
                .iter()
                .map(|target| (target.group, target.weight))
        };
        let of_units = || route.units.iter().map(|unit| (unit.group, unit.weight));
        let mut steps: Vec<(u32, Finite)> = if route.units.is_empty() {
            of_targets().collect()
        } else {
            of_units().collect()
        };
        steps.dedup_by_key(|(group, _)| *group);
        let served = match turn_of(route, index) {
            Some(unit) if !route.units.is_empty() => route.units.get(unit)?.group,
            _ => target.group,
        };
        let served = steps.iter().position(|(group, _)| *group == served)?;
        let key = TurnKey {
            scope: Scope::Combo(combo.combo.name.clone()),
            purpose: TurnPurpose::Weighted,
        };
        let next = input.turns.peek(&key);
        let weights = steps.iter().map(|(_, weight)| *weight);
        let to = weighted::served_turn(&key.scope, weights, limit, next, served)?;
        Some((key, to))
    }

    /// The epoch that others know, not one that this request's private copy might have begun.
    fn epoch(&self, provider: &ProviderId) -> Version {
        match self.scene.input.view.provider(provider) {
            Some(state) => match state.breaker.epoch {
                Mark::At(version) => version,
                Mark::Never | Mark::ThisWrite => Version::default(),
            },
            None => Version::default(),
        }
    }
}

/// Which of those that take turns holds a target: the target itself, or what a combo keeps together.
fn turn_of(route: &Route<'_>, target: usize) -> Option<usize> {
    if route.units.is_empty() {
        return Some(target);
    }
    let target = u32::try_from(target).ok()?;
    let mut units = route.units.iter();
    units.position(|unit| (unit.start..unit.end).contains(&target))
}

fn shorter(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

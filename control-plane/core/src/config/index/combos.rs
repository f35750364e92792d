//! From steps to targets (`routing.md` §1.3, §1.6): references to other combos are followed, patterns are replaced by the
//! models that fit.
//!
//! By default the targets of a combo stand where it is referred to, and only its order counts. With `nestedComboMode:
//! execute` it orders its targets itself: they stand in the same place, and a [`Unit`] tells which they are. Either way
//! a combo that is being followed already contributes nothing, and one deeper than the limit only its own models, so
//! following ends; how much of it is done is bounded too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::glob;
use crate::ids::{ModelId, ProviderId};
use crate::number::Finite;

use super::super::meaning::{self, Meaning};
use super::super::names::Names;
use super::super::{
    Combo, ComboConfig, ComboTarget, MAX_TARGETS, NestedCombo, Step, Unit, Violations, tiers,
};
use super::nesting::{depth_limit, executes};

/// Most steps that are looked at for one combo: references may lead to many steps and still to no target.
const MAX_VISITS: usize = 10_000;
/// Most steps that are looked at for all combos of a document.
const MAX_ALL_VISITS: usize = 1_000_000;
/// Most targets of all combos of a document.
pub(in super::super) const MAX_ALL_TARGETS: usize = 200_000;

/// What the steps of a combo come to.
#[derive(Debug, Default)]
pub(in super::super) struct Resolved {
    pub(in super::super) targets: Vec<ComboTarget>,
    pub(in super::super) units: Vec<Unit>,
}

/// Follows the steps of combos, and notes what is wrong with them.
pub(in super::super) struct Resolver<'a> {
    pub(in super::super) names: &'a Names<'a>,
    pub(in super::super) catalogue: &'a Catalogue,
    /// Members of each combo after the cascade, by name.
    pub(in super::super) configs: &'a BTreeMap<&'a str, Arc<ComboConfig>>,
    /// Combos that cannot be used; nothing is taken from them.
    pub(in super::super) bad: &'a BTreeSet<&'a str>,
    pub(in super::super) room: Room,
}

/// What may still be made of all combos together.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Room {
    visits: usize,
    targets: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            visits: MAX_ALL_VISITS,
            targets: MAX_ALL_TARGETS,
        }
    }
}

impl Resolver<'_> {
    /// What the combo comes to; nothing when that is too much. `path` is where it stands in the document.
    pub(in super::super) fn resolve(
        &mut self,
        combo: &Combo,
        path: &str,
        found: &mut Violations,
    ) -> Resolved {
        let unset = Arc::default();
        let config = self.config(combo).unwrap_or(&unset);
        let mut walk = Walk {
            resolver: self,
            max_depth: depth_limit(config.max_combo_depth),
            resolved: Resolved::default(),
            visits: 0,
            names: vec![combo.name.as_str()],
            is_too_deep: false,
            path,
            found,
        };
        let place = Place {
            depth: 0,
            prefix: "",
            top: None,
            group: None,
            executes: executes(combo.strategy, config),
            by_tiers: true,
        };
        let mut units = Vec::new();
        let done = walk.combo(combo, config, &place, &mut units);
        let Walk {
            mut resolved,
            visits,
            ..
        } = walk;
        self.room.visits = self.room.visits.saturating_sub(visits);
        if let Err(TooMuch(message)) = done {
            found.push(format!("{path}.steps"), message);
            return Resolved::default();
        }
        self.room.targets = self.room.targets.saturating_sub(resolved.targets.len());
        if units.iter().any(|unit| unit.nested.is_some()) {
            resolved.units = units;
        }
        resolved
    }

    fn config(&self, combo: &Combo) -> Option<&Arc<ComboConfig>> {
        self.configs.get(combo.name.as_str())
    }
}

/// The steps lead to more than a combo may hold.
struct TooMuch(String);

/// Where a combo is followed.
struct Place<'a> {
    depth: u32,
    /// Key of the step that refers to it; empty at the top.
    prefix: &'a str,
    /// Top-level step it hangs on, with its weight; none at the top.
    top: Option<(u32, Finite)>,
    /// The same within the combo that orders it.
    group: Option<(u32, Finite)>,
    /// References are units of their own.
    executes: bool,
    /// Its tiers count.
    by_tiers: bool,
}

struct Walk<'a> {
    resolver: &'a Resolver<'a>,
    max_depth: u32,
    resolved: Resolved,
    visits: usize,
    /// Combos that are being followed, the one at the top first.
    names: Vec<&'a str>,
    /// It was told that references go too deep.
    is_too_deep: bool,
    path: &'a str,
    found: &'a mut Violations,
}

impl Walk<'_> {
    fn combo(
        &mut self,
        combo: &Combo,
        config: &ComboConfig,
        place: &Place<'_>,
        units: &mut Vec<Unit>,
    ) -> Result<(), TooMuch> {
        let meanings: Vec<Meaning<'_>> = combo
            .steps
            .iter()
            .map(|step| meaning::of(step, self.resolver.names))
            .collect();
        let ids: Vec<String> = combo
            .steps
            .iter()
            .zip(&meanings)
            .enumerate()
            .map(|(index, (step, meaning))| meaning::step_id(combo, index, step, meaning))
            .collect();
        let written = config.composite_tiers.as_ref();
        for index in tiers::order(&ids, written.filter(|_| place.by_tiers)) {
            let (Some(step), Some(meaning), Some(id)) =
                (combo.steps.get(index), meanings.get(index), ids.get(index))
            else {
                continue;
            };
            self.visits = self.visits.saturating_add(1);
            if self.visits > MAX_VISITS.min(self.resolver.room.visits) {
                let message = "lead to too many steps of other combos";
                return Err(TooMuch(message.to_owned()));
            }
            let key = if place.prefix.is_empty() {
                id.clone()
            } else {
                format!("{}>{id}", place.prefix)
            };
            let own = (u32::try_from(index).unwrap_or(u32::MAX), weight(step));
            let spot = Spot {
                step,
                key,
                top: place.top.unwrap_or(own),
                group: place.group.unwrap_or(own),
            };
            self.step(&spot, meaning, index, place, units)?;
        }
        Ok(())
    }

    fn step(
        &mut self,
        spot: &Spot<'_>,
        meaning: &Meaning<'_>,
        index: usize,
        place: &Place<'_>,
        units: &mut Vec<Unit>,
    ) -> Result<(), TooMuch> {
        match meaning {
            Meaning::Model(provider, model) => {
                self.target(spot, spot.key.clone(), provider, model, units)
            }
            Meaning::Pattern(provider, pattern) => {
                let models = self.fitting(provider, pattern);
                if models.is_empty() && place.depth == 0 {
                    let message =
                        format!("no model of provider {provider} fits: list its models by name");
                    self.found
                        .push(format!("{}.steps[{index}]", self.path), message);
                }
                for model in models {
                    let key = format!("{}/{model}", spot.key);
                    self.target(spot, key, provider, &model, units)?;
                }
                Ok(())
            }
            Meaning::Combo(name) => self.reference(spot, name, index, place, units),
            Meaning::Nothing => Ok(()),
        }
    }

    fn target(
        &mut self,
        spot: &Spot<'_>,
        key: String,
        provider: &ProviderId,
        model: &ModelId,
        units: &mut Vec<Unit>,
    ) -> Result<(), TooMuch> {
        let names = self.resolver.names;
        let pin = spot.step.connection();
        let is_there =
            pin.is_none_or(|connection| names.connections.get(connection) == Some(&provider));
        if !is_there || !names.providers.contains_key(provider.as_str()) {
            return Ok(());
        }
        let targets = &mut self.resolved.targets;
        if targets.len() >= MAX_TARGETS {
            return Err(TooMuch(format!("come to more than {MAX_TARGETS} targets")));
        }
        if targets.len() >= self.resolver.room.targets {
            return Err(TooMuch(format!(
                "come to more than {MAX_ALL_TARGETS} targets together with those of the combos before"
            )));
        }
        let key: Arc<str> = key.into();
        let start = u32::try_from(targets.len()).unwrap_or(u32::MAX);
        let written = spot.step.model_step();
        targets.push(ComboTarget {
            provider: provider.clone(),
            model: model.clone(),
            connection: pin.cloned(),
            expanded: false,
            key: Arc::clone(&key),
            group: spot.top.0,
            weight: spot.top.1,
            allowed_connections: written
                .map(|step| step.allowed_connections.iter().cloned().collect())
                .unwrap_or_default(),
            tags: written.map(|step| step.tags.clone()).unwrap_or_default(),
            fallback_only_on_quota_exhaustion: written
                .is_some_and(|step| step.fallback_only_on_quota_exhaustion),
        });
        units.push(Unit {
            key,
            group: spot.group.0,
            weight: spot.group.1,
            start,
            end: start.saturating_add(1),
            nested: None,
        });
        Ok(())
    }

    fn reference(
        &mut self,
        spot: &Spot<'_>,
        name: &str,
        index: usize,
        place: &Place<'_>,
        units: &mut Vec<Unit>,
    ) -> Result<(), TooMuch> {
        let resolver = self.resolver;
        let Some((name, (_, child))) = resolver.names.combos.get_key_value(name) else {
            return Ok(());
        };
        if self.names.contains(name) {
            // Each combo of a circle is told of it once: when it is at the top.
            if self.names.first() == Some(name) {
                let circle = self.names.join(" > ");
                let field = self.field_of(index, place);
                self.found
                    .push(field, format!("leads back to {name}: {circle} > {name}"));
            }
            return Ok(());
        }
        if resolver.bad.contains(name) {
            return Ok(());
        }
        if place.depth >= self.max_depth && !std::mem::replace(&mut self.is_too_deep, true) {
            let message = format!(
                "{} > {name} is deeper than maxComboDepth {}",
                self.names.join(" > "),
                self.max_depth
            );
            self.found.push(self.field_of(index, place), message);
        }
        if place.depth > self.max_depth {
            return Ok(());
        }
        let unset = Arc::default();
        let config = resolver.config(child).unwrap_or(&unset);
        let inner = Place {
            depth: place.depth.saturating_add(1),
            prefix: &spot.key,
            top: Some(spot.top),
            group: (!place.executes).then_some(spot.group),
            executes: place.executes && executes(child.strategy, config),
            by_tiers: place.executes,
        };
        self.names.push(*name);
        let done = if place.executes {
            self.unit(spot, child, config, &inner, units)
        } else {
            self.combo(child, config, &inner, units)
        };
        self.names.pop();
        done
    }

    /// Follows a combo that orders its targets itself.
    fn unit(
        &mut self,
        spot: &Spot<'_>,
        child: &Combo,
        config: &Arc<ComboConfig>,
        inner: &Place<'_>,
        units: &mut Vec<Unit>,
    ) -> Result<(), TooMuch> {
        let start = u32::try_from(self.resolved.targets.len()).unwrap_or(u32::MAX);
        let mut own = Vec::new();
        self.combo(child, config, inner, &mut own)?;
        let end = u32::try_from(self.resolved.targets.len()).unwrap_or(u32::MAX);
        if end > start {
            units.push(Unit {
                key: spot.key.as_str().into(),
                group: spot.group.0,
                weight: spot.group.1,
                start,
                end,
                nested: Some(Box::new(NestedCombo {
                    name: child.name.clone(),
                    strategy: child.strategy,
                    config: Arc::clone(config),
                    units: own,
                })),
            });
        }
        Ok(())
    }

    /// The step at the top that something was found under.
    fn field_of(&self, index: usize, place: &Place<'_>) -> String {
        let top = match place.top {
            Some((top, _)) => usize::try_from(top).unwrap_or(usize::MAX),
            None => index,
        };
        format!("{}.steps[{top}]", self.path)
    }

    /// Models of a provider that fit, by name: those it lists, or where it lists none, those the catalogue has.
    fn fitting(&self, provider: &ProviderId, pattern: &str) -> Vec<ModelId> {
        let Some(entry) = self.resolver.names.providers.get(provider.as_str()) else {
            return Vec::new();
        };
        let fits = |model: &&ModelId| glob::matches(pattern, model.as_str());
        let models: BTreeSet<&ModelId> = if entry.models.is_empty() {
            let known = self.resolver.catalogue.models(provider);
            known
                .filter(fits)
                .take(MAX_TARGETS.saturating_add(1))
                .collect()
        } else {
            entry.models.iter().filter(fits).collect()
        };
        models
            .into_iter()
            .take(MAX_TARGETS.saturating_add(1))
            .cloned()
            .collect()
    }
}

/// A step where it is followed.
struct Spot<'a> {
    step: &'a Step,
    key: String,
    top: (u32, Finite),
    group: (u32, Finite),
}

/// Its weight, within 0..=100.
fn weight(step: &Step) -> Finite {
    step.weight().max(Finite::ZERO).min(Finite::from(100))
}

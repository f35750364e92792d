//! `compositeTiers`: another order of the top-level steps of a combo (`routing.md` §1.6).

use std::collections::BTreeSet;

use super::{CompositeTiers, Violations};

/// Most tiers of a combo.
const MAX_TIERS: usize = 64;
/// Longest name of a tier, in bytes.
const MAX_TIER_BYTES: usize = 128;

/// Positions of the steps with these ids: from the default tier along `fallbackTier`, then the remaining tiers by
/// name, then the remaining steps as written.
pub(super) fn order(ids: &[String], tiers: Option<&CompositeTiers>) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::with_capacity(ids.len());
    let mut placed = vec![false; ids.len()];
    let mut place = |index: usize| {
        if let Some(placed) = placed.get_mut(index)
            && !std::mem::replace(placed, true)
        {
            order.push(index);
        }
    };
    if let Some(tiers) = tiers {
        let chain = chain(tiers, &tiers.default_tier);
        for tier in chain.filter_map(|name| tiers.tiers.get(name)) {
            place(position(ids, &tier.step_id));
        }
        for tier in tiers.tiers.values() {
            place(position(ids, &tier.step_id));
        }
    }
    (0..ids.len()).for_each(place);
    order
}

fn position(ids: &[String], id: &str) -> usize {
    let found = ids.iter().position(|known| known == id);
    found.unwrap_or(usize::MAX)
}

/// Names from one tier on along `fallbackTier`; ends before it would come by a second time.
fn chain<'a>(tiers: &'a CompositeTiers, from: &'a str) -> impl Iterator<Item = &'a str> {
    let mut seen = BTreeSet::new();
    let next = |name: &&'a str| tiers.tiers.get(*name)?.fallback_tier.as_deref();
    std::iter::successors(Some(from), next).take_while(move |name| seen.insert(*name))
}

/// Says what is wrong with the tiers of a combo whose steps have these ids.
pub(super) fn check(path: &str, tiers: &CompositeTiers, ids: &[String], found: &mut Violations) {
    if !found.at_most(format!("{path}.tiers"), tiers.tiers.len(), MAX_TIERS) {
        return;
    }
    let is_long = |name: &String| name.is_empty() || name.len() > MAX_TIER_BYTES;
    if tiers.tiers.keys().any(is_long) {
        let message = format!("names of tiers must have 1 to {MAX_TIER_BYTES} bytes");
        found.push(format!("{path}.tiers"), message);
        return;
    }
    let unknown = "there is no such tier";
    if !tiers.tiers.contains_key(&tiers.default_tier) {
        found.push(format!("{path}.defaultTier"), unknown);
    }
    for (name, tier) in &tiers.tiers {
        let path = format!("{path}.tiers.{name}");
        if !ids.contains(&tier.step_id) {
            found.push(format!("{path}.stepId"), "there is no step with this id");
        }
        let Some(fallback) = &tier.fallback_tier else {
            continue;
        };
        if !tiers.tiers.contains_key(fallback) {
            found.push(format!("{path}.fallbackTier"), unknown);
        } else if chain(tiers, fallback).any(|next| next == name) {
            let message = format!("leads back to tier {name}");
            found.push(format!("{path}.fallbackTier"), message);
        }
    }
}

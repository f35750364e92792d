//! The targets that a request may use, before they are ordered: those of its combo, in the combo's order, or the
//! accounts of each where the strategy orders accounts (`routing.md` §2, 4d; decision 31).
//!
//! The list depends on the configuration alone, so that positions in it mean the same in every decision of a request.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::config::{ComboConfig, ComboEntry, ComboTarget, Config, NestedCombo, Strategy, Unit};

use super::strategy;

/// Most targets after expansion; the accounts beyond are reached through their unexpanded target, which then stands
/// behind its expanded ones.
pub(super) const MAX_EXPANDED: usize = 1_000;

/// Targets, and what the strategy orders where that is not each target by itself.
#[derive(Debug)]
pub(super) struct Pool<'a> {
    pub(super) targets: Cow<'a, [ComboTarget]>,
    pub(super) units: Cow<'a, [Unit]>,
}

/// The targets of a combo.
pub(super) fn of_combo<'a>(config: &Config, entry: &'a ComboEntry) -> Pool<'a> {
    let as_resolved = Pool {
        targets: Cow::Borrowed(&entry.targets),
        units: Cow::Borrowed(&entry.units),
    };
    let mut expanded = Vec::new();
    if expands(entry.combo.strategy, &entry.config) {
        expanded.push(0..entry.targets.len());
    } else {
        nested_expanded(&entry.units, &mut expanded);
    }
    let is_unpinned = |range: &Range<usize>| {
        let targets = entry.targets.get(range.clone()).unwrap_or_default();
        targets.iter().any(|target| target.connection.is_none())
    };
    if !expanded.iter().any(is_unpinned) {
        return as_resolved;
    }
    let Expanded { targets, starts } = expand(config, &entry.targets, &expanded);
    let units = moved(&entry.units, &targets, &starts);
    Pool {
        targets: Cow::Owned(targets),
        units: Cow::Owned(units),
    }
}

fn expands(strategy: Strategy, config: &ComboConfig) -> bool {
    config
        .connection_aware_expansion
        .unwrap_or_else(|| strategy::of(strategy).expands_accounts())
}

/// Where the targets of combos within others are that order accounts.
fn nested_expanded(units: &[Unit], ranges: &mut Vec<Range<usize>>) {
    for unit in units {
        let Some(nested) = &unit.nested else { continue };
        if expands(nested.strategy, &nested.config) {
            ranges.push(index(unit.start)..index(unit.end));
        } else {
            nested_expanded(&nested.units, ranges);
        }
    }
}

struct Expanded {
    targets: Vec<ComboTarget>,
    /// Where each target stands now, and one more for the end.
    starts: Vec<u32>,
}

/// Targets within the ranges, which are ascending and apart, are replaced by their accounts.
fn expand(config: &Config, targets: &[ComboTarget], ranges: &[Range<usize>]) -> Expanded {
    let mut room = MAX_EXPANDED.saturating_sub(targets.len());
    let mut pool = Vec::with_capacity(targets.len());
    let mut starts = Vec::with_capacity(targets.len().saturating_add(1));
    let mut ranges = ranges.iter().peekable();
    for (position, target) in targets.iter().enumerate() {
        starts.push(number(pool.len()));
        while ranges.next_if(|range| range.end <= position).is_some() {}
        let is_meant = ranges.peek().is_some_and(|range| range.contains(&position));
        let accounts = match (&target.connection, config.provider(&target.provider)) {
            (None, Some(entry)) if is_meant => entry.connections.as_slice(),
            _ => &[],
        };
        let allowed = |connection| {
            target.allowed_connections.is_empty() || target.allowed_connections.contains(connection)
        };
        let mut left_out = accounts.is_empty();
        for account in accounts.iter().filter(|account| allowed(&account.id)) {
            if room == 0 {
                left_out = true;
                break;
            }
            room = room.saturating_sub(1);
            pool.push(ComboTarget {
                connection: Some(account.id.clone()),
                key: format!("{}@{}", target.key, account.id).into(),
                ..target.clone()
            });
        }
        if left_out {
            pool.push(target.clone());
        }
    }
    starts.push(number(pool.len()));
    Expanded {
        targets: pool,
        starts,
    }
}

/// The units over the expanded targets; each account is one of its own.
fn moved(units: &[Unit], targets: &[ComboTarget], starts: &[u32]) -> Vec<Unit> {
    let place = |position: u32| starts.get(index(position)).copied().unwrap_or(position);
    let mut all = Vec::with_capacity(units.len());
    for unit in units {
        let (start, end) = (place(unit.start), place(unit.end));
        match &unit.nested {
            Some(nested) => all.push(Unit {
                start,
                end,
                nested: Some(Box::new(NestedCombo {
                    units: moved(&nested.units, targets, starts),
                    ..nested.as_ref().clone()
                })),
                ..unit.clone()
            }),
            None => all.extend((start..end).filter_map(|position| {
                Some(Unit {
                    key: Arc::clone(&targets.get(index(position))?.key),
                    start: position,
                    end: position.saturating_add(1),
                    ..unit.clone()
                })
            })),
        }
    }
    all
}

fn index(position: u32) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

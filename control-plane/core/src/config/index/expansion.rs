//! Accounts in place of targets that name none, where a combo orders accounts (`routing.md` §2, 4d; decision 31).
//!
//! It is done when a configuration is applied: a decision borrows the list, and positions in it mean the same in every
//! decision under one configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::ids::{ComboName, ProviderId};
use crate::routing::strategy;

use super::super::{
    ComboConfig, ComboEntry, ComboTarget, NestedCombo, ProviderEntry, Strategy, Unit,
};
use super::combos::MAX_ALL_TARGETS;

/// Most targets of a combo after expansion; the accounts beyond are reached through their unexpanded target, which then
/// stands behind its expanded ones.
const MAX_EXPANDED: usize = 1_000;

/// A list of targets, and the same expanded.
type Pair = (Arc<[ComboTarget]>, Arc<[ComboTarget]>);

type Providers = BTreeMap<ProviderId, ProviderEntry>;

/// Expands the targets of every combo that orders accounts. All of them together get at most as many targets as steps may
/// come to; combos that find no room left stay as they are.
pub(super) fn expand(entries: &mut BTreeMap<ComboName, ComboEntry>, providers: &Providers) {
    let mut all_room = MAX_ALL_TARGETS;
    // Built-in combos share their targets, so they share the expanded ones too.
    let mut shared: Option<Pair> = None;
    for entry in entries.values_mut() {
        let ranges = ranges(entry);
        let is_whole = entry.units.is_empty();
        if ranges.is_empty() {
            continue;
        }
        if let Some((before, after)) = &shared
            && is_whole
            && Arc::ptr_eq(before, &entry.targets)
        {
            entry.targets = Arc::clone(after);
            continue;
        }
        let room = all_room.min(MAX_EXPANDED.saturating_sub(entry.targets.len()));
        let Expanded { targets, starts } = expanded(&entry.targets, &ranges, providers, room);
        let added = targets.len().saturating_sub(entry.targets.len());
        all_room = all_room.saturating_sub(added);
        entry.units = moved(&entry.units, &targets, &starts);
        let targets: Arc<[ComboTarget]> = targets.into();
        if is_whole {
            shared = Some((Arc::clone(&entry.targets), Arc::clone(&targets)));
        }
        entry.targets = targets;
    }
}

/// Whether a combo orders accounts: its strategy must, or it was asked to. Conversations stay with an account, so a combo
/// that keeps them together orders accounts too.
fn expands(strategy: Strategy, config: &ComboConfig) -> bool {
    strategy::of(strategy).expands_accounts()
        || config.connection_aware_expansion == Some(true)
        || config.session_stickiness == Some(true)
}

/// Where the targets of a combo stand that are expanded.
fn ranges(entry: &ComboEntry) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    if expands(entry.combo.strategy, &entry.config) {
        ranges.push(0..entry.targets.len());
    } else {
        of_nested(&entry.units, &mut ranges);
    }
    let is_unpinned = |range: &Range<usize>| {
        let targets = entry.targets.get(range.clone()).unwrap_or_default();
        targets.iter().any(|target| target.connection.is_none())
    };
    if ranges.iter().any(is_unpinned) {
        ranges
    } else {
        Vec::new()
    }
}

/// Where the targets of combos within others are that order accounts.
fn of_nested(units: &[Unit], ranges: &mut Vec<Range<usize>>) {
    for unit in units {
        let Some(nested) = &unit.nested else { continue };
        if expands(nested.strategy, &nested.config) {
            ranges.push(index(unit.start)..index(unit.end));
        } else {
            of_nested(&nested.units, ranges);
        }
    }
}

struct Expanded {
    targets: Vec<ComboTarget>,
    /// Where each target stands now, and one more for the end.
    starts: Vec<u32>,
}

/// Targets within the ranges, which are ascending and apart, are replaced by their accounts; there is room for so many
/// more than there were.
fn expanded(
    targets: &[ComboTarget],
    ranges: &[Range<usize>],
    providers: &Providers,
    mut room: usize,
) -> Expanded {
    let mut pool = Vec::with_capacity(targets.len());
    let mut starts = Vec::with_capacity(targets.len().saturating_add(1));
    let mut ranges = ranges.iter().peekable();
    for (position, target) in targets.iter().enumerate() {
        starts.push(number(pool.len()));
        while ranges.next_if(|range| range.end <= position).is_some() {}
        let is_meant = ranges.peek().is_some_and(|range| range.contains(&position));
        let accounts = match (&target.connection, providers.get(&target.provider)) {
            (None, Some(entry)) if is_meant => entry.connections.as_slice(),
            _ => &[],
        };
        let allowed = &target.allowed_connections;
        let unlimited = ComboTarget {
            allowed_connections: BTreeSet::new(),
            ..target.clone()
        };
        let mut left_out = accounts.is_empty();
        for account in accounts
            .iter()
            .filter(|account| allowed.is_empty() || allowed.contains(&account.id))
        {
            if room == 0 {
                left_out = true;
                break;
            }
            room = room.saturating_sub(1);
            pool.push(ComboTarget {
                connection: Some(account.id.clone()),
                expanded: true,
                key: format!("{}@{}", target.key, account.id).into(),
                ..unlimited.clone()
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

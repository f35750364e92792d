//! The targets that a request may use, before they are ordered: those of its combo, in the combo's order, or the
//! accounts of each where the strategy orders accounts (`routing.md` §2, 4d; decision 31).
//!
//! The list depends on the configuration alone, so that positions in it mean the same in every decision of a request.

use std::borrow::Cow;

use crate::config::{ComboEntry, ComboTarget, Config};

use super::strategy;

/// Most targets after expansion; the accounts beyond are reached through their unexpanded target, which then stands
/// behind its expanded ones.
pub(super) const MAX_EXPANDED: usize = 1_000;

/// The targets of a combo.
pub(super) fn of_combo<'a>(config: &Config, entry: &'a ComboEntry) -> Cow<'a, [ComboTarget]> {
    let expands = entry
        .config
        .connection_aware_expansion
        .unwrap_or_else(|| strategy::of(entry.combo.strategy).expands_accounts());
    if expands
        && entry
            .targets
            .iter()
            .any(|target| target.connection.is_none())
    {
        Cow::Owned(expanded(config, &entry.targets))
    } else {
        Cow::Borrowed(&entry.targets)
    }
}

fn expanded(config: &Config, targets: &[ComboTarget]) -> Vec<ComboTarget> {
    let mut room = MAX_EXPANDED.saturating_sub(targets.len());
    let mut pool = Vec::with_capacity(targets.len());
    for target in targets {
        let accounts = match (&target.connection, config.provider(&target.provider)) {
            (None, Some(entry)) => entry.connections.as_slice(),
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
    pool
}

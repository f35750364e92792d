//! Whether what a request names uses one connection at a time, as a lease asks (`sessions-and-streams.md` §1.10).

use std::collections::BTreeSet;

use crate::config::{ComboEntry, Config, Strategy};
use crate::ids::ConnectionId;

/// Most steps that are looked at; a combo that leads to more is taken for one that uses several connections.
const MAX_VISITS: usize = 10_000;

/// Whether a request for this model would be for several connections, or may be: a `fusion`, a `context-relay`, a
/// `pipeline` of several steps, a combo with several fixed accounts, and whatever has one of these in it.
#[must_use]
pub fn uses_several_connections(config: &Config, model: &str) -> bool {
    let Some(combo) = config.combo_for(model) else {
        return false;
    };
    let mut met = BTreeSet::from([combo.combo.name.as_str()]);
    let mut fixed: BTreeSet<&ConnectionId> = BTreeSet::new();
    let mut to_visit = vec![combo];
    let mut visits = 0_usize;
    while let Some(entry) = to_visit.pop() {
        if fans_out(entry) {
            return true;
        }
        for step in &entry.combo.steps {
            visits = visits.saturating_add(1);
            fixed.extend(step.connection());
            if visits > MAX_VISITS || fixed.len() > 1 {
                return true;
            }
            if let Some(nested) = config.referred(step)
                && met.insert(nested.combo.name.as_str())
            {
                to_visit.push(nested);
            }
        }
    }
    false
}

fn fans_out(entry: &ComboEntry) -> bool {
    match entry.combo.strategy {
        Strategy::Fusion | Strategy::ContextRelay => true,
        Strategy::Pipeline => {
            let steps: BTreeSet<u32> = entry.targets.iter().map(|target| target.group).collect();
            steps.len() > 1
        }
        _ => false,
    }
}

//! What seeing a lease does to its connection (decision 42b).

use crate::ids::ConnectionId;
use crate::state::{ConnectionState, LeaseMirror, TransitionKind};

use super::Log;

/// Keeps the later state of what is known and what was seen. Says whether that changed anything.
pub(super) fn shown(
    state: &mut ConnectionState,
    connection: &ConnectionId,
    seen: &LeaseMirror,
    log: &mut Log<'_>,
) -> bool {
    let known = state.lease.as_ref();
    if LeaseMirror::later(known, Some(seen)) == known {
        return false;
    }
    let held = known.filter(|known| known.holds_until(log.at).is_some());
    let is_same = held.is_some_and(|held| held.lease == seen.lease);
    match seen.holds_until(log.at) {
        Some(until) if !is_same => log.connection(connection, TransitionKind::Leased { until }),
        None if held.is_some() => log.connection(connection, TransitionKind::LeaseEnded),
        Some(_) | None => {}
    }
    state.lease = Some(seen.clone());
    true
}

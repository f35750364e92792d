//! OAuth accounts that other sessions of the asking data plane are using (`sessions-and-streams.md` §1.12).
//!
//! What the strategy of a provider chose may be swapped for an account that fewer others use and that is at most one step
//! of priority behind. It refuses nothing, and has no say where sessions are kept together ([`super::pinned`]), or where
//! an operator, a step, a lease or the strategy of a combo names the account.

use std::sync::Arc;

use crate::config::{ComboTarget, Config, Connection, ProviderEntry};
use crate::ids::ConnectionId;
use crate::occupancy::{self, Peer};
use crate::settings::ProviderClass;

use super::accounts::Scene;
use super::{RequestFacts, pinned, resolve_request};

/// Most accounts that a question tells of.
pub const MAX_OCCUPIED: usize = 64;

/// Whether it matters to a request which accounts others are using: some target of it leaves the choice among OAuth
/// accounts to their provider.
#[must_use]
pub fn minds_occupancy(config: &Config, facts: &RequestFacts) -> bool {
    let is_choice = |target: &ComboTarget| {
        let entry = config.provider(&target.provider);
        target.connection.is_none()
            && entry.is_some_and(|entry| {
                entry.policy.class == ProviderClass::Oauth && entry.connections.len() > 1
            })
    };
    has_a_say(config, facts)
        && resolve_request(config, facts).is_some_and(|route| route.targets.iter().any(is_choice))
}

/// Nothing that goes before it says which account it is.
fn has_a_say(config: &Config, facts: &RequestFacts) -> bool {
    facts.forced_connection.is_none()
        && !pinned::is_managed(facts)
        && !pinned::is_kept(config, facts)
}

/// The account to use where the provider's strategy selected this one of an unpinned target.
pub(super) fn less_occupied<'a>(
    scene: &Scene<'_>,
    entry: &ProviderEntry,
    accounts: &'a [Arc<Connection>],
    selected: &'a Arc<Connection>,
    is_eligible: &dyn Fn(&Connection) -> bool,
) -> &'a Arc<Connection> {
    let input = scene.input;
    let occupied = &input.so_far.occupied;
    if occupied.is_empty()
        || entry.policy.class != ProviderClass::Oauth
        || !has_a_say(input.config, input.facts)
    {
        return selected;
    }
    let others = |connection: &ConnectionId| {
        let known = occupied.iter().find(|(other, _)| other == connection);
        known.map_or(0, |(_, others)| {
            usize::try_from(*others).unwrap_or(usize::MAX)
        })
    };
    if others(&selected.id) == 0 {
        return selected;
    }
    let peers = accounts
        .iter()
        .filter(|account| is_eligible(account))
        .map(|account| peer(account));
    let chosen = occupancy::swap(peer(selected), peers, others);
    accounts
        .iter()
        .find(|account| account.id == *chosen.connection)
        .unwrap_or(selected)
}

fn peer(account: &Connection) -> Peer<'_> {
    Peer {
        connection: &account.id,
        priority: account.priority,
    }
}

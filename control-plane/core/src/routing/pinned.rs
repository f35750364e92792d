//! Accounts that sessions are kept together on (`sessions-and-streams.md` §2.3, decision 43).
//!
//! It goes before the strategy that chooses among the accounts of a provider: a session goes where it is pinned, if that
//! may be used, and without a pin where the rendezvous hash of its key puts it among what may be used. Where a combo
//! orders accounts itself, only a pin that may be used goes before its strategy; what the strategy chose otherwise becomes
//! the pin. Accounts that an operator, a step or a lease names are not up for choice.
//!
//! An account whose permits are all out for now keeps its sessions: a request that cannot wait goes elsewhere once.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::affinity::{self, Pin, PinKey, PinReading, PinWrite};
use crate::config::{Config, Connection, ProviderEntry, Strategy};
use crate::ids::{ConnectionId, ModelId, ProviderId};

use super::accounts::{Account, Past, Scene, Surroundings};
use super::strategy::{Halt, Ordered};
use super::{ExclusionReason, Input, RequestFacts};

/// Most providers of one order whose pins are looked at.
const MAX_PROVIDERS: usize = 8;

/// A session at a provider.
pub(super) struct Session {
    key: PinKey,
    stored: Option<Pin>,
    ttl_ms: u64,
}

impl Session {
    /// The pin, unless its time is over.
    fn live(&self, scene: &Scene<'_>) -> Option<&Pin> {
        let now = scene.input.now;
        self.stored.as_ref().filter(|pin| pin.expires_at > now)
    }

    /// Where it is pinned to.
    pub(super) fn connection(&self, scene: &Scene<'_>) -> Option<&ConnectionId> {
        self.live(scene).map(|pin| &pin.connection)
    }

    fn write(&self, change: affinity::PinChange) -> PinWrite {
        PinWrite {
            key: self.key.clone(),
            change,
        }
    }
}

/// The request belongs to a lease, or must.
pub(super) fn is_managed(facts: &RequestFacts) -> bool {
    facts.lease.is_some() || facts.key.as_ref().is_some_and(|key| key.may_lease())
}

/// The request belongs to a session that is kept together.
pub(super) fn is_kept(config: &Config, facts: &RequestFacts) -> bool {
    ttl_ms(config, facts) > 0
}

/// How long the request's session is kept together, in ms; 0 = not at all.
fn ttl_ms(config: &Config, facts: &RequestFacts) -> u64 {
    if facts.session_key.is_none() || facts.forced_connection.is_some() || is_managed(facts) {
        return 0;
    }
    affinity::ttl_ms(None, config.settings.session_affinity_ttl_ms)
}

/// The pin of a request's session at a provider; `None` when it has no session, or is not kept together.
#[must_use]
pub fn pin_key(config: &Config, facts: &RequestFacts, provider: &ProviderId) -> Option<PinKey> {
    let session = facts.session_key.as_ref()?;
    let client = facts.key.as_ref().map(|key| &key.id);
    is_kept(config, facts).then(|| PinKey::new(provider, client, session))
}

/// The request's session at a provider; `None` when it has none, or is not kept together.
///
/// # Errors
/// [`Halt::ReadPin`].
pub(super) fn session(scene: &Scene<'_>, provider: &ProviderId) -> Result<Option<Session>, Halt> {
    let Input {
        config,
        facts,
        view,
        ..
    } = scene.input;
    let Some(key) = pin_key(config, facts, provider) else {
        return Ok(None);
    };
    match view.pin(&key) {
        PinReading::Unread => Err(Halt::ReadPin(key)),
        PinReading::Read(stored) => Ok(Some(Session {
            key,
            stored,
            ttl_ms: ttl_ms(config, facts),
        })),
    }
}

/// The account of the session among those of an unpinned target; `None` when none may be used.
pub(super) fn place<'a>(
    scene: &Scene<'a>,
    session: &Session,
    entry: &'a ProviderEntry,
    accounts: &'a [Arc<Connection>],
    surroundings: &Surroundings<'_>,
    past: Past<'_>,
    ignore_cooldown: bool,
) -> Option<Account<'a>> {
    let hit = |connection: &Connection| surroundings.hit(connection, past, ignore_cooldown).1;
    let pinned = session
        .live(scene)
        .and_then(|pin| accounts.iter().find(|it| it.id == pin.connection));
    let mut pool = Vec::new();
    let mut is_full = false;
    if let Some(pinned) = pinned {
        match hit(pinned) {
            None => pool.push(pinned.id.clone()),
            Some(hit) => is_full = hit.reason == ExclusionReason::ConcurrencyCap,
        }
    }
    if pool.is_empty() {
        for connection in accounts {
            match hit(connection) {
                None => pool.push(connection.id.clone()),
                Some(hit) if hit.whole_target => return None,
                Some(_) => {}
            }
        }
    }
    let stored = session.stored.as_ref();
    let now = scene.input.now;
    let chosen = affinity::select(&session.key, stored, &pool, session.ttl_ms, now)?;
    let connection = accounts.iter().find(|it| it.id == *chosen.connection)?;
    let change = chosen.change.filter(|_| !is_full);
    Some(Account {
        pin: change.map(|change| session.write(change)),
        ..surroundings.account(entry, connection)
    })
}

/// What becomes of the pin when the strategy of a combo, or the permit that it waited for, sends the session to this
/// account.
pub(super) fn follow(
    scene: &Scene<'_>,
    session: &Session,
    connection: &Connection,
    surroundings: &Surroundings<'_>,
    past: Past<'_>,
) -> Option<PinWrite> {
    let pinned = session
        .live(scene)
        .filter(|pin| pin.connection != connection.id)
        .and_then(|pin| scene.input.config.connection(&pin.connection));
    let stays = pinned.is_some_and(|pinned| {
        let hit = surroundings.hit(pinned, past, false).1;
        hit.is_none_or(|hit| hit.reason == ExclusionReason::ConcurrencyCap)
    });
    if stays {
        return None;
    }
    let now = scene.input.now;
    let stored = session.stored.as_ref();
    let change = affinity::went_to(stored, &connection.id, session.ttl_ms, now)?;
    Some(session.write(change))
}

/// Whether pins have a say in the order of the targets.
pub(super) fn orders(scene: &Scene<'_>) -> bool {
    let sends_to_all = matches!(scene.route.strategy, Strategy::Fusion | Strategy::Pipeline);
    !sends_to_all
        && is_kept(scene.input.config, scene.input.facts)
        && scene.route.targets.iter().any(|target| target.expanded)
}

/// Puts the pinned account first among those that a target was expanded to, at the first of the places that they have.
/// Of the providers beyond [`MAX_PROVIDERS`] no pins are looked at.
///
/// # Errors
/// [`Halt::ReadPin`].
pub(super) fn lead(scene: &Scene<'_>, ordered: &mut Ordered) -> Result<(), Halt> {
    if !orders(scene) {
        return Ok(());
    }
    let movable = ordered.movable.min(ordered.order.len());
    let order = ordered.order.get_mut(..movable).unwrap_or_default();
    let expanded = |index: usize| scene.route.targets.get(index).filter(|it| it.expanded);
    let mut places: BTreeMap<(&ProviderId, u32, &ModelId), Vec<usize>> = BTreeMap::new();
    let mut providers: Vec<&ProviderId> = Vec::new();
    for (place, index) in order.iter().enumerate() {
        let Some(target) = expanded(*index) else {
            continue;
        };
        if !providers.contains(&&target.provider) {
            if providers.len() >= MAX_PROVIDERS {
                continue;
            }
            providers.push(&target.provider);
        }
        let of_target = (&target.provider, target.group, &target.model);
        places.entry(of_target).or_default().push(place);
    }
    let mut sessions = BTreeMap::new();
    for provider in providers {
        if let Some(session) = session(scene, provider)? {
            sessions.insert(provider, session);
        }
    }
    for ((provider, ..), places) in places {
        let pin = sessions.get(provider).and_then(|it| it.live(scene));
        let Some(pin) = pin else { continue };
        let is_pinned = |place: &usize| {
            let target = order.get(*place).and_then(|index| expanded(*index));
            target.is_some_and(|target| {
                target.connection.as_ref() == Some(&pin.connection)
                    && scene.has_eligible_account(target)
            })
        };
        let Some(found) = places.iter().position(is_pinned) else {
            continue;
        };
        let mut before: Vec<usize> = places
            .iter()
            .take(found.saturating_add(1))
            .filter_map(|place| order.get(*place).copied())
            .collect();
        before.rotate_right(1);
        for (place, index) in places.iter().zip(before) {
            if let Some(slot) = order.get_mut(*place) {
                *slot = index;
            }
        }
    }
    Ok(())
}

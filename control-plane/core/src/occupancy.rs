//! Which OAuth accounts other sessions are using (`sessions-and-streams.md` §1.12). It orders accounts that are equal
//! otherwise and refuses nothing. Each data plane knows only its own sessions.

use std::collections::BTreeMap;

use crate::ids::ConnectionId;
use crate::session_key::SessionKey;
use crate::time::Timestamp;

/// How long a session occupies an account after it was last reserved, in ms, should its end get lost.
pub const OCCUPANCY_TTL_MS: u64 = 600_000;
/// Most pairs of account and session that are known at once. Further ones are not counted.
pub const MAX_OCCUPANTS: usize = 16_384;

/// The sessions on accounts.
#[derive(Debug, Default)]
pub struct Occupancy {
    accounts: BTreeMap<ConnectionId, BTreeMap<SessionKey, Occupant>>,
    occupants: usize,
    /// The number of the next occupant.
    next: u64,
}

#[derive(Debug)]
struct Occupant {
    /// Which of all occupants: the same session may come back after its time was over.
    number: u64,
    requests: u64,
    until: Timestamp,
}

/// One request of a session on an account. Given back once, since it cannot be copied.
#[derive(Debug)]
pub struct Reservation {
    connection: ConnectionId,
    session: SessionKey,
    number: u64,
}

/// An account that could serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'a> {
    /// The account.
    pub connection: &'a ConnectionId,
    /// Lower is preferred.
    pub priority: u32,
}

impl Occupancy {
    /// A request of a session goes to an account. `None` when as many are known as may be; the request goes there all
    /// the same.
    pub fn reserve(
        &mut self,
        connection: &ConnectionId,
        session: &SessionKey,
        now: Timestamp,
    ) -> Option<Reservation> {
        let sessions = self.accounts.get(connection);
        let is_new = sessions.is_none_or(|sessions| !sessions.contains_key(session));
        if is_new && self.occupants >= MAX_OCCUPANTS {
            self.prune(now);
            if self.occupants >= MAX_OCCUPANTS {
                return None;
            }
        }
        let next = self.next;
        let sessions = self.accounts.entry(connection.clone()).or_default();
        let before = sessions
            .remove(session)
            .filter(|occupant| occupant.until > now);
        let (number, requests) = match &before {
            Some(occupant) => (occupant.number, occupant.requests),
            None => (next, 0),
        };
        let occupant = Occupant {
            number,
            requests: requests.saturating_add(1),
            until: now.plus_ms(OCCUPANCY_TTL_MS),
        };
        sessions.insert(session.clone(), occupant);
        self.occupants = self.occupants.saturating_add(usize::from(is_new));
        self.next = next.saturating_add(u64::from(before.is_none()));
        Some(Reservation {
            connection: connection.clone(),
            session: session.clone(),
            number,
        })
    }

    /// The request has ended. The session is gone from the account with its last one.
    pub fn release(&mut self, reservation: Reservation) {
        let Reservation {
            connection,
            session,
            number,
        } = reservation;
        let Some(sessions) = self.accounts.get_mut(&connection) else {
            return;
        };
        let Some(occupant) = sessions.get_mut(&session) else {
            return;
        };
        if occupant.number != number {
            return;
        }
        occupant.requests = occupant.requests.saturating_sub(1);
        if occupant.requests > 0 {
            return;
        }
        sessions.remove(&session);
        self.occupants = self.occupants.saturating_sub(1);
        if sessions.is_empty() {
            self.accounts.remove(&connection);
        }
    }

    /// How many other sessions are on an account. The fewer, the more available it is to this one.
    #[must_use]
    pub fn others(
        &self,
        connection: &ConnectionId,
        session: Option<&SessionKey>,
        now: Timestamp,
    ) -> usize {
        let sessions = self.accounts.get(connection).into_iter().flatten();
        sessions
            .filter(|(other, occupant)| Some(*other) != session && occupant.until > now)
            .count()
    }

    /// Orders accounts of equal priority by how available they are; equal ones stay as they stand.
    pub fn order(&self, peers: &mut [Peer<'_>], session: Option<&SessionKey>, now: Timestamp) {
        peers.sort_by_cached_key(|peer| {
            let others = self.others(peer.connection, session, now);
            (peer.priority, others)
        });
    }

    /// The account to use where another rule selected one: the most available whose priority is at most one step
    /// behind, and the selected one unless that is really better.
    #[must_use]
    pub fn swap<'a>(
        &self,
        selected: Peer<'a>,
        peers: &[Peer<'a>],
        session: Option<&SessionKey>,
        now: Timestamp,
    ) -> Peer<'a> {
        let behind = selected.priority.saturating_add(1);
        let occupied = self.others(selected.connection, session, now);
        peers
            .iter()
            .filter(|peer| peer.priority <= behind)
            .map(|peer| (self.others(peer.connection, session, now), peer))
            .filter(|(others, _)| *others < occupied)
            .min_by_key(|(others, peer)| (*others, peer.priority))
            .map_or(selected, |(_, peer)| *peer)
    }

    fn prune(&mut self, now: Timestamp) {
        self.accounts.retain(|_, sessions| {
            sessions.retain(|_, occupant| occupant.until > now);
            !sessions.is_empty()
        });
        self.occupants = self.accounts.values().map(BTreeMap::len).sum();
    }
}

#[cfg(test)]
mod tests;

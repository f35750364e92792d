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
        let others = |connection: &ConnectionId| self.others(connection, session, now);
        swap(selected, peers.iter().copied(), others)
    }

    /// Which accounts how many other sessions are on, the most occupied first, at most `limit` of them.
    #[must_use]
    pub fn of_others(
        &self,
        session: Option<&SessionKey>,
        now: Timestamp,
        limit: usize,
    ) -> Vec<(ConnectionId, u32)> {
        let mut occupied: Vec<(ConnectionId, u32)> = self
            .accounts
            .keys()
            .map(|connection| (connection, self.others(connection, session, now)))
            .filter(|(_, others)| *others > 0)
            .map(|(connection, others)| {
                (
                    connection.clone(),
                    u32::try_from(others).unwrap_or(u32::MAX),
                )
            })
            .collect();
        occupied.sort_by_key(|(_, others)| std::cmp::Reverse(*others));
        occupied.truncate(limit);
        occupied
    }

    /// How many pairs of account and session are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.occupants
    }

    /// No session is on any account.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.occupants == 0
    }

    fn prune(&mut self, now: Timestamp) {
        self.accounts.retain(|_, sessions| {
            sessions.retain(|_, occupant| occupant.until > now);
            !sessions.is_empty()
        });
        self.occupants = self.accounts.values().map(BTreeMap::len).sum();
    }
}

/// As [`Occupancy::swap`], of accounts that `others` tells the other sessions of.
#[must_use]
pub fn swap<'a>(
    selected: Peer<'a>,
    peers: impl Iterator<Item = Peer<'a>>,
    others: impl Fn(&ConnectionId) -> usize,
) -> Peer<'a> {
    let behind = selected.priority.saturating_add(1);
    let occupied = others(selected.connection);
    peers
        .filter(|peer| peer.priority <= behind)
        .map(|peer| (others(peer.connection), peer))
        .filter(|(others, _)| *others < occupied)
        .min_by_key(|(others, peer)| (*others, peer.priority))
        .map_or(selected, |(_, peer)| peer)
}

#[cfg(test)]
mod tests;

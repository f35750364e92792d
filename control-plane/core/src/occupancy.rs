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
    /// Every occupant by when its time is over and its number.
    ends: BTreeMap<(Timestamp, u64), Whose>,
    /// The number of the next occupant.
    next: u64,
}

/// The account and the session of an occupant.
type Whose = (ConnectionId, SessionKey);

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
        self.prune(now);
        let sessions = self.accounts.get(connection);
        let before = sessions
            .and_then(|sessions| sessions.get(session))
            .map(|occupant| (occupant.number, occupant.requests, occupant.until));
        let (number, requests) = match before {
            Some((number, requests, until)) => {
                self.ends.remove(&(until, number));
                (number, requests)
            }
            None if self.ends.len() >= MAX_OCCUPANTS => return None,
            None => {
                let number = self.next;
                self.next = number.saturating_add(1);
                (number, 0)
            }
        };
        let until = now.plus_ms(OCCUPANCY_TTL_MS);
        let whose = (connection.clone(), session.clone());
        self.ends.insert((until, number), whose);
        let sessions = self.accounts.entry(connection.clone()).or_default();
        sessions.insert(
            session.clone(),
            Occupant {
                number,
                requests: requests.saturating_add(1),
                until,
            },
        );
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
        let sessions = self.accounts.get_mut(&connection);
        let occupant = sessions.and_then(|sessions| sessions.get_mut(&session));
        let Some(occupant) = occupant.filter(|occupant| occupant.number == number) else {
            return;
        };
        occupant.requests = occupant.requests.saturating_sub(1);
        if occupant.requests == 0 {
            let until = occupant.until;
            self.ends.remove(&(until, number));
            self.forget(&connection, &session);
        }
    }

    /// How many other sessions are on an account. The fewer, the more available it is to this one.
    #[must_use]
    pub fn others(
        &mut self,
        connection: &ConnectionId,
        session: Option<&SessionKey>,
        now: Timestamp,
    ) -> usize {
        self.prune(now);
        let sessions = self.accounts.get(connection);
        sessions.map_or(0, |sessions| others_of(sessions, session))
    }

    /// The account to use where another rule selected one: the most available whose priority is at most one step
    /// behind, and the selected one unless that is really better.
    #[must_use]
    pub fn swap<'a>(
        &mut self,
        selected: Peer<'a>,
        peers: &[Peer<'a>],
        session: Option<&SessionKey>,
        now: Timestamp,
    ) -> Peer<'a> {
        self.prune(now);
        let others = |connection: &ConnectionId| {
            let sessions = self.accounts.get(connection);
            sessions.map_or(0, |sessions| others_of(sessions, session))
        };
        swap(selected, peers.iter().copied(), others)
    }

    /// Which accounts how many other sessions are on, the most occupied first, at most `limit` of them. It looks at every
    /// account and at no session.
    #[must_use]
    pub fn of_others(
        &mut self,
        session: Option<&SessionKey>,
        now: Timestamp,
        limit: usize,
    ) -> Vec<(ConnectionId, u32)> {
        self.prune(now);
        let mut occupied: Vec<(ConnectionId, u32)> = self
            .accounts
            .iter()
            .map(|(connection, sessions)| (connection, others_of(sessions, session)))
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
        self.ends.len()
    }

    /// No session is on any account.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forgets the occupants whose time is over.
    fn prune(&mut self, now: Timestamp) {
        while let Some(first) = self.ends.first_entry()
            && first.key().0 <= now
        {
            let (connection, session) = first.remove();
            self.forget(&connection, &session);
        }
    }

    fn forget(&mut self, connection: &ConnectionId, session: &SessionKey) {
        if let Some(sessions) = self.accounts.get_mut(connection) {
            sessions.remove(session);
            if sessions.is_empty() {
                self.accounts.remove(connection);
            }
        }
    }
}

fn others_of(sessions: &BTreeMap<SessionKey, Occupant>, session: Option<&SessionKey>) -> usize {
    let own = session.is_some_and(|session| sessions.contains_key(session));
    sessions.len().saturating_sub(usize::from(own))
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

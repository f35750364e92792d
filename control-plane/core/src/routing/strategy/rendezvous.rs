//! Rendezvous hashing: for one key the same order everywhere, and when a candidate goes, only its keys move
//! (`routing.md` §8.17).

use sha2::{Digest, Sha256};

use crate::ids::ConnectionId;

use super::Candidate;

/// A key that candidates are scored for.
#[derive(Clone, Debug)]
pub(crate) struct Rendezvous {
    /// What every score begins with, hashed once.
    prefix: Sha256,
}

/// What a candidate is known by: its account, or where it has none its execution key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity<'a> {
    /// `connection:` or `execution:`.
    kind: &'static str,
    name: &'a str,
}

impl<'a> Identity<'a> {
    /// The candidate's.
    pub(crate) fn of(candidate: &Candidate<'a>) -> Self {
        match candidate.connection {
            Some(connection) => Self::of_connection(connection),
            None => Self {
                kind: "execution:",
                name: candidate.key,
            },
        }
    }

    /// An account's.
    pub(crate) fn of_connection(connection: &'a ConnectionId) -> Self {
        Self {
            kind: "connection:",
            name: connection.as_str(),
        }
    }
}

impl Rendezvous {
    /// Of this key.
    pub(crate) fn new(key: &str) -> Self {
        Self {
            prefix: Sha256::new().chain_update(key).chain_update([0]),
        }
    }

    /// The score of an identity; the highest is first. The first 128 bits of the SHA-256 of key, a zero byte and
    /// identity.
    pub(crate) fn score(&self, identity: Identity<'_>) -> u128 {
        let hash = self
            .prefix
            .clone()
            .chain_update(identity.kind)
            .chain_update(identity.name)
            .finalize();
        hash.iter()
            .take(16)
            .fold(0, |score, byte| (score << 8) | u128::from(*byte))
    }

    /// What candidates are sorted by, ascending: the highest score first, ties by identity.
    pub(crate) fn rank<'a>(
        &self,
        candidate: &Candidate<'a>,
    ) -> (std::cmp::Reverse<u128>, Identity<'a>) {
        self.rank_of(Identity::of(candidate))
    }

    /// The same of an identity.
    pub(crate) fn rank_of<'a>(
        &self,
        identity: Identity<'a>,
    ) -> (std::cmp::Reverse<u128>, Identity<'a>) {
        (std::cmp::Reverse(self.score(identity)), identity)
    }
}

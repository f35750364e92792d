//! What is to be ordered: targets, or the accounts of a provider.
//!
//! A provider may have a hundred thousand accounts, and most strategies that choose among them need to look at a few. So
//! a candidate of an account is made when it is looked at.

use std::sync::Arc;

use crate::config::Connection;
use crate::ids::{ConnectionId, ModelId, ProviderId};
use crate::number::Finite;

/// One thing to be ordered.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Identity for counts, decks, stickiness and hashes (`routing.md` §1.3, `executionKey`).
    pub key: &'a str,
    /// Provider.
    pub provider: &'a ProviderId,
    /// Model.
    pub model: &'a ModelId,
    /// Account, where it is one or is pinned to one.
    pub connection: Option<&'a ConnectionId>,
    /// Top-level step it belongs to; the candidates of a group stand together and share their weight.
    pub group: u32,
    /// Weight of the group, 0..=100.
    pub weight: Finite,
}

/// Candidates, each known by its position.
#[derive(Clone, Copy, Debug)]
pub enum Candidates<'a> {
    /// Targets, or what a combo keeps together.
    Targets(&'a [Candidate<'a>]),
    /// Accounts.
    Accounts {
        /// The target that they are the accounts of.
        of: Candidate<'a>,
        /// The accounts.
        accounts: &'a [Arc<Connection>],
    },
}

impl<'a> Candidates<'a> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Targets(targets) => targets.len(),
            Self::Accounts { accounts, .. } => accounts.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one at this position.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<Candidate<'a>> {
        match self {
            Self::Targets(targets) => targets.get(position).copied(),
            Self::Accounts { of, accounts } => {
                let id = &accounts.get(position)?.id;
                Some(Candidate {
                    key: id.as_str(),
                    connection: Some(id),
                    group: u32::try_from(position).unwrap_or(u32::MAX),
                    ..*of
                })
            }
        }
    }

    /// All of them, by position.
    #[must_use]
    pub fn iter(&self) -> Iter<'a> {
        Iter {
            all: *self,
            next: 0,
        }
    }
}

/// Candidates by position. It knows how many are left, so that a list of them is made at once.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    all: Candidates<'a>,
    next: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Candidate<'a>;

    fn next(&mut self) -> Option<Candidate<'a>> {
        let candidate = self.all.get(self.next)?;
        self.next = self.next.saturating_add(1);
        Some(candidate)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.all.len().saturating_sub(self.next);
        (left, Some(left))
    }
}

impl<'a> From<&'a [Candidate<'a>]> for Candidates<'a> {
    fn from(targets: &'a [Candidate<'a>]) -> Self {
        Self::Targets(targets)
    }
}

//! Where an inference request under a lease goes (`sessions-and-streams.md` §1.8, §1.10).

use std::collections::BTreeMap;
use std::fmt;

use crate::classify::TerminalKind;
use crate::config::Document;
use crate::ids::{ConnectionId, KeyId, ProviderId};
use crate::routing::ExclusionReason;
use crate::settings::LeaseSettings;
use crate::time::Timestamp;

use super::{
    Change, Eligible, EndReason, Lease, LeaseError, LeaseId, LeaseKey, LeaseName, Rows, Step,
    Stored, expire,
};

/// An inference request under a lease.
#[derive(Clone, Copy)]
pub struct Inference<'a> {
    /// The id of a new row, should there be one.
    pub id: LeaseId,
    /// Which lease it names.
    pub name: LeaseName,
    /// The key it came with.
    pub key: &'a KeyId,
    /// The connection it insists on.
    pub forced: Option<&'a ConnectionId>,
    /// What ordinary selection would use, in its order; not asked again when a race is lost.
    pub candidates: &'a [Eligible],
    /// Why ordinary selection does not use a connection; `None` where the reason is this request's alone and passes
    /// with it ([`EndReason::of_exclusion`]).
    pub why: &'a (dyn Fn(&ConnectionId) -> Option<EndReason> + Sync),
}

impl fmt::Debug for Inference<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Inference")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("key", &self.key)
            .field("forced", &self.forced)
            .field("candidates", &self.candidates)
            .finish_non_exhaustive()
    }
}

/// Where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To the connection of this lease.
    Lease(Lease),
    /// Nowhere new, for the reasons that hold without leases too: the answer is the ordinary one. Where the lease stands
    /// all the same, the request may not leave its connection; without one nothing may be sent.
    Ordinary(Option<Lease>),
}

impl Stored for Placement {
    fn stored(&mut self, lease: LeaseId, sequence: u64) {
        match self {
            Self::Lease(placed) | Self::Ordinary(Some(placed)) => placed.stored(lease, sequence),
            Self::Ordinary(None) => {}
        }
    }
}

/// Places a request on its lease's connection. When that is not eligible, the lease moves to a free one and keeps its
/// generation and its end; without a free one it is lost. What only this request may not do again there moves nothing.
#[must_use]
pub fn place(
    rows: &Rows<'_>,
    asked: &Inference<'_>,
    settings: &LeaseSettings,
    now: Timestamp,
) -> Step<Placement> {
    let mut changes = expire(rows.own, now);
    if asked.candidates.is_empty() {
        let mut stands = asked.find(rows, now).ok();
        if let Some(own) = stands
            && let Some(reason) = asked.ends_without_candidates(own)
        {
            changes.push(own.end(reason, now));
            stands = None;
        }
        return Step {
            changes,
            answer: Ok(Placement::Ordinary(stands.cloned())),
        };
    }
    let own = match asked.find(rows, now) {
        Ok(own) => own,
        Err(error) => {
            return Step {
                changes,
                answer: Err(error),
            };
        }
    };
    if asked
        .candidates
        .iter()
        .any(|to| to.connection == own.connection)
    {
        return Step {
            changes,
            answer: Ok(Placement::Lease(own.clone())),
        };
    }
    let Some(reason) = (asked.why)(&own.connection) else {
        return Step {
            changes,
            answer: Ok(Placement::Lease(own.clone())),
        };
    };
    changes.push(own.end(reason, now));
    let free = rows.first_free(asked.candidates, settings.drain_ms, now);
    let answer = free.map(|to| {
        let moved = own.moved_to(to, asked.id, now);
        changes.extend(rows.vacate(to, now));
        changes.push(Change::Open {
            lease: moved.clone(),
            begins: false,
        });
        Placement::Lease(moved)
    });
    Step { changes, answer }
}

impl Inference<'_> {
    fn find<'l>(&self, rows: &Rows<'l>, now: Timestamp) -> Result<&'l Lease, LeaseError> {
        let own = rows.live(now).ok_or(LeaseError::Required)?;
        own.check(self.name, self.key)?;
        match self.forced {
            Some(forced) if *forced != own.connection => Err(LeaseError::ConnectionMismatch),
            Some(_) | None => Ok(own),
        }
    }

    /// A lease is for a connection, not for a model: that nothing serves the model is no reason to lose it.
    fn ends_without_candidates(&self, own: &Lease) -> Option<EndReason> {
        (self.why)(&own.connection).filter(|reason| *reason != EndReason::ModelIneligible)
    }
}

impl Lease {
    /// Whether a request may use this lease of its owner.
    pub(super) fn check(&self, name: LeaseName, key: &KeyId) -> Result<(), LeaseError> {
        if self.name() == name && self.key == *key {
            Ok(())
        } else {
            Err(LeaseError::FenceStale)
        }
    }
}

impl EndReason {
    /// Why a lease ends whose connection ordinary selection excludes for this reason. `None` for what one request alone
    /// runs into: it may not leave its connection, but the lease stays.
    #[must_use]
    pub fn of_exclusion(reason: ExclusionReason) -> Option<Self> {
        match reason {
            ExclusionReason::Terminal(TerminalKind::CreditsExhausted)
            | ExclusionReason::QuotaCutoff => Some(Self::QuotaUnavailable),
            ExclusionReason::Terminal(TerminalKind::Expired | TerminalKind::Banned)
            | ExclusionReason::CircuitOpen
            | ExclusionReason::ProviderCooldown
            | ExclusionReason::EgressLocked
            | ExclusionReason::ConnectionCooldown => Some(Self::HealthOrCooldown),
            ExclusionReason::Disabled => Some(Self::ConnectionIneligible),
            ExclusionReason::NotAllowed => Some(Self::AuthorizationChanged),
            ExclusionReason::TagMismatch
            | ExclusionReason::CapabilityMismatch
            | ExclusionReason::ContextWindow
            | ExclusionReason::ProtocolMismatch
            | ExclusionReason::ModelLockout
            | ExclusionReason::Unavailable => Some(Self::ModelIneligible),
            ExclusionReason::RequestExhaustion
            | ExclusionReason::RetryBudget
            | ExclusionReason::ConcurrencyCap
            | ExclusionReason::OverBudget
            // Requests with a lease do not run into either.
            | ExclusionReason::Reserved
            | ExclusionReason::Leased => None,
        }
    }
}

/// Ends the leases that a new configuration does not cover any more (`sessions-and-streams.md` §1.11-8). Runs in the
/// transaction that stores it, over all rows that have not ended.
#[must_use]
pub fn reconcile<'k>(
    leases: &[Lease],
    key: impl Fn(&KeyId) -> Option<LeaseKey<'k>>,
    has_connection: impl Fn(&Lease) -> bool,
    now: Timestamp,
) -> Vec<Change> {
    leases
        .iter()
        .filter(|lease| lease.ended.is_none())
        .filter_map(|lease| {
            let reason = if lease.is_live(now) {
                lost(lease, key(&lease.key), &has_connection)?
            } else {
                EndReason::TtlExpired
            };
            Some(lease.end(reason, now))
        })
        .collect()
}

/// [`reconcile`] with what a document says.
#[must_use]
pub fn reconcile_with_document(
    leases: &[Lease],
    document: &Document,
    now: Timestamp,
) -> Vec<Change> {
    let keys: BTreeMap<&KeyId, LeaseKey<'_>> = document
        .keys
        .iter()
        .map(|key| (&key.id, key.leasing()))
        .collect();
    // A connection of another provider is another one: what is shown of the lease, and what was built for it, is elsewhere.
    let enabled: BTreeMap<&ConnectionId, &ProviderId> = document
        .connections
        .iter()
        .filter(|connection| connection.enabled)
        .map(|connection| (&connection.id, &connection.provider))
        .collect();
    reconcile(
        leases,
        |key| keys.get(key).copied(),
        |lease| enabled.get(&lease.connection) == Some(&&lease.provider),
        now,
    )
}

fn lost(
    lease: &Lease,
    key: Option<LeaseKey<'_>>,
    has_connection: impl Fn(&Lease) -> bool,
) -> Option<EndReason> {
    let Some(key) = key else {
        return Some(EndReason::ManagedKeyRevoked);
    };
    if !key.exclusive || !key.allowed_connections.contains(&lease.connection) {
        return Some(EndReason::AuthorizationChanged);
    }
    (!has_connection(lease)).then_some(EndReason::ConnectionIneligible)
}

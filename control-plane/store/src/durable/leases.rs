//! Exclusive leases of connections (`sessions-and-streams.md` §1, decision 42).
//!
//! **One authority.** Every command is one transaction: the adapter runs the rule of [`tidegate_core::lease`] on the rows of
//! the owner and of the connections that may be given away, as they stand at one moment of the database's clock, and
//! writes what it says while they still stand so, all or nothing. Who loses a race runs the rule again on what stands
//! then. Two unique indexes, over rows that have not ended, hold even if that were wrong: one row of an owner, one of a
//! connection.
//!
//! **Stance:** fail-closed. Without an answer nobody has a lease and nothing is sent. A command without an answer may have
//! happened; each may be repeated, and then says what stands.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::config::Document;
use tidegate_core::lease::{
    Acquire, ActivityName, EndReason, Fence, FenceError, Grant, Inference, Lease, LeaseError,
    Named, OwnerHash, Placement,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_core::time::Timestamp;

use super::DurableStoreError;

/// Most overdue leases that one [`LeaseStore::sweep_leases`] ends.
pub const MAX_SWEPT_LEASES: u32 = 100;

/// What a rule answers, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseReply<T> {
    /// The database's time that the rule was run at. Moments of a lease are told to others as what is left from then.
    pub now: Timestamp,
    /// The answer.
    pub answer: Result<T, LeaseError>,
}

/// How often a command came out as an adapter had foreseen it without a look, since it was opened. A command that failed on the
/// way counts for neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Foresight {
    /// It was written as foreseen, which saved the look.
    pub foreseen: u64,
    /// Something had changed, so that the attempt cost a round trip more than the look alone.
    pub wrong: u64,
    /// Too little was known, or what was known said to change nothing, or more than one row: there was a look at once.
    pub unknown: u64,
}

/// Leases.
#[async_trait]
pub trait LeaseStore {
    /// Gives the owner a connection ([`tidegate_core::lease::acquire`]). [`DurableStoreError::Contended`] when too many
    /// races were lost.
    async fn acquire_lease(
        &self,
        asked: &Acquire<'_>,
        settings: &LeaseSettings,
    ) -> Result<LeaseReply<Lease>, DurableStoreError>;

    /// Makes a lease last for `ttl_ms` from now on ([`tidegate_core::lease::renew`]).
    async fn renew_lease(
        &self,
        owner: OwnerHash,
        asked: Named<'_>,
        ttl_ms: u64,
    ) -> Result<LeaseReply<Lease>, DurableStoreError>;

    /// Gives a lease back ([`tidegate_core::lease::release`]). Repeated for a generation whose row was swept it is stale.
    async fn release_lease(
        &self,
        owner: OwnerHash,
        asked: Named<'_>,
        reason: EndReason,
    ) -> Result<LeaseReply<Lease>, DurableStoreError>;

    /// How a lease stands ([`tidegate_core::lease::status`]).
    async fn lease_status(
        &self,
        owner: OwnerHash,
        asked: Named<'_>,
    ) -> Result<LeaseReply<Lease>, DurableStoreError>;

    /// Where a request under a lease goes ([`tidegate_core::lease::place`]). One read, unless the lease moves or ends.
    async fn place_under_lease(
        &self,
        asked: &Inference<'_>,
        settings: &LeaseSettings,
    ) -> Result<LeaseReply<Placement>, DurableStoreError>;

    /// Whether a data plane may send, and until when; a grant is registered before it is answered
    /// ([`tidegate_core::lease::fence`]). One read while what is registered covers it.
    async fn fence(
        &self,
        asked: &Fence<'_>,
        settings: &LeaseSettings,
    ) -> Result<Result<Grant, FenceError>, DurableStoreError>;

    /// Lets go on what is in flight ([`tidegate_core::lease::renew_activity`]); `None`: it must be cut.
    async fn renew_activity(
        &self,
        activity: &ActivityName,
        settings: &LeaseSettings,
    ) -> Result<Option<Grant>, DurableStoreError>;

    /// Nothing is in flight under this registration any more, nor under an earlier one of the same data plane; later
    /// ones stay ([`tidegate_core::lease::Activity::ends_with`]).
    async fn delete_activity(&self, activity: &ActivityName) -> Result<(), DurableStoreError>;

    /// Ends the leases that a document does not cover ([`tidegate_core::lease::reconcile_with_document`]) and returns how
    /// many. [`super::ConfigurationStore::save_document`] does so in its own transaction. A lease that was given meanwhile
    /// by who had not heard of the document is found by a later call: whoever takes up a document makes one. With a later
    /// document stored than this of `version` it ends nothing more: what this one does not cover may be given under that.
    async fn reconcile_leases(
        &self,
        document: &Document,
        version: u64,
    ) -> Result<u64, DurableStoreError>;

    /// All leases that have not ended, overdue ones too, in the order of the bytes of connections, whatever the
    /// database sorts by; each has one at most. And the database's time.
    async fn list_leases(&self) -> Result<(Timestamp, Vec<Lease>), DurableStoreError>;

    /// Tidies up; nothing depends on it. Ends overdue leases, at most [`MAX_SWEPT_LEASES`], and deletes registrations past
    /// their end and leases that ended longer than `keep` ago and have no registrations, at most
    /// [`super::MAX_DELETE_ROWS`] of each. Returns how many rows; ask again while it is not 0. Last generations stay.
    async fn sweep_leases(&self, keep: Duration) -> Result<u64, DurableStoreError>;

    /// What became of what was foreseen. An adapter that always looks foresees nothing.
    fn foresight(&self) -> Foresight {
        Foresight::default()
    }
}

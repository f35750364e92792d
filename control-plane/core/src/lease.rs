//! Exclusive leases: one owner, a session of a client, has one connection to itself (`sessions-and-streams.md` §1,
//! decisions 40 to 42).
//!
//! | room | what it holds |
//! |---|---|
//! | [`OwnerHash`], [`Generation`] | who owns, and which lease of this owner |
//! | [`LeaseError`], [`lifecycle_body`] | every refusal with status and code, and the bodies of answers |
//! | [`read_lifecycle`], [`LeaseName`] | what a client sent, checked in the order of the contract |
//! | [`Lease`] | a row, its state and how it ended |
//! | [`Rows`], [`Step`], [`Change`] | what a transaction reads, answers and writes |
//! | [`acquire`], [`renew`], [`release`], [`status`] | what clients ask for |
//! | [`place`], [`reconcile`] | where a request goes, and what a new configuration ends |
//! | [`fence`], [`renew_activity`] | whether a data plane may send, and what it has in flight |
//! | [`Presence`], [`RegistrationNumbers`] | the data plane's own side of that |

mod activity;
mod answer;
mod error;
mod generation;
mod lifecycle;
mod owner;
mod placement;
mod presence;
mod record;
mod request;
mod rows;
#[cfg(test)]
mod tests;

pub use activity::{
    Activity, ActivityName, Fence, FenceError, Grant, Granted, fence, renew_activity,
};
pub use answer::lifecycle_body;
pub use error::{Capacity, LeaseError};
pub use generation::{Generation, MAX_GENERATION};
pub use lifecycle::{
    Acquire, Eligibility, LEASE_TTL_BOUNDS_MS, LEASE_TTL_MS, Named, acquire, release, renew, status,
};
pub use owner::{OwnerHash, OwnerHashError};
pub use placement::{Inference, Placement, place, reconcile, reconcile_with_document};
pub use presence::{LAST_RENEWALS_APART_MS, Presence, RENEWALS_APART_MS, RegistrationNumbers};
pub use record::{EndReason, Ended, Lease, LeaseId, LeaseState, LeaseSummary, Stored};
pub use request::{
    Action, Bearer, LeaseKey, LeaseName, Lifecycle, MAX_LIFECYCLE_BYTES, MAX_MODEL_CHARACTERS,
    Refused, read_lifecycle,
};
pub use rows::{Change, Eligible, InFlight, Rows, Step, expire};

//! Exclusive leases: one owner, a session of a client, has one connection to itself (`sessions-and-streams.md` §1,
//! decisions 40 to 42).
//!
//! | room | what it holds |
//! |---|---|
//! | [`OwnerHash`], [`Generation`] | who owns, and which lease of this owner |
//! | [`LeaseError`], [`lifecycle_body`] | every refusal with status and code, and the bodies of answers |
//! | [`read_lifecycle`], [`LeaseContext`] | what a client sent, checked in the order of the contract |
//! | [`Lease`] | a row, its state and how it ended |

mod answer;
mod error;
mod generation;
mod owner;
mod record;
mod request;

pub use answer::lifecycle_body;
pub use error::{Capacity, LeaseError};
pub use generation::{Generation, MAX_GENERATION};
pub use owner::{OwnerHash, OwnerHashError};
pub use record::{EndReason, Ended, Lease, LeaseId, LeaseState};
pub use request::{
    Action, Bearer, LeaseContext, LeaseKey, Lifecycle, MAX_LIFECYCLE_BYTES, MAX_MODEL_CHARACTERS,
    Refused, read_lifecycle,
};

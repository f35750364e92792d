//! What is in flight under leases, as the authority keeps it (decision 42).

use crate::ids::{ConnectionId, PlaneIncarnation};
use crate::time::Timestamp;

use super::LeaseId;

/// A data plane may have attempts in flight on a connection. One row for each connection, lease and data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Where.
    pub connection: ConnectionId,
    /// Under which row of a lease.
    pub lease: LeaseId,
    /// Who.
    pub plane: PlaneIncarnation,
    /// Which registration of this data plane, from 1.
    pub number: u64,
    /// Until then nobody else is given the connection: the data plane's horizon and a guard.
    pub until: Timestamp,
}

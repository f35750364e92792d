//! Leases as operators see them: who owns one is not shown, only enough of its hash to tell owners apart.

use tidegate_core::lease::Lease;
use tidegate_core::time::Timestamp;
use tidegate_proto::admin::v1 as proto;

/// Hexadecimal digits of an owner that are shown.
const OWNER_DIGITS: usize = 8;

/// A lease at this moment of the durable store's clock.
pub(crate) fn lease_status(lease: &Lease, now: Timestamp) -> proto::LeaseStatus {
    let owner = lease.owner.to_string();
    proto::LeaseStatus {
        connection: lease.connection.to_string(),
        provider: lease.provider.to_string(),
        owner_prefix: owner.chars().take(OWNER_DIGITS).collect(),
        key_id: lease.key.to_string(),
        generation: lease.generation.number(),
        acquired_at_unix_ms: lease.acquired_at.0,
        renewed_at_unix_ms: lease.renewed_at.0,
        expires_at_unix_ms: lease.expires_at.0,
        remaining_ms: lease.expires_at.remaining_ms(now),
    }
}

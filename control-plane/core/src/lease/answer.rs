//! The bodies of answers: exactly the members of the contract, and never anything that names connection, key or owner
//! (`sessions-and-streams.md` §1.7, §1.9).

use serde_json::{Value, json};

use super::{LeaseError, LeaseSummary};

/// The body of an answer about a lease.
#[must_use]
pub fn lifecycle_body(lease: &LeaseSummary) -> Value {
    json!({
        "state": lease.state.as_str(),
        "generation": lease.generation.number(),
        "acquiredAt": lease.acquired_at.iso(),
        "renewedAt": lease.renewed_at.iso(),
        "expiresAt": lease.expires_at.iso(),
    })
}

impl LeaseError {
    /// The body of a refusal.
    #[must_use]
    pub fn body(self) -> Value {
        let error = json!({
            "message": self.to_string(),
            "type": "lease_error",
            "code": self.code(),
        });
        match self {
            Self::Capacity(capacity) => json!({
                "state": "WAITING_FOR_CAPACITY",
                "error": error,
                "reason": "NO_FREE_ELIGIBLE_CONNECTION",
                "retryAfter": capacity.retry_after_seconds,
                "eligibleCount": capacity.eligible,
                "freeCount": 0,
            }),
            _ => json!({ "error": error }),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use crate::lease::Capacity;
    use crate::time::Timestamp;

    use super::*;

    #[rstest]
    #[case::whole_seconds(1_786_563_000_000, "2026-08-12T19:30:00.000Z")]
    #[case::milliseconds(1_786_563_000_042, "2026-08-12T19:30:00.042Z")]
    #[case::the_epoch(0, "1970-01-01T00:00:00.000Z")]
    #[case::never(u64::MAX, "9999-12-30T22:00:00.999Z")]
    fn times_are_told_in_utc_with_milliseconds(#[case] at: u64, #[case] text: &str) {
        assert_eq!(Timestamp(at).iso(), text);
    }

    #[test]
    fn a_refusal_has_one_member() {
        assert_eq!(
            LeaseError::FenceStale.body(),
            json!({"error": {
                "message": "the lease is not the current one",
                "type": "lease_error",
                "code": "LEASE_FENCE_STALE",
            }})
        );
    }

    #[test]
    fn vector_sessions_11_a_capacity_answer_says_when_and_not_who() {
        let now = Timestamp(1_786_563_000_000);
        let refused = LeaseError::Capacity(Capacity::new(1, Some(now.plus_ms(119_500)), now));
        assert_eq!(refused.status(), 429);
        assert_eq!(
            refused.body(),
            json!({
                "state": "WAITING_FOR_CAPACITY",
                "error": {
                    "message": "all eligible connections are leased",
                    "type": "lease_error",
                    "code": "lease-capacity-unavailable",
                },
                "reason": "NO_FREE_ELIGIBLE_CONNECTION",
                "retryAfter": 120,
                "eligibleCount": 1,
                "freeCount": 0,
            })
        );
        assert_eq!(refused.retry_after_seconds(), Some(120));
    }
}

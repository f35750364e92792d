//! Every refusal that leases know, with its status and code (`sessions-and-streams.md` §1.7, §1.10, decision 40).

use crate::time::Timestamp;

/// Longest `Retry-After` of a capacity answer, in seconds.
const MAX_RETRY_AFTER_SECONDS: u64 = 3_600;

/// Why a request about a lease, or under one, is refused. Our own doing, never the upstream's: none is an outcome of an
/// attempt (decision 5).
///
/// A lease of another key answers like none (`FenceStale`), also at the fence, so that nothing about a foreign owner
/// is told; the contract's `LEASE_AUTHORIZATION_MISMATCH` is never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The request has no API key.
    #[error("an API key is required")]
    AuthenticationRequired,
    /// The API key is not known.
    #[error("the API key is not valid")]
    ApiKeyInvalid,
    /// The body is not declared as JSON.
    #[error("the content type must be application/json")]
    ContentTypeRequired,
    /// The body is none of the actions.
    #[error("the body must be a lease action with its members")]
    ActionInvalid,
    /// The key may not lease.
    #[error("the API key lacks the scope lease:exclusive")]
    ScopeRequired,
    /// The key names no connections.
    #[error("an API key with the scope lease:exclusive must name its connections")]
    KeyConfigurationInvalid,
    /// The request names no owner.
    #[error("the lease owner is required")]
    ContextRequired,
    /// Owner or generation have not the right form.
    #[error("lease owner or generation are not valid")]
    ContextInvalid,
    /// The model means no provider.
    #[error("the model is not known")]
    ModelInvalid,
    /// No connection at all could serve.
    #[error("no connection is eligible")]
    NoEligibleConnection,
    /// All that could serve cool down, are out of quota or have lost their authorization.
    #[error("no eligible connection is available at the moment")]
    EligibilityUnavailable,
    /// The owner has no lease.
    #[error("a lease is required")]
    Required,
    /// It is not the owner's lease of now, under this key.
    #[error("the lease is not the current one")]
    FenceStale,
    /// The request is for another connection than the lease's.
    #[error("the lease is for another connection")]
    ConnectionMismatch,
    /// Others have leased everything that is eligible.
    #[error("all eligible connections are leased")]
    Capacity(Capacity),
    /// What the request names sends to more than one connection.
    #[error("a lease covers one connection; this route uses several")]
    UnsupportedRoute,
    /// Leases do not work over this transport.
    #[error("leases do not work over this transport")]
    UnsupportedTransport,
    /// The authority about leases did not answer.
    #[error("the lease service is not available")]
    ServiceUnavailable,
}

/// When to ask again, all that is eligible being leased (`sessions-and-streams.md` §1.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// In whole seconds, from 1 to 3 600.
    pub retry_after_seconds: u64,
    /// How many connections are eligible, free or not; at least 1.
    pub eligible: u64,
}

impl Capacity {
    /// With so many eligible connections, the first of which comes free at `free_at`, if that is known.
    #[must_use]
    pub fn new(eligible: usize, free_at: Option<Timestamp>, now: Timestamp) -> Self {
        let wait_ms = free_at.map_or(0, |at| at.remaining_ms(now));
        let eligible = u64::try_from(eligible).unwrap_or(u64::MAX);
        Self::bounded(wait_ms.div_ceil(1_000), eligible)
    }

    /// Of what another says, brought within the bounds.
    #[must_use]
    pub fn bounded(retry_after_seconds: u64, eligible: u64) -> Self {
        Self {
            retry_after_seconds: retry_after_seconds.clamp(1, MAX_RETRY_AFTER_SECONDS),
            eligible: eligible.max(1),
        }
    }
}

impl LeaseError {
    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::ActionInvalid
            | Self::ContextRequired
            | Self::ContextInvalid
            | Self::ModelInvalid => 400,
            Self::AuthenticationRequired | Self::ApiKeyInvalid => 401,
            Self::ScopeRequired | Self::KeyConfigurationInvalid => 403,
            Self::NoEligibleConnection
            | Self::Required
            | Self::FenceStale
            | Self::ConnectionMismatch
            | Self::UnsupportedRoute
            | Self::UnsupportedTransport => 409,
            Self::ContentTypeRequired => 415,
            Self::EligibilityUnavailable | Self::Capacity(_) => 429,
            Self::ServiceUnavailable => 503,
        }
    }

    /// `error.code` of the body.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::AuthenticationRequired => "LEASE_AUTHENTICATION_REQUIRED",
            Self::ApiKeyInvalid => "LEASE_API_KEY_INVALID",
            Self::ContentTypeRequired => "LEASE_CONTENT_TYPE_REQUIRED",
            Self::ActionInvalid => "LEASE_ACTION_INVALID",
            Self::ScopeRequired => "LEASE_SCOPE_REQUIRED",
            Self::KeyConfigurationInvalid => "LEASE_KEY_CONFIGURATION_INVALID",
            Self::ContextRequired => "LEASE_CONTEXT_REQUIRED",
            Self::ContextInvalid => "LEASE_CONTEXT_INVALID",
            Self::ModelInvalid => "LEASE_MODEL_INVALID",
            Self::NoEligibleConnection => "LEASE_NO_ELIGIBLE_CONNECTION",
            Self::EligibilityUnavailable => "LEASE_ELIGIBILITY_UNAVAILABLE",
            Self::Required => "LEASE_REQUIRED",
            Self::FenceStale => "LEASE_FENCE_STALE",
            Self::ConnectionMismatch => "LEASE_CONNECTION_MISMATCH",
            Self::Capacity(_) => "lease-capacity-unavailable",
            Self::UnsupportedRoute => "LEASE_UNSUPPORTED_ROUTE",
            Self::UnsupportedTransport => "LEASE_UNSUPPORTED_TRANSPORT",
            Self::ServiceUnavailable => "LEASE_SERVICE_UNAVAILABLE",
        }
    }

    /// The refusal of a code; `capacity` is what one for lack of capacity tells.
    #[must_use]
    pub fn of_code(code: &str, capacity: Capacity) -> Option<Self> {
        let all = [
            Self::AuthenticationRequired,
            Self::ApiKeyInvalid,
            Self::ContentTypeRequired,
            Self::ActionInvalid,
            Self::ScopeRequired,
            Self::KeyConfigurationInvalid,
            Self::ContextRequired,
            Self::ContextInvalid,
            Self::ModelInvalid,
            Self::NoEligibleConnection,
            Self::EligibilityUnavailable,
            Self::Required,
            Self::FenceStale,
            Self::ConnectionMismatch,
            Self::Capacity(capacity),
            Self::UnsupportedRoute,
            Self::UnsupportedTransport,
            Self::ServiceUnavailable,
        ];
        all.into_iter().find(|error| error.code() == code)
    }

    /// The header `Retry-After`, in seconds. Only a capacity answer has one.
    #[must_use]
    pub fn retry_after_seconds(self) -> Option<u64> {
        match self {
            Self::Capacity(capacity) => Some(capacity.retry_after_seconds),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    #[rstest]
    #[case::in_200_ms(Some(NOW.plus_ms(200)), 1)]
    #[case::past(Some(NOW.minus_ms(1)), 1)]
    #[case::unknown(None, 1)]
    #[case::a_ms_over_90_s(Some(NOW.plus_ms(90_001)), 91)]
    #[case::exactly_90_s(Some(NOW.plus_ms(90_000)), 90)]
    #[case::far(Some(Timestamp(u64::MAX)), 3_600)]
    fn vector_sessions_12_retry_after_is_rounded_up_and_bounded(
        #[case] free_at: Option<Timestamp>,
        #[case] seconds: u64,
    ) {
        let refused = LeaseError::Capacity(Capacity::new(1, free_at, NOW));
        assert_eq!(refused.retry_after_seconds(), Some(seconds));
    }

    #[test]
    fn only_a_capacity_answer_says_when_to_come_back() {
        assert_eq!(
            LeaseError::EligibilityUnavailable.retry_after_seconds(),
            None
        );
    }
}

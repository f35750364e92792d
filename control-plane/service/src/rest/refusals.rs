//! What is answered where a caller, a reset or a change is refused.

use http::StatusCode;

use crate::access::Denied;
use crate::admin::Refused;
use crate::config::apply::ApplyError;
use crate::grpc::error::Refusal;

use super::Answer;
use super::shapes::failure_body;

/// A fault that has a code of the control plane (`docs/errors/control-plane.md`).
pub(super) fn failed(status: StatusCode, refusal: Refusal, message: &str) -> Answer {
    Answer::refused(status, refusal.code(), message)
}

pub(super) fn refused_caller(denied: Denied) -> Answer {
    let (status, refusal) = match denied {
        Denied::Unknown => (StatusCode::UNAUTHORIZED, Refusal::Unauthenticated),
        Denied::NotAllowed(_) => (StatusCode::FORBIDDEN, Refusal::NotAllowed),
    };
    failed(status, refusal, &denied.to_string())
}

pub(super) fn refused_reset(refused: &Refused) -> Answer {
    let (status, refusal) = match refused {
        Refused::NoProvider(_) | Refused::NoConnection(_) => {
            (StatusCode::NOT_FOUND, Refusal::NotFound)
        }
        Refused::BreakerOfConnection => (StatusCode::BAD_REQUEST, Refusal::InvalidRequest),
        // The contract's status of a reset that failed (`sessions-and-streams.md` §5.4).
        Refused::Interrupted { .. } => (StatusCode::INTERNAL_SERVER_ERROR, Refusal::HotStoreAway),
        Refused::RetriesKept { .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, Refusal::DurableStoreAway)
        }
    };
    failed(status, refusal, &refused.to_string())
}

/// Some of these cannot come of a patch, which expects no version, deletes nothing and seals nothing. They are told like the
/// others, so that a new way to make a change is never without an answer.
pub(super) fn refused_change(error: ApplyError) -> Answer {
    let message = error.to_string();
    let (status, refusal) = match error {
        ApplyError::Invalid(found)
        | ApplyError::InUse {
            referrers: found, ..
        } => {
            return Answer::with(StatusCode::BAD_REQUEST, &failure_body(&found));
        }
        ApplyError::Conflict { .. } | ApplyError::Overtaken => {
            (StatusCode::CONFLICT, Refusal::VersionConflict)
        }
        ApplyError::Missing(_) => (StatusCode::NOT_FOUND, Refusal::NotFound),
        ApplyError::SealedElsewhere { .. } => (StatusCode::CONFLICT, Refusal::SealedElsewhere),
        ApplyError::TooLate => (StatusCode::SERVICE_UNAVAILABLE, Refusal::TooLate),
        ApplyError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, Refusal::DurableStoreAway),
        ApplyError::Indeterminate(_) => (StatusCode::INTERNAL_SERVER_ERROR, Refusal::Indeterminate),
        ApplyError::Refused(_) | ApplyError::NotInForce { .. } | ApplyError::Seal(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, Refusal::Internal)
        }
    };
    failed(status, refusal, &message)
}

//! How refusals look on the wire: a status, a stable code in `ErrorInfo`, details where there are any.

use tidegate_core::config::Violation;
use tidegate_wire::WireError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

use crate::config::apply::ApplyError;
use crate::decide::NoAnswer;
use crate::record::direct::NotDone;
use crate::record::queue::NotTaken;

/// Domain of all codes.
const DOMAIN: &str = "tidegate.control-plane";

/// Stable codes of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The configuration does not validate; every violation is in `BadRequest`.
    InvalidConfiguration,
    /// The configuration has another version than expected.
    VersionConflict,
    /// The durable store does not answer; nothing happened.
    DurableStoreAway,
    /// It is not known whether the change happened.
    Indeterminate,
    /// This replica has no configuration or no view yet.
    NotReady,
    /// The request is not understood.
    InvalidRequest,
    /// More reports under way than allowed, or no room for what is told.
    WindowFull,
    /// No token, or a wrong one.
    Unauthenticated,
    /// The hot store does not take the change now.
    HotStoreAway,
    /// The key is not known here.
    UnknownKey,
    /// What is named does not exist.
    NotFound,
    /// Stored credentials were sealed with another key.
    SealedElsewhere,
    /// The token is known, and not for this.
    NotAllowed,
    /// The change came to its turn when nobody waited for it any more; nothing happened.
    TooLate,
    /// A fault of ours.
    Internal,
}

impl Refusal {
    /// The code, stable.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::InvalidConfiguration => "CP0001",
            Self::VersionConflict => "CP0002",
            Self::DurableStoreAway => "CP0003",
            Self::Indeterminate => "CP0004",
            Self::NotReady => "CP0005",
            Self::InvalidRequest => "CP0006",
            Self::WindowFull => "CP0007",
            Self::Unauthenticated => "CP0008",
            Self::HotStoreAway => "CP0009",
            Self::UnknownKey => "CP0010",
            Self::NotFound => "CP0011",
            Self::SealedElsewhere => "CP0013",
            Self::NotAllowed => "CP0014",
            Self::TooLate => "CP0015",
            Self::Internal => "CP0012",
        }
    }

    fn status_code(self) -> Code {
        match self {
            Self::InvalidConfiguration | Self::InvalidRequest => Code::InvalidArgument,
            Self::VersionConflict => Code::Aborted,
            Self::DurableStoreAway | Self::NotReady | Self::HotStoreAway => Code::Unavailable,
            Self::Indeterminate => Code::Unknown,
            Self::WindowFull => Code::ResourceExhausted,
            Self::Unauthenticated => Code::Unauthenticated,
            Self::NotAllowed => Code::PermissionDenied,
            Self::UnknownKey | Self::SealedElsewhere => Code::FailedPrecondition,
            Self::NotFound => Code::NotFound,
            Self::TooLate => Code::DeadlineExceeded,
            Self::Internal => Code::Internal,
        }
    }

    /// The status with a message for people.
    pub(crate) fn status(self, message: impl Into<String>) -> Status {
        self.status_with(message, ErrorDetails::new())
    }

    fn status_with(self, message: impl Into<String>, mut details: ErrorDetails) -> Status {
        details.set_error_info(self.code(), DOMAIN, std::collections::HashMap::new());
        Status::with_error_details(self.status_code(), message, details)
    }
}

/// A message that is not understood.
pub(crate) fn invalid(error: &WireError) -> Status {
    invalid_member(error.field(), error.to_string())
}

/// A member of a message that makes no sense.
pub(crate) fn invalid_member(field: &str, message: String) -> Status {
    let violation = FieldViolation::new(field, &message);
    let details = ErrorDetails::with_bad_request(vec![violation]);
    Refusal::InvalidRequest.status_with(message, details)
}

/// A document that is not understood.
pub(crate) fn invalid_document(error: &WireError) -> Status {
    let violation = FieldViolation::new(error.field(), error.to_string());
    let details = ErrorDetails::with_bad_request(vec![violation]);
    Refusal::InvalidConfiguration.status_with(error.to_string(), details)
}

/// A document that does not validate.
fn violations(found: &[Violation]) -> Status {
    let named: Vec<FieldViolation> = found
        .iter()
        .map(|violation| FieldViolation::new(&violation.field, &violation.message))
        .collect();
    let message = match found.first() {
        Some(first) if found.len() == 1 => format!("{}: {}", first.field, first.message),
        Some(first) => format!(
            "{}: {} (and {} more)",
            first.field,
            first.message,
            found.len().saturating_sub(1)
        ),
        None => "the configuration is not valid".to_owned(),
    };
    Refusal::InvalidConfiguration.status_with(message, ErrorDetails::with_bad_request(named))
}

/// What cannot be deleted, and everything that refers to it.
fn in_use(message: String, referrers: &[Violation]) -> Status {
    let named: Vec<FieldViolation> = referrers
        .iter()
        .map(|violation| FieldViolation::new(&violation.field, &violation.message))
        .collect();
    Refusal::InvalidConfiguration.status_with(message, ErrorDetails::with_bad_request(named))
}

impl From<ApplyError> for Status {
    fn from(error: ApplyError) -> Self {
        let message = error.to_string();
        match error {
            ApplyError::Invalid(found) => violations(&found),
            ApplyError::Conflict { .. } | ApplyError::Overtaken => {
                Refusal::VersionConflict.status(message)
            }
            ApplyError::InUse { referrers, .. } => in_use(message, &referrers),
            ApplyError::Missing(_) => Refusal::NotFound.status(message),
            ApplyError::SealedElsewhere { .. } => Refusal::SealedElsewhere.status(message),
            ApplyError::TooLate => Refusal::TooLate.status(message),
            ApplyError::Unavailable(_) => Refusal::DurableStoreAway.status(message),
            ApplyError::Indeterminate(_) => Refusal::Indeterminate.status(message),
            ApplyError::Refused(_) | ApplyError::NotInForce { .. } | ApplyError::Seal(_) => {
                Refusal::Internal.status(message)
            }
        }
    }
}

impl From<NoAnswer> for Status {
    fn from(error: NoAnswer) -> Self {
        let refusal = match error {
            NoAnswer::NotReady => Refusal::NotReady,
            NoAnswer::UnknownKey => Refusal::UnknownKey,
            NoAnswer::UnknownProvider => Refusal::InvalidRequest,
        };
        refusal.status(error.to_string())
    }
}

impl From<NotDone> for Status {
    fn from(error: NotDone) -> Self {
        let refusal = match error {
            NotDone::Store(_) | NotDone::Restoring | NotDone::Contended | NotDone::NewerSchema => {
                Refusal::HotStoreAway
            }
            NotDone::Unconfigured => Refusal::NotReady,
        };
        refusal.status(error.to_string())
    }
}

impl From<NotTaken> for Status {
    fn from(error: NotTaken) -> Self {
        Refusal::WindowFull.status(error.to_string())
    }
}

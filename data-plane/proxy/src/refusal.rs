//! Everything a client can be told that no upstream said. Each has a status and a stable code.

use http::StatusCode;
use tidegate_core::admission::AdmissionError;
use tidegate_core::lease::LeaseError;
use tidegate_core::routing::Rejection;

use crate::request::BodyFault;

/// Why a request gets an answer of ours.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("there is no such path here")]
    UnknownPath,
    #[error("this path does not answer this method")]
    MethodNotAllowed {
        /// What it answers.
        allow: &'static str,
    },
    #[error("an API key is required, in the authorization header or in x-api-key")]
    MissingKey,
    #[error("the API key is not valid")]
    UnknownKey,
    #[error("the request has too many or too long headers")]
    HeadersTooLarge,
    #[error("the request body must not be compressed")]
    BodyEncoded,
    #[error("the request body is longer than {limit} bytes")]
    BodyTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    #[error("the request body did not arrive in time")]
    BodyTimeout,
    #[error("the request body could not be read")]
    BodyBroken,
    #[error(transparent)]
    Body(#[from] BodyFault),
    #[error(
        "a combo that asks several models for one answer takes a conversation that is not empty"
    )]
    NoConversation,
    #[error("x-omniroute-connection does not name a connection")]
    InvalidConnection,
    #[error("the header {0} cannot be understood")]
    InvalidHeader(&'static str),
    #[error("the first request with this idempotency-key is still being answered by a stream")]
    IdempotencyKeyInUse,
    #[error("the idempotency-key was used with another request a moment ago")]
    IdempotencyKeyReused,
    #[error("no configuration has been applied, or none has been received yet")]
    NotConfigured,
    #[error("no control plane answers; try again")]
    ControlPlaneUnreachable,
    #[error("too many others are being told which models can be had; try again")]
    ModelsHealthBusy,
    #[error("too many requests are waiting for a cooldown to end")]
    WaitingFull {
        /// When it is worth coming back, in seconds.
        retry_after_secs: u64,
    },
    #[error(transparent)]
    NotAdmitted(#[from] AdmissionError),
    #[error("{}", .0.message)]
    Rejected(Box<Rejection>),
    /// By a rule of leases, in the words of the contract (`sessions-and-streams.md` §1.7).
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error("the service is shutting down")]
    ShuttingDown,
    #[error("the request could not be completed")]
    Internal,
}

impl Refusal {
    /// The status.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::UnknownPath => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::MissingKey | Self::UnknownKey => StatusCode::UNAUTHORIZED,
            Self::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::BodyEncoded => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::BodyBroken
            | Self::Body(_)
            | Self::NoConversation
            | Self::InvalidConnection
            | Self::InvalidHeader(_) => StatusCode::BAD_REQUEST,
            Self::IdempotencyKeyInUse => StatusCode::CONFLICT,
            Self::IdempotencyKeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::NotConfigured
            | Self::ControlPlaneUnreachable
            | Self::ModelsHealthBusy
            | Self::WaitingFull { .. }
            | Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotAdmitted(error) => {
                StatusCode::from_u16(error.status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
            }
            Self::Rejected(rejection) => StatusCode::from_u16(rejection.status)
                .ok()
                .filter(|status| status.is_client_error() || status.is_server_error())
                .unwrap_or(StatusCode::BAD_GATEWAY),
            Self::Lease(error) => {
                StatusCode::from_u16(error.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
            }
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The stable code.
    pub(crate) fn code(&self) -> &str {
        match self {
            Self::UnknownPath => "unknown_path",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::MissingKey => "missing_api_key",
            Self::UnknownKey => "invalid_api_key",
            Self::HeadersTooLarge => "headers_too_large",
            Self::BodyEncoded => "unsupported_content_encoding",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::BodyTimeout => "body_timeout",
            Self::BodyBroken => "body_broken",
            Self::Body(fault) => fault.code(),
            Self::NoConversation => "no_conversation",
            Self::InvalidConnection => "invalid_connection",
            Self::InvalidHeader(_) => "invalid_header",
            Self::IdempotencyKeyInUse => "idempotency_key_in_use",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::NotConfigured => "configuration_unavailable",
            Self::ControlPlaneUnreachable => "control_plane_unreachable",
            Self::ModelsHealthBusy => "models_health_busy",
            Self::WaitingFull { .. } => "wait_queue_full",
            Self::NotAdmitted(error) => error.code(),
            Self::Rejected(rejection) => &rejection.code,
            Self::Lease(error) => error.code(),
            Self::ShuttingDown => "shutting_down",
            Self::Internal => "internal_error",
        }
    }

    /// The code as a metric label: codes that come from elsewhere are one.
    pub(crate) fn kind(&self) -> &str {
        match self {
            Self::Rejected(_) => "rejected",
            other => other.code(),
        }
    }

    /// When it is worth trying again, in seconds.
    pub(crate) fn retry_after_secs(&self) -> Option<u64> {
        match self {
            Self::Rejected(rejection) => rejection.retry_after_secs,
            Self::WaitingFull { retry_after_secs } => Some(*retry_after_secs),
            Self::NotConfigured
            | Self::ControlPlaneUnreachable
            | Self::ModelsHealthBusy
            | Self::IdempotencyKeyInUse
            | Self::ShuttingDown => Some(1),
            Self::Lease(error) => error.retry_after_seconds(),
            _ => None,
        }
    }

    /// The rest of what the client sends on this connection must not be taken for another request.
    pub(crate) fn closes_connection(&self) -> bool {
        matches!(
            self,
            Self::BodyTooLarge { .. }
                | Self::BodyTimeout
                | Self::BodyBroken
                | Self::BodyEncoded
                | Self::HeadersTooLarge
                | Self::ShuttingDown
        )
    }
}

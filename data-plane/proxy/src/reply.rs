//! Answers for clients: bodies, and errors in the client's own format.

mod body;
mod error;

pub(crate) use body::ReplyBody;
pub(crate) use error::{ErrorContext, in_band, refuse};

use http::{HeaderName, HeaderValue};

/// Contract headers of every answer to a request that names a model (decision 49, `sessions-and-streams.md` §5.1).
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-omniroute-request-id");
pub(crate) const PROVIDER: HeaderName = HeaderName::from_static("x-omniroute-provider");
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-omniroute-decision");
pub(crate) const FALLBACK_ATTEMPTS: HeaderName =
    HeaderName::from_static("x-omniroute-fallback-attempts");
/// Only so many of the request's tools were sent (decision 33).
pub(crate) const TOOLS_TRUNCATED: HeaderName =
    HeaderName::from_static("x-omniroute-tools-truncated");
/// The last resort answered, `provider/model` (decision 34).
pub(crate) const EMERGENCY_FALLBACK: HeaderName =
    HeaderName::from_static("x-omniroute-emergency-fallback");
/// This is the answer to an earlier request of the same `Idempotency-Key`.
pub(crate) const IDEMPOTENT_REPLAYED: HeaderName =
    HeaderName::from_static("x-omniroute-idempotent-replayed");
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

//! Answers for clients: bodies, and errors in the client's own format.

mod body;
mod error;
mod in_band;
mod kept;

pub(crate) use body::ReplyBody;
pub(crate) use error::{ErrorContext, refuse};
pub(crate) use in_band::{in_band, in_band_answer};

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Contract headers of every answer to a request that names a model (decision 49, `sessions-and-streams.md` §5.1).
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-omniroute-request-id");
pub(crate) const VERSION: HeaderName = HeaderName::from_static("x-omniroute-version");
pub(crate) const PROVIDER: HeaderName = HeaderName::from_static("x-omniroute-provider");
/// The model that answered, by its provider's name.
pub(crate) const MODEL: HeaderName = HeaderName::from_static("x-omniroute-model");
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
pub(crate) const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
pub(crate) const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// Whether a body is said to be a stream of events.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
}

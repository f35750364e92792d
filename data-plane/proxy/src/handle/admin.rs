//! What the process says about itself.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use prometheus_client::registry::Registry;

use crate::refusal::Refusal;
use crate::reply::ReplyBody;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The process lives.
pub(super) fn livez() -> Response<ReplyBody> {
    text(StatusCode::OK, "ok")
}

/// Requests can be served; not whether all stores are up (decision 55).
pub(super) fn readyz(ready: bool) -> Response<ReplyBody> {
    if ready {
        text(StatusCode::OK, "ready")
    } else {
        text(StatusCode::SERVICE_UNAVAILABLE, "not ready")
    }
}

/// All metrics of the process.
pub(super) fn metrics(registry: &Registry) -> Result<Response<ReplyBody>, Refusal> {
    let mut encoded = String::new();
    prometheus_client::encoding::text::encode(&mut encoded, registry)
        .map_err(|_| Refusal::Internal)?;
    let mut response = Response::new(ReplyBody::whole(encoded));
    response.headers_mut().insert(CONTENT_TYPE, OPEN_METRICS);
    Ok(response)
}

fn text(status: StatusCode, words: &'static str) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(words));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

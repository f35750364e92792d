//! What browsers are told (`sessions-and-streams.md` §5.1): anyone may ask, and may read the headers that say what
//! became of a request. Keys travel in headers of their own, never as a browser's credentials, so there is nobody to
//! keep out by origin.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::endpoint::Route;
use crate::reply::ReplyBody;

const ANYONE: HeaderValue = HeaderValue::from_static("*");
/// The star does not cover `Authorization`.
const ANYTHING_AND_KEYS: HeaderValue = HeaderValue::from_static("*, authorization");
/// Both headers by name (`sessions-and-streams.md` §1.7).
const LEASE_HEADERS: HeaderValue = HeaderValue::from_static(
    "Authorization, Content-Type, X-OmniRoute-Lease-Owner, X-OmniRoute-Lease-Generation",
);
/// All that an answer may carry beside what browsers show anyway.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "X-OmniRoute-Request-Id, X-OmniRoute-Version, X-OmniRoute-Provider, X-OmniRoute-Model, \
     X-OmniRoute-Decision, X-OmniRoute-Fallback-Attempts, X-OmniRoute-Emergency-Fallback, \
     X-OmniRoute-Tools-Truncated, X-OmniRoute-Combo-Pool-Size, X-OmniRoute-Combo-Attempted, \
     X-OmniRoute-Combo-Excluded, X-OmniRoute-Combo-Terminal-Reason, \
     X-OmniRoute-Recovery-Action, X-OmniRoute-Retry-After-Seconds, Retry-After, Allow, Warning, \
     X-Request-Id, Request-Id",
);
/// How long a browser may remember the answer to its preflight, in seconds.
const ONE_DAY: HeaderValue = HeaderValue::from_static("86400");

/// What every answer says, errors and streams included.
pub(super) fn allow(headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, ANYONE);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
}

/// For browsers that ask before they ask.
pub(super) fn preflight(route: Route) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static(route.allow()),
    );
    let allowed = match route {
        Route::SessionLeases => LEASE_HEADERS,
        _ => ANYTHING_AND_KEYS,
    };
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    headers.insert(ACCESS_CONTROL_MAX_AGE, ONE_DAY);
    response
}

//! What a request says about a lease (`sessions-and-streams.md` §1.3, §1.10). Owners become their hashes here; neither of
//! the two headers goes anywhere else.

use http::header::UPGRADE;
use http::{HeaderMap, HeaderName};
use tidegate_core::config::ApiKey;
use tidegate_core::lease::{LeaseError, LeaseName};

/// The token of a lease's owner.
const OWNER: HeaderName = HeaderName::from_static("x-omniroute-lease-owner");
/// The lease's generation.
const GENERATION: HeaderName = HeaderName::from_static("x-omniroute-lease-generation");

/// The lease that a request is under: none without a key that may lease, whatever its headers say.
///
/// # Errors
/// When the headers of a managed request name none, or when it comes over a transport without leases.
pub(crate) fn of_request(
    headers: &HeaderMap,
    key: Option<&ApiKey>,
) -> Result<Option<LeaseName>, LeaseError> {
    if !key.is_some_and(ApiKey::may_lease) {
        return Ok(None);
    }
    if is_upgrade(headers) {
        return Err(LeaseError::UnsupportedTransport);
    }
    LeaseName::of_headers(owner(headers), value(headers, &GENERATION)).map(Some)
}

/// The owner that a request names.
pub(crate) fn owner(headers: &HeaderMap) -> Option<&[u8]> {
    value(headers, &OWNER)
}

/// Whether the request wants a `WebSocket`.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.get_all(UPGRADE).iter().any(|value| {
        let mut protocols = value.as_bytes().split(|byte| *byte == b',');
        protocols.any(|protocol| protocol.trim_ascii().eq_ignore_ascii_case(b"websocket"))
    })
}

/// Which of several is meant nobody knows: they are as good as one that means nothing.
fn value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.as_bytes();
    Some(if values.next().is_none() { first } else { b"" })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rstest::rstest;
    use serde_json::json;
    use tidegate_core::config::Document;

    use super::*;

    const OWNER_A: &str = "vlo_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    const OWNER_NAME: &str = "x-omniroute-lease-owner";
    const GENERATION_NAME: &str = "x-omniroute-lease-generation";

    fn key(scopes: &[&str]) -> ApiKey {
        let document: Document = serde_json::from_value(json!({"keys": [{
            "id": "k", "sha256": "00".repeat(32), "scopes": scopes, "allowedConnections": ["c"],
        }]}))
        .unwrap();
        document.keys[0].clone()
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[rstest]
    #[case::nothing(&[], LeaseError::ContextRequired)]
    #[case::a_generation_alone(&[(GENERATION_NAME, "1")], LeaseError::ContextRequired)]
    #[case::an_owner_alone(&[(OWNER_NAME, OWNER_A)], LeaseError::ContextInvalid)]
    #[case::two_owners(
        &[(OWNER_NAME, OWNER_A), (OWNER_NAME, OWNER_A), (GENERATION_NAME, "1")],
        LeaseError::ContextInvalid
    )]
    #[case::two_generations(
        &[(OWNER_NAME, OWNER_A), (GENERATION_NAME, "1"), (GENERATION_NAME, "1")],
        LeaseError::ContextInvalid
    )]
    #[case::a_websocket(
        &[(OWNER_NAME, OWNER_A), (GENERATION_NAME, "1"), ("upgrade", "h2c, WebSocket")],
        LeaseError::UnsupportedTransport
    )]
    fn vector_sessions_18_a_managed_request_names_one_lease(
        #[case] pairs: &[(&'static str, &'static str)],
        #[case] expected: LeaseError,
    ) {
        let (managed, plain) = (key(&["lease:exclusive"]), key(&[]));
        assert_eq!(of_request(&headers(pairs), Some(&managed)), Err(expected));
        assert_eq!(of_request(&headers(pairs), Some(&plain)), Ok(None));
        assert_eq!(of_request(&headers(pairs), None), Ok(None));
    }

    #[test]
    fn white_space_around_an_owner_does_not_count() {
        let spaced = headers(&[
            (
                OWNER_NAME,
                " vlo_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA ",
            ),
            (GENERATION_NAME, "7"),
        ]);
        let lease = of_request(&spaced, Some(&key(&["lease:exclusive"]))).unwrap();
        assert_eq!(lease.unwrap().generation.number(), 7);
    }
}

//! Who asks: the client's API key, looked up by its hash.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tidegate_core::config::{ApiKey, Config, key_hash};
use tidegate_core::ids::ConnectionId;

use crate::refusal::Refusal;

/// Longest key that is looked at, in bytes.
const MAX_KEY_BYTES: usize = 1_024;

/// The key of a request; none where none is required.
///
/// A key is required as soon as the configuration names one, also one whose secret could not be read yet:
/// an unreadable key must not open the door.
///
/// # Errors
/// [`Refusal::MissingKey`] and [`Refusal::UnknownKey`].
pub(crate) fn key(
    headers: &HeaderMap,
    config: &Config,
    always_required: bool,
) -> Result<Option<Arc<ApiKey>>, Refusal> {
    let required = always_required || !config.document.keys.is_empty() || !config.keys.is_empty();
    let mut presented = false;
    for text in [bearer(headers), x_api_key(headers)].into_iter().flatten() {
        presented = true;
        if text.len() <= MAX_KEY_BYTES
            && let Some(key) = config.key_by_hash(&key_hash(text))
        {
            return Ok(Some(Arc::clone(key)));
        }
    }
    match (required, presented) {
        (false, _) => Ok(None),
        (true, true) => Err(Refusal::UnknownKey),
        (true, false) => Err(Refusal::MissingKey),
    }
}

/// The connection an operator forces with `X-OmniRoute-Connection`.
///
/// # Errors
/// [`Refusal::InvalidConnection`] when it is no name of a connection.
pub(crate) fn forced_connection(headers: &HeaderMap) -> Result<Option<ConnectionId>, Refusal> {
    let Some(value) = headers.get("x-omniroute-connection") else {
        return Ok(None);
    };
    let text = value.to_str().map_err(|_| Refusal::InvalidConnection)?;
    let connection = ConnectionId::new(text).map_err(|_| Refusal::InvalidConnection)?;
    Ok(Some(connection))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn x_api_key(headers: &HeaderMap) -> Option<&str> {
    let key = headers.get("x-api-key")?.to_str().ok()?.trim();
    (!key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;
    use tidegate_core::config::Document;
    use tidegate_core::settings::Overrides;

    use super::*;

    fn config(keys: &[&str]) -> Config {
        let keys: Vec<_> = keys
            .iter()
            .map(|key| json!({"id": format!("id-{key}"), "sha256": key_hash(key)}))
            .collect();
        let document: Document = serde_json::from_value(json!({"keys": keys})).unwrap();
        Config::build(document, 1, &Overrides::default()).unwrap()
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[rstest]
    #[case::bearer(&[("authorization", "Bearer one")], "id-one")]
    #[case::any_case(&[("authorization", "bearer  one ")], "id-one")]
    #[case::x_api_key(&[("x-api-key", "two")], "id-two")]
    #[case::other_scheme_beside(&[("authorization", "Basic abc"), ("x-api-key", "one")], "id-one")]
    #[case::placeholder_beside(&[("authorization", "Bearer none"), ("x-api-key", "one")], "id-one")]
    fn known_keys_are_found(#[case] pairs: &[(&'static str, &'static str)], #[case] id: &str) {
        let found = key(&headers(pairs), &config(&["one", "two"]), false);
        assert_eq!(found.unwrap().unwrap().id.as_str(), id);
    }

    #[rstest]
    #[case::nothing(&[], "missing_api_key")]
    #[case::unknown(&[("authorization", "Bearer three")], "invalid_api_key")]
    #[case::other_scheme(&[("authorization", "Basic one")], "missing_api_key")]
    fn unknown_keys_are_refused(
        #[case] pairs: &[(&'static str, &'static str)],
        #[case] code: &str,
    ) {
        let refused = key(&headers(pairs), &config(&["one"]), false);
        assert_eq!(refused.unwrap_err().code(), code);
    }

    #[test]
    fn without_keys_anyone_may_ask_unless_keys_are_always_required() {
        let presented = headers(&[("authorization", "Bearer x")]);
        assert!(key(&presented, &config(&[]), false).unwrap().is_none());
        let refused = key(&presented, &config(&[]), true);
        assert_eq!(refused.unwrap_err().code(), "invalid_api_key");
    }
}

//! What routing is told of a request: who asks, what its body says, and what its headers wish for.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use tidegate_core::config::{ApiKey, BudgetFallback};
use tidegate_core::number::Finite;
use tidegate_core::routing::RequestFacts;
use tidegate_core::session_key::SessionKey;

use crate::endpoint::Endpoint;
use crate::identify;
use crate::refusal::Refusal;
use crate::request::RequestBody;

/// Longest mode and tag, in bytes.
const MAX_WORD_BYTES: usize = 64;
/// Most tags of a request.
const MAX_TAGS: usize = 16;

const MODE: &str = "x-omniroute-mode";
const BUDGET: &str = "x-omniroute-budget";
const BUDGET_FALLBACK: &str = "x-omniroute-budget-fallback";
const TAGS: &str = "x-omniroute-tags";

/// The facts of a request.
///
/// # Errors
/// [`Refusal::InvalidConnection`] and [`Refusal::InvalidHeader`] when a header means nothing. An unknown mode is not
/// among them: it is ignored (`routing.md` §9.6).
pub(crate) fn of_request(
    endpoint: Endpoint,
    headers: &HeaderMap,
    key: Option<Arc<ApiKey>>,
    body: &RequestBody,
) -> Result<RequestFacts, Refusal> {
    let facts = RequestFacts {
        forced_connection: identify::forced_connection(headers)?,
        embedding: endpoint == Endpoint::Embeddings,
        session_key: SessionKey::of_headers(|name| headers.get(name).map(HeaderValue::as_bytes)),
        mode: text(headers, MODE)?
            .filter(|mode| mode.len() <= MAX_WORD_BYTES)
            .map(str::to_owned),
        budget: one(headers, BUDGET)?.map(budget).transpose()?,
        budget_fallback: one(headers, BUDGET_FALLBACK)?
            .map(budget_fallback)
            .transpose()?,
        tags: text(headers, TAGS)?
            .map(tags)
            .transpose()?
            .unwrap_or_default(),
        ..RequestFacts::new(body.model.as_str(), endpoint.protocol())
    };
    let facts = facts.with_body(&body.facts, key.as_ref().map(|key| key.id.as_str()));
    Ok(RequestFacts { key, ..facts })
}

fn text<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Refusal> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let text = value.to_str().map_err(|_| Refusal::InvalidHeader(name))?;
    Ok(Some(text.trim()).filter(|text| !text.is_empty()))
}

/// The value of a header that says what may be spent: which of two is meant nobody knows, and an empty one is no wish.
fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    if values.next().is_none() {
        return Ok(None);
    }
    match (text(headers, name)?, values.next()) {
        (Some(text), None) => Ok(Some(text)),
        (None, _) | (_, Some(_)) => Err(Refusal::InvalidHeader(name)),
    }
}

/// USD, above 0.
fn budget(text: &str) -> Result<Finite, Refusal> {
    text.parse()
        .ok()
        .and_then(|budget| Finite::new(budget).ok())
        .filter(|budget| *budget > Finite::ZERO)
        .ok_or(Refusal::InvalidHeader(BUDGET))
}

/// The contract's words (`routing.md` §9.6); each way has three names.
fn budget_fallback(text: &str) -> Result<BudgetFallback, Refusal> {
    match text.to_ascii_lowercase().as_str() {
        "cheapest" | "cheapest-viable" | "soft" => Ok(BudgetFallback::Cheapest),
        "strict" | "block" | "hard" => Ok(BudgetFallback::Strict),
        _ => Err(Refusal::InvalidHeader(BUDGET_FALLBACK)),
    }
}

fn tags(text: &str) -> Result<Vec<String>, Refusal> {
    let tags: Vec<String> = text
        .split(',')
        .map(str::trim)
        .filter(|tag| !tag.is_empty())
        .take(MAX_TAGS.saturating_add(1))
        .map(str::to_owned)
        .collect();
    if tags.len() > MAX_TAGS || tags.iter().any(|tag| tag.len() > MAX_WORD_BYTES) {
        return Err(Refusal::InvalidHeader(TAGS));
    }
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rstest::rstest;

    use super::*;

    fn facts(pairs: &[(&'static str, &str)]) -> Result<RequestFacts, Refusal> {
        let headers: HeaderMap = pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        let body = br#"{"model":"m","input":"ahoy","tools":[{}]}"#;
        let body = RequestBody::parse(Bytes::from_static(body), true).unwrap();
        of_request(Endpoint::Responses, &headers, None, &body)
    }

    #[test]
    fn headers_and_body_are_taken_together() {
        let facts = facts(&[
            ("x-omniroute-connection", "c1"),
            ("x-omniroute-mode", "fast"),
            ("x-omniroute-budget", " 0.25 "),
            ("x-omniroute-budget-fallback", "Strict"),
            ("x-omniroute-tags", "eu, fast,,"),
        ])
        .unwrap();
        assert_eq!(facts.forced_connection.unwrap().as_str(), "c1");
        assert_eq!(facts.mode.as_deref(), Some("fast"));
        assert_eq!(facts.budget, Finite::new(0.25).ok());
        assert_eq!(facts.budget_fallback, Some(BudgetFallback::Strict));
        assert_eq!(facts.tags, ["eu", "fast"]);
        assert_eq!((facts.tools, facts.estimated_tokens), (1, Some(2)));
        assert!(facts.session.is_some());
    }

    #[rstest]
    #[case("cheapest", BudgetFallback::Cheapest)]
    #[case("cheapest-viable", BudgetFallback::Cheapest)]
    #[case("soft", BudgetFallback::Cheapest)]
    #[case("strict", BudgetFallback::Strict)]
    #[case("block", BudgetFallback::Strict)]
    #[case("hard", BudgetFallback::Strict)]
    fn each_way_out_of_a_budget_has_three_names(
        #[case] word: &str,
        #[case] expected: BudgetFallback,
    ) {
        let facts = facts(&[("x-omniroute-budget-fallback", word)]).unwrap();
        assert_eq!(facts.budget_fallback, Some(expected));
    }

    #[rstest]
    #[case::no_number("x-omniroute-budget", "much")]
    #[case::nothing_to_spend("x-omniroute-budget", "0")]
    #[case::negative("x-omniroute-budget", "-1")]
    #[case::infinite("x-omniroute-budget", "inf")]
    #[case::empty_budget("x-omniroute-budget", " ")]
    #[case::empty_fallback("x-omniroute-budget-fallback", "")]
    #[case::unknown_word("x-omniroute-budget-fallback", "dearest")]
    #[case::long_tag("x-omniroute-tags", "x".repeat(65).leak())]
    #[case::many_tags("x-omniroute-tags", "a,".repeat(17).leak())]
    fn what_means_nothing_is_refused(#[case] name: &'static str, #[case] value: &str) {
        let refused = facts(&[(name, value)]).unwrap_err();
        assert_eq!(refused.code(), "invalid_header");
        assert!(refused.to_string().contains(name));
    }

    #[rstest]
    #[case("x-omniroute-budget", "1")]
    #[case("x-omniroute-budget-fallback", "strict")]
    fn two_that_say_what_may_be_spent_are_refused(#[case] name: &'static str, #[case] value: &str) {
        let refused = facts(&[(name, value), (name, value)]).unwrap_err();
        assert_eq!(refused.code(), "invalid_header");
        assert!(refused.to_string().contains(name));
    }

    #[rstest]
    #[case::codex_first(
        &[("x-omniroute-session", "o"), ("x-session-id", "s"), ("x-codex-session-id", "c")],
        Some("header:c")
    )]
    #[case::then_the_common_one(&[("x-omniroute-session", "o"), ("x-session-id", "s")], Some("header:s"))]
    #[case::then_ours(&[("x-omniroute-session", "o")], Some("header:o"))]
    #[case::unusable(&[("x-omniroute-session", "o"), ("x-session-id", " ")], None)]
    #[case::none(&[], None)]
    fn vector_sessions_28_headers_name_the_session(
        #[case] headers: &[(&'static str, &str)],
        #[case] key: Option<&str>,
    ) {
        let facts = facts(headers).unwrap();
        assert_eq!(facts.session_key.as_ref().map(SessionKey::as_str), key);
    }

    #[test]
    fn a_body_names_the_session_only_where_that_is_switched_on() {
        let text = br#"{"model":"m","input":"ahoy","session_id":"s"}"#;
        let key = |body: RequestBody, headers: &HeaderMap| {
            let facts = of_request(Endpoint::Responses, headers, None, &body).unwrap();
            facts.session_key.map(|key| key.as_str().to_owned())
        };
        let plain = RequestBody::parse(Bytes::from_static(text), true).unwrap();
        assert_eq!(key(plain, &HeaderMap::new()), None);
        let read = RequestBody::parse_with_session(Bytes::from_static(text), true).unwrap();
        assert_eq!(
            key(read.clone(), &HeaderMap::new()).as_deref(),
            Some("session:s")
        );
        let headers =
            HeaderMap::from_iter([("x-session-id".parse().unwrap(), "h".parse().unwrap())]);
        assert_eq!(key(read, &headers).as_deref(), Some("header:h"));
    }

    #[test]
    fn a_mode_that_nobody_knows_is_no_fault() {
        let long = "x".repeat(65);
        assert_eq!(facts(&[("x-omniroute-mode", &long)]).unwrap().mode, None);
        let unknown = facts(&[("x-omniroute-mode", "warp")]).unwrap();
        assert_eq!(unknown.mode.as_deref(), Some("warp"));
    }
}

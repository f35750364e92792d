use rstest::rstest;

use super::*;

const NOW: Timestamp = Timestamp(1_756_479_600_000);

fn endpoint(authentication: &str) -> QuotaEndpoint {
    serde_json::from_value(serde_json::json!({
        "url": "https://usage.example:8443/v1/usage",
        "authentication": authentication,
        "headers": {"anthropic-beta": "oauth"},
        "windows": {"session": {"usedShare": "/used"}},
    }))
    .unwrap()
}

fn headers(authentication: &str, protocol: Protocol, credential: Option<&str>) -> HeaderMap {
    let credential = credential.map(SecretString::from);
    let question = Question {
        endpoint: &endpoint(authentication),
        protocol,
        credential: credential.as_ref(),
    };
    let uri: Uri = question.endpoint.url.parse().unwrap();
    let request = request(&question, &uri).unwrap();
    assert_eq!(request.method(), http::Method::GET);
    assert_eq!(request.uri(), "/v1/usage");
    request.headers().clone()
}

#[rstest]
#[case::bearer("bearer", Protocol::Anthropic, Some(("authorization", "Bearer sk")))]
#[case::openai("provider", Protocol::Openai, Some(("authorization", "Bearer sk")))]
#[case::anthropic("provider", Protocol::Anthropic, Some(("x-api-key", "sk")))]
#[case::none("none", Protocol::Openai, None)]
fn a_credential_is_shown_as_configured(
    #[case] authentication: &str,
    #[case] protocol: Protocol,
    #[case] shown: Option<(&str, &str)>,
) {
    let headers = headers(authentication, protocol, Some("sk"));
    assert_eq!(headers["host"], "usage.example:8443");
    assert_eq!(headers["anthropic-beta"], "oauth");
    for name in ["authorization", "x-api-key"] {
        let expected = shown.filter(|shown| shown.0 == name).map(|shown| shown.1);
        let found = headers.get(name);
        assert_eq!(found.map(|value| value.to_str().unwrap()), expected);
        assert!(found.is_none_or(HeaderValue::is_sensitive));
    }
    let version = headers.get("anthropic-version").is_some();
    assert_eq!(version, shown.is_some_and(|shown| shown.0 == "x-api-key"));
}

#[test]
fn a_fetcher_of_ones_own_needs_no_credential() {
    headers("none", Protocol::Openai, None);
}

#[rstest]
#[case::missing(None)]
#[case::with_a_line_break(Some("a\nb"))]
fn a_credential_that_cannot_be_shown_is_told_without_it(#[case] credential: Option<&str>) {
    let credential = credential.map(SecretString::from);
    let question = Question {
        endpoint: &endpoint("bearer"),
        protocol: Protocol::Openai,
        credential: credential.as_ref(),
    };
    let uri: Uri = question.endpoint.url.parse().unwrap();
    assert_eq!(request(&question, &uri).unwrap_err(), NotTold::Unsendable);
}

fn told(
    status: u16,
    retry_after: Option<&'static str>,
    body: &str,
) -> Result<QuotaSnapshot, NotTold> {
    let mut headers = HeaderMap::new();
    if let Some(value) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from_static(value));
    }
    let answer = Answer {
        status: StatusCode::from_u16(status).unwrap(),
        headers,
        body: Bytes::copy_from_slice(body.as_bytes()),
    };
    read(&endpoint("none"), &answer, NOW)
}

#[test]
fn a_good_answer_is_a_snapshot_of_now() {
    let quota = told(200, None, r#"{"used": 0.5}"#).unwrap();
    assert_eq!(quota.observed_at, NOW);
    assert_eq!(quota.session.unwrap().used.get(), 0.5);
}

#[rstest]
#[case::redirect(302, None, QuotaPoll::Redirected, None)]
#[case::unauthorized(401, None, QuotaPoll::Refused, None)]
#[case::forbidden(403, None, QuotaPoll::Refused, None)]
#[case::limited(429, Some("120"), QuotaPoll::Limited, Some(120_000))]
#[case::limited_until(
    429,
    Some("Fri, 29 Aug 2025 15:05:00 GMT"),
    QuotaPoll::Limited,
    Some(300_000)
)]
#[case::unavailable(503, Some("soon"), QuotaPoll::Status, None)]
#[case::no_content(204, None, QuotaPoll::Status, None)]
#[case::no_json(200, None, QuotaPoll::NotUnderstood, None)]
fn a_bad_answer_is_told_by_a_word_and_repeats_nothing(
    #[case] status: u16,
    #[case] retry_after: Option<&'static str>,
    #[case] label: QuotaPoll,
    #[case] wait_ms: Option<u64>,
) {
    let error = told(status, retry_after, "sk-secret").unwrap_err();
    assert_eq!((error.label(), error.wait_ms()), (label, wait_ms));
    assert!(!format!("{error} {error:?}").contains("sk-secret"));
}

//! Errors inside a stream that has begun, whose status is spent (`sessions-and-streams.md` §5.3, decision 52).
//!
//! | format | event |
//! |---|---|
//! | chat completions, legacy completions | `data: {"error": {…}}` |
//! | messages | `event: error`, then `data: {"type": "error", "error": {…}}` |
//! | responses | `data: {"type": "error", …}`, its members flat |

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};

use super::error::{anthropic_type, openai_type};
use crate::redact;
use crate::sse::Dialect;

/// The event that tells a client that its stream failed. `sequence` is the last sequence number it has seen.
pub(crate) fn in_band(dialect: Dialect, code: &str, message: &str, sequence: Option<u64>) -> Bytes {
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    let mut error = Map::new();
    error.insert("message".to_owned(), message.into());
    error.insert("type".to_owned(), usual_type(dialect, status).into());
    if dialect != Dialect::Messages {
        error.insert("param".to_owned(), Value::Null);
    }
    error.insert("code".to_owned(), code.into());
    event(dialect, error, Map::new(), sequence)
}

/// The event for an answer that has come to be an error after its stream was promised. It says all that the answer
/// would have said, its status included.
pub(crate) fn in_band_answer(
    dialect: Dialect,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
) -> Bytes {
    let mut whole = match serde_json::from_slice(body) {
        Ok(Value::Object(whole)) => whole,
        _ => Map::new(),
    };
    let mut error = match whole.remove("error") {
        Some(Value::Object(error)) => error,
        Some(Value::String(message)) => Map::from_iter([("message".to_owned(), message.into())]),
        _ => Map::new(),
    };
    if !error.get("message").is_some_and(Value::is_string) {
        let text = redact::message(&String::from_utf8_lossy(body));
        let message = match text.trim() {
            "" => status.canonical_reason().unwrap_or("the request failed"),
            text => text,
        };
        error.insert("message".to_owned(), message.into());
    }
    let kind = || usual_type(dialect, status).into();
    error.entry("type").or_insert_with(kind);
    error.entry("code").or_insert(Value::Null);
    error.insert("status_code".to_owned(), status.as_u16().into());
    let seconds = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    if let Some(seconds) = seconds.and_then(|seconds| seconds.parse::<u64>().ok()) {
        error.insert("retry_after_seconds".to_owned(), seconds.into());
    }
    event(dialect, error, whole, None)
}

/// Both formats of errors have an object of this name and differ in what is around it.
fn event(
    dialect: Dialect,
    mut error: Map<String, Value>,
    mut around: Map<String, Value>,
    sequence: Option<u64>,
) -> Bytes {
    match dialect {
        Dialect::Chat => {
            around.remove("type");
            around.insert("error".to_owned(), error.into());
            format!("data: {}\n\n", Value::from(around)).into()
        }
        Dialect::Messages => {
            around.insert("type".to_owned(), "error".into());
            around.insert("error".to_owned(), error.into());
            format!("event: error\ndata: {}\n\n", Value::from(around)).into()
        }
        Dialect::Responses => {
            // Here the type is that of the event; the code says what kind of error it is.
            let kind = error.insert("type".to_owned(), "error".into());
            if error.get("code").is_none_or(Value::is_null) {
                error.insert("code".to_owned(), kind.unwrap_or_default());
            }
            error.entry("param").or_insert(Value::Null);
            let number = sequence.map_or(0, |last| last.saturating_add(1));
            error.insert("sequence_number".to_owned(), json!(number));
            format!("data: {}\n\n", Value::from(error)).into()
        }
    }
}

fn usual_type(dialect: Dialect, status: StatusCode) -> &'static str {
    match dialect {
        Dialect::Chat | Dialect::Responses => openai_type(status),
        Dialect::Messages => anthropic_type(status),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rstest::rstest;

    use super::*;

    const ALL: [Dialect; 3] = [Dialect::Chat, Dialect::Messages, Dialect::Responses];

    fn text(bytes: &Bytes) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    fn data(bytes: &Bytes) -> Value {
        let text = text(bytes);
        assert!(
            text.ends_with("\n\n") && text.matches("data: ").count() == 1,
            "{text}"
        );
        let line = text.lines().find_map(|line| line.strip_prefix("data: "));
        serde_json::from_str(line.unwrap()).unwrap()
    }

    fn answer(dialect: Dialect, status: u16, retry_after: Option<&str>, body: &str) -> Value {
        let mut headers = HeaderMap::new();
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from_str(seconds).unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        data(&in_band_answer(dialect, status, &headers, body.as_bytes()))
    }

    #[test]
    fn a_broken_stream_ends_with_one_event_of_its_format() {
        let event = |dialect| in_band(dialect, "stream_terminated", "it broke", Some(7));
        assert_eq!(
            data(&event(Dialect::Chat)),
            json!({"error": {"message": "it broke", "type": "server_error", "param": null,
                "code": "stream_terminated"}})
        );
        let messages = event(Dialect::Messages);
        assert!(text(&messages).starts_with("event: error\ndata: "));
        assert_eq!(
            data(&messages),
            json!({"type": "error", "error": {"message": "it broke", "type": "api_error",
                "code": "stream_terminated"}})
        );
        assert_eq!(
            data(&event(Dialect::Responses)),
            json!({"type": "error", "message": "it broke", "code": "stream_terminated",
                "param": null, "sequence_number": 8})
        );
    }

    #[rstest]
    #[case::openai(r#"{"error": {"message": "no", "type": "rate_limit_error", "param": null, "code": "c"}, "diagnostics": {"poolSize": 2}}"#)]
    #[case::anthropic(r#"{"type": "error", "error": {"type": "rate_limit_error", "message": "no", "code": "c"}, "diagnostics": {"poolSize": 2}}"#)]
    fn an_error_says_all_that_the_answer_would_have_said(#[case] body: &str) {
        for dialect in ALL {
            let told = answer(dialect, 429, Some("7"), body);
            let error = if dialect == Dialect::Responses {
                &told
            } else {
                assert_eq!(told["error"]["type"], "rate_limit_error");
                assert_eq!(told["diagnostics"]["poolSize"], 2);
                &told["error"]
            };
            assert_eq!(error["message"], "no");
            assert_eq!(error["code"], "c");
            assert_eq!(error["status_code"], 429);
            assert_eq!(error["retry_after_seconds"], 7);
            let kind = told.get("type").and_then(Value::as_str);
            assert_eq!(kind, (dialect != Dialect::Chat).then_some("error"));
        }
    }

    #[rstest]
    #[case::nothing("", "Bad Gateway")]
    #[case::prose("at /srv/app/x.py\nline 2", "at [redacted]")]
    #[case::text(r#"{"error": "no more"}"#, "no more")]
    fn an_answer_that_is_no_error_of_a_format_is_told_as_one(
        #[case] body: &str,
        #[case] message: &str,
    ) {
        for dialect in ALL {
            let told = answer(dialect, 502, None, body);
            let error = told.get("error").unwrap_or(&told);
            assert_eq!(error["message"], message);
            assert_eq!(error.get("retry_after_seconds"), None);
        }
        let responses = answer(Dialect::Responses, 502, None, body);
        assert_eq!(responses["code"], "server_error");
    }
}

//! Chunks of ours in a chat stream, in the shape of the upstream's own.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::sse::Scanner;

/// A member that takes more than this is not taken over.
const MAX_MEMBER_BYTES: usize = 512;
const DONE: &str = "data: [DONE]\n\n";

/// What all chunks of a stream have in common.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Shape {
    id: Option<Value>,
    created: Option<Value>,
    model: Option<Value>,
    system_fingerprint: Option<Value>,
}

impl Shape {
    /// The shape of the first chunk that begins and ends in these bytes.
    pub(crate) fn find(bytes: &[u8]) -> Option<Self> {
        let data = bytes
            .split(|byte| *byte == b'\n')
            .filter_map(|line| line.strip_prefix(b"data:"));
        data.filter_map(|data| serde_json::from_slice::<Self>(data).ok())
            .find(|shape| shape.id.is_some())
    }

    /// Of chunks that belong to this request, where the upstream's are not known.
    pub(super) fn of(request_id: &str) -> Self {
        Self {
            id: Some(format!("chatcmpl-{request_id}").into()),
            ..Self::default()
        }
    }

    /// A chunk with text.
    pub(super) fn text(&self, text: &str) -> Bytes {
        self.chunk(&json!({"content": text}), &Value::Null).into()
    }

    /// The last chunk, with this reason, and the end of the stream.
    pub(super) fn end(&self, reason: &str) -> Bytes {
        let mut end = self.chunk(&json!({}), &reason.into());
        end.push_str(DONE);
        end.into()
    }

    fn chunk(&self, delta: &Value, reason: &Value) -> String {
        let mut chunk = Map::new();
        let common = [
            ("id", &self.id),
            ("created", &self.created),
            ("model", &self.model),
            ("system_fingerprint", &self.system_fingerprint),
        ];
        for (name, value) in common {
            if let Some(value) = value
                && value
                    .as_str()
                    .is_none_or(|text| text.len() <= MAX_MEMBER_BYTES)
                && !value.is_array()
                && !value.is_object()
            {
                chunk.insert(name.to_owned(), value.clone());
            }
        }
        chunk.insert("object".to_owned(), "chat.completion.chunk".into());
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        chunk.insert("choices".to_owned(), json!([choice]));
        format!("data: {}\n\n", Value::Object(chunk))
    }
}

/// Where the first event begins in these bytes that says that the turn is complete.
pub(crate) fn end_of_turn(bytes: &[u8]) -> Option<usize> {
    let mut scanner = Scanner::default();
    let (mut begun, mut at) = (0, 0_usize);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let mut ends = false;
        let passed = scanner.feed(line, &mut |event| ends |= is_end(event.data));
        if ends {
            return Some(begun);
        }
        at = at.saturating_add(line.len());
        if passed.upto > 0 && !scanner.is_inside() {
            begun = at;
        }
    }
    None
}

fn is_end(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Chunk {
        choices: Vec<Choice>,
    }
    #[derive(Deserialize)]
    struct Choice {
        finish_reason: Option<String>,
    }
    data.trim_ascii() == b"[DONE]"
        || serde_json::from_slice::<Chunk>(data).is_ok_and(|chunk| {
            let mut choices = chunk.choices.iter();
            choices.any(|choice| choice.finish_reason.is_some())
        })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const FIRST: &str = "data: {\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":7,\
        \"model\":\"m-1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]}\n\n";

    fn parsed(event: &str) -> Value {
        serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()
    }

    #[test]
    fn chunks_of_ours_look_like_the_upstreams() {
        let shape = Shape::find(format!(": hello\n\n{FIRST}").as_bytes()).unwrap();
        let chunk = shape.text("a \"b\"\n");
        let chunk = parsed(std::str::from_utf8(&chunk).unwrap().trim_end());
        let expected = json!({
            "id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m-1",
            "choices": [{"index": 0, "delta": {"content": "a \"b\"\n"}, "finish_reason": null}],
        });
        assert_eq!(chunk, expected);
        let end = shape.end("length");
        let end = std::str::from_utf8(&end).unwrap();
        let (chunk, done) = end.split_once("\n\n").unwrap();
        assert_eq!(parsed(chunk)["choices"][0]["finish_reason"], "length");
        assert_eq!(done, DONE);
    }

    #[test]
    fn what_is_no_name_is_not_taken_over() {
        let long = "x".repeat(MAX_MEMBER_BYTES + 1);
        let event = json!({"id": long, "model": ["m"], "created": 7});
        let shape = Shape::find(format!("data: {event}\n\n").as_bytes()).unwrap();
        let chunk = shape.text("a");
        let chunk = parsed(std::str::from_utf8(&chunk).unwrap().trim_end());
        assert_eq!(
            (&chunk["id"], &chunk["model"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(chunk["created"], 7);
    }

    const REASONS: &str =
        "data: {\"choices\":[{\"delta\":{\"reasoning\":\"x\"},\"finish_reason\":null}]}\n\n";
    const STOPS: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

    #[rstest]
    #[case::a_finish_reason(&[REASONS, STOPS, DONE], Some(REASONS.len()))]
    #[case::the_last_event(&[REASONS, ": ping\n\n", DONE], Some(REASONS.len() + 8))]
    #[case::at_once(&[STOPS], Some(0))]
    #[case::none(&[REASONS, "data: {}\n\n"], None)]
    fn the_end_of_a_turn_is_found(#[case] events: &[&str], #[case] expected: Option<usize>) {
        assert_eq!(end_of_turn(events.concat().as_bytes()), expected);
        let crlf = events.concat().replace('\n', "\r\n");
        let found = end_of_turn(crlf.as_bytes());
        assert_eq!(found.is_some(), expected.is_some());
    }
}

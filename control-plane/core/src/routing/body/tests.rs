use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::routing::Intent;

fn facts(body: &Value) -> BodyFacts {
    read(&body.to_string()).unwrap()
}

/// A chat of these turns: `u:`, `a:`, `s:` and the text.
fn chat(turns: &[&str]) -> Value {
    let messages: Vec<Value> = turns
        .iter()
        .map(|turn| {
            let (who, text) = turn.split_once(':').unwrap();
            let role = match who {
                "u" => "user",
                "a" => "assistant",
                _ => "system",
            };
            json!({"role": role, "content": text})
        })
        .collect();
    json!({"model": "m", "messages": messages})
}

#[rstest]
#[case::none(json!({}), 0, false)]
#[case::list(json!({"tools": [{}, {"a": 1}]}), 2, false)]
#[case::legacy(json!({"functions": [{}]}), 1, false)]
#[case::no_list(json!({"tools": {"a": 1}}), 0, false)]
#[case::word(json!({"tools": [1], "tool_choice": "none"}), 1, true)]
#[case::object(json!({"tools": [1], "tool_choice": {"type": "none"}}), 1, true)]
#[case::auto(json!({"tool_choice": "auto"}), 0, false)]
#[case::one_tool(json!({"tool_choice": {"type": "function", "name": "none"}}), 0, false)]
fn tools_are_counted(#[case] body: Value, #[case] tools: u32, #[case] forbidden: bool) {
    let facts = facts(&body);
    assert_eq!((facts.tools, facts.tools_forbidden), (tools, forbidden));
}

#[rstest]
#[case::chat(json!({"messages": [{"role": "user", "content": [
    {"type": "text", "text": "what is it?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]}), true)]
#[case::responses(json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), true)]
#[case::anthropic(json!({"messages": [{"content": [{"source": {}, "type": "image"}]}]}), true)]
#[case::result_of_a_tool(json!({"messages": [{"content": [
    {"type": "tool_result", "content": [{"type": "image"}]}]}]}), true)]
#[case::text(json!({"messages": [{"content": "image_url"}]}), false)]
#[case::text_part(json!({"messages": [{"content": [{"type": "text", "text": "image"}]}]}), false)]
#[case::elsewhere(json!({"metadata": {"type": "image"}}), false)]
fn images_are_seen(#[case] body: Value, #[case] expected: bool) {
    assert_eq!(facts(&body).vision, expected);
}

#[rstest]
#[case::chat(json!({"response_format": {"type": "json_schema", "json_schema": {}}}), true)]
#[case::responses(json!({"text": {"format": {"type": "json_schema"}}}), true)]
#[case::anthropic(json!({"output_format": {"type": "json_schema"}}), true)]
#[case::anthropic_config(json!({"output_config": {"format": {"type": "json_schema"}}}), true)]
#[case::any_json(json!({"response_format": {"type": "json_object"}}), false)]
#[case::text(json!({"text": "json_schema"}), false)]
fn a_schema_is_seen(#[case] body: Value, #[case] expected: bool) {
    assert_eq!(facts(&body).structured_output, expected);
}

#[rstest]
#[case::nothing(json!({}), 0)]
#[case::text(chat(&["u:12345678"]), 2)]
#[case::rounded_up(chat(&["s:12345678", "u:1"]), 3)]
#[case::system(json!({"system": "12345678"}), 2)]
#[case::system_parts(json!({"system": [{"type": "text", "text": "1234"}]}), 1)]
#[case::responses(json!({"instructions": "1234", "input": "1234"}), 2)]
#[case::tools(json!({"tools": [{"a": 1}]}), 2)]
#[case::calls(json!({"messages": [{"role": "assistant", "tool_calls": [{"a": "12"}]}]}), 3)]
#[case::several_texts(json!({"input": ["1234", "1234"]}), 2)]
#[case::images_count_nothing(json!({"messages": [{"content": [
    {"type": "image_url", "image_url": {"url": "data:aaaaaaaaaaaaaaaa"}}]}]}), 0)]
fn tokens_are_estimated_by_bytes(#[case] body: Value, #[case] expected: u64) {
    assert_eq!(facts(&body).estimated_tokens(), expected);
}

#[test]
fn a_conversation_is_told_by_its_first_turn() {
    // `routing.md` §10.1.
    let hello = facts(&chat(&["s:be kind", "u:Hello"]));
    assert_eq!(hello.session(None).as_deref(), Some("185f8db32271fe25"));
    let later = facts(&chat(&["u:Hello", "a:Hi", "u:And now?"]));
    assert_eq!(later.session(None), hello.session(None));
    let other = facts(&chat(&["u:Hi", "a:Hello", "u:Hello"]));
    assert_ne!(other.session(None), hello.session(None));
    assert_ne!(hello.session(Some("one")), hello.session(Some("two")));
    assert_ne!(hello.session(Some("one")), hello.session(None));
    assert_eq!(facts(&chat(&["a:Hello"])).session(None), None);
}

#[rstest]
#[case::role_after_content(json!({"messages": [{"content": "Hello", "role": "user"}]}))]
#[case::parts(json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}))]
#[case::text_alone(json!({"input": "Hello"}))]
#[case::responses(json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]}))]
fn a_turn_may_be_written_in_several_ways(#[case] body: Value) {
    let session = facts(&body).session(None);
    assert_eq!(session.as_deref(), Some("185f8db32271fe25"));
}

#[test]
fn a_prefix_has_a_key_from_the_moment_there_is_something_to_cache() {
    let key = |body: &Value| facts(body).cache_key();
    assert_eq!(key(&chat(&["u:Hello"])), None);
    let second = key(&chat(&["u:Hello", "a:Hi", "u:What?"]));
    assert!(second.is_some());
    assert_eq!(
        second,
        key(&chat(&["u:Hello", "a:Hi", "u:What?", "a:Oh", "u:So?"]))
    );

    let system = key(&chat(&["s:be kind", "u:Hello"]));
    assert!(system.is_some());
    assert_eq!(system, key(&chat(&["s:be kind", "u:Goodbye"])));
    assert_ne!(system, key(&chat(&["s:be quick", "u:Hello"])));
    let mut with_tools = chat(&["s:be kind", "u:Hello"]);
    with_tools["tools"] = json!([{"name": "look"}]);
    assert_ne!(system, key(&with_tools));
}

#[rstest]
#[case::body(json!({"prompt_cache_key": "pk-123"}), Some("pk-123"))]
#[case::metadata(json!({"metadata": {"prompt_cache_key": "pk-123"}}), Some("pk-123"))]
#[case::longest(json!({"prompt_cache_key": "x".repeat(4_096)}), Some("x".repeat(4_096).leak() as &str))]
#[case::more_bytes_than_characters(
    json!({"prompt_cache_key": "é".repeat(4_096)}),
    Some("9a74b60bb3129364917037174fdb432c3346b4f1136a04069b9e26e34cf497e4")
)]
#[case::too_long(json!({"prompt_cache_key": "x".repeat(4_097)}), None)]
#[case::empty(json!({"prompt_cache_key": ""}), None)]
#[case::number(json!({"prompt_cache_key": 5}), None)]
fn a_client_may_name_the_key(#[case] body: Value, #[case] expected: Option<&str>) {
    assert_eq!(facts(&body).cache_key().as_deref(), expected);
}

#[test]
fn the_last_user_turn_says_what_it_is_about() {
    let code = "u:my python script throws a traceback, refactor it";
    assert_eq!(
        facts(&chat(&["u:Hello", "a:Hi", code])).intent(),
        Intent::Coding
    );
    assert_eq!(
        facts(&chat(&[code, "a:Done", "u:Thanks"])).intent(),
        Intent::General
    );
}

#[rstest]
#[case::nothing("")]
#[case::cut(r#"{"messages":[{"role":"user","content":"x"#)]
#[case::two_values(r#"{"a":1} {"b":2}"#)]
#[case::trailing_comma(r#"{"tools":[1,]}"#)]
#[case::no_json("hello")]
fn what_is_no_json_is_told(#[case] text: &str) {
    assert!(read(text).is_err());
}

#[rstest]
#[case::lone_surrogate(r#"{"tools":[1],"messages":[{"content":"\ud800"}]}"#)]
#[case::huge_number(r#"{"tools":[1],"prompt_cache_key":1e999}"#)]
#[case::wrong_types(
    r#"{"tools":[1],"messages":5,"system":[[1]],"text":[],"metadata":"x","input":[[["y"]]]}"#
)]
#[case::twice(r#"{"messages":[],"tools":[1],"messages":[{"role":"user"}]}"#)]
fn what_cannot_be_understood_is_passed_over(#[case] text: &str) {
    assert_eq!(read(text).unwrap().tools, 1);
}

#[test]
fn deep_and_long_bodies_cost_no_more_than_their_length() {
    let deep = format!(
        r#"{{"messages":[{{"content":{}{}}}]}}"#,
        r#"[{"content":"#.repeat(100_000),
        "}]".repeat(100_000)
    );
    // The innermost value is missing.
    assert!(read(&deep).is_err());
    let deep = deep.replacen(r#""content":}"#, r#""content":1}"#, 1);
    assert!(read(&deep).is_ok());
    let long = chat(&[&format!("u:{}", "é".repeat(1_000_000))]);
    let facts = facts(&long);
    assert_eq!(facts.estimated_tokens(), 500_000);
    assert!(facts.last_turn.len() <= intent::LOOKED_AT_BYTES);
}

#[test]
fn nothing_that_a_client_wrote_is_shown() {
    let mut body = chat(&["s:secret", "u:secret"]);
    body["prompt_cache_key"] = json!("secret");
    assert!(!format!("{:?}", facts(&body)).contains("secret"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "messages",
        "input",
        "content",
        "role",
        "type",
        "text",
        "tools",
        "system",
        "metadata",
        "format",
        "tool_choice",
        "prompt_cache_key",
        "response_format",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["user", "image", "none", "json_schema", "é\u{0}\""])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..6).prop_map(|members| {
                Value::Object(
                    members
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_json_can_be_read(value in any_json()) {
        prop_assert!(read(&value.to_string()).is_ok());
    }

    #[test]
    fn any_text_is_read_or_refused_as_json_is(text in "[{}\\[\\]\",:a1 \\\\u]{0,24}") {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        prop_assert_eq!(read(&text).is_ok(), is_json);
    }
}

fn session_of(body: &Value) -> Option<String> {
    let text = body.to_string();
    assert_eq!(
        read(&text).unwrap().session_key(),
        None,
        "it was not asked for"
    );
    let read = read_with_session(&text).unwrap();
    read.session_key().map(|key| key.as_str().to_owned())
}

#[rstest]
#[case::metadata(json!({"metadata": {"session_id": "m"}, "session_id": "s"}), Some("metadata:m"))]
#[case::metadata_camel(json!({"metadata": {"sessionId": "m"}}), Some("metadata:m"))]
#[case::both(json!({"metadata": {"sessionId": "n", "session_id": "m"}}), Some("metadata:m"))]
#[case::conversation(json!({"session_id": "s", "conversation_id": "c"}), Some("conversation:c"))]
#[case::session(json!({"session_id": "s", "prompt_cache_key": "p"}), Some("session:s"))]
#[case::prompt_cache(json!({"prompt_cache_key": "p"}), Some("prompt-cache:p"))]
#[case::no_text(json!({"session_id": 5}), None)]
#[case::too_long(json!({"session_id": "x".repeat(5_000), "prompt_cache_key": "p"}), Some("prompt-cache:p"))]
#[case::first_turn(
    chat(&["s:be kind", "u:hello", "a:hi", "u:more"]),
    Some("input:sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
)]
#[case::input(
    json!({"input": "hello"}),
    Some("input:sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
)]
#[case::role_after_content(
    json!({"messages": [{"content": "hello", "role": "user"}]}),
    Some("input:sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
)]
#[case::nothing(json!({"messages": []}), None)]
fn members_name_the_session_where_asked(#[case] body: Value, #[case] key: Option<&str>) {
    assert_eq!(session_of(&body).as_deref(), key);
}

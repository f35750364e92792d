use rstest::rstest;
use serde_json::{Value, json};

use super::read::MAX_TEXT_BYTES;
use super::*;

const CHAT: Endpoint = Endpoint::ChatCompletions;
const RESPONSES: Endpoint = Endpoint::Responses;
const MESSAGES: Endpoint = Endpoint::Messages;

fn conversation(endpoint: Endpoint, members: Value) -> Conversation {
    let mut body = json!({"model": "c", "temperature": 0.10, "seed": 18446744073709551615_u64});
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    let bytes = Bytes::from(body.to_string());
    let body = RequestBody::parse(bytes, false).unwrap();
    Conversation::of(endpoint, &body).unwrap()
}

fn written(conversation: Conversation) -> Value {
    let body = conversation.into_body().unwrap();
    assert_eq!(body.model, "c");
    let mut value: Value = serde_json::from_slice(body.bytes()).unwrap();
    let members = value.as_object_mut().unwrap();
    assert_eq!(members.remove("temperature"), Some(json!(0.10)));
    assert_eq!(
        members.remove("seed"),
        Some(json!(18446744073709551615_u64))
    );
    members.remove("model");
    value
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn system(text: &str) -> Value {
    json!({"role": "system", "content": text})
}

#[rstest]
#[case::chat(
    CHAT,
    json!({"messages": [user("x")], "tools": [{}], "tool_choice": "none", "stream": true,
        "stream_options": {"include_usage": true}, "n": 2, "parallel_tool_calls": true,
        "functions": [], "function_call": "none", "top_p": 1}),
    json!({"messages": [user("x")], "top_p": 1}),
)]
#[case::responses(
    RESPONSES,
    json!({"input": [user("x")], "tools": [{}], "tool_choice": "none", "stream": true,
        "max_tool_calls": 3}),
    json!({"input": [user("x")]}),
)]
#[case::messages(
    MESSAGES,
    json!({"messages": [user("x")], "tools": [{}], "tool_choice": {"type": "none"},
        "stream": true, "max_tokens": 9, "system": "s"}),
    json!({"messages": [user("x")], "max_tokens": 9, "system": "s"}),
)]
fn a_silent_part_has_neither_tools_nor_a_stream(
    #[case] endpoint: Endpoint,
    #[case] from: Value,
    #[case] expected: Value,
) {
    let silent = conversation(endpoint, from).silent();
    assert!(!silent.clone().into_body().unwrap().stream);
    assert_eq!(written(silent), expected);
}

#[rstest]
#[case::chat(
    CHAT,
    json!({"messages": [system("s"), user("x")]}),
    json!({"messages": [system("be brief"), system("s"), user("x")]}),
)]
#[case::responses(
    RESPONSES,
    json!({"input": [user("x")]}),
    json!({"input": [user("x")], "instructions": "be brief"}),
)]
#[case::responses_with_instructions(
    RESPONSES,
    json!({"input": [user("x")], "instructions": "s"}),
    json!({"input": [user("x")], "instructions": "be brief\n\ns"}),
)]
#[case::messages(
    MESSAGES,
    json!({"messages": [user("x")], "system": null}),
    json!({"messages": [user("x")], "system": "be brief"}),
)]
#[case::messages_with_system(
    MESSAGES,
    json!({"messages": [user("x")], "system": "s"}),
    json!({"messages": [user("x")], "system": "be brief\n\ns"}),
)]
#[case::messages_with_blocks(
    MESSAGES,
    json!({"messages": [user("x")], "system": [{"type": "text", "text": "s"}]}),
    json!({"messages": [user("x")],
        "system": [{"type": "text", "text": "be brief"}, {"type": "text", "text": "s"}]}),
)]
fn a_prompt_goes_ahead(#[case] endpoint: Endpoint, #[case] from: Value, #[case] expected: Value) {
    let prompted = conversation(endpoint, from)
        .with_prompt("be brief")
        .unwrap();
    assert_eq!(written(prompted), expected);
}

#[rstest]
#[case::chat(
    CHAT,
    json!({"messages": [system("s"), user("x")], "stream": true, "tools": [{}]}),
    json!({"messages": [system("be brief"), user("said")], "stream": true, "tools": [{}]}),
)]
#[case::responses(
    RESPONSES,
    json!({"input": "x", "instructions": "s", "previous_response_id": "r", "prompt": {"id": "p"},
        "conversation": "v"}),
    json!({"input": [user("said")], "instructions": "be brief"}),
)]
#[case::messages(
    MESSAGES,
    json!({"messages": [user("x"), {"role": "assistant", "content": "y"}, user("z")],
        "system": "s", "max_tokens": 9}),
    json!({"messages": [user("said")], "system": "be brief", "max_tokens": 9}),
)]
fn what_the_step_before_said_is_all_there_is(
    #[case] endpoint: Endpoint,
    #[case] from: Value,
    #[case] expected: Value,
) {
    let from = conversation(endpoint, from);
    let told = from.clone().told("said", Some("be brief")).unwrap();
    assert_eq!(written(told), expected);
    let mut without = written(from.told("said", None).unwrap());
    let name = turns_member(endpoint).unwrap();
    assert_eq!(without[name], json!([user("said")]));
    without.as_object_mut().unwrap().remove(name);
    assert!(!without.to_string().contains("be brief"));
    for member in ["system", "instructions"] {
        assert_eq!(without.get(member), None);
    }
}

#[rstest]
#[case::chat(CHAT, json!({"messages": [user("x")], "stream": true}))]
#[case::responses(RESPONSES, json!({"input": "x", "stream": true}))]
#[case::messages(MESSAGES, json!({"messages": [user("x")], "stream": true}))]
fn a_judge_sees_the_conversation_and_the_answers(#[case] endpoint: Endpoint, #[case] from: Value) {
    let judging = conversation(endpoint, from)
        .judging(&["yes", "no"])
        .unwrap();
    let body = written(judging);
    assert_eq!(body["stream"], true);
    let turns = body[turns_member(endpoint).unwrap()].as_array().unwrap();
    assert_eq!(turns.len(), 2);
    assert_eq!(turns[0], user("x"));
    assert_eq!(turns[1]["role"], "user");
    let told = turns[1]["content"].as_str().unwrap();
    assert!(
        told.ends_with("\n\nSource 1:\nyes\n\nSource 2:\nno"),
        "{told}"
    );
}

#[rstest]
#[case::no_messages(CHAT, json!({}))]
#[case::no_list(CHAT, json!({"messages": "x"}))]
#[case::no_message(CHAT, json!({"messages": []}))]
#[case::no_message_of_anthropic(MESSAGES, json!({"messages": []}))]
#[case::no_input(RESPONSES, json!({"messages": [user("x")]}))]
#[case::no_item(RESPONSES, json!({"input": []}))]
#[case::no_text(RESPONSES, json!({"input": ""}))]
#[case::blanks(RESPONSES, json!({"input": " \n"}))]
#[case::null(RESPONSES, json!({"input": null}))]
#[case::a_number(RESPONSES, json!({"input": 7}))]
#[case::no_conversation(Endpoint::Embeddings, json!({"input": "x"}))]
fn a_body_without_a_conversation_is_refused(#[case] endpoint: Endpoint, #[case] members: Value) {
    let mut body = json!({"model": "c"});
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    let body = RequestBody::parse(Bytes::from(body.to_string()), false).unwrap();
    let refused = Conversation::of(endpoint, &body).unwrap_err();
    assert_eq!(refused.code(), "no_conversation");
    assert_eq!(refused.status(), 400);
}

#[test]
fn a_system_that_cannot_be_extended_is_refused() {
    let odd = conversation(MESSAGES, json!({"messages": [user("x")], "system": 7}));
    assert_eq!(odd.with_prompt("p").unwrap_err().code(), "no_conversation");
}

#[rstest]
#[case::asked(json!({"include_usage": true}), true)]
#[case::not_asked(json!({"include_usage": false}), false)]
#[case::something_else(json!(7), false)]
fn usage_in_a_stream_is_asked_for(#[case] options: Value, #[case] expected: bool) {
    let members = json!({"messages": [user("x")], "stream_options": options});
    assert_eq!(conversation(CHAT, members).wants_usage(), expected);
    assert!(!conversation(CHAT, json!({"messages": [user("x")]})).wants_usage());
}

fn chat(content: Value) -> Value {
    json!({"choices": [{"message": {"role": "assistant", "content": content}}]})
}

#[rstest]
#[case::chat(CHAT, chat(json!("ahoy")), Ok("ahoy"))]
#[case::chat_pieces(
    CHAT,
    chat(json!([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}])),
    Ok("ab")
)]
#[case::chat_null(CHAT, chat(Value::Null), Err(Unreadable::Empty))]
#[case::chat_blank(CHAT, chat(json!(" \n")), Err(Unreadable::Empty))]
#[case::chat_tool_call(
    CHAT,
    json!({"choices": [{"message": {"tool_calls": [{"id": "t"}]}}]}),
    Err(Unreadable::Empty)
)]
#[case::chat_no_choice(CHAT, json!({"choices": []}), Err(Unreadable::Empty))]
#[case::chat_something_else(CHAT, json!({"data": []}), Err(Unreadable::Unparseable))]
#[case::chat_odd_content(CHAT, chat(json!(7)), Err(Unreadable::Unparseable))]
#[case::chat_too_long(
    CHAT,
    chat(json!("x".repeat(MAX_TEXT_BYTES + 1))),
    Err(Unreadable::Unparseable)
)]
#[case::responses(
    RESPONSES,
    json!({"output": [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "a"},
            {"type": "refusal", "refusal": "r"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "b"}]}]}),
    Ok("ab")
)]
#[case::responses_without_message(RESPONSES, json!({"output": []}), Err(Unreadable::Empty))]
#[case::messages(
    MESSAGES,
    json!({"content": [{"type": "thinking", "thinking": "h"}, {"type": "text", "text": "ahoy"}]}),
    Ok("ahoy")
)]
#[case::messages_tool_use(
    MESSAGES,
    json!({"content": [{"type": "tool_use", "id": "t"}]}),
    Err(Unreadable::Empty)
)]
#[case::messages_without_content(MESSAGES, json!({}), Err(Unreadable::Unparseable))]
fn the_text_of_an_answer(
    #[case] endpoint: Endpoint,
    #[case] body: Value,
    #[case] expected: Result<&str, Unreadable>,
) {
    let found = text(endpoint, body.to_string().as_bytes());
    assert_eq!(found.as_deref().map_err(|error| *error), expected);
}

#[test]
fn what_is_not_json_is_no_answer() {
    let found = text(CHAT, b"<html>");
    assert_eq!(found, Err(Unreadable::Unparseable));
}

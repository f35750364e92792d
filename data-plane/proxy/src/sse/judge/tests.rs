mod progress;

use rstest::rstest;

use super::*;

fn event<'a>(name: &'a str, data: &'a str) -> Event<'a> {
    Event {
        name: name.as_bytes(),
        data: data.as_bytes(),
        cut: false,
    }
}

fn judge(dialect: Dialect, data: &str) -> (Seen, Judge) {
    let mut judge = Judge::new(dialect);
    let seen = judge.see(&event("", data), None);
    (seen, judge)
}

#[rstest]
#[case(
    Dialect::Chat,
    r#"{"choices":[{"delta":{"content":"a"}}]}"#,
    Class::Useful,
    true
)]
#[case(
    Dialect::Chat,
    r#"{"choices":[{"text":"a","finish_reason":null}]}"#,
    Class::Useful,
    true
)]
#[case(
    Dialect::Chat,
    r#"{"choices":[{"delta":{"refusal":"no"}}]}"#,
    Class::Useful,
    true
)]
#[case(
    Dialect::Chat,
    r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
    Class::Protected,
    true
)]
#[case(
    Dialect::Chat,
    r#"{"choices":[{"delta":{"content":"a","reasoning_content":"b"}}]}"#,
    Class::Protected,
    true
)]
#[case(
    Dialect::Chat,
    r#"{"choices":[{"delta":{"content":"a","tool_calls":[],"reasoning_content":""}}]}"#,
    Class::Useful,
    true
)]
#[case(
    Dialect::Chat,
    r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
    Class::Lifecycle,
    true
)]
#[case(Dialect::Chat, r#"{"choices":[{"delta":{}}]}"#, Class::Neutral, false)]
#[case(
    Dialect::Chat,
    r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
    Class::Neutral,
    false
)]
#[case(
    Dialect::Chat,
    r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
    Class::Terminal,
    true
)]
#[case(Dialect::Chat, "[DONE]", Class::Terminal, false)]
#[case(
    Dialect::Chat,
    r#"{"error":{"message":"overloaded"}}"#,
    Class::Error,
    false
)]
#[case(
    Dialect::Chat,
    r#"{"error":null,"choices":[{"delta":{"content":"a"}}]}"#,
    Class::Useful,
    true
)]
#[case(Dialect::Chat, "not json", Class::Neutral, true)]
#[case(
    Dialect::Responses,
    r#"{"type":"response.created","response":{}}"#,
    Class::Lifecycle,
    true
)]
#[case(
    Dialect::Responses,
    r#"{"type":"response.output_text.delta","delta":"a"}"#,
    Class::Useful,
    true
)]
#[case(
    Dialect::Responses,
    r#"{"type":"response.function_call_arguments.delta","delta":"a"}"#,
    Class::Protected,
    true
)]
#[case(
    Dialect::Responses,
    r#"{"type":"response.output_item.added","item":{"type":"reasoning"}}"#,
    Class::Protected,
    true
)]
#[case(
    Dialect::Responses,
    r#"{"type":"response.output_item.added","item":{"type":"message"}}"#,
    Class::Lifecycle,
    true
)]
#[case(
    Dialect::Responses,
    r#"{"type":"response.completed","response":{}}"#,
    Class::Terminal,
    true
)]
#[case(
    Dialect::Responses,
    r#"{"type":"error","message":"x"}"#,
    Class::Error,
    false
)]
#[case(
    Dialect::Responses,
    r#"{"type":"response.failed","response":{"error":{"code":"x"}}}"#,
    Class::Error,
    false
)]
#[case(
    Dialect::Messages,
    r#"{"type":"message_start","message":{}}"#,
    Class::Lifecycle,
    true
)]
#[case(Dialect::Messages, r#"{"type":"ping"}"#, Class::Neutral, false)]
#[case(
    Dialect::Messages,
    r#"{"type":"content_block_start","content_block":{"type":"tool_use"}}"#,
    Class::Protected,
    true
)]
#[case(
    Dialect::Messages,
    r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#,
    Class::Useful,
    true
)]
#[case(
    Dialect::Messages,
    r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":""}}"#,
    Class::Neutral,
    false
)]
#[case(
    Dialect::Messages,
    r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}"#,
    Class::Protected,
    true
)]
#[case(Dialect::Messages, r#"{"type":"message_stop"}"#, Class::Terminal, true)]
#[case(
    Dialect::Messages,
    r#"{"type":"error","error":{"type":"overloaded_error"}}"#,
    Class::Error,
    false
)]
fn events_are_classed(
    #[case] dialect: Dialect,
    #[case] data: &str,
    #[case] class: Class,
    #[case] ready: bool,
) {
    let seen = judge(dialect, data).0;
    assert_eq!((seen.class, seen.ready), (class, ready));
}

#[rstest]
#[case(Dialect::Chat, "[DONE]", End::Closed)]
#[case(
    Dialect::Chat,
    r#"{"choices":[{"finish_reason":"length"}]}"#,
    End::Finished
)]
#[case(
    Dialect::Chat,
    r#"{"choices":[{"delta":{"content":"\"finish_reason\":\"stop\" [DONE]"}}]}"#,
    End::Open
)]
#[case(Dialect::Responses, r#"{"type":"response.incomplete"}"#, End::Closed)]
#[case(
    Dialect::Messages,
    r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
    End::Open
)]
#[case(Dialect::Messages, r#"{"type":"message_stop"}"#, End::Closed)]
fn ends_are_recognised(#[case] dialect: Dialect, #[case] data: &str, #[case] end: End) {
    assert_eq!(judge(dialect, data).1.end, end);
}

#[test]
fn usage_adds_up_over_a_stream() {
    let mut judge = Judge::new(Dialect::Messages);
    for data in [
        r#"{"type":"message_start","message":{"usage":{"input_tokens":7,"cache_read_input_tokens":3,"output_tokens":1}}}"#,
        r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":42}}"#,
    ] {
        judge.see(&event("", data), None);
    }
    let expected = Tokens {
        input: Some(10),
        output: Some(42),
    };
    assert_eq!(judge.tokens, expected);
}

#[test]
fn usage_that_cannot_be_read_is_not_known() {
    let data = r#"{"choices":[],"usage":{"prompt_tokens":"many"}}"#;
    let (seen, judge) = judge(Dialect::Chat, data);
    assert_eq!(seen.class, Class::Neutral);
    assert_eq!(judge.tokens, Tokens::default());
}

#[test]
fn a_failed_response_hands_on_its_error() {
    let data = r#"{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded"}}}"#;
    let (_, judge) = judge(Dialect::Responses, data);
    let body = judge.error.unwrap();
    assert_eq!(body, r#"{"error":{"code":"rate_limit_exceeded"}}"#);
}

#[test]
fn the_type_of_a_cut_event_is_enough_to_end_a_stream() {
    let mut judge = Judge::new(Dialect::Responses);
    let cut = Event {
        name: b"",
        data: br#"{"type":"response.completed","response":{"output":[{"text":"aaaa"#,
        cut: true,
    };
    let seen = judge.see(&cut, None);
    assert_eq!(seen.class, Class::Terminal);
    assert_eq!(judge.end, End::Closed);
}

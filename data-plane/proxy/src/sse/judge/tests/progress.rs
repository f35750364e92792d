//! What the throughput watchdog and a continuation see of events.

use Dialect::{Chat, Messages, Responses};
use Progress::{Nothing, Protected, ProtectedEnds};
use rstest::rstest;

use super::*;

fn progress(dialect: Dialect, data: &str) -> Progress {
    judge(dialect, data).0.progress
}

#[rstest]
#[case(
    Responses,
    r#"{"type":"response.reasoning_summary_text.delta","delta":"I think"}"#
)]
#[case(
    Messages,
    r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}"#
)]
#[case(Messages, r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","input":{}}}"#)]
fn vector_sessions_47_reasoning_and_tools_are_protected(
    #[case] dialect: Dialect,
    #[case] data: &str,
) {
    let seen = judge(dialect, data).0;
    assert_eq!((seen.class, seen.progress), (Class::Protected, Protected));
}

#[rstest]
#[case(r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#)]
#[case(r#"{"choices":[{"index":0,"delta":{}}]}"#)]
fn vector_sessions_47_usage_and_empty_deltas_are_neutral(#[case] data: &str) {
    let seen = judge(Chat, data).0;
    assert_eq!(
        (seen.class, seen.ready, seen.progress),
        (Class::Neutral, false, Nothing)
    );
}

#[rstest]
#[case(Chat, r#"{"choices":[{"delta":{"content":"你好"}}]}"#)]
#[case(Chat, r#"{"choices":[{"delta":{"content":"\u4f60\u597d"}}]}"#)]
#[case(Chat, r#"{"choices":[{"text":"你好"}]}"#)]
#[case(Chat, r#"{"choices":[{"delta":{"refusal":"你好"}}]}"#)]
#[case(
    Chat,
    r#"{"choices":[{"delta":{"content":"你"}},{"index":1,"delta":{"content":"\u597D"}}]}"#
)]
#[case(Responses, r#"{"type":"response.output_text.delta","delta":"你好"}"#)]
#[case(Responses, r#"{"type":"response.refusal.delta","delta":"你好"}"#)]
#[case(
    Messages,
    r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"你\u597d"}}"#
)]
fn vector_sessions_48_text_counts_its_utf8_bytes(#[case] dialect: Dialect, #[case] data: &str) {
    assert_eq!(progress(dialect, data), Progress::Useful { bytes: 6 });
}

#[rstest]
#[case::tools(
    Chat,
    r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
    Protected
)]
#[case::a_function(
    Chat,
    r#"{"choices":[{"delta":{"function_call":{"name":"f"}}}]}"#,
    Protected
)]
#[case::reasoning(Chat, r#"{"choices":[{"delta":{"reasoning":"a"}}]}"#, Protected)]
#[case::sealed_reasoning(
    Chat,
    r#"{"choices":[{"delta":{"reasoning":null,"reasoning_details":[{"data":"x"}]}}]}"#,
    Protected
)]
#[case::audio(
    Chat,
    r#"{"choices":[{"delta":{"audio":{"data":"AAAA"}}}]}"#,
    Protected
)]
#[case::content_in_parts(
    Chat,
    r#"{"choices":[{"delta":{"content":[{"type":"text"}]}}]}"#,
    Protected
)]
#[case::text_and_tools(
    Chat,
    r#"{"choices":[{"delta":{"content":"a","tool_calls":[{}]}}]}"#,
    Protected
)]
#[case::another_choice_reasons(
    Chat,
    r#"{"choices":[{"delta":{"content":"a"}},{"delta":{"reasoning":"b"}}]}"#,
    Protected
)]
#[case::a_telling_type(Chat, r#"{"type":"reasoning","choices":[]}"#, Protected)]
#[case::a_finish(
    Chat,
    r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
    Protected
)]
#[case::the_end(Chat, "[DONE]", Protected)]
#[case::a_role(
    Chat,
    r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
    Nothing
)]
#[case::an_error(Chat, r#"{"error":{"message":"no"}}"#, Nothing)]
#[case::empty_tools(
    Chat,
    r#"{"choices":[{"delta":{"content":"a","tool_calls":[ ],"reasoning_content":"","function_call":{ }}}]}"#,
    Progress::Useful { bytes: 1 }
)]
#[case::the_last_text(
    Chat,
    r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#,
    Progress::Useful { bytes: 1 }
)]
#[case::a_function_item(
    Responses,
    r#"{"type":"response.output_item.added","item":{"type":"function_call"}}"#,
    Protected
)]
#[case::a_reasoning_item(
    Responses,
    r#"{"type":"response.output_item.added","item":{"type":"reasoning"}}"#,
    Protected
)]
#[case::a_message_item(
    Responses,
    r#"{"type":"response.output_item.added","item":{"type":"message"}}"#,
    Nothing
)]
#[case::audio(
    Responses,
    r#"{"type":"response.audio.delta","delta":"AAAA"}"#,
    Protected
)]
#[case::a_search(
    Responses,
    r#"{"type":"response.web_search_call.searching"}"#,
    Protected
)]
#[case::part_of_a_summary(
    Responses,
    r#"{"type":"response.reasoning_summary_text.done","text":"a"}"#,
    Protected
)]
#[case::an_answered_call(
    Responses,
    r#"{"type":"response.function_call_arguments.done","arguments":"{}"}"#,
    ProtectedEnds
)]
#[case::arguments_of_a_built_in_tool(
    Responses,
    r#"{"type":"response.mcp_call_arguments.done","arguments":"{}"}"#,
    Protected
)]
#[case::a_done_call(
    Responses,
    r#"{"type":"response.output_item.done","item":{"type":"mcp_call"}}"#,
    ProtectedEnds
)]
#[case::a_done_message(
    Responses,
    r#"{"type":"response.output_item.done","item":{"type":"message"}}"#,
    Nothing
)]
#[case::an_empty_delta(
    Responses,
    r#"{"type":"response.output_text.delta","delta":""}"#,
    Nothing
)]
#[case::a_heartbeat(Responses, r#"{"type":"response.in_progress","response":{}}"#, Nothing)]
#[case::the_end(Responses, r#"{"type":"response.completed"}"#, Protected)]
#[case::a_signature(
    Messages,
    r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"a"}}"#,
    Protected
)]
#[case::a_citation(
    Messages,
    r#"{"type":"content_block_delta","delta":{"type":"citations_delta","citation":{}}}"#,
    Protected
)]
#[case::input(
    Messages,
    r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}"#,
    Protected
)]
#[case::empty_input(
    Messages,
    r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":""}}"#,
    Nothing
)]
#[case::empty_thoughts(
    Messages,
    r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":""}}"#,
    Nothing
)]
#[case::a_ping(Messages, r#"{"type":"ping"}"#, Nothing)]
#[case::a_text_block(
    Messages,
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
    Nothing
)]
fn the_watchdog_sees(#[case] dialect: Dialect, #[case] data: &str, #[case] expected: Progress) {
    assert_eq!(progress(dialect, data), expected);
}

#[rstest]
#[case(Chat)]
#[case(Responses)]
#[case(Messages)]
fn the_name_of_an_event_protects_as_its_type_does(#[case] dialect: Dialect) {
    let seen = Judge::new(dialect).see(&event("x.tool.progress", r#"{"type":"x"}"#), None);
    assert_eq!((seen.class, seen.progress), (Class::Protected, Protected));
    let seen = Judge::new(dialect).see(&event("tool", r#"{"elapsed":3}"#), None);
    assert_eq!((seen.class, seen.progress), (Class::Protected, Protected));
}

fn all(dialect: Dialect, events: &[String]) -> Vec<Progress> {
    let mut judge = Judge::new(dialect);
    let sees = |data: &String| judge.see(&event("", data), None).progress;
    events.iter().map(sees).collect()
}

fn start(index: u64, kind: &str) -> String {
    format!(
        r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"{kind}"}}}}"#
    )
}

fn stop(index: u64) -> String {
    format!(r#"{{"type":"content_block_stop","index":{index}}}"#)
}

#[rstest]
#[case::thinking([start(0, "thinking"), stop(0), stop(0)], [Protected, ProtectedEnds, Nothing])]
#[case::text([start(0, "text"), stop(0), stop(1)], [Nothing, Nothing, Nothing])]
#[case::another_block([start(1, "tool_use"), stop(0), stop(1)], [Protected, Nothing, ProtectedEnds])]
#[case::a_call_that_is_run([start(0, "server_tool_use"), stop(0), start(1, "text")], [Protected, Nothing, Nothing])]
#[case::a_result([start(1, "web_search_tool_result"), stop(1), start(2, "text")], [Protected, ProtectedEnds, Nothing])]
fn what_a_block_protects_ends_with_it(
    #[case] events: [String; 3],
    #[case] expected: [Progress; 3],
) {
    assert_eq!(all(Messages, &events), expected);
}

/// What a stream of chat events adds up to.
fn turn(events: &[&str]) -> Turn {
    let mut turn = Turn::default();
    let mut judge = Judge::new(Chat);
    for data in events {
        judge.see(&event("", data), Some(&mut turn));
    }
    turn
}

const TEXT: &str = r#"{"choices":[{"index":0,"delta":{"content":"a\u00e9\n"}}]}"#;
const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const THOUGHT: &str = r#"{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}"#;

#[rstest]
#[case::text(&[TEXT, TEXT], "aé\naé\n", true)]
#[case::nothing(&[], "", false)]
#[case::finished_text(&[TEXT, STOP], "aé\n", false)]
#[case::done_text(&[TEXT, "[DONE]"], "aé\n", false)]
#[case::empty_stop(&[THOUGHT, STOP], "", true)]
#[case::nothing_thought(&[STOP], "", false)]
#[case::a_tool(&[TEXT, r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#], "aé\n", false)]
#[case::no_tool(&[TEXT, r#"{"choices":[{"delta":{"tool_calls":[]}}]}"#], "aé\n", true)]
#[case::another_choice(&[TEXT, r#"{"choices":[{"index":1,"delta":{"role":"assistant"}}]}"#], "aé\n", false)]
#[case::a_refusal(&[TEXT, r#"{"choices":[{"delta":{"refusal":"no"}}]}"#], "aé\n", false)]
#[case::half_a_pair(&[TEXT, r#"{"choices":[{"delta":{"content":"\ud83d"}}]}"#], "aé\n", false)]
#[case::legacy(&[r#"{"choices":[{"text":"a"}]}"#], "", false)]
fn a_chat_turn_is_told(#[case] events: &[&str], #[case] text: &str, #[case] may_continue: bool) {
    let turn = turn(events);
    assert_eq!(
        (turn.delivered(), turn.may_continue(0)),
        (text, may_continue)
    );
}

#[test]
fn an_event_too_long_to_be_read_is_not_continued() {
    let mut turn = turn(&[TEXT]);
    let cut = Event {
        name: b"",
        data: br#"{"choices":[{"delta":{"content":"aaaa"#,
        cut: true,
    };
    let seen = Judge::new(Chat).see(&cut, Some(&mut turn));
    assert_eq!(seen.progress, Protected);
    assert!(!turn.may_continue(0));
}

#[rstest]
#[case::no_json(Chat, "ahoy")]
#[case::other_json(Chat, r#"{"token":"a"}"#)]
#[case::another_dialect(Chat, r#"{"type":"message_start","message":{}}"#)]
#[case::no_json(Responses, "ahoy")]
#[case::another_dialect(Responses, r#"{"choices":[{"delta":{"content":"a"}}]}"#)]
#[case::no_json(Messages, "ahoy")]
#[case::another_dialect(Messages, r#"{"type":"response.created"}"#)]
fn a_foreign_stream_is_passed_on_and_ends_well(#[case] dialect: Dialect, #[case] data: &str) {
    let (seen, mut judge) = judge(dialect, data);
    assert_eq!(
        (seen.class, seen.ready, seen.progress),
        (Class::Neutral, true, Protected)
    );
    assert_eq!(judge.end, End::Open, "until its connection ends");
    judge.finish();
    assert_eq!(judge.end, End::Finished);
}

#[rstest]
#[case(Chat, r#"{"choices":[{"delta":{"content":"a"}}]}"#)]
#[case(Responses, r#"{"type":"response.created","response":{}}"#)]
#[case(Messages, r#"{"type":"message_start","message":{}}"#)]
fn a_stream_that_speaks_the_dialect_must_end_as_it_does(
    #[case] dialect: Dialect,
    #[case] data: &str,
) {
    for order in [["ahoy", data], [data, "ahoy"]] {
        let mut judge = Judge::new(dialect);
        for data in order {
            judge.see(&event("", data), None);
        }
        judge.finish();
        assert_eq!(judge.end, End::Open);
    }
    let mut judge = Judge::new(dialect);
    judge.see(&event("", data), None);
    let seen = judge.see(&event("", "ahoy"), None);
    assert_eq!((seen.class, seen.progress), (Class::Neutral, Nothing));
}

#[rstest]
#[case(Chat, "", r#"{"type":"ping"}"#)]
#[case(Chat, "ping", "{}")]
#[case(Chat, "", r#"{"object":"chat.completion.chunk","id":"x"}"#)]
#[case(Responses, "", r#"{"type":"keepalive"}"#)]
#[case(Messages, "ping", "{}")]
fn a_heartbeat_is_no_foreign_event(
    #[case] dialect: Dialect,
    #[case] name: &str,
    #[case] data: &str,
) {
    let mut judge = Judge::new(dialect);
    let seen = judge.see(&event(name, data), None);
    assert_eq!(
        (seen.class, seen.ready, seen.progress),
        (Class::Neutral, false, Nothing)
    );
    judge.finish();
    assert_eq!(judge.end, End::Open);
}

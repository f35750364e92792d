//! Chat streams that break after their client has seen text, and go on.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::outcome::Outcome;

use crate::bench::{Bench, Options};
use crate::scripted::{
    Frozen, Scripted, TRUNCATED, chunk, code, ended_once, events, post, role, settles, stop, text,
    told, until,
};
use crate::telemetry::verdicts;

/// What attempts are counted as that broke off, and that ended with an error event.
const BROKE_OFF: &str = "stream_terminated";
const EMBEDDED: &str = "embedded_error";
/// What is said before a stream breaks.
pub(crate) const FOX: &str = "The quick brown fox";
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// Turns are continued.
pub(crate) fn continuing() -> Options {
    Options {
        settings: json!({"streamRecovery": {"continueMidStream": true}}),
        ..Options::default()
    }
}

/// How often a request for the rest of a turn ended so.
pub(crate) async fn continuations(bench: &Bench, end: &str) -> f64 {
    let name = format!("tidegate_dp_continuations_total{{end=\"{end}\"}}");
    bench.metric(&name).await
}

/// How attempts ended by the metrics, and how many of them.
async fn ended_as(bench: &Bench) -> BTreeMap<String, u32> {
    const NAME: &str = "gen_ai_client_operation_duration_seconds_count{";
    let metrics = bench.client.get("/metrics").await.text();
    let ends = metrics.lines().filter_map(|line| {
        let (labels, count) = line.strip_prefix(NAME)?.split_once("} ")?;
        let (_, error_type) = labels.split_once("error_type=\"")?;
        let error_type = error_type.trim_end_matches('"').to_owned();
        Some((error_type, count.parse().unwrap()))
    });
    ends.collect()
}

fn ended<const N: usize>(ends: [(&str, u32); N]) -> BTreeMap<String, u32> {
    ends.map(|(error_type, count)| (error_type.to_owned(), count))
        .into()
}

/// Answers the next request with the beginning of a stream, and breaks it off when the client has it.
pub(crate) async fn breaks_after(one: &Scripted, bench: &Bench, events: &[String]) -> Value {
    let call = one.call().await;
    let body = call.body.clone();
    let call = call.streams(events).await;
    until("the first event", || !bench.control.outcomes().is_empty()).await;
    settles().await;
    call.breaks();
    body
}

#[tokio::test]
async fn vector_sessions_52_what_broke_goes_on_where_it_was() {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let upstream = async {
        let asked = breaks_after(
            &one,
            &bench,
            &[role(), text("The quick"), text(" brown fox")],
        )
        .await;
        let again = one.call().await;
        let mut expected = asked;
        let said = json!({"role": "assistant", "content": FOX});
        expected["messages"].as_array_mut().unwrap().push(said);
        assert_eq!(again.body, expected);
        let rest = [role(), text("brown fox"), text(" jumps"), stop()];
        again.streams(&rest).await.ends().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    let events = events(&reply.text());
    assert_eq!(told(&reply.text()), "The quick brown fox jumps");
    let [.., suffix, end] = events.as_slice() else {
        panic!("{events:?}");
    };
    let ours = |delta: Value, reason: Value| {
        json!({"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    };
    assert_eq!(*suffix, ours(json!({"content": " jumps"}), Value::Null));
    assert_eq!(*end, ours(json!({}), "stop".into()));
    assert!(reply.text().ends_with(DONE));
    assert_eq!(reply.text().matches(DONE).count(), 1);
    ended_once(&bench, 2).await;
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes, [Outcome::Success, TRUNCATED, Outcome::Success]);
    assert!((continuations(&bench, "joined").await - 1.0).abs() < 0.5);
    let complete = "tidegate_dp_requests_total{endpoint=\"chat_completions\",end=\"complete\"}";
    assert!((bench.metric(complete).await - 1.0).abs() < 0.5);
}

/// Decision 52 changes the vector's end: what never came to an end is not shown as one.
#[rstest]
#[case::text(text("Hello world"))]
#[case::no_word(reasons())]
#[tokio::test]
async fn vector_sessions_52_what_begins_anew_is_thrown_away(#[case] said: String) {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let upstream = async {
        breaks_after(&one, &bench, &[role(), text(FOX)]).await;
        for _ in 0..4 {
            let anew = [role(), said.clone(), stop()];
            one.call().await.streams(&anew).await.ends().await;
        }
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), FOX);
    assert_eq!(code(&reply), "stream_terminated");
    assert!(!reply.text().contains("[DONE]"));
    ended_once(&bench, 5).await;
    assert!((continuations(&bench, "began_anew").await - 4.0).abs() < 0.5);
    assert_eq!(ended_as(&bench).await, ended([(BROKE_OFF, 1), ("", 4)]));
}

#[tokio::test]
async fn a_continuation_that_breaks_is_continued() {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let upstream = async {
        breaks_after(&one, &bench, &[role(), text(FOX)]).await;
        let call = one.call().await;
        call.streams(&[role(), text("brown fox jumps")])
            .await
            .breaks();
        let again = one.call().await;
        assert_eq!(again.body["messages"][1]["content"], format!("{FOX} jumps"));
        let rest = [role(), text("fox jumps over"), stop()];
        again.streams(&rest).await.ends().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "The quick brown fox jumps over");
    assert!(reply.text().ends_with(DONE));
    ended_once(&bench, 3).await;
    let outcomes = bench.control.outcomes();
    let both = [
        Outcome::Success,
        TRUNCATED,
        Outcome::Success,
        TRUNCATED,
        Outcome::Success,
    ];
    assert_eq!(outcomes, both);
}

#[tokio::test]
async fn a_turn_is_continued_four_times() {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let upstream = async {
        breaks_after(&one, &bench, &[role(), text("0123456789")]).await;
        for next in ["a", "b", "c", "d"] {
            let call = one.call().await;
            let said = call.body["messages"][1]["content"]
                .as_str()
                .unwrap()
                .to_owned();
            call.streams(&[text(&format!("{said}{next}"))])
                .await
                .breaks();
        }
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "0123456789abcd");
    assert_eq!(code(&reply), "stream_terminated");
    ended_once(&bench, 5).await;
}

/// The reason is the continuation's own.
#[tokio::test]
async fn a_continuation_that_ends_for_another_reason_says_so() {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let upstream = async {
        breaks_after(&one, &bench, &[role(), text(FOX)]).await;
        let end = chunk(&json!({}), Some("length"));
        let rest = [text("brown fox"), end];
        one.call().await.streams(&rest).await.ends().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    let events = events(&reply.text());
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(told(&reply.text()), FOX);
    assert!(reply.text().ends_with(DONE));
}

#[rstest]
#[case::a_tool_call(&[role(), text(FOX), chunk(&json!({"tool_calls": [{"index": 0}]}), None)])]
#[case::nothing_said(&[role()])]
#[case::a_finish_reason(&[role(), text(FOX), chunk(&json!({}), Some("stop"))])]
#[case::reasoning_alone(&[role(), chunk(&json!({"reasoning_content": "hm"}), None)])]
#[tokio::test]
async fn what_may_not_be_continued_is_not(#[case] events: &[String]) {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let upstream = async {
        breaks_after(&one, &bench, events).await;
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(code(&reply), "stream_terminated");
    ended_once(&bench, 1).await;
}

#[tokio::test]
async fn other_formats_are_not_continued() {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let body = json!({"model": "one/m", "stream": true, "input": "ahoy"});
    let delta = json!({"type": "response.output_text.delta", "delta": FOX});
    let upstream = async {
        breaks_after(&one, &bench, &[format!("data: {delta}\n\n")]).await;
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(bench.client.post("/v1/responses", &body), upstream);
    assert!(reply.text().contains("stream_terminated"));
}

#[tokio::test]
async fn nothing_is_continued_unless_it_is_switched_on() {
    let (one, bench) = Scripted::bench(Options::default()).await;
    let _time = Frozen::time();
    let upstream = async {
        breaks_after(&one, &bench, &[role(), text(FOX)]).await;
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(code(&reply), "stream_terminated");
}

/// How a request for the rest comes to nothing.
#[derive(Clone, Copy)]
enum Rest {
    Refused,
    InOnePiece,
    WithATool,
    AnError(&'static str),
}

#[rstest]
#[case::refused(Rest::Refused, "failed", "503", &["nothing"])]
#[case::in_one_piece(Rest::InOnePiece, "unusable", "", &["served"])]
#[case::with_a_tool(Rest::WithATool, "unusable", "", &["served"])]
#[case::an_error(Rest::AnError("server_error"), "failed", EMBEDDED, &["served", "broke"])]
#[case::a_refusal(Rest::AnError("invalid_request_error"), "failed", EMBEDDED, &["served"])]
#[tokio::test]
async fn a_continuation_that_cannot_be_used_ends_the_stream(
    #[case] rest: Rest,
    #[case] end: &str,
    #[case] error_type: &str,
    #[case] said: &[&str],
) {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let upstream = async {
        breaks_after(&one, &bench, &[role(), text(FOX)]).await;
        let call = one.call().await;
        match rest {
            Rest::Refused => call.refuses(503).await,
            Rest::InOnePiece => {
                let message = json!({"content": "brown fox jumps"});
                let whole = json!({"choices": [{"index": 0, "message": message}]});
                call.answers(200, &whole).await;
            }
            Rest::WithATool => {
                let tool = chunk(&json!({"tool_calls": [{"index": 0}]}), None);
                let events = [text("brown fox jumps"), tool, stop()];
                call.streams(&events).await.ends().await;
            }
            Rest::AnError(kind) => {
                let error =
                    json!({"error": {"message": "no", "type": kind, "code": "content_filter"}});
                let error = format!("data: {error}\n\n");
                call.streams(&[text("brown fox"), error]).await.ends().await;
            }
        }
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), FOX);
    assert_eq!(code(&reply), "stream_terminated");
    assert!((continuations(&bench, end).await - 1.0).abs() < 0.5);
    until("the permit", || bench.control.heard().released.len() == 1).await;
    assert_eq!(verdicts(&bench), [&["served", "broke"], said].concat());
    // Its client is there all the time.
    assert_eq!(
        ended_as(&bench).await,
        ended([(BROKE_OFF, 1), (error_type, 1)])
    );
}

fn reasons() -> String {
    chunk(&json!({"reasoning_content": "hm"}), None)
}

/// The end of the first answer is not shown before it is known that there is no other.
#[rstest]
#[case::in_one_chunk(true)]
#[case::in_two(false)]
#[tokio::test]
async fn a_turn_without_a_word_is_asked_for_again(#[case] in_one_chunk: bool) {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let upstream = async {
        let call = one.call().await;
        let asked = call.body.clone();
        if in_one_chunk {
            call.streams(&[role(), reasons(), stop()])
                .await
                .ends()
                .await;
        } else {
            let mut call = call.streams(&[role(), reasons()]).await;
            settles().await;
            call.sends(&stop()).await;
            call.ends().await;
        }
        let again = one.call().await;
        assert_eq!(again.body, asked, "nothing was said");
        again
            .streams(&[role(), text("word"), stop()])
            .await
            .ends()
            .await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    let shown = reply.text();
    assert_eq!(told(&shown), "word");
    assert!(shown.starts_with(&(role() + &reasons())));
    assert!(shown.ends_with(DONE));
    assert_eq!(shown.matches(DONE).count(), 1);
    assert_eq!(shown.matches("\"stop\"").count(), 1);
    ended_once(&bench, 2).await;
    assert_eq!(
        bench.control.outcomes(),
        [Outcome::Success, Outcome::Success]
    );
}

#[tokio::test]
async fn a_turn_that_stays_without_a_word_has_the_end_it_had() {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let first = [role(), reasons(), stop()];
    let upstream = async {
        for _ in 0..5 {
            one.call().await.streams(&first).await.ends().await;
        }
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(reply.text(), first.concat());
    ended_once(&bench, 5).await;
    let complete = "tidegate_dp_requests_total{endpoint=\"chat_completions\",end=\"complete\"}";
    assert!((bench.metric(complete).await - 1.0).abs() < 0.5);
}

/// What was said of tokens is recorded with the attempt that said it.
#[tokio::test]
async fn each_attempt_of_a_turn_has_its_own_tokens() {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let usage = |prompt: u64, completion: u64| {
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": completion});
        format!("data: {}\n\n", json!({"choices": [], "usage": usage}))
    };
    let upstream = async {
        breaks_after(&one, &bench, &[role(), text(FOX), usage(3, 4)]).await;
        let rest = [text("brown fox jumps"), usage(9, 2), stop()];
        one.call().await.streams(&rest).await.ends().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert!(reply.text().ends_with(DONE));
    ended_once(&bench, 2).await;
    let usages = bench.control.heard().usages;
    let tokens: Vec<_> = usages
        .iter()
        .map(|usage| (usage.tokens.input, usage.tokens.output))
        .collect();
    assert_eq!(tokens, [(Some(3), Some(4)), (Some(9), Some(2))]);
}

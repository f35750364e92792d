//! `context-relay`: notes that follow conversations to another account.

use std::sync::atomic::Ordering;

use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_fake_upstream::{Behaviour, Ending, Gate, Mode, Reply, Selector};

use crate::bench::{Bench, LIMIT, Options};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const NOTE: &str = r#"Sure: {"summary": "they sail", "decisions": ["go west"]}"#;
const SAID: &str = "captain, which way";

/// Provider `codex` with two accounts at the upstream of `one`, whose headers tell that so many percent of the session's
/// quota are used.
async fn start(used: u32) -> Bench {
    let bench = Bench::start_with(Options {
        relay: true,
        ..Options::default()
    })
    .await;
    bench.one.set_reply(Reply {
        opening: NOTE.to_owned(),
        chunks: 1,
        chunk_bytes: 1,
        ..Reply::default()
    });
    quota(&bench, used);
    bench
}

fn quota(bench: &Bench, used: u32) {
    tell(
        bench,
        &[
            ("x-codex-primary-used-percent", &used.to_string()),
            ("x-codex-primary-window-minutes", "300"),
            ("x-codex-primary-reset-after-seconds", "3600"),
        ],
    );
}

fn tell(bench: &Bench, headers: &[(&str, &str)]) {
    let headers = headers.iter().copied();
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    bench.one.set_headers(headers.collect());
}

/// One turn of a session on an account.
async fn turn(bench: &Bench, path: &str, session: &str, account: &str, stream: bool) {
    let mut body = json!({"model": "talk", "stream": stream});
    let turns =
        json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": SAID}]);
    body[if path == RESPONSES {
        "input"
    } else {
        "messages"
    }] = turns;
    let headers = [
        ("x-session-id", session),
        ("x-omniroute-connection", account),
    ];
    let body = body.to_string().into();
    let reply = bench.client.send(Method::POST, path, &headers, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

/// What was asked for besides the turns.
fn summaries(bench: &Bench) -> Vec<Value> {
    let all = bench.one.log().requests(&Selector::any());
    let bodies = all.iter().filter_map(|request| request.json());
    let limit = |body: &Value| {
        let written = [&body["max_tokens"], &body["max_output_tokens"]];
        written.into_iter().any(|limit| *limit == 800)
    };
    bodies.filter(limit).collect()
}

async fn ends(bench: &Bench, end: &str, count: f64) {
    let name = format!("tidegate_dp_handoffs_total{{end=\"{end}\"}}");
    reaches(bench, &name, count).await;
}

async fn reaches(bench: &Bench, name: &str, count: f64) {
    let waiting = async {
        while bench.metric(name).await < count {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, waiting).await;
    assert!(waited.is_ok(), "{name} reaches {count}");
}

fn last(bench: &Bench) -> Value {
    let last = bench.one.log().last(&Selector::any());
    last.unwrap().json().unwrap()
}

#[rstest]
#[case::chat(CHAT, false)]
#[case::chat_stream(CHAT, true)]
#[case::responses(RESPONSES, false)]
#[tokio::test]
async fn a_note_is_made_once_and_told_to_the_other_account(
    #[case] path: &str,
    #[case] stream: bool,
) {
    let bench = start(90).await;
    turn(&bench, path, "s", "codex-a", stream).await;
    ends(&bench, "saved", 1.0).await;
    let summaries_now = summaries(&bench);
    let [summary] = &summaries_now[..] else {
        panic!("{summaries_now:?}");
    };
    assert_eq!(
        (&summary["temperature"], &summary["stream"]),
        (&json!(0.1), &json!(false))
    );
    assert_eq!(summary["model"], "m");
    let text = summary.to_string();
    assert!(text.contains(SAID) && !text.contains("be brief"), "{text}");

    turn(&bench, path, "s", "codex-a", stream).await;
    assert!(!last(&bench).to_string().contains("they sail"));
    turn(&bench, path, "s", "codex-b", stream).await;
    let told = last(&bench);
    let told = if path == RESPONSES {
        &told["instructions"]
    } else {
        assert_eq!(told["messages"].as_array().unwrap().len(), 3);
        assert_eq!(told["messages"][0]["role"], "system");
        &told["messages"][0]["content"]
    };
    let told = told.as_str().unwrap();
    assert!(
        told.contains("they sail") && told.contains("go west"),
        "{told}"
    );
    assert_eq!(summaries(&bench).len(), 1);
    assert_eq!(bench.metric("tidegate_dp_handoffs_told_total").await, 1.0);
    for request in bench.one.log().requests(&Selector::any()) {
        assert_eq!(request.header("x-session-id"), None);
    }
}

#[tokio::test]
async fn other_sessions_and_requests_without_one_are_told_nothing() {
    let bench = start(90).await;
    turn(&bench, CHAT, "s", "codex-a", false).await;
    ends(&bench, "saved", 1.0).await;
    for session in ["", "other"] {
        turn(&bench, CHAT, session, "codex-b", false).await;
    }
    let turns = bench
        .one
        .log()
        .requests(&Selector::any().credential("sk-codex-b"));
    let told = |body: Value| body.to_string().contains("background to go on from");
    assert!(!turns.iter().filter_map(|request| request.json()).any(told));
}

#[rstest]
#[case::little_used(84)]
#[case::too_late(95)]
#[tokio::test]
async fn no_note_is_made_outside_the_range(#[case] used: u32) {
    let bench = start(used).await;
    turn(&bench, CHAT, "s", "codex-a", false).await;
    ends(&bench, "not_wanted", 1.0).await;
    assert_eq!(summaries(&bench).len(), 0);
}

#[tokio::test]
async fn the_limit_of_a_minute_is_no_reason() {
    let bench = start(90).await;
    tell(
        &bench,
        &[
            ("x-ratelimit-limit-requests", "100"),
            ("x-ratelimit-remaining-requests", "10"),
            ("x-ratelimit-reset-requests", "1m"),
        ],
    );
    turn(&bench, CHAT, "s", "codex-a", false).await;
    ends(&bench, "not_wanted", 1.0).await;
    assert_eq!(summaries(&bench).len(), 0);
}

/// Its account may have only one permit, or its provider only one probe.
#[tokio::test]
async fn a_client_that_leaves_while_its_note_is_looked_for_gives_back_what_was_granted() {
    let bench = start(90).await;
    bench.control.forgets_notes.store(true, Ordering::Relaxed);
    let decided = "tidegate_dp_decisions_total{step=\"dispatch\",by=\"control_plane\"}";
    tokio::select! {
        () = turn(&bench, CHAT, "s", "codex-a", false) => panic!("there was an answer"),
        () = reaches(&bench, decided, 1.0) => {}
    }
    bench
        .until("the attempt is given back", |bench| {
            bench.control.heard().abandoned.len() == 1
        })
        .await;
    assert_eq!(bench.control.heard().notes_asked, 1);
    assert_eq!(bench.one.log().count(&Selector::any()), 0);
}

#[tokio::test]
async fn without_a_key_there_are_no_notes() {
    let bench = Bench::start_with(Options {
        relay: true,
        keys: false,
        ..Options::default()
    })
    .await;
    quota(&bench, 90);
    turn(&bench, CHAT, "s", "codex-a", false).await;
    turn(&bench, CHAT, "s", "codex-b", false).await;
    assert_eq!(bench.control.heard().notes_asked, 0);
    assert_eq!(summaries(&bench).len(), 0);
}

#[tokio::test]
async fn a_second_success_makes_none_while_one_is_being_made() {
    let bench = start(90).await;
    let gate = Gate::new();
    let held = Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(Mode::Ok),
    };
    bench.one.set(Selector::any(), [Mode::Ok, held]);
    turn(&bench, CHAT, "s", "codex-a", false).await;
    bench
        .until("the summary is asked for", |bench| {
            summaries(bench).len() == 1
        })
        .await;
    turn(&bench, CHAT, "s", "codex-a", false).await;
    ends(&bench, "not_wanted", 1.0).await;
    gate.open();
    ends(&bench, "saved", 1.0).await;
    assert_eq!(summaries(&bench).len(), 1);
}

#[rstest]
#[case::no_answer(Mode::status(500), "unanswered")]
#[case::no_summary(
    Mode::status_with_body(200, r#"{"choices":[{"message":{"content":"no"}}]}"#),
    "unusable"
)]
#[tokio::test]
async fn what_is_no_summary_is_not_kept(#[case] mode: Mode, #[case] end: &str) {
    let bench = start(90).await;
    bench
        .one
        .set(Selector::any(), vec![Mode::Ok, mode.clone(), mode]);
    turn(&bench, CHAT, "s", "codex-a", false).await;
    ends(&bench, end, 1.0).await;
}

#[tokio::test]
async fn usage_of_a_summary_is_recorded_and_a_drain_ends_it() {
    let bench = start(90).await;
    turn(&bench, CHAT, "s", "codex-a", false).await;
    ends(&bench, "saved", 1.0).await;
    bench
        .until("usage of both", |bench| {
            bench.control.heard().usages.len() == 2
        })
        .await;

    bench.one.set(Selector::any(), [Mode::Ok, Mode::Hang]);
    turn(&bench, CHAT, "t", "codex-a", false).await;
    bench
        .until("the summary is asked for", |bench| {
            summaries(bench).len() == 2
        })
        .await;
    tokio::time::timeout(LIMIT, bench.proxy.drain(LIMIT / 8))
        .await
        .unwrap();
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
    let last = bench.control.outcomes().pop();
    let ours = tidegate_core::outcome::LocalFault::ExecutionExpired;
    assert_eq!(last, Some(tidegate_core::outcome::Outcome::Local(ours)));
}

#[tokio::test]
async fn only_so_many_notes_are_made_at_once() {
    const MOST: usize = 32;
    let bench = start(90).await;
    let turns_and_summaries = Behaviour::Cycle(vec![Mode::Ok, Mode::Hang]);
    bench.one.set(Selector::any(), turns_and_summaries);
    for number in 1..=MOST {
        turn(&bench, CHAT, &number.to_string(), "codex-a", false).await;
        bench
            .until("the summary is asked for", |bench| {
                summaries(bench).len() == number
            })
            .await;
    }
    turn(&bench, CHAT, "one more", "codex-a", false).await;
    ends(&bench, "full", 1.0).await;
    assert_eq!(summaries(&bench).len(), MOST);
}

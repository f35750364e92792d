//! Streams that break while they are held back, and are opened again where they were.

use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::outcome::{Outcome, TransportFault};

use crate::bench::{Bench, Options};
use crate::scripted::{
    Frozen, Scripted, TRUNCATED, code, ended_once, fallback_attempts, post, ready, role, settles,
    stop, text, told, until,
};

const REOPENS: &str = "tidegate_dp_reopens_total{end=";

/// Streams are held back.
pub(crate) fn held() -> Options {
    settings(json!({"enabled": true}))
}

/// With these settings of `streamRecovery`.
pub(crate) fn settings(stream_recovery: Value) -> Options {
    Options {
        settings: json!({"streamRecovery": stream_recovery}),
        ..Options::default()
    }
}

/// How often opening a stream again ended so.
pub(crate) async fn reopens(bench: &Bench, end: &str) -> f64 {
    bench.metric(&format!("{REOPENS}\"{end}\"}}")).await
}

/// How a stream ends before its time.
#[derive(Clone, Copy)]
enum Way {
    Breaks,
    Ends,
}

#[rstest]
#[case::a_broken_connection(Way::Breaks)]
#[case::an_end_without_the_last_event(Way::Ends)]
#[tokio::test]
async fn what_breaks_while_it_is_held_is_opened_again(#[case] way: Way) {
    let (one, bench) = Scripted::bench(held()).await;
    let _time = Frozen::time();
    let upstream = async {
        let call = one.call().await;
        let first = call.body.clone();
        let call = call.streams(&[role(), text("lost")]).await;
        match way {
            Way::Breaks => call.breaks(),
            Way::Ends => call.ends().await,
        }
        let again = one.call().await;
        assert_eq!(again.body, first);
        again
            .streams(&[role(), text("kept"), stop()])
            .await
            .ends()
            .await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(
        (reply.status, told(&reply.text())),
        (200, "kept".to_owned())
    );
    assert_eq!(fallback_attempts(&reply), Some("1"));
    ended_once(&bench, ready(&bench)).await;
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes, [Outcome::Success, TRUNCATED, Outcome::Success]);
    let heard = bench.control.heard();
    let attempts: Vec<_> = heard
        .reports
        .iter()
        .map(|(report, _)| &report.attempt)
        .collect();
    assert_eq!(attempts[0].id, attempts[1].id);
    assert_ne!(attempts[1].id, attempts[2].id);
    // One incident: the second attempt knows no more than the first (decision 9).
    assert_eq!(attempts[1].decided_on, attempts[2].decided_on);
}

#[rstest]
#[case::in_time("", 749, true)]
#[case::too_late("", 750, false)]
#[case::too_much(&"x".repeat(65_536), 0, false)]
#[tokio::test]
async fn what_was_shown_is_not_opened_again(
    #[case] filling: &str,
    #[case] after_ms: u64,
    #[case] reopened: bool,
) {
    let (one, bench) = Scripted::bench(held()).await;
    let time = Frozen::time();
    let upstream = async {
        let mut call = one.call().await.streams(&[role()]).await;
        settles().await;
        time.passes(after_ms).await;
        call.sends(&text(&format!("{filling}!"))).await;
        settles().await;
        call.breaks();
        if reopened {
            one.call().await.streams(&[stop()]).await.ends().await;
        } else {
            one.is_left_alone().await;
        }
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    if reopened {
        assert_eq!(reply.text(), stop());
    } else {
        assert_eq!(told(&reply.text()).len(), filling.len() + 1);
        assert_eq!(code(&reply), "stream_terminated");
    }
    ended_once(&bench, ready(&bench)).await;
}

#[tokio::test]
async fn nothing_is_held_unless_it_is_switched_on() {
    let (one, bench) = Scripted::bench(settings(json!({}))).await;
    let _time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role()]).await;
        until("the head", || bench.control.outcomes().len() == 1).await;
        call.breaks();
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(code(&reply), "stream_terminated");
    assert_eq!(fallback_attempts(&reply), None);
}

/// Four times, and then the client gets what was held last and the error.
#[tokio::test]
async fn a_stream_is_opened_again_four_times() {
    let (one, bench) = Scripted::bench(held()).await;
    let _time = Frozen::time();
    let upstream = async {
        for number in 0..5 {
            let call = one.call().await;
            call.streams(&[role(), text(&format!("number {number}"))])
                .await
                .breaks();
        }
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "number 4");
    assert_eq!(code(&reply), "stream_terminated");
    assert_eq!(fallback_attempts(&reply), Some("4"));
    ended_once(&bench, ready(&bench)).await;
    let outcomes = bench.control.outcomes();
    let each: Vec<_> = (0..5).flat_map(|_| [Outcome::Success, TRUNCATED]).collect();
    assert_eq!(outcomes, each);
}

#[rstest]
#[case::by_an_answer(true)]
#[case::for_want_of_a_provider(false)]
#[tokio::test]
async fn what_was_held_is_shown_when_nothing_comes_in_its_place(#[case] answers: bool) {
    let (one, bench) = Scripted::bench(held()).await;
    let _time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role(), text("held")]).await;
        if answers {
            call.breaks();
            one.call().await.refuses(503).await;
            one.is_left_alone().await;
        } else {
            one.goes_away();
            call.breaks();
        }
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(
        (reply.status, told(&reply.text())),
        (200, "held".to_owned())
    );
    assert_eq!(code(&reply), "stream_terminated");
    ended_once(&bench, ready(&bench)).await;
    let heard = bench.control.heard();
    assert_eq!(
        heard.usages[0].attempt, heard.reports[0].0.attempt.id,
        "the one that was seen"
    );
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes[..2], [Outcome::Success, TRUNCATED]);
    if answers {
        let Outcome::Response(error) = &outcomes[2] else {
            panic!("{outcomes:?}");
        };
        assert_eq!((error.status, outcomes.len()), (503, 3));
    } else {
        // A connection that is refused may come back.
        let refused = Outcome::Transport(TransportFault::Connect);
        assert_eq!(outcomes[2..], vec![refused; 4]);
    }
}

/// So many retries may be in flight, and half of all requests.
fn retries_at_once(count: u32) -> Options {
    Options {
        settings: json!({
            "streamRecovery": {"enabled": true},
            "retryBudget": {"ratio": 0.5, "minConcurrent": count},
        }),
        ..Options::default()
    }
}

/// What has ended is no retry under way.
#[tokio::test]
async fn a_retry_budget_of_one_opens_a_stream_again_and_again() {
    let (one, bench) = Scripted::bench(retries_at_once(1)).await;
    let _time = Frozen::time();
    let upstream = async {
        for _ in 0..3 {
            one.call().await.streams(&[role()]).await.breaks();
        }
        let last = one.call().await;
        last.streams(&[text("kept"), stop()]).await.ends().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "kept");
    ended_once(&bench, ready(&bench)).await;
}

#[tokio::test]
async fn a_spent_retry_budget_opens_nothing_again() {
    let (one, bench) = Scripted::bench(retries_at_once(0)).await;
    let _time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role(), text("held")]).await;
        call.breaks();
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "held");
    assert_eq!(code(&reply), "stream_terminated");
    ended_once(&bench, ready(&bench)).await;
    assert!((reopens(&bench, "budget").await - 1.0).abs() < 0.5);
}

/// The retry of one request is under way when the stream of another one breaks.
#[tokio::test]
async fn a_retry_budget_that_another_request_draws_on_opens_nothing_again() {
    let (one, bench) = Scripted::bench(retries_at_once(1)).await;
    let _time = Frozen::time();
    let upstream = async {
        let first = one.call().await.streams(&[role(), text("held")]).await;
        let second = one.call().await.streams(&[role(), text("held")]).await;
        until("both are ready", || ready(&bench) == 2).await;
        settles().await;
        first.breaks();
        let again = one.call().await.streams(&[role(), text("kept")]).await;
        until("the new one is ready", || ready(&bench) == 3).await;
        second.breaks();
        one.is_left_alone().await;
        let mut again = again;
        again.sends(&stop()).await;
        again.ends().await;
    };
    let (one_reply, other_reply, ()) = tokio::join!(post(&bench), post(&bench), upstream);
    let mut replies = [one_reply, other_reply].map(|reply| reply.text());
    replies.sort_by_key(|text| told(text));
    assert_eq!(replies.each_ref().map(|text| told(text)), ["held", "kept"]);
    assert!(replies[0].contains("stream_terminated"), "{}", replies[0]);
    assert!(replies[1].ends_with("data: [DONE]\n\n"), "{}", replies[1]);
    assert!((reopens(&bench, "budget").await - 1.0).abs() < 0.5);
    assert!((reopens(&bench, "ready").await - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn a_reopen_keeps_to_the_pace_of_its_connection() {
    let (one, bench) = Scripted::bench(Options {
        settings: json!({
            "streamRecovery": {"enabled": true},
            "requestQueue": {"minTimeBetweenRequestsMs": 60_000, "concurrentRequests": 1},
        }),
        ..Options::default()
    })
    .await;
    let _time = Frozen::time();
    let upstream = async {
        one.call()
            .await
            .streams(&[role(), text("held")])
            .await
            .breaks();
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "held");
    assert!((reopens(&bench, "pace").await - 1.0).abs() < 0.5);
}

/// The one place among those under way is the request's own.
#[tokio::test]
async fn a_reopen_needs_no_second_place() {
    let (one, bench) = Scripted::bench(Options {
        settings: json!({
            "streamRecovery": {"enabled": true},
            "requestQueue": {"concurrentRequests": 1},
        }),
        ..Options::default()
    })
    .await;
    let _time = Frozen::time();
    let upstream = async {
        one.call().await.streams(&[role()]).await.breaks();
        one.call()
            .await
            .streams(&[text("kept"), stop()])
            .await
            .ends()
            .await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "kept");
}

/// Tokens that the provider told of an attempt that was dropped are recorded as its own.
#[tokio::test]
async fn what_a_dropped_attempt_cost_is_recorded_if_it_was_told() {
    let (one, bench) = Scripted::bench(held()).await;
    let _time = Frozen::time();
    let usage = |prompt: u64, completion: u64| {
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": completion});
        format!("data: {}\n\n", json!({"choices": [], "usage": usage}))
    };
    let upstream = async {
        one.call()
            .await
            .streams(&[role(), usage(3, 1)])
            .await
            .breaks();
        let again = one.call().await;
        again
            .streams(&[text("kept"), usage(3, 2), stop()])
            .await
            .ends()
            .await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "kept");
    until("both records", || bench.control.heard().usages.len() == 2).await;
    let heard = bench.control.heard();
    let tokens: Vec<_> = heard
        .usages
        .iter()
        .map(|usage| (usage.attempt, usage.tokens.input, usage.tokens.output))
        .collect();
    let (first, second) = (heard.reports[0].0.attempt.id, heard.reports[2].0.attempt.id);
    assert_eq!(
        tokens,
        [(first, Some(3), Some(1)), (second, Some(3), Some(2))]
    );
    assert_eq!(heard.released.len(), 1);
}

#[tokio::test]
async fn an_answer_in_one_piece_takes_the_place_of_a_stream() {
    let (one, bench) = Scripted::bench(held()).await;
    let _time = Frozen::time();
    let answer = json!({"choices": [{"index": 0, "message": {"content": "whole"}}]});
    let upstream = async {
        one.call()
            .await
            .streams(&[role(), text("held")])
            .await
            .breaks();
        one.call().await.answers(200, &answer).await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!((reply.status, reply.json()), (200, answer));
    ended_once(&bench, ready(&bench)).await;
}

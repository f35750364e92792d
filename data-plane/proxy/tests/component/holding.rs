//! What holding a stream back costs its client at most, and what it hears meanwhile.

use std::pin::pin;
use std::time::Duration;

use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::lease::LeaseError;
use tidegate_core::outcome::{Outcome, StreamFault};
use tidegate_fake_upstream::{Gate, Mode, Selector};
use tidegate_plane_client::Deadlines;
use tidegate_proxy::{Heartbeats, Limits};

use crate::bench::{Options, chat};
use crate::client::read;
use crate::recovery::{held, reopens};
use crate::scripted::{
    CHAT, Frozen, Scripted, TRUNCATED, code, ended_once, events, leased_post, post, ready, role,
    settles, stop, text, told, until,
};

const IDLE: Outcome = Outcome::Stream(StreamFault::IdleTimeout);

/// Streams are held back, and the first attempt may be silent for 5 s, later ones as the settings say.
fn silent_for(idle_ms: u64) -> Options {
    Options {
        deadlines: Deadlines {
            idle: Some(Duration::from_secs(5)),
            ..Deadlines::default()
        },
        settings: json!({
            "streamRecovery": {"enabled": true}, "streams": {"idleTimeoutMs": idle_ms},
        }),
        ..Options::default()
    }
}

#[tokio::test]
async fn silence_is_waited_for_once() {
    let (one, bench) = Scripted::bench(silent_for(5_000)).await;
    let time = Frozen::time();
    let upstream = async {
        let silent = one.call().await.streams(&[role(), text("lost")]).await;
        settles().await;
        time.runs_out(5_000).await;
        silent.until_let_go().await;
        // All the time is used up, so this one is shown as soon as it is ready.
        let shown = one.call().await.streams(&[role(), text("seen")]).await;
        settles().await;
        time.runs_out(5_000).await;
        shown.until_let_go().await;
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "seen");
    assert_eq!(code(&reply), "stream_idle_timeout");
    ended_once(&bench, ready(&bench)).await;
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes, [Outcome::Success, IDLE, Outcome::Success, IDLE]);
}

/// What comes too late to be held may fail before it is ready, too.
#[tokio::test]
async fn nothing_is_opened_in_place_of_what_was_opened_last() {
    let (one, bench) = Scripted::bench(silent_for(5_000)).await;
    let time = Frozen::time();
    let upstream = async {
        let silent = one.call().await.streams(&[role(), text("held")]).await;
        settles().await;
        time.runs_out(5_000).await;
        silent.until_let_go().await;
        one.call().await.breaks();
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "held");
    assert_eq!(code(&reply), "stream_idle_timeout");
}

#[tokio::test]
async fn a_reopen_has_the_limits_of_its_own_time() {
    let (one, bench) = Scripted::bench(silent_for(2_000)).await;
    let time = Frozen::time();
    let upstream = async {
        one.call().await.streams(&[role()]).await.breaks();
        let silent = one.call().await.streams(&[role()]).await;
        settles().await;
        time.passes(1_999).await;
        settles().await;
        assert_eq!(bench.control.outcomes().len(), 3);
        time.runs_out(1).await;
        until("its end", || bench.control.outcomes().len() == 4).await;
        silent.until_let_go().await;
        one.call().await.streams(&[stop()]).await.ends().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(reply.text(), stop());
    assert_eq!(bench.control.outcomes()[3], IDLE);
}

#[tokio::test]
async fn nothing_is_opened_again_when_the_time_of_the_request_is_up() {
    let (one, bench) = Scripted::bench(Options {
        combo: json!({"comboTimeoutMs": 3_000}),
        ..held()
    })
    .await;
    let time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role(), text("held")]).await;
        settles().await;
        time.passes(3_000).await;
        call.breaks();
        one.is_left_alone().await;
    };
    let body = chat("duo", true);
    let (reply, ()) = tokio::join!(bench.client.post(CHAT, &body), upstream);
    assert_eq!(told(&reply.text()), "held");
    assert_eq!(code(&reply), "stream_terminated");
    assert!((reopens(&bench, "late").await - 1.0).abs() < 0.5);
}

/// Headers of what takes the place of a stream are waited for until then.
#[tokio::test]
async fn a_reopen_ends_with_the_time_of_the_request() {
    let (one, bench) = Scripted::bench(Options {
        combo: json!({"comboTimeoutMs": 3_000}),
        ..held()
    })
    .await;
    let time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role(), text("held")]).await;
        settles().await;
        time.passes(1_000).await;
        call.breaks();
        let again = one.call().await;
        settles().await;
        time.passes(1_999).await;
        settles().await;
        assert_eq!(bench.control.outcomes().len(), 2);
        time.runs_out(1).await;
        until("its end", || bench.control.outcomes().len() == 3).await;
        again.until_let_go().await;
        one.is_left_alone().await;
    };
    let body = chat("duo", true);
    let (reply, ()) = tokio::join!(bench.client.post(CHAT, &body), upstream);
    assert_eq!(told(&reply.text()), "held");
}

/// Streams are held back, and heartbeats are 5 s apart.
fn beating() -> Options {
    Options {
        limits: Limits {
            heartbeats: Heartbeats::every_ms(5_000, true),
            ..Limits::default()
        },
        ..held()
    }
}

#[tokio::test]
async fn a_client_hears_of_a_stream_that_is_held_for_long() {
    let (one, bench) = Scripted::bench(beating()).await;
    let time = Frozen::time();
    let body = chat("one/m", true);
    let mut opening = pin!(bench.client.open_post(CHAT, &body));
    let holding = async {
        let call = one.call().await.streams(&[role(), text("held")]).await;
        until("the first event", || bench.control.outcomes().len() == 1).await;
        settles().await;
        time.passes(4_999).await;
        settles().await;
        call
    };
    let call = tokio::select! {
        biased;
        _response = &mut opening => panic!("there is an answer"),
        call = holding => call,
    };
    time.runs_out(1).await;
    let response = opening.await;
    assert_eq!(response.status(), 200);
    let headers = response.headers();
    assert_eq!(headers["content-type"], "text/event-stream");
    assert!(!headers.contains_key("x-omniroute-provider"));
    let mut reading = response.into_body();
    // The first is due at once, which is the next whole ms.
    time.runs_out(0).await;
    let heartbeat = reading.frame().await.unwrap().unwrap();
    let heartbeat = String::from_utf8(heartbeat.into_data().unwrap().to_vec()).unwrap();
    assert_eq!(events(&heartbeat)[0]["choices"][0]["delta"], json!({}));
    // It was no commitment to what is held.
    let upstream = async {
        call.breaks();
        let again = one.call().await;
        again.streams(&[text("kept"), stop()]).await.ends().await;
    };
    let (rest, ()) = tokio::join!(reading.collect(), upstream);
    let rest = String::from_utf8(rest.unwrap().to_bytes().to_vec()).unwrap();
    assert_eq!(told(&rest), "kept");
    assert!(rest.ends_with("data: [DONE]\n\n"));
    ended_once(&bench, ready(&bench)).await;
}

#[tokio::test]
async fn without_heartbeats_a_held_stream_is_not_promised() {
    let mut options = beating();
    options.limits.heartbeats = Heartbeats::every_ms(0, true);
    let (one, bench) = Scripted::bench(options).await;
    let time = Frozen::time();
    let upstream = async {
        let mut call = one.call().await.streams(&[role()]).await;
        settles().await;
        time.passes(9_000).await;
        call.sends(&(text("held") + &stop())).await;
        call.ends().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "held");
    assert_eq!(reply.header("x-omniroute-provider"), Some("one"));
}

/// Its status is spent.
#[tokio::test]
async fn a_lease_that_ends_behind_such_a_promise_is_told_inside_the_stream() {
    let (one, bench) = Scripted::bench(Options {
        leases: true,
        ..beating()
    })
    .await;
    let time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role(), text("held")]).await;
        until("the first event", || bench.control.outcomes().len() == 1).await;
        settles().await;
        time.runs_out(5_000).await;
        settles().await;
        bench.control.leases.cut();
        call.until_let_go().await;
    };
    let (reply, ()) = tokio::join!(leased_post(&bench), upstream);
    assert_eq!(reply.status, 200);
    assert_eq!(code(&reply), LeaseError::FenceStale.code());
    assert_eq!(
        events(&reply.text()).last().unwrap()["error"]["status_code"],
        409
    );
    ended_once(&bench, ready(&bench)).await;
    assert_eq!(bench.control.leases.running(), 0);
}

fn overloaded() -> String {
    let error = json!({"error": {"message": "too much", "type": "server_error", "code": null}});
    format!("data: {error}\n\n")
}

/// Nothing of it was seen, so it is judged like one that comes first.
#[rstest]
#[case::alone(overloaded())]
#[case::with_the_end(overloaded() + &stop())]
#[case::without_its_blank_line(overloaded().trim_end().to_owned() + "\n")]
#[tokio::test]
async fn an_error_event_in_a_held_stream_goes_on_to_the_next_target(#[case] then: String) {
    let (one, bench) = Scripted::bench(held()).await;
    let _time = Frozen::time();
    let upstream = async {
        let mut call = one.call().await.streams(&[role(), text("lost")]).await;
        until("the first event", || bench.control.outcomes().len() == 1).await;
        settles().await;
        call.sends(&then).await;
        call.ends().await;
        one.is_left_alone().await;
    };
    let body = chat("duo", true);
    let (reply, ()) = tokio::join!(bench.client.post(CHAT, &body), upstream);
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
    assert!(!reply.text().contains("lost") && !reply.text().contains("too much"));
    until("the end", || bench.control.heard().usages.len() == 2).await;
    settles().await;
    let outcomes = bench.control.outcomes();
    let [Outcome::Success, Outcome::Response(error), Outcome::Success] = outcomes.as_slice() else {
        panic!("{outcomes:?}");
    };
    assert!(error.embedded && error.body.contains("too much"));
    let heard = bench.control.heard();
    assert_eq!(heard.reports[0].0.attempt.id, heard.reports[1].0.attempt.id);
    assert_eq!(heard.usages[0].attempt, heard.reports[0].0.attempt.id);
    assert_eq!(heard.released.len(), 2);
}

/// The wait for the next target is no wait for a held stream.
#[tokio::test]
async fn what_is_not_held_any_more_is_not_promised() {
    let (one, bench) = Scripted::bench(beating()).await;
    let gate = Gate::new();
    bench.two.set_default(Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(Mode::status(503)),
    });
    let time = Frozen::time();
    let upstream = async {
        let mut call = one.call().await.streams(&[role(), text("lost")]).await;
        until("the first event", || bench.control.outcomes().len() == 1).await;
        settles().await;
        call.sends(&overloaded()).await;
        until("the next target", || {
            bench.two.log().count(&Selector::any()) == 1
        })
        .await;
        time.runs_out(5_000).await;
        settles().await;
        gate.open();
    };
    let body = chat("duo", true);
    let (reply, ()) = tokio::join!(bench.client.post(CHAT, &body), upstream);
    assert!(reply.status >= 500, "{reply:?}");
}

#[tokio::test]
async fn an_error_event_in_the_only_held_stream_is_told_as_an_error() {
    let (one, bench) = Scripted::bench(held()).await;
    let _time = Frozen::time();
    let upstream = async {
        one.call().await.streams(&[role()]).await.breaks();
        let mut again = one.call().await.streams(&[role(), text("lost")]).await;
        settles().await;
        again.sends(&overloaded()).await;
        one.is_left_alone().await;
        again
    };
    let (reply, _again) = tokio::join!(post(&bench), upstream);
    assert!(reply.status >= 500, "{reply:?}");
    let error: Value = reply.json();
    assert!(error["error"]["message"].is_string(), "{error}");
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes[..2], [Outcome::Success, TRUNCATED]);
    assert!(matches!(&outcomes[3], Outcome::Response(error) if error.embedded));
    until("the end", || bench.control.heard().released.len() == 1).await;
    assert_eq!(bench.control.heard().usages.len(), 2);
}

/// A stream that nothing is held of goes on as it comes.
#[tokio::test]
async fn an_error_event_that_its_client_has_seen_the_beginning_of_is_handed_on() {
    let (one, bench) = Scripted::bench(Options::default()).await;
    let body = chat("duo", true);
    let upstream = async {
        let mut call = one.call().await.streams(&[role(), text("seen")]).await;
        bench
            .until("the first event", |bench| {
                bench.control.outcomes().len() == 1
            })
            .await;
        call.sends(&overloaded()).await;
        call.ends().await;
    };
    let (response, ()) = tokio::join!(bench.client.open_post(CHAT, &body), upstream);
    let reply = read(response).await;
    assert_eq!(told(&reply.text()), "seen");
    assert!(reply.text().contains("too much"));
}

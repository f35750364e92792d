//! Turns that are being continued when their lease, their client, their data plane or their time ends.

use std::time::Duration;

use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::json;
use tidegate_core::lease::LeaseError;
use tidegate_core::outcome::{LocalFault, Outcome, StreamFault};

use crate::bench::{Bench, Options, chat};
use crate::continuation::{DONE, FOX, breaks_after, continuations, continuing};
use crate::scripted::{
    CHAT, Call, Frozen, Scripted, TRUNCATED, code, ended_once, leased_post, ping, post, role,
    settles, stop, text, told, until,
};
use crate::telemetry::verdicts;

fn leased() -> Options {
    Options {
        leases: true,
        ..continuing()
    }
}

/// A stream broke after its client had seen [`FOX`]: the request for the rest.
async fn asked_for_the_rest(one: &Scripted, bench: &Bench) -> Call {
    breaks_after(one, bench, &[role(), text(FOX)]).await;
    one.call().await
}

#[tokio::test]
async fn a_continuation_passes_the_fence() {
    let (one, bench) = Scripted::bench(leased()).await;
    let _time = Frozen::time();
    let upstream = async {
        let again = asked_for_the_rest(&one, &bench).await;
        assert_eq!(bench.control.leases.fences(), 2);
        assert_eq!(bench.control.leases.running(), 1);
        again
            .streams(&[text("brown fox!"), stop()])
            .await
            .ends()
            .await;
    };
    let (reply, ()) = tokio::join!(leased_post(&bench), upstream);
    assert_eq!(told(&reply.text()), "The quick brown fox!");
    ended_once(&bench, 2).await;
    assert_eq!(bench.control.leases.running(), 0);
}

#[tokio::test]
async fn a_lease_that_is_over_continues_nothing() {
    let (one, bench) = Scripted::bench(leased()).await;
    let _time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role(), text(FOX)]).await;
        until("the first event", || bench.control.outcomes().len() == 1).await;
        bench.control.leases.refuse(LeaseError::FenceStale);
        call.breaks();
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(leased_post(&bench), upstream);
    assert_eq!(told(&reply.text()), FOX);
    assert_eq!(code(&reply), "stream_terminated");
    ended_once(&bench, 1).await;
    assert!((continuations(&bench, "lease").await - 1.0).abs() < 0.5);
}

#[rstest]
#[case::before_its_stream(false)]
#[case::within_its_stream(true)]
#[tokio::test]
async fn a_lease_that_ends_cuts_a_continuation(#[case] streams: bool) {
    let (one, bench) = Scripted::bench(leased()).await;
    let _time = Frozen::time();
    let upstream = async {
        let mut again = asked_for_the_rest(&one, &bench).await;
        if streams {
            again = again.streams(&[text("brown fox jumps")]).await;
            until("its first event", || bench.control.outcomes().len() == 3).await;
        }
        settles().await;
        bench.control.leases.cut();
        again.until_let_go().await;
    };
    let (reply, ()) = tokio::join!(leased_post(&bench), upstream);
    assert_eq!(told(&reply.text()), FOX);
    assert_eq!(code(&reply), "LEASE_FENCE_STALE");
    ended_once(&bench, if streams { 2 } else { 1 }).await;
    let outcomes = bench.control.outcomes();
    let cut = Outcome::Local(LocalFault::LeaseConflict);
    assert_eq!(outcomes.iter().filter(|it| **it == cut).count(), 1);
    assert_eq!(bench.control.leases.running(), 0);
}

#[tokio::test]
async fn a_client_that_leaves_ends_a_continuation() {
    let (one, bench) = Scripted::bench(continuing()).await;
    let _time = Frozen::time();
    let body = chat("one/m", true);
    let begun = [role(), text(FOX)];
    let breaks = breaks_after(&one, &bench, &begun);
    let (response, _asked) = tokio::join!(bench.client.open_post(CHAT, &body), breaks);
    let mut reading = response.into_body();
    let upstream = one.call();
    let read = async {
        while let Some(frame) = reading.frame().await {
            frame.unwrap();
        }
    };
    let again = tokio::select! {
        () = read => panic!("the stream ended"),
        again = upstream => again,
    };
    drop(reading);
    again.until_let_go().await;
    ended_once(&bench, 1).await;
    let outcomes = bench.control.outcomes();
    assert_eq!(
        outcomes,
        [Outcome::Success, TRUNCATED, Outcome::ClientAbort]
    );
}

#[tokio::test]
async fn the_end_of_a_drain_ends_a_continuation() {
    let (one, bench) = Scripted::bench(continuing()).await;
    let time = Frozen::time();
    let upstream = async {
        let again = asked_for_the_rest(&one, &bench).await;
        let draining = bench.proxy.drain(Duration::from_millis(100));
        let passes = async {
            settles().await;
            time.runs_out(100).await;
            again.until_let_go().await;
        };
        tokio::join!(draining, passes);
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), FOX);
    assert_eq!(code(&reply), "shutting_down");
    ended_once(&bench, 1).await;
    let ours = Outcome::Local(LocalFault::ExecutionExpired);
    assert_eq!(
        bench.control.outcomes(),
        [Outcome::Success, TRUNCATED, ours]
    );
}

/// Its clock begins when it is sent, and its idle time is its own.
#[rstest]
#[case::silence(2_000, StreamFault::IdleTimeout)]
#[case::its_deadline(3_000, StreamFault::DeadlineExceeded)]
#[tokio::test]
async fn a_continuation_has_limits_of_its_own(#[case] at_ms: u64, #[case] fault: StreamFault) {
    let (one, bench) = Scripted::bench(Options {
        settings: json!({
            "streamRecovery": {"continueMidStream": true, "attemptDeadlineMs": 3_000},
            "streams": {"idleTimeoutMs": 2_000},
        }),
        ..Options::default()
    })
    .await;
    let time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role(), text(FOX)]).await;
        settles().await;
        time.passes(1_500).await;
        call.breaks();
        let mut again = one.call().await.streams(&[role()]).await;
        settles().await;
        let mut passed = 0;
        if fault == StreamFault::DeadlineExceeded {
            passed = 1_500;
            time.passes(passed).await;
            again.sends(&text("brown fox")).await;
            settles().await;
        }
        time.passes(at_ms - passed - 1).await;
        settles().await;
        assert_eq!(bench.control.outcomes().len(), 3);
        time.runs_out(1).await;
        again.until_let_go().await;
        if fault == StreamFault::IdleTimeout {
            one.call()
                .await
                .streams(&[text("brown fox"), stop()])
                .await
                .ends()
                .await;
        }
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes[3], Outcome::Stream(fault));
    if fault == StreamFault::IdleTimeout {
        assert!(reply.text().ends_with(DONE));
    } else {
        assert_eq!(code(&reply), "stream_terminated");
    }
}

/// What is under way when the time for all of it is up.
#[derive(Clone, Copy)]
enum UnderWay {
    Headers,
    FirstEvent,
    Stream,
}

/// The client waits for an answer once more, and so long as its combo says, from when the stream broke.
#[rstest]
#[case::headers(UnderWay::Headers)]
#[case::first_event(UnderWay::FirstEvent)]
#[case::stream(UnderWay::Stream)]
#[tokio::test]
async fn a_continuation_keeps_to_the_time_of_its_combo(#[case] under_way: UnderWay) {
    let (one, bench) = Scripted::bench(Options {
        combo: json!({"comboTimeoutMs": 3_000}),
        ..continuing()
    })
    .await;
    let time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role(), text(FOX)]).await;
        until("the first event", || !bench.control.outcomes().is_empty()).await;
        settles().await;
        // A stream may take as long as it likes.
        time.passes(3_500).await;
        settles().await;
        call.breaks();
        let again = one.call().await;
        let again = match under_way {
            UnderWay::Headers => again,
            UnderWay::FirstEvent => again.streams(&[ping()]).await,
            UnderWay::Stream => again.streams(&[role(), text("brown fox jumps")]).await,
        };
        settles().await;
        let before = bench.control.outcomes().len();
        time.passes(2_999).await;
        settles().await;
        assert_eq!(bench.control.outcomes().len(), before);
        time.runs_out(1).await;
        again.until_let_go().await;
        one.is_left_alone().await;
    };
    let body = chat("duo", true);
    let (reply, ()) = tokio::join!(bench.client.post(CHAT, &body), upstream);
    let shown = match under_way {
        UnderWay::Headers | UnderWay::FirstEvent => FOX.to_owned(),
        UnderWay::Stream => format!("{FOX} jumps"),
    };
    assert_eq!(told(&reply.text()), shown);
    assert_eq!(code(&reply), "stream_terminated");
    // Nobody is to blame for a limit of ours.
    let ours = Outcome::Local(LocalFault::TargetExpired);
    assert_eq!(bench.control.outcomes().last(), Some(&ours));
    let said = match under_way {
        UnderWay::Headers | UnderWay::FirstEvent => "nothing",
        UnderWay::Stream => "served",
    };
    assert_eq!(verdicts(&bench), ["served", "broke", said]);
    assert!((continuations(&bench, "late").await - 1.0).abs() < 0.5);
}

/// One that broke when there was hardly any time left is the last one.
#[tokio::test]
async fn nothing_is_asked_for_when_the_time_of_the_combo_is_up() {
    let (one, bench) = Scripted::bench(Options {
        combo: json!({"comboTimeoutMs": 3_000}),
        ..continuing()
    })
    .await;
    let time = Frozen::time();
    let upstream = async {
        let again = asked_for_the_rest(&one, &bench).await;
        let again = again.streams(&[role(), text("brown")]).await;
        until("its first event", || bench.control.outcomes().len() == 3).await;
        settles().await;
        time.passes(2_999).await;
        settles().await;
        // Both come before anybody looks again.
        again.breaks();
        time.runs_out(1).await;
        one.is_left_alone().await;
    };
    let body = chat("duo", true);
    let (reply, ()) = tokio::join!(bench.client.post(CHAT, &body), upstream);
    assert_eq!(told(&reply.text()), FOX);
    assert_eq!(code(&reply), "stream_terminated");
}

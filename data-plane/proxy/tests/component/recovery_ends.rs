//! Streams that are held back when their lease, their client, their data plane or their time ends.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use tidegate_core::lease::LeaseError;
use tidegate_core::outcome::{LocalFault, Outcome, StreamFault};
use tidegate_plane_client::Deadlines;

use crate::bench::{Options, chat};
use crate::recovery::{held, reopens};
use crate::scripted::{
    CHAT, Frozen, Scripted, TRUNCATED, code, ended_once, leased_post, post, ready, role, settles,
    stop, text, told, until,
};

fn leased() -> Options {
    Options {
        leases: true,
        ..held()
    }
}

#[tokio::test]
async fn a_reopen_passes_the_fence() {
    let (one, bench) = Scripted::bench(leased()).await;
    let _time = Frozen::time();
    let upstream = async {
        one.call().await.streams(&[role()]).await.breaks();
        let again = one.call().await;
        assert_eq!(bench.control.leases.fences(), 2);
        assert_eq!(bench.control.leases.running(), 1);
        again.streams(&[text("kept"), stop()]).await.ends().await;
    };
    let (reply, ()) = tokio::join!(leased_post(&bench), upstream);
    assert_eq!(told(&reply.text()), "kept");
    ended_once(&bench, ready(&bench)).await;
    assert_eq!(bench.control.leases.running(), 0);
}

#[rstest]
#[case(LeaseError::FenceStale)]
#[case(LeaseError::ServiceUnavailable)]
#[tokio::test]
async fn a_lease_that_is_over_opens_nothing_again(#[case] error: LeaseError) {
    let (one, bench) = Scripted::bench(leased()).await;
    let _time = Frozen::time();
    let upstream = async {
        let call = one.call().await;
        bench.control.leases.refuse(error);
        call.streams(&[role(), text("held")]).await.breaks();
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(leased_post(&bench), upstream);
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (error.status(), error.code())
    );
    ended_once(&bench, ready(&bench)).await;
    assert_eq!(bench.control.outcomes(), [Outcome::Success, TRUNCATED]);
    assert_eq!(bench.control.leases.running(), 0);
    assert!((reopens(&bench, "lease").await - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn a_lease_that_ends_while_its_stream_is_held_is_refused() {
    let (one, bench) = Scripted::bench(leased()).await;
    let _time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role(), text("held")]).await;
        until("the first event", || bench.control.outcomes().len() == 1).await;
        settles().await;
        bench.control.leases.cut();
        call.until_let_go().await;
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(leased_post(&bench), upstream);
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (409, "LEASE_FENCE_STALE")
    );
    ended_once(&bench, ready(&bench)).await;
    let cut = Outcome::Local(LocalFault::LeaseConflict);
    assert_eq!(bench.control.outcomes(), [Outcome::Success, cut]);
}

#[tokio::test]
async fn vector_sessions_56_a_client_that_leaves_meanwhile_costs_no_further_request() {
    let (one, bench) = Scripted::bench(held()).await;
    let _time = Frozen::time();
    let body = chat("one/m", true);
    let call = {
        let upstream = async {
            let call = one.call().await.streams(&[role(), text("held")]).await;
            until("the first event", || bench.control.outcomes().len() == 1).await;
            settles().await;
            call
        };
        tokio::select! {
            _reply = bench.client.open_post(CHAT, &body) => panic!("there was an answer"),
            call = upstream => call,
        }
    };
    call.until_let_go().await;
    one.is_left_alone().await;
    ended_once(&bench, ready(&bench)).await;
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
    let end = "tidegate_dp_requests_total{endpoint=\"chat_completions\",end=\"client_abort\"}";
    assert!((bench.metric(end).await - 1.0).abs() < 0.5);
}

/// The attempt that was held and the one in its place are both accounted for.
#[tokio::test]
async fn a_client_that_leaves_while_a_stream_is_opened_again_ends_both() {
    let (one, bench) = Scripted::bench(held()).await;
    let _time = Frozen::time();
    let body = chat("one/m", true);
    let again = {
        let upstream = async {
            one.call()
                .await
                .streams(&[role(), text("held")])
                .await
                .breaks();
            one.call().await
        };
        tokio::select! {
            _reply = bench.client.open_post(CHAT, &body) => panic!("there was an answer"),
            again = upstream => again,
        }
    };
    again.until_let_go().await;
    ended_once(&bench, ready(&bench)).await;
    let outcomes = bench.control.outcomes();
    assert_eq!(
        outcomes,
        [Outcome::Success, TRUNCATED, Outcome::ClientAbort]
    );
}

#[tokio::test]
async fn the_end_of_a_drain_ends_what_is_held() {
    let (one, bench) = Scripted::bench(held()).await;
    let time = Frozen::time();
    let upstream = async {
        let call = one.call().await.streams(&[role(), text("held")]).await;
        until("the first event", || bench.control.outcomes().len() == 1).await;
        settles().await;
        let draining = bench.proxy.drain(Duration::from_millis(100));
        let passes = async {
            settles().await;
            time.runs_out(100).await;
            call.until_let_go().await;
        };
        tokio::join!(draining, passes);
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (503, "shutting_down")
    );
    ended_once(&bench, ready(&bench)).await;
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
}

#[tokio::test]
async fn silence_while_a_stream_is_held_opens_it_again_and_its_deadline_ends_it() {
    let (one, bench) = Scripted::bench(Options {
        deadlines: Deadlines {
            idle: Some(Duration::from_secs(5)),
            ..Deadlines::default()
        },
        settings: json!({
            "streamRecovery": {"enabled": true, "attemptDeadlineMs": 8_000},
            "streams": {"idleTimeoutMs": 5_000},
        }),
        ..Options::default()
    })
    .await;
    let time = Frozen::time();
    let upstream = async {
        let silent = one.call().await.streams(&[role()]).await;
        settles().await;
        time.runs_out(5_000).await;
        silent.until_let_go().await;
        // Its clock is its own.
        let mut late = one.call().await.streams(&[role()]).await;
        settles().await;
        time.passes(4_000).await;
        late.sends(&text("seen")).await;
        settles().await;
        time.passes(3_999).await;
        settles().await;
        late.sends(&text(" too")).await;
        settles().await;
        time.runs_out(1).await;
        late.until_let_go().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "seen too");
    assert_eq!(code(&reply), "attempt_deadline_exceeded");
    ended_once(&bench, ready(&bench)).await;
    let outcomes = bench.control.outcomes();
    let idle = Outcome::Stream(StreamFault::IdleTimeout);
    let deadline = Outcome::Stream(StreamFault::DeadlineExceeded);
    assert_eq!(
        outcomes,
        [Outcome::Success, idle, Outcome::Success, deadline]
    );
}

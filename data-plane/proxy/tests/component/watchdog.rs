//! Streams that are slow.

use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::outcome::Outcome;

use crate::bench::{Options, chat};
use crate::continuation::{DONE, FOX};
use crate::recovery::{held, reopens, settings};
use crate::scripted::{
    CHAT, Frozen, Scripted, TOO_SLOW, code, ended_once, fallback_attempts, ping, post, role,
    settles, stop, text, told,
};

/// The window is a second and a half, the warm-up none.
fn watchdog() -> Value {
    json!({"enabled": true, "warmupMs": 0, "windowMs": 1_500, "minUsefulBytesPerSecond": 10})
}

#[tokio::test]
async fn vector_sessions_50_a_slow_stream_that_nobody_saw_is_opened_again() {
    let (one, bench) = Scripted::bench(settings(
        json!({"enabled": true, "throughputWatchdog": watchdog()}),
    ))
    .await;
    let time = Frozen::time();
    let upstream = async {
        let mut slow = one.call().await.streams(&[role()]).await;
        settles().await;
        time.passes(1_500).await;
        slow.sends(&ping()).await;
        let again = one.call().await;
        slow.until_let_go().await;
        again
            .streams(&[role(), text("recovered"), stop()])
            .await
            .ends()
            .await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(reply.text(), role() + &text("recovered") + &stop());
    assert_eq!(fallback_attempts(&reply), Some("1"));
    ended_once(&bench, 2).await;
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes, [Outcome::Success, TOO_SLOW, Outcome::Success]);
    let heard = bench.control.heard();
    assert_eq!(heard.asks, 1, "nobody decides a reopen");
    assert_eq!(heard.usages[1].attempt, heard.reports[2].0.attempt.id);
    assert!((reopens(&bench, "ready").await - 1.0).abs() < 0.5);
    let aborts = "tidegate_dp_watchdog_aborts_total{moment=\"held\"}";
    assert!((bench.metric(aborts).await - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn vector_sessions_51_a_slow_stream_that_was_seen_is_not_opened_again() {
    let (one, bench) = Scripted::bench(settings(
        json!({"enabled": true, "throughputWatchdog": watchdog()}),
    ))
    .await;
    let time = Frozen::time();
    let upstream = async {
        let mut slow = one.call().await.streams(&[role()]).await;
        settles().await;
        time.passes(750).await;
        slow.sends(&text("seen")).await;
        settles().await;
        time.passes(749).await;
        slow.sends(&ping()).await;
        settles().await;
        time.passes(1).await;
        slow.sends(&ping()).await;
        slow.until_let_go().await;
        one.is_left_alone().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "seen");
    assert_eq!(code(&reply), "STREAM_THROUGHPUT_TOO_LOW");
    assert!(!reply.text().contains("[DONE]"));
    ended_once(&bench, 1).await;
    assert_eq!(bench.control.outcomes(), [Outcome::Success, TOO_SLOW]);
}

#[tokio::test]
async fn a_stream_that_is_slow_before_it_is_ready_is_a_failed_attempt() {
    let (one, bench) = Scripted::bench(settings(json!({"throughputWatchdog": watchdog()}))).await;
    let time = Frozen::time();
    let upstream = async {
        let mut slow = one.call().await.streams(&[ping()]).await;
        settles().await;
        time.passes(1_500).await;
        slow.sends(&ping()).await;
        slow.until_let_go().await;
    };
    let body = chat("duo", true);
    let (reply, ()) = tokio::join!(bench.client.post(CHAT, &body), upstream);
    assert!(
        reply.text().ends_with("data: [DONE]\n\n"),
        "of the other target"
    );
    assert_eq!(bench.control.outcomes(), [TOO_SLOW, Outcome::Success]);
}

#[tokio::test]
async fn a_change_of_settings_acts_on_later_attempts() {
    let (one, bench) = Scripted::bench(settings(
        json!({"enabled": true, "throughputWatchdog": watchdog()}),
    ))
    .await;
    let time = Frozen::time();
    let upstream = async {
        let mut watched = one.call().await.streams(&[role()]).await;
        bench.set(&Options {
            one_at: Some(one.base_url()),
            ..held()
        });
        settles().await;
        time.passes(1_500).await;
        watched.sends(&ping()).await;
        let mut unwatched = one.call().await.streams(&[role()]).await;
        settles().await;
        time.passes(3_000).await;
        unwatched.sends(&ping()).await;
        settles().await;
        unwatched.sends(&(text("slow") + &stop())).await;
        unwatched.ends().await;
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    assert_eq!(told(&reply.text()), "slow");
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes, [Outcome::Success, TOO_SLOW, Outcome::Success]);
}

#[rstest]
#[case::it_goes_on(true)]
#[case::it_is_refused(false)]
#[tokio::test]
async fn vector_sessions_51_a_slow_stream_goes_on_or_says_why_not(#[case] goes_on: bool) {
    let watchdog = json!({"enabled": true, "warmupMs": 0, "windowMs": 1_500,
        "minUsefulBytesPerSecond": 100});
    let (one, bench) = Scripted::bench(Options {
        settings: json!({"streamRecovery": {
            "enabled": true, "continueMidStream": true, "throughputWatchdog": watchdog,
        }}),
        ..Options::default()
    })
    .await;
    let time = Frozen::time();
    let upstream = async {
        let mut slow = one.call().await.streams(&[role(), text(FOX)]).await;
        settles().await;
        time.passes(750).await;
        slow.sends(&ping()).await;
        settles().await;
        time.passes(750).await;
        slow.sends(&ping()).await;
        let again = one.call().await;
        slow.until_let_go().await;
        if goes_on {
            // A window of its own: what the first one did is not held against it.
            let mut rest = again.streams(&[role(), text("brown fox")]).await;
            settles().await;
            time.passes(1_499).await;
            rest.sends(&(text(" jumps") + &stop())).await;
            rest.ends().await;
        } else {
            again.refuses(503).await;
        }
    };
    let (reply, ()) = tokio::join!(post(&bench), upstream);
    if goes_on {
        assert_eq!(told(&reply.text()), "The quick brown fox jumps");
        assert!(reply.text().ends_with(DONE));
    } else {
        assert_eq!(told(&reply.text()), FOX);
        assert_eq!(code(&reply), "STREAM_THROUGHPUT_TOO_LOW");
    }
    assert_eq!(bench.control.outcomes()[..2], [Outcome::Success, TOO_SLOW]);
}

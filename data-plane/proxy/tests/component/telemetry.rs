//! What is told of attempts for strategies to know.

use rstest::rstest;
use serde_json::json;
use tidegate_core::telemetry::aggregate::{End, Verdict};
use tidegate_fake_upstream::Mode;
use tidegate_plane_client::Observation;

use crate::bench::{Bench, chat};

fn ends<'a>(observed: &'a [Observation]) -> Vec<&'a End> {
    let of_end = |observation: &'a Observation| match observation {
        Observation::Ended(end) => Some(end),
        _ => None,
    };
    observed.iter().filter_map(of_end).collect()
}

/// What was said of targets, in order.
pub(crate) fn verdicts(bench: &Bench) -> Vec<&'static str> {
    let word = |end: &&End| match end.verdict {
        Verdict::Served { .. } => "served",
        Verdict::Failed => "failed",
        Verdict::Broke => "broke",
        Verdict::None => "nothing",
    };
    let observed = bench.control.heard().observed;
    ends(&observed).iter().map(word).collect()
}

fn balance(observed: &[Observation]) -> (usize, usize) {
    let count = |is: fn(&&Observation) -> bool| observed.iter().filter(is).count();
    (
        count(|it| matches!(it, Observation::Began(_))),
        count(|it| matches!(it, Observation::Over(_))),
    )
}

#[tokio::test]
async fn every_attempt_is_under_way_ends_and_is_over_once() {
    for stream in [false, true] {
        let bench = Bench::start().await;
        bench.one.set_default(Mode::status(503));
        let reply = bench
            .client
            .post("/v1/chat/completions", &chat("duo", stream))
            .await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let observed = bench.control.heard().observed;
        assert_eq!(balance(&observed), (2, 2), "{observed:?}");
        let [failed, served] = ends(&observed)[..] else {
            panic!("{observed:?}");
        };
        assert_eq!(failed.verdict, Verdict::Failed);
        assert_eq!(failed.connection.as_str(), "one-a");
        assert!(matches!(served.verdict, Verdict::Served { .. }));
        assert!(served.began_at <= served.at && failed.began_at <= failed.at);
        for end in [failed, served] {
            let (combo, key) = end.target.as_ref().unwrap();
            assert_eq!(combo.as_str(), "duo");
            assert!(!key.is_empty());
        }
        assert_ne!(failed.target, served.target);
    }
}

#[tokio::test]
async fn the_clients_own_fault_says_nothing_of_the_target() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::status(422));
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", false))
        .await;
    assert_eq!(reply.status, 422);
    let observed = bench.control.heard().observed;
    let verdicts: Vec<_> = ends(&observed).iter().map(|end| end.verdict).collect();
    assert_eq!(verdicts, [Verdict::None]);
    assert_eq!(balance(&observed), (1, 1));
}

#[tokio::test]
async fn a_stream_that_breaks_is_told_after_it_had_served() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::CutAfter { bytes: 700 });
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", true))
        .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let observed = bench.control.heard().observed;
    let verdicts: Vec<_> = ends(&observed).iter().map(|end| end.verdict).collect();
    assert!(
        matches!(verdicts[..], [Verdict::Served { .. }, Verdict::Broke]),
        "{verdicts:?}"
    );
    assert_eq!(balance(&observed), (1, 1));
}

/// Its success is counted, so that nothing is left to be told.
#[rstest]
#[case::the_upstreams("server_error", &["served", "broke"])]
#[case::the_clients("invalid_request_error", &["served"])]
#[tokio::test]
async fn an_error_event_is_held_against_the_target_whose_fault_it_is(
    #[case] kind: &str,
    #[case] expected: &[&str],
) {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::SseErrorAfter {
        events: 3,
        error: Some(json!({"message": "no", "type": kind, "code": "content_filter"})),
    });
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", true))
        .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    bench
        .until("both reports", |bench| bench.control.outcomes().len() == 2)
        .await;
    assert_eq!(verdicts(&bench), expected);
}

#[tokio::test]
async fn headers_of_any_answer_tell_of_quotas() {
    let bench = Bench::start().await;
    let told = [
        ("x-ratelimit-limit-requests", "10"),
        ("x-ratelimit-remaining-requests", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    for mode in [Mode::Ok, Mode::status(503)] {
        bench.one.set_default(mode);
        bench.one.set_headers(told.to_vec());
        let reply = bench
            .client
            .post("/v1/chat/completions", &chat("duo", false))
            .await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let quotas: Vec<_> = bench
        .control
        .heard()
        .observed
        .into_iter()
        .filter_map(|observation| match observation {
            Observation::Quota(connection, quota) => Some((connection, quota)),
            _ => None,
        })
        .collect();
    assert_eq!(quotas.len(), 2);
    for (connection, quota) in quotas {
        assert_eq!(connection.as_str(), "one-a");
        assert!((quota.used.unwrap().get() - 0.9).abs() < 1e-9);
    }
}

#[rstest]
#[case::more_than_it_takes(101, Some(("one", 100)))]
#[case::within_the_limit(100, None)]
#[tokio::test]
async fn how_many_tools_a_provider_takes_is_learned_from_its_refusal(
    #[case] tools: usize,
    #[case] expected: Option<(&str, u32)>,
) {
    let bench = Bench::start().await;
    let error = r#"{"error":{"message":"'tools': maximum number of items is 100"}}"#;
    bench.one.set_default(Mode::status_with_body(400, error));
    let mut request = chat("duo", false);
    request["tools"] = (0..tools)
        .map(|number| json!({"type": "function", "function": {"name": format!("f{number}")}}))
        .collect();
    let reply = bench.client.post("/v1/chat/completions", &request).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let observed = bench.control.heard().observed;
    let learned = observed.iter().find_map(|observation| match observation {
        Observation::ToolLimit(provider, limit, _) => Some((provider.as_str(), *limit)),
        _ => None,
    });
    assert_eq!(learned, expected);
    // The refusal says nothing of the target.
    assert_eq!(ends(&observed)[0].verdict, Verdict::None);
}

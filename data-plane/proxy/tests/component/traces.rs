//! Which spans a request makes, in a collector.

use http::Method;
use rstest::rstest;
use serde_json::json;
use tidegate_fake_upstream::{Mode, Selector};
use tidegate_proxy::Tracing;
use tidegate_telemetry::{OtlpArgs, TraceSettings, Traces};
use tidegate_test_support::{CollectedSpan, Collector};

use crate::bench::{Bench, LIMIT, Options};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Attempts that ended because their client left.
const LEFT: &str = "gen_ai_client_operation_duration_seconds_count{gen_ai_operation_name=\"chat\",\
                    gen_ai_provider_name=\"one\",gen_ai_request_model=\"m\",error_type=\"client_abort\"}";

/// A collector that gets all spans, and who sends them.
async fn tracing(tell_upstreams: bool) -> (Collector, Tracing) {
    let collector = Collector::start().await.unwrap();
    let args = OtlpArgs {
        otlp_endpoint: Some(collector.url()),
    };
    let settings = TraceSettings::read(&args, |_| None).unwrap();
    let traces = Traces::start(settings, "test", "one");
    let tracing = Tracing {
        traces,
        tell_upstreams,
    };
    (collector, tracing)
}

/// The spans of everything that has ended.
async fn spans(collector: &Collector, tracing: &Tracing) -> Vec<CollectedSpan> {
    tracing.traces.shutdown(LIMIT).await;
    collector.spans()
}

fn named<'s>(spans: &'s [CollectedSpan], name: &str) -> Vec<&'s CollectedSpan> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[rstest]
#[case::wanted(true)]
#[case::not_wanted(false)]
#[tokio::test]
async fn upstreams_learn_of_a_trace_only_where_that_is_wanted(#[case] wanted: bool) {
    let (collector, tracing) = tracing(wanted).await;
    let bench = Bench::start_with(Options {
        tracing: tracing.clone(),
        ..Options::default()
    })
    .await;
    let body = json!({"model": "one/m", "messages": []}).to_string();
    let headers = [("traceparent", PARENT), ("tracestate", "vendor=1")];
    let path = "/v1/chat/completions";
    let reply = bench
        .client
        .send(Method::POST, path, &headers, body.into())
        .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let spans = spans(&collector, &tracing).await;
    let attempts = named(&spans, "chat m");
    assert_eq!(attempts.len(), 1, "{spans:?}");
    let told = bench.one.log().requests(&Selector::any());
    let expected = wanted.then(|| {
        let parent = PARENT.get(..36).unwrap();
        format!("{parent}{}-01", attempts[0].span_id)
    });
    assert_eq!(told[0].header("traceparent"), expected.as_deref());
    assert_eq!(told[0].header("tracestate"), wanted.then_some("vendor=1"));
    // Clients are told nothing of it.
    assert_eq!(reply.header("traceparent"), None);
}

#[tokio::test]
async fn a_request_that_is_refused_has_a_span_and_no_attempt() {
    let (collector, tracing) = tracing(false).await;
    let bench = Bench::start_with(Options {
        tracing: tracing.clone(),
        ..Options::default()
    })
    .await;
    let path = "/v1/chat/completions";
    let key = [("authorization", "Bearer nobody"), ("traceparent", PARENT)];
    let refused = bench.client.send(Method::POST, path, &key, "{}".into());
    assert_eq!(refused.await.status, 401);
    let broken = bench.client.post_bytes(path, "{").await;
    assert_eq!(broken.status, 400);
    bench.client.get("/livez").await;
    let spans = spans(&collector, &tracing).await;
    // Strangers' traces are none of ours.
    let foreign = spans.iter().find(|span| PARENT.contains(&span.trace_id));
    assert!(foreign.is_none(), "{foreign:?}");
    let mut statuses: Vec<&str> = spans
        .iter()
        .map(|span| span.attribute("http.response.status_code"))
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, ["400", "401"], "{spans:?}");
    assert!(spans.iter().all(|span| !span.failed));
    assert!(
        spans
            .iter()
            .all(|span| !span.attribute("error.type").is_empty())
    );
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_spans_and_fails_none() {
    let (collector, tracing) = tracing(false).await;
    let bench = Bench::start_with(Options {
        tracing: tracing.clone(),
        ..Options::default()
    })
    .await;
    bench.one.set_default(Mode::Stall { events: 2 });
    let body = json!({"model": "one/m", "stream": true, "messages": []});
    let stream = bench.client.open_post("/v1/chat/completions", &body).await;
    assert_eq!(stream.status(), 200);
    drop(stream);
    let over = || async {
        let aborted =
            "tidegate_dp_requests_total{endpoint=\"chat_completions\",end=\"client_abort\"}";
        (bench.metric(aborted).await > 0.0).then_some(())
    };
    let waiting = tidegate_test_support::eventually(LIMIT, "the end of the request", over);
    waiting.await.unwrap();
    let spans = spans(&collector, &tracing).await;
    let request = named(&spans, "POST /v1/chat/completions");
    assert_eq!(request[0].attribute("tidegate.ended_by"), "client");
    let attempt = named(&spans, "chat m");
    assert_eq!(attempt[0].attribute("tidegate.attempt.ended_by"), "client");
    assert_eq!(bench.metric(LEFT).await, 1.0);
    assert!(
        !attempt[0]
            .attribute("gen_ai.response.time_to_first_chunk")
            .is_empty()
    );
    assert!(spans.iter().all(|span| !span.failed), "{spans:?}");
}

#[tokio::test]
async fn the_parts_of_a_plan_belong_to_one_trace() {
    let (collector, tracing) = tracing(false).await;
    let bench = Bench::start_with(Options {
        plans: true,
        tracing: tracing.clone(),
        ..Options::default()
    })
    .await;
    let body = json!({"model": "panel", "messages": [{"role": "user", "content": "hi"}]});
    let reply = bench.client.post("/v1/chat/completions", &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let spans = spans(&collector, &tracing).await;
    let request = named(&spans, "POST /v1/chat/completions");
    assert_eq!(request.len(), 1);
    // Three members and the judge.
    let attempts: Vec<_> = spans.iter().filter(|span| span.kind == "client").collect();
    assert_eq!(attempts.len(), 4, "{spans:?}");
    assert!(attempts.iter().all(|it| it.parent_id == request[0].span_id));
    assert_eq!(request[0].attribute("tidegate.attempts"), "4");
}

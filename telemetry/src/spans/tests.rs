//! Against a collector that behaves in every way.

use std::time::Duration;

use http::HeaderMap;
use opentelemetry::trace::SpanKind;
use prometheus_client::registry::Registry;
use tidegate_test_support::{Collector, CollectorMode, eventually};

use super::*;
use crate::settings::OtlpArgs;

const LIMIT: Duration = Duration::from_secs(20);

fn start(url: &str, set: &[(&str, &str)]) -> Traces {
    let args = OtlpArgs {
        otlp_endpoint: Some(url.to_owned()),
    };
    let settings = TraceSettings::read(&args, |name| {
        let found = set.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    });
    Traces::start(settings.unwrap(), "tester", "one")
}

fn sample(traces: &Traces, name: &str) -> u64 {
    let mut registry = Registry::default();
    traces.metrics().name_in(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap().trim().parse().unwrap()
}

const NOT_DELIVERED: &str = "spans_dropped_total{reason=\"not_delivered\"}";
const REJECTED: &str = "spans_dropped_total{reason=\"rejected\"}";
const QUEUE_FULL: &str = "spans_dropped_total{reason=\"queue_full\"}";
const EXPORTED: &str = "spans_exported_total";

/// Ends spans until `found` says so.
async fn until(traces: &Traces, what: &str, found: impl Fn() -> bool) {
    eventually(LIMIT, what, || async {
        drop(traces.span(SpanKind::Internal, "more", None));
        found().then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn spans_arrive_with_what_they_were_told() {
    let collector = Collector::start().await.unwrap();
    let set = [
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=of%20ours"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_SERVICE_NAME", "named"),
    ];
    let traces = start(&collector.url(), &set);
    let mut parent = traces.span(SpanKind::Server, "parent", None);
    let mut child = traces.span(SpanKind::Client, "child", parent.context().as_ref());
    child.set("text", &"x".repeat(300));
    child.set("number", 7_i64);
    child.fail("code");
    parent.end();
    parent.set("late", true);
    drop((parent, child));
    traces.shutdown(LIMIT).await;
    let spans = collector.spans();
    let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    let (parent, child) = (named("parent"), named("child"));
    assert_eq!((parent.kind, child.kind), ("server", "client"));
    assert_eq!(child.parent_id, parent.span_id);
    assert_eq!(child.trace_id, parent.trace_id);
    assert_eq!(child.service, "named");
    assert_eq!(child.attribute("text").len(), crate::MAX_TEXT);
    assert_eq!(child.attribute("number"), "7");
    assert_eq!(child.attribute("error.type"), "code");
    assert!(child.failed && !parent.failed);
    assert_eq!(parent.attribute("late"), "");
    assert!(collector.headers().contains(&"x-key: of ours".to_owned()));
    assert_eq!(sample(&traces, EXPORTED), 2);
}

#[tokio::test]
async fn whoever_is_not_sampled_is_not_recorded_and_says_so() {
    let collector = Collector::start().await.unwrap();
    let traces = start(&collector.url(), &[]);
    let mut headers = HeaderMap::new();
    let unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    headers.insert("traceparent", unsampled.parse().unwrap());
    let caller = TraceContext::of_headers(&headers).unwrap();
    let span = traces.span(SpanKind::Server, "a", Some(&caller));
    assert!(!span.is_recording());
    let context = span.context().unwrap();
    assert_eq!(context.sampled_trace_id(), None);
    let mut told = HeaderMap::new();
    context.write(&mut told);
    let told = told["traceparent"].to_str().unwrap();
    assert!(
        told.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && told.ends_with("-00"),
        "{told}"
    );
    drop(span);
    traces.shutdown(LIMIT).await;
    assert_eq!(collector.calls(), 0);
}

#[tokio::test]
async fn a_collector_that_is_starting_loses_nothing() {
    let collector = Collector::start().await.unwrap();
    collector.set_mode(CollectorMode::Unavailable);
    let set = [("OTEL_BSP_SCHEDULE_DELAY", "10")];
    let traces = start(&collector.url(), &set);
    drop(traces.span(SpanKind::Internal, "early", None));
    let called = || async { (collector.calls() > 1).then_some(()) };
    eventually(LIMIT, "it was called twice", called)
        .await
        .unwrap();
    collector.set_mode(CollectorMode::Keeps);
    let spans = collector.wait_for(LIMIT, "the span", |spans| spans.first().cloned());
    assert_eq!(spans.await.unwrap().name, "early");
    assert_eq!(sample(&traces, NOT_DELIVERED), 0);
}

#[tokio::test]
async fn what_is_not_taken_in_time_is_dropped_and_counted_and_later_spans_are_not() {
    let collector = Collector::start().await.unwrap();
    collector.set_mode(CollectorMode::Stalls);
    let set = [
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "100"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "4"),
    ];
    let traces = start(&collector.url(), &set);
    until(&traces, "spans are dropped", || {
        sample(&traces, NOT_DELIVERED) > 0 && sample(&traces, QUEUE_FULL) > 0
    })
    .await;
    collector.set_mode(CollectorMode::Rejects(1));
    until(&traces, "a span is rejected", || {
        sample(&traces, REJECTED) > 0
    })
    .await;
    collector.set_mode(CollectorMode::Keeps);
    until(&traces, "spans arrive", || !collector.spans().is_empty()).await;
}

#[tokio::test]
async fn an_end_does_not_wait_for_a_collector_longer_than_it_may() {
    let collector = Collector::start().await.unwrap();
    collector.set_mode(CollectorMode::Stalls);
    let traces = start(&collector.url(), &[("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")]);
    drop(traces.span(SpanKind::Internal, "last", None));
    // The limit of the test's runner is the assertion.
    traces.shutdown(Duration::from_millis(50)).await;
    drop(traces.span(SpanKind::Internal, "too late", None));
}

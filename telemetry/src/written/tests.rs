//! What is written is read with the types that are generated from OpenTelemetry's own definitions.

use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Read;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use rstest::rstest;

use super::*;

const BEGAN: u64 = 1_786_563_000_123_456_789;

fn moment(nanos: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanos)
}

fn context(span: u64, is_remote: bool, state: TraceState) -> SpanContext {
    let (trace, span) = (TraceId::from(7_u128), SpanId::from(span));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, is_remote, state)
}

fn begun() -> Written {
    let context = context(1, false, TraceState::NONE);
    Written::begin(&context, None, SpanKind::Internal, "a", moment(BEGAN))
}

fn read(written: Written) -> Span {
    Span::decode(written.end(moment(BEGAN + 5)).as_slice()).unwrap()
}

/// The only attribute.
fn value(span: &Span) -> Read {
    let [attribute] = span.attributes.as_slice() else {
        panic!("{span:?}")
    };
    attribute.value.clone().unwrap().value.unwrap()
}

#[rstest]
#[case::first(None, 0x101)]
#[case::child_of_ours(Some(false), 0x101)]
#[case::child_of_a_caller(Some(true), 0x301)]
fn who_it_is_is_written(#[case] parent_is_remote: Option<bool>, #[case] flags: u32) {
    let state = TraceState::from_key_value([("k", "v")]).unwrap();
    let context = context(0x0102_0304_0506_0708, false, state);
    let parent = parent_is_remote.map(|it| self::context(9, it, TraceState::NONE));
    let kind = SpanKind::Client;
    let span = Written::begin(&context, parent.as_ref(), kind, "chat m", moment(BEGAN));
    let expected = Span {
        trace_id: [&[0; 15], &[7][..]].concat(),
        span_id: vec![1, 2, 3, 4, 5, 6, 7, 8],
        trace_state: "k=v".to_owned(),
        parent_span_id: parent.map_or_else(Vec::new, |_| vec![0, 0, 0, 0, 0, 0, 0, 9]),
        flags,
        name: "chat m".to_owned(),
        kind: 3,
        start_time_unix_nano: BEGAN,
        end_time_unix_nano: BEGAN + 5,
        ..Span::default()
    };
    assert_eq!(read(span), expected);
}

#[rstest]
#[case::bool(true.into(), Read::BoolValue(true))]
#[case::not(false.into(), Read::BoolValue(false))]
#[case::nothing(0_i64.into(), Read::IntValue(0))]
#[case::one_byte(127_i64.into(), Read::IntValue(127))]
#[case::two_bytes(128_i64.into(), Read::IntValue(128))]
#[case::less_than_nothing((-1_i64).into(), Read::IntValue(-1))]
#[case::most(i64::MAX.into(), Read::IntValue(i64::MAX))]
#[case::least(i64::MIN.into(), Read::IntValue(i64::MIN))]
#[case::double(0.25.into(), Read::DoubleValue(0.25))]
#[case::no_text("".into(), Read::StringValue(String::new()))]
#[case::text("é".into(), Read::StringValue("é".to_owned()))]
fn attributes_are_written(#[case] told: Value<'_>, #[case] expected: Read) {
    let mut span = begun();
    span.attribute("a.name", told);
    let span = read(span);
    assert_eq!(span.attributes[0].key, "a.name");
    assert_eq!(value(&span), expected);
}

/// Around where a length takes another byte, and around the longest text.
#[rstest]
#[case(110, 110)]
#[case(119, 119)]
#[case(120, 120)]
#[case(127, 127)]
#[case(128, 128)]
#[case(256, 256)]
#[case(257, 256)]
#[case(100_000, 256)]
fn texts_of_any_length_are_written(#[case] len: usize, #[case] kept: usize) {
    let text = "x".repeat(len);
    let mut span = begun();
    span.attribute("a", text.as_str().into());
    assert_eq!(value(&read(span)), Read::StringValue("x".repeat(kept)));
    let mut span = begun();
    span.texts("a", &[text.as_str(), "", "b"]);
    let Read::ArrayValue(array) = value(&read(span)) else {
        panic!("no array")
    };
    let lens = array.values.into_iter().map(|it| match it.value {
        Some(Read::StringValue(text)) => text.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(lens.collect::<Vec<_>>(), [kept, 0, 1]);
}

#[test]
fn texts_are_cut_between_characters() {
    let mut span = begun();
    let long = format!("{}éé", "x".repeat(crate::MAX_TEXT - 1));
    span.attribute("a", long.as_str().into());
    let kept = "x".repeat(crate::MAX_TEXT - 1);
    assert_eq!(value(&read(span)), Read::StringValue(kept));
}

#[test]
fn attributes_that_are_too_many_are_counted() {
    let mut span = begun();
    for number in 0..70 {
        span.attribute("a", i64::from(number).into());
    }
    span.texts("b", &["c"]);
    let span = read(span);
    assert_eq!(span.attributes.len(), 64);
    assert_eq!(span.dropped_attributes_count, 7);
}

#[test]
fn a_failure_is_written() {
    let mut span = begun();
    assert_eq!(read(begun()).status, None);
    span.fail();
    assert_eq!(read(span).status.unwrap().code, 2);
}

#[rstest]
#[case::few(2)]
#[case::many(2_000)]
fn spans_are_sent_in_one_message(#[case] count: usize) {
    let resource = ResourceSpans {
        resource: Some(Resource::default()),
        schema_url: "resource's".to_owned(),
        ..ResourceSpans::default()
    };
    let scope = ScopeSpans {
        schema_url: "scope's".to_owned(),
        ..ScopeSpans::default()
    };
    let spans: Vec<_> = (0..count).map(|_| begun().end(moment(BEGAN))).collect();
    let message = message(&resource.encode_to_vec(), &scope.encode_to_vec(), &spans);
    let read = ExportTraceServiceRequest::decode(message.as_slice()).unwrap();
    let span = Span::decode(spans[0].as_slice()).unwrap();
    let scope_spans = vec![ScopeSpans {
        spans: vec![span; count],
        ..scope
    }];
    let expected = ResourceSpans {
        scope_spans,
        ..resource
    };
    assert_eq!(read.resource_spans, [expected]);
}

use futures::task::noop_waker_ref;
use rstest::rstest;
use tokio::time::advance;

use super::*;

const EVERY: Duration = Duration::from_secs(15);

fn begin_with(endpoint: Endpoint, comments: bool) -> Heartbeat {
    let settings = Heartbeats {
        every: Some(EVERY),
        comments,
    };
    let names = Names {
        request_id: "req_1",
        model: "main",
        now: Timestamp(7_000),
    };
    Heartbeat::begin(endpoint, settings, &names, Counter::default()).unwrap()
}

fn begin(endpoint: Endpoint) -> Heartbeat {
    begin_with(endpoint, true)
}

fn poll(heartbeat: &mut Heartbeat, sequence: Option<u64>) -> Option<String> {
    let mut context = Context::from_waker(noop_waker_ref());
    let event = heartbeat.poll(&mut context, sequence)?;
    Some(String::from_utf8(event.to_vec()).unwrap())
}

fn data(event: &str) -> Value {
    let data = event.strip_prefix("data: ").unwrap();
    serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn one_is_due_at_fixed_times() {
    let mut heartbeat = begin(Endpoint::Messages);
    let just_before = EVERY - Duration::from_millis(1);
    for _ in 0..3 {
        advance(just_before).await;
        assert_eq!(poll(&mut heartbeat, None), None);
        advance(Duration::from_millis(1)).await;
        assert!(poll(&mut heartbeat, None).is_some());
        assert_eq!(poll(&mut heartbeat, None), None);
    }
    assert_eq!(heartbeat.sent.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn those_that_were_missed_are_not_made_up_for() {
    let mut heartbeat = begin(Endpoint::Messages);
    advance(EVERY * 10).await;
    assert!(poll(&mut heartbeat, None).is_some());
    assert_eq!(poll(&mut heartbeat, None), None);
}

#[tokio::test(start_paused = true)]
async fn at_most_one_waits_for_a_client_that_takes_nothing() {
    let mut heartbeat = begin(Endpoint::ChatCompletions);
    let mut context = Context::from_waker(noop_waker_ref());
    advance(EVERY).await;
    let held = heartbeat.poll(&mut context, None).unwrap();
    let rest = held.slice(5..);
    drop(held);
    for _ in 0..5 {
        advance(EVERY).await;
        assert_eq!(poll(&mut heartbeat, None), None);
    }
    drop(rest);
    advance(EVERY).await;
    assert!(poll(&mut heartbeat, None).is_some());
}

#[rstest]
#[case::off(None)]
#[case::zero(Some(Duration::ZERO))]
#[tokio::test]
async fn they_can_be_switched_off(#[case] every: Option<Duration>) {
    let settings = Heartbeats {
        every,
        comments: true,
    };
    let names = Names {
        request_id: "req_1",
        model: "main",
        now: Timestamp(0),
    };
    let none = Heartbeat::begin(Endpoint::Messages, settings, &names, Counter::default());
    assert!(none.is_none());
}

#[rstest]
#[case(15_000, Some(EVERY))]
#[case(0, None)]
#[case(-5, None)]
fn the_environment_says_milliseconds(#[case] ms: i64, #[case] every: Option<Duration>) {
    assert_eq!(Heartbeats::every_ms(ms, true).every, every);
}

#[tokio::test(start_paused = true)]
async fn a_chat_has_chunks_that_say_nothing() {
    let mut heartbeat = begin(Endpoint::ChatCompletions);
    advance(EVERY).await;
    let before = data(&poll(&mut heartbeat, None).unwrap());
    let empty = json!([{"index": 0, "delta": {}, "finish_reason": null}]);
    assert_eq!(
        before,
        json!({"id": "chatcmpl-req_1", "object": "chat.completion.chunk", "created": 7,
            "model": "main", "choices": empty})
    );
    heartbeat.learns(
        b": hello\n\ndata: {\"id\":\"c1\",\"model\":\"m\",\"created\":9,\"choices\":[]}\n\n",
    );
    heartbeat.learns(b"data: {\"id\":\"c2\",\"model\":\"other\"}\n\n");
    advance(EVERY).await;
    let after = data(&poll(&mut heartbeat, None).unwrap());
    assert_eq!((&after["id"], &after["model"]), (&json!("c1"), &json!("m")));
    assert_eq!(after["created"], 9);
}

#[tokio::test(start_paused = true)]
async fn a_response_is_named_once_it_has_named_itself() {
    let mut heartbeat = begin(Endpoint::Responses);
    advance(EVERY).await;
    assert_eq!(poll(&mut heartbeat, None).unwrap(), ": keepalive\n\n");
    heartbeat.learns(
        b"event: response.created\r\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r1\",\
          \"model\":\"m\",\"created_at\":9.5},\"sequence_number\":0}\r\n\r\n",
    );
    advance(EVERY).await;
    let event = data(&poll(&mut heartbeat, Some(12)).unwrap());
    assert_eq!(event["type"], "response.in_progress");
    assert_eq!(event["sequence_number"], 12);
    assert_eq!(event["response"]["id"], "r1");
    assert_eq!(event["response"]["created_at"], 9);
    assert_eq!(event["response"]["status"], "in_progress");
}

#[rstest]
#[case::messages(
    Endpoint::Messages,
    true,
    Some("event: ping\ndata: {\"type\":\"ping\"}\n\n")
)]
#[case::messages_are_no_comments(
    Endpoint::Messages,
    false,
    Some("event: ping\ndata: {\"type\":\"ping\"}\n\n")
)]
#[case::legacy(Endpoint::Completions, true, Some(": keepalive\n\n"))]
#[case::legacy_without_comments(Endpoint::Completions, false, None)]
#[case::responses_without_comments(Endpoint::Responses, false, None)]
#[tokio::test(start_paused = true)]
async fn each_format_has_its_own(
    #[case] endpoint: Endpoint,
    #[case] comments: bool,
    #[case] expected: Option<&str>,
) {
    let mut heartbeat = begin_with(endpoint, comments);
    advance(EVERY).await;
    assert_eq!(poll(&mut heartbeat, None).as_deref(), expected);
}

#[rstest]
#[case::not_json(b"data: {\"id\":\"c1\n\n".as_slice())]
#[case::no_names(b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n")]
#[case::long(b"data: {\"id\":\"LONG\",\"model\":\"m\"}\n\n")]
fn what_names_nothing_is_not_taken_over(#[case] piece: &[u8]) {
    let piece = String::from_utf8(piece.to_vec()).unwrap();
    let piece = piece.replace("LONG", &"x".repeat(MAX_NAME_BYTES + 1));
    assert_eq!(named_in(piece.as_bytes()), None);
}

//! Requests under a lease: the fence before each attempt, the cut at its horizon, and what is given back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::lease::LeaseError;
use tidegate_core::outcome::{LocalFault, Outcome};
use tidegate_fake_upstream::{Ending, Mode, Selector};

use crate::bench::{Bench, LEASE_KEY, LIMIT, Options, chat};
use crate::client::{Client, Reply, raw};
use crate::lease_requests::{OWNER, TOKEN};

const CHAT: &str = "/v1/chat/completions";
/// Everywhere a model is asked, with one that answers there.
const MODEL_PATHS: [(&str, &str); 4] = [
    (CHAT, "one/m"),
    ("/v1/completions", "one/m"),
    ("/v1/responses", "one/m"),
    ("/v1/messages", "ant/m"),
];
const GENERATION: &str = "x-omniroute-lease-generation";
const LEASE: [(&str, &str); 2] = [(OWNER, TOKEN), (GENERATION, "3")];

async fn bench() -> Bench {
    bench_with(Options::default()).await
}

async fn bench_with(options: Options) -> Bench {
    Bench::start_with(Options {
        leases: true,
        ..options
    })
    .await
}

fn session(bench: &Bench) -> Client {
    Client::new(bench.addr, LEASE_KEY)
}

async fn post(bench: &Bench, headers: &[(&str, &str)], body: &Value) -> Reply {
    let body = body.to_string().into();
    session(bench).send(Method::POST, CHAT, headers, body).await
}

fn calls(bench: &Bench) -> u64 {
    let any = Selector::any();
    bench.one.log().count(&any) + bench.two.log().count(&any) + bench.ant.log().count(&any)
}

fn refusal(reply: &Reply) -> (u16, String) {
    assert_eq!(
        reply.json()["error"]["type"],
        "lease_error",
        "{}",
        reply.text()
    );
    (reply.status, reply.code())
}

async fn until_idle(bench: &Bench) {
    bench
        .until("nothing to be in flight", |bench| {
            bench.control.leases.running() == 0
        })
        .await;
}

async fn until_calls(bench: &Bench, count: u64) {
    let any = Selector::any();
    assert!(bench.one.log().wait_for(&any, count, LIMIT).await);
}

#[tokio::test]
async fn an_attempt_passes_the_fence_and_names_no_lease_upstream() {
    let bench = bench().await;
    let reply = post(&bench, &LEASE, &chat("one/m", false)).await;
    assert_eq!(reply.status, 200);
    until_idle(&bench).await;
    let fenced = bench.control.leases.fenced.lock().clone();
    assert_eq!(fenced.len(), 1);
    let (lease, key, connection) = &fenced[0];
    assert_eq!(lease.generation.number(), 3);
    assert_eq!((key.as_str(), connection.as_str()), ("session", "one-a"));
    assert_eq!(bench.control.heard().leases, [Some(*lease)]);
    let sent = bench.one.log().requests(&Selector::any());
    let hash = lease.owner.to_string();
    for (name, value) in &sent[0].headers {
        let told = format!("{name}: {value:?}").to_lowercase();
        assert!(!told.contains("lease"), "{told}");
        assert!(
            !told.contains(&TOKEN.to_lowercase()) && !told.contains(&hash),
            "{told}"
        );
    }
}

#[tokio::test]
async fn a_key_that_may_not_lease_has_its_headers_ignored() {
    let bench = bench().await;
    for headers in [LEASE, [(OWNER, "vlo_wrong"), (GENERATION, "01")]] {
        let body = chat("one/m", false).to_string().into();
        let reply = bench.client.send(Method::POST, CHAT, &headers, body).await;
        assert_eq!(reply.status, 200);
    }
    assert_eq!(bench.control.leases.fences(), 0);
    assert_eq!(bench.control.heard().leases, [None, None]);
}

#[rstest]
#[case::no_owner(&[(GENERATION, "3")], "LEASE_CONTEXT_REQUIRED")]
#[case::nothing(&[], "LEASE_CONTEXT_REQUIRED")]
#[case::a_short_owner(&[(OWNER, "vlo_short"), (GENERATION, "3")], "LEASE_CONTEXT_INVALID")]
#[case::no_generation(&[(OWNER, TOKEN)], "LEASE_CONTEXT_INVALID")]
#[case::a_leading_zero(&[(OWNER, TOKEN), (GENERATION, "01")], "LEASE_CONTEXT_INVALID")]
#[case::a_sign(&[(OWNER, TOKEN), (GENERATION, "+1")], "LEASE_CONTEXT_INVALID")]
#[case::a_fraction(&[(OWNER, TOKEN), (GENERATION, "1.0")], "LEASE_CONTEXT_INVALID")]
#[case::too_large(&[(OWNER, TOKEN), (GENERATION, "9007199254740992")], "LEASE_CONTEXT_INVALID")]
#[tokio::test]
async fn vector_sessions_18_nothing_is_asked_or_sent_without_a_lease(
    #[case] headers: &[(&str, &str)],
    #[case] code: &str,
) {
    let bench = bench().await;
    for (path, model) in MODEL_PATHS {
        let body = chat(model, true).to_string().into();
        let reply = session(&bench)
            .send(Method::POST, path, headers, body)
            .await;
        assert_eq!(refusal(&reply), (400, code.to_owned()), "{path}");
    }
    assert_eq!((calls(&bench), bench.control.heard().asks), (0, 0));
}

#[rstest]
#[case(LeaseError::Required, 409)]
#[case(LeaseError::FenceStale, 409)]
#[case(LeaseError::ConnectionMismatch, 409)]
#[case(LeaseError::ServiceUnavailable, 503)]
#[tokio::test]
async fn vector_sessions_19_what_the_fence_refuses_is_not_sent_and_blames_nobody(
    #[case] error: LeaseError,
    #[case] status: u16,
) {
    let bench = bench().await;
    bench.control.leases.refuse(error);
    for (path, model) in MODEL_PATHS {
        let body = chat(model, true).to_string().into();
        let reply = session(&bench).send(Method::POST, path, &LEASE, body).await;
        assert_eq!(refusal(&reply), (status, error.code().to_owned()));
        assert_eq!(reply.json(), error.body());
    }
    assert_eq!(calls(&bench), 0);
    assert_eq!(bench.control.outcomes(), []);
    // With its permit.
    let heard = bench.control.heard();
    let abandoned: Vec<u64> = heard.abandoned.iter().map(|it| it.0.number).collect();
    // A lease that moved is looked for once more, and what was granted before is given back first.
    let expected: &[u64] = match error {
        LeaseError::ConnectionMismatch => &[2, 4, 6, 8],
        _ => &[1, 2, 3, 4],
    };
    assert_eq!(abandoned, expected);
}

#[tokio::test]
async fn a_lease_that_moved_before_the_fence_is_followed() {
    let bench = bench().await;
    let moved = LeaseError::ConnectionMismatch;
    *bench.control.leases.refuses_once.lock() = Some(moved);
    let reply = post(&bench, &LEASE, &chat("one/m", false)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(bench.control.leases.fences(), 2);
    assert_eq!((calls(&bench), bench.control.heard().asks), (1, 2));
    until_idle(&bench).await;
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
}

#[rstest]
#[case::by_its_name(LeaseError::ConnectionMismatch, Some("one-a"))]
#[case::of_another_refusal(LeaseError::FenceStale, None)]
#[tokio::test]
async fn what_insists_or_is_over_is_not_decided_anew(
    #[case] error: LeaseError,
    #[case] insists_on: Option<&str>,
) {
    let bench = bench().await;
    *bench.control.leases.refuses_once.lock() = Some(error);
    let named = insists_on.map(|connection| ("x-omniroute-connection", connection));
    let headers: Vec<(&str, &str)> = LEASE.into_iter().chain(named).collect();
    let reply = post(&bench, &headers, &chat("one/m", false)).await;
    assert_eq!(refusal(&reply), (409, error.code().to_owned()));
    assert_eq!((calls(&bench), bench.control.heard().asks), (0, 1));
}

#[tokio::test]
async fn a_rule_that_refuses_before_anything_is_sent_is_told_in_its_own_words() {
    let bench = bench().await;
    *bench.control.refuses_managed.lock() = Some(LeaseError::UnsupportedRoute);
    let reply = post(&bench, &LEASE, &chat("one/m", true)).await;
    assert_eq!(reply.status, 409);
    assert_eq!(reply.json(), LeaseError::UnsupportedRoute.body());
    assert_eq!(bench.control.leases.fences(), 0);
}

#[tokio::test]
async fn each_retry_passes_the_fence_again() {
    let bench = bench().await;
    bench.one.set_default(Mode::status(503));
    bench.two.set_default(Mode::status(503));
    let body = chat("duo", false);
    let reply = post(&bench, &LEASE, &body).await;
    assert!(reply.status >= 500);
    let fences = u64::try_from(bench.control.leases.fences()).unwrap();
    assert_eq!(fences, calls(&bench));
    until_idle(&bench).await;
}

#[tokio::test]
async fn a_lease_that_ends_before_a_retry_lets_nothing_more_through() {
    let bench = bench_with(Options {
        combo: json!({"maxRetries": 3, "retryDelayMs": 300}),
        settings: json!({"connectionCooldown": {"apikey": {"baseCooldownMs": 0}}}),
        ..Options::default()
    })
    .await;
    bench.one.set_default(Mode::status(503));
    let body = chat("duo", false);
    let ending = async {
        until_calls(&bench, 1).await;
        bench.control.leases.refuse(LeaseError::Required);
    };
    let (reply, ()) = tokio::join!(post(&bench, &LEASE, &body), ending);
    assert_eq!(refusal(&reply), (409, "LEASE_REQUIRED".to_owned()));
    assert_eq!(calls(&bench), 1);
    assert_eq!(
        bench.control.outcomes().len(),
        1,
        "the failure that was one"
    );
    until_idle(&bench).await;
}

#[tokio::test]
async fn vector_sessions_60_a_stream_is_cut_in_band() {
    let bench = bench().await;
    bench.one.set_default(Mode::Stall { events: 3 });
    let body = chat("one/m", true).to_string().into();
    let response = session(&bench).open(Method::POST, CHAT, &LEASE, body).await;
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert_eq!(bench.control.leases.running(), 1);
    bench.control.leases.cut();
    let rest = body.collect().await.unwrap().to_bytes();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("LEASE_FENCE_STALE"), "{rest}");
    assert!(!rest.contains("[DONE]"));
    until_idle(&bench).await;
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
    let conflict = Outcome::Local(LocalFault::LeaseConflict);
    assert_eq!(bench.control.outcomes(), [Outcome::Success, conflict]);
}

#[rstest]
#[case("/v1/chat/completions", "one/m", "data: {\"error\":", "[DONE]")]
#[case("/v1/completions", "one/m", "data: {\"error\":", "[DONE]")]
#[case("/v1/messages", "ant/m", "event: error", "message_stop")]
#[case("/v1/responses", "one/m", "\"type\":\"error\"", "response.completed")]
#[tokio::test]
async fn vector_sessions_60_in_the_format_of_its_client(
    #[case] path: &str,
    #[case] model: &str,
    #[case] error: &str,
    #[case] end: &str,
) {
    let bench = bench().await;
    for upstream in [&bench.one, &bench.ant] {
        upstream.set_default(Mode::Stall { events: 4 });
    }
    let mut request = chat(model, true);
    request["input"] = json!("ahoy");
    request["prompt"] = json!("ahoy");
    request["max_tokens"] = json!(10);
    let body = request.to_string().into();
    let response = session(&bench).open(Method::POST, path, &LEASE, body).await;
    assert_eq!(response.status(), 200);
    bench.control.leases.cut();
    let all = response.into_body().collect().await.unwrap().to_bytes();
    let all = String::from_utf8_lossy(&all);
    assert!(
        all.contains(error) && all.contains("LEASE_FENCE_STALE"),
        "{all}"
    );
    assert!(!all.contains(end), "{all}");
    until_idle(&bench).await;
}

#[rstest]
#[case::a_stream(true)]
#[case::a_whole_answer(false)]
#[tokio::test]
async fn vector_sessions_61_an_answer_that_has_not_begun_is_refused(#[case] stream: bool) {
    let bench = bench().await;
    bench.one.set_default(Mode::Hang);
    let body = chat("one/m", stream);
    let cutting = async {
        until_calls(&bench, 1).await;
        bench.control.leases.cut();
    };
    let (reply, ()) = tokio::join!(post(&bench, &LEASE, &body), cutting);
    assert_eq!(refusal(&reply), (409, "LEASE_FENCE_STALE".to_owned()));
    until_idle(&bench).await;
    let conflict = Outcome::Local(LocalFault::LeaseConflict);
    assert_eq!(bench.control.outcomes(), [conflict]);
    let released = bench.control.heard().released;
    assert_eq!(released.len(), 1, "with its permit");
}

#[tokio::test]
async fn a_cut_holds_for_a_client_that_opens_no_window() {
    let bench = bench().await;
    bench.one.set_reply(tidegate_fake_upstream::Reply {
        chunks: 4_000,
        chunk_bytes: 8_192,
        ..Default::default()
    });
    let body = chat("one/m", true).to_string().into();
    let client = session(&bench).with_small_window();
    let response = client.open(Method::POST, CHAT, &LEASE, body).await;
    bench.control.leases.cut();
    until_idle(&bench).await;
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
    let text = crate::client::read(response).await.text();
    assert!(text.contains("LEASE_FENCE_STALE"));
}

#[tokio::test]
async fn a_stream_that_is_not_cut_holds_its_registration_to_its_end() {
    let bench = bench().await;
    let gap = Duration::from_millis(20);
    bench.one.set_default(Mode::SlowDrip { gap });
    let body = chat("one/m", true).to_string().into();
    let response = session(&bench).open(Method::POST, CHAT, &LEASE, body).await;
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert_eq!(bench.control.leases.running(), 1);
    let rest = body.collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&rest).contains("[DONE]"));
    until_idle(&bench).await;
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_gives_the_registration_back() {
    let bench = bench().await;
    bench.one.set_default(Mode::Stall { events: 3 });
    let body = chat("one/m", true).to_string().into();
    let response = session(&bench).open(Method::POST, CHAT, &LEASE, body).await;
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    drop(body);
    until_idle(&bench).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_an_answer_gives_the_registration_back() {
    let bench = bench().await;
    bench.one.set_default(Mode::Hang);
    let body = chat("one/m", true);
    tokio::select! {
        _reply = post(&bench, &LEASE, &body) => panic!("there was an answer"),
        () = until_calls(&bench, 1) => {}
    }
    until_idle(&bench).await;
    bench
        .until("the report", |bench| bench.control.outcomes().len() == 1)
        .await;
    assert_eq!(bench.control.outcomes(), [Outcome::ClientAbort]);
}

#[tokio::test]
async fn a_client_that_leaves_at_the_fence_gives_the_attempt_back() {
    let bench = bench().await;
    bench.control.leases.hangs.store(true, Ordering::Relaxed);
    let body = chat("one/m", true);
    tokio::select! {
        _reply = post(&bench, &LEASE, &body) => panic!("there was an answer"),
        () = bench.until("the fence", |bench| bench.control.leases.fences() == 1) => {}
    }
    bench
        .until("the attempt", |bench| {
            bench.control.heard().abandoned.len() == 1
        })
        .await;
    assert_eq!(calls(&bench), 0);
}

#[tokio::test]
async fn websockets_know_no_leases() {
    let bench = bench().await;
    let handshake = |key: &str| {
        format!(
            "GET /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
             connection: upgrade, close\r\nupgrade: websocket\r\n\r\n"
        )
    };
    let answer = raw(bench.addr, handshake(LEASE_KEY).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
    assert!(answer.contains("LEASE_UNSUPPORTED_TRANSPORT"));
    let answer = raw(bench.addr, handshake(crate::bench::KEY).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
}

#[tokio::test]
async fn no_note_is_made_or_asked_for_under_a_lease() {
    let bench = bench_with(Options {
        relay: true,
        ..Options::default()
    })
    .await;
    let headers = [LEASE[0], LEASE[1], ("x-session-id", "s1")];
    let body = chat("talk", false);
    let reply = post(&bench, &headers, &body).await;
    // Its key names no account of this combo.
    assert_eq!(reply.status, 404);
    assert_eq!(bench.control.heard().notes_asked, 0);
    assert_eq!(calls(&bench), 0);
}

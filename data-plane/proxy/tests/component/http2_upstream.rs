//! Upstreams that speak HTTP/2: what happens to streams and connections.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rstest::rstest;
use tidegate_core::outcome::{Outcome, StreamFault, TransportFault};
use tidegate_fake_upstream::Selector;
use tidegate_plane_client::Deadlines;
use tidegate_proxy::{Limits, UpstreamAuthorities};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bench::{Bench, Options, chat};
use crate::client::read;
use crate::tls_upstream::{Act, EVENT, TlsUpstream, certificate};

const CHAT: &str = "/v1/chat/completions";
pub(crate) const RESENDS: &str = "tidegate_dp_upstream_resends_total";

async fn bench_with(upstream: &TlsUpstream) -> Bench {
    Bench::start_with(Options {
        one_at: Some(upstream.base_url()),
        limits: Limits {
            upstream_authorities: upstream.authorities.clone(),
            ..Limits::default()
        },
        ..Options::default()
    })
    .await
}

/// An upstream that answers each request so, in order, and then well.
async fn upstream(acts: &[Act]) -> TlsUpstream {
    let acts = acts.to_vec();
    TlsUpstream::start(100, move |request| {
        acts.get(request).cloned().unwrap_or(Act::Answer)
    })
    .await
}

pub(crate) async fn until_released(bench: &Bench, count: usize) {
    bench
        .until("the permits to be given back", |bench| {
            bench.control.heard().released.len() == count
        })
        .await;
}

#[rstest]
#[case::trusted(true)]
#[case::unknown(false)]
#[tokio::test]
async fn an_authority_of_ones_own_is_trusted_if_it_is_named(#[case] named: bool) {
    let upstream = upstream(&[]).await;
    let mut limits = Limits::default();
    if named {
        limits.upstream_authorities = upstream.authorities.clone();
    }
    let bench = Bench::start_with(Options {
        one_at: Some(upstream.base_url()),
        limits,
        ..Options::default()
    })
    .await;
    let reply = bench.client.post(CHAT, &chat("duo", true)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let first = bench.control.outcomes().first().cloned();
    let expected = if named {
        Outcome::Success
    } else {
        Outcome::Transport(TransportFault::Tls)
    };
    assert_eq!(first, Some(expected));
    assert_eq!(upstream.requests(), usize::from(named));
}

#[rstest]
#[case::refused(Act::Refuse)]
#[case::gone_away_before(Act::GoAwayBefore)]
#[tokio::test]
async fn what_was_not_processed_is_sent_again_and_blames_nobody(#[case] act: Act) {
    let upstream = upstream(&[Act::Answer, act]).await;
    let bench = bench_with(&upstream).await;
    for _ in 0..3 {
        let reply = bench.client.post(CHAT, &chat("one/m", true)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.text().ends_with("data: [DONE]\n\n"));
        assert_eq!(reply.header("x-omniroute-fallback-attempts"), None);
    }
    assert_eq!(upstream.requests(), 4);
    assert!((bench.metric(RESENDS).await - 1.0).abs() < 0.5);
    let outcomes = bench.control.outcomes();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Success));
    let connections = upstream.connections_of_requests();
    assert_ne!(connections[1], connections[2], "a fresh one");
    until_released(&bench, 3).await;
}

#[tokio::test]
async fn an_upstream_that_goes_on_refusing_has_failed() {
    let upstream = TlsUpstream::start(100, |_| Act::Refuse).await;
    let bench = bench_with(&upstream).await;
    let reply = bench.client.post(CHAT, &chat("duo", true)).await;
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    assert_eq!(upstream.requests(), 3);
    let outcomes = bench.control.outcomes();
    assert_eq!(
        outcomes,
        [Outcome::Transport(TransportFault::Reset), Outcome::Success]
    );
    until_released(&bench, 2).await;
}

#[rstest]
#[case::reset(Act::Fail)]
#[case::connection_lost(Act::Die)]
#[tokio::test]
async fn what_may_have_been_processed_is_not_sent_again(#[case] act: Act) {
    let upstream = upstream(&[act]).await;
    let bench = bench_with(&upstream).await;
    let reply = bench.client.post(CHAT, &chat("duo", true)).await;
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    assert_eq!(upstream.requests(), 1);
    assert!(bench.metric(RESENDS).await < 0.5);
    let outcomes = bench.control.outcomes();
    assert_eq!(
        outcomes,
        [Outcome::Transport(TransportFault::Reset), Outcome::Success]
    );
}

#[tokio::test]
async fn a_connection_that_goes_away_finishes_its_streams() {
    let upstream = upstream(&[Act::GoAwayAfter]).await;
    let bench = bench_with(&upstream).await;
    for _ in 0..2 {
        let reply = bench.client.post(CHAT, &chat("one/m", true)).await;
        assert_eq!(reply.text(), format!("{EVENT}data: [DONE]\n\n"));
    }
    assert_eq!(upstream.connections_of_requests(), [0, 1]);
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes, [Outcome::Success, Outcome::Success]);
}

#[tokio::test]
async fn a_stream_that_is_reset_ends_with_an_error_and_alone() {
    let rest = CancellationToken::new();
    let upstream = upstream(&[Act::AnswerLater(rest.clone()), Act::Reset]).await;
    let bench = bench_with(&upstream).await;
    let other = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let reply = bench.client.post(CHAT, &chat("one/m", true)).await;
    let text = reply.text();
    assert!(text.starts_with(EVENT) && text.contains("stream_terminated"));
    assert!(!text.contains("[DONE]"));
    rest.cancel();
    assert!(read(other).await.text().ends_with("[DONE]\n\n"));
    assert_eq!(upstream.connections_of_requests(), [0, 0]);
    let outcomes = bench.control.outcomes();
    let truncated = Outcome::Stream(StreamFault::Truncated);
    assert_eq!(outcomes, [Outcome::Success, Outcome::Success, truncated]);
    until_released(&bench, 2).await;
}

#[tokio::test]
async fn a_connection_that_dies_with_a_hundred_streams_fails_each_once() {
    const STREAMS: usize = 100;
    let upstream = TlsUpstream::start(1_000, |request| match request {
        0..STREAMS => Act::Begin,
        // Whichever connection these are on, both die.
        _ => Act::Die,
    })
    .await;
    let bench = bench_with(&upstream).await;
    let body = chat("one/m", true);
    let opening = (0..STREAMS).map(|_| bench.client.open_post(CHAT, &body));
    let open = join_all(opening).await;
    let mut connections = upstream.connections_of_requests();
    connections.sort_unstable();
    connections.dedup();
    assert!(connections.len() >= 2, "no connection carries all");
    let reading = bench.tasks.spawn(join_all(open.into_iter().map(read)));
    // One connection dies under its streams with this request, the others with the upstream.
    let killed = bench.client.post(CHAT, &body).await;
    assert!(killed.status >= 400);
    drop(upstream);
    for reply in reading.await.unwrap() {
        assert_eq!(reply.status, 200);
        assert!(reply.text().contains("stream_terminated"));
    }
    until_released(&bench, STREAMS + 1).await;
    let truncated = Outcome::Stream(StreamFault::Truncated);
    let outcomes = bench.control.outcomes();
    let count = |outcome: &Outcome| outcomes.iter().filter(|seen| *seen == outcome).count();
    assert_eq!(
        (count(&Outcome::Success), count(&truncated), outcomes.len()),
        (STREAMS, STREAMS, 2 * STREAMS + 1)
    );
    let released = bench.control.heard().released;
    let mut numbers: Vec<u64> = released.iter().map(|attempt| attempt.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), released.len(), "each permit once");
}

#[tokio::test]
async fn beyond_the_streams_that_an_upstream_allows_requests_wait_for_their_turn() {
    let rest = CancellationToken::new();
    let first = rest.clone();
    let upstream = TlsUpstream::start(1, move |request| match request {
        0 => Act::AnswerLater(first.clone()),
        _ => Act::Answer,
    })
    .await;
    let bench = bench_with(&upstream).await;
    let open = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let body = chat("one/m", true);
    let second = bench.client.post(CHAT, &body);
    tokio::pin!(second);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut second).await;
    assert!(early.is_err() && upstream.requests() == 1);
    rest.cancel();
    assert!(second.await.text().ends_with("[DONE]\n\n"));
    assert!(read(open).await.text().ends_with("[DONE]\n\n"));
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes, [Outcome::Success, Outcome::Success]);
}

#[tokio::test]
async fn who_waits_for_a_stream_too_long_goes_elsewhere() {
    let upstream = TlsUpstream::start(1, |_| Act::Begin).await;
    let bench = Bench::start_with(Options {
        one_at: Some(upstream.base_url()),
        limits: Limits {
            upstream_authorities: upstream.authorities.clone(),
            ..Limits::default()
        },
        deadlines: Deadlines {
            headers: Some(Duration::from_millis(1_500)),
            ..Deadlines::default()
        },
        ..Options::default()
    })
    .await;
    let _open = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let reply = bench.client.post(CHAT, &chat("duo", true)).await;
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    let late = Outcome::Transport(TransportFault::HeadersTimeout);
    assert_eq!(bench.control.outcomes()[1], late);
}

/// A server that answers everything with headers of all kinds and trailers, and remembers what it was sent.
async fn attentive(
    protocol: &'static [u8],
) -> (String, UpstreamAuthorities, Arc<Mutex<Vec<HeaderMap>>>) {
    let (config, authorities) = certificate(&[protocol]);
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen: Arc<Mutex<Vec<HeaderMap>>> = Arc::default();
    let remembered = Arc::clone(&seen);
    let (tasks, connections) = (TaskTracker::new(), TaskTracker::new());
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let stream = acceptor.accept(stream).await.unwrap();
            let seen = Arc::clone(&remembered);
            let service = service_fn(move |request: Request<Incoming>| {
                let seen = Arc::clone(&seen);
                async move {
                    seen.lock().push(request.headers().clone());
                    let mut trailers = HeaderMap::new();
                    trailers.insert("x-upstream-trailer", "t".parse().unwrap());
                    let body = Full::new(Bytes::from_static(b"{\"ok\": true}"));
                    let body = body.with_trailers(async move { Some(Ok(trailers)) });
                    let mut response = Response::builder();
                    for (name, value) in [
                        ("content-type", "application/json"),
                        ("x-request-id", "up-1"),
                        ("set-cookie", "a=b"),
                        ("server", "someone"),
                        ("location", "https://elsewhere.example/"),
                        ("trailer", "x-upstream-trailer"),
                        ("strict-transport-security", "max-age=1"),
                        ("x-random-91ab", "r"),
                        ("openai-organization", "org-secret"),
                        ("x-ratelimit-remaining-requests", "7"),
                    ] {
                        response = response.header(name, value);
                    }
                    Ok::<_, Infallible>(response.body(body).unwrap())
                }
            });
            connections.spawn(async move {
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let serving = builder.serve_connection(TokioIo::new(stream), service);
                // How it ends does not matter here.
                let _ended = serving.await.is_ok();
            });
        }
    });
    (format!("https://localhost:{port}/v1"), authorities, seen)
}

/// Every header that the contract names, those that belong to connections and proxies, and one of no meaning.
const SENT: [(&str, &str); 37] = [
    ("x-omniroute-lease-owner", "secret-owner"),
    ("x-omniroute-lease-generation", "4"),
    ("x-omniroute-connection", "one-a"),
    ("x-omniroute-no-cache", "1"),
    ("x-omniroute-progress", "1"),
    ("x-omniroute-session", "s"),
    ("x-omniroute-session-id", "s"),
    ("x-session-id", "s"),
    ("session-id", "s"),
    ("session_id", "s"),
    ("x-session-affinity", "s"),
    ("x-codex-session-id", "s"),
    ("x-omniroute-mode", "fast"),
    ("x-omniroute-tags", "a"),
    ("x-omniroute-budget", "1"),
    ("x-omniroute-request-id", "r"),
    ("x-omniroute-anything", "a"),
    ("x-request-id", "mine"),
    ("idempotency-key", "k"),
    ("cookie", "a=b"),
    ("x-forwarded-for", "10.0.0.1"),
    ("x-forwarded-host", "h"),
    ("x-forwarded-proto", "http"),
    ("x-real-ip", "10.0.0.1"),
    ("forwarded", "for=10.0.0.1"),
    ("via", "1.1 proxy"),
    ("traceparent", "00-0-0-0"),
    ("accept-encoding", "gzip"),
    ("accept-language", "tlh"),
    ("user-agent", "spy/1.0"),
    ("openai-organization", "org"),
    ("origin", "https://a.example"),
    ("referer", "https://a.example/"),
    ("proxy-authorization", "Basic x"),
    ("x-api-key", "sk-other"),
    ("x-stainless-lang", "x"),
    ("x-random-7f3a", "r"),
];

/// Those that belong to one connection; HTTP/2 has none of them.
const HOP_BY_HOP: [(&str, &str); 4] = [
    ("connection", "x-hop"),
    ("x-hop", "1"),
    ("keep-alive", "timeout=5"),
    ("te", "trailers"),
];

#[rstest]
#[case::http1(b"http/1.1")]
#[case::http2(b"h2")]
#[tokio::test]
async fn only_listed_headers_pass_in_either_direction(#[case] protocol: &'static [u8]) {
    let (url, authorities, seen) = attentive(protocol).await;
    let bench = Bench::start_with(Options {
        one_at: Some(url.clone()),
        ant_at: Some(url),
        limits: Limits {
            upstream_authorities: authorities,
            ..Limits::default()
        },
        ..Options::default()
    })
    .await;
    // Both directions in the same version of HTTP.
    let in_http2 = protocol == b"h2";
    let http2_client = bench.client.with_small_window();
    let client = if in_http2 {
        &http2_client
    } else {
        &bench.client
    };
    for (path, model) in [
        (CHAT, "one/m"),
        ("/v1/responses", "one/m"),
        ("/v1/embeddings", "one/m"),
        ("/v1/messages", "ant/m"),
    ] {
        let mut body = chat(model, false);
        body["input"] = "ahoy".into();
        body["max_tokens"] = 5.into();
        let mut sent = SENT.to_vec();
        if !in_http2 {
            sent.extend(HOP_BY_HOP);
        }
        if model == "ant/m" {
            sent.retain(|(name, _)| *name != "x-omniroute-connection");
        }
        let body: Bytes = body.to_string().into();
        let response = client.open(Method::POST, path, &sent, body).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap();
        assert_eq!(head.status, 200, "{path}: {body:?}");
        assert!(body.trailers().is_none(), "{path}");
        let received = seen.lock().pop().unwrap();
        let mut names: Vec<&str> = received.keys().map(http::HeaderName::as_str).collect();
        // HTTP/2 has it as a pseudo header.
        names.retain(|name| *name != "host");
        names.sort_unstable();
        let (key, version) = if model == "ant/m" {
            ("x-api-key", Some("anthropic-version"))
        } else {
            ("authorization", None)
        };
        let mut allowed = vec![
            "accept",
            "accept-encoding",
            "content-length",
            "content-type",
            "user-agent",
            key,
        ];
        allowed.extend(version);
        allowed.sort_unstable();
        assert_eq!(names, allowed, "{path}");
        assert_eq!(received["accept-encoding"], "identity");
        assert!(!format!("{received:?}").contains("sk-client"), "{path}");
        assert_eq!(head.headers["x-request-id"], "up-1");
        for name in [
            "set-cookie",
            "server",
            "location",
            "trailer",
            "strict-transport-security",
            "x-random-91ab",
            "openai-organization",
            "x-ratelimit-remaining-requests",
            "x-upstream-trailer",
        ] {
            assert!(!head.headers.contains_key(name), "{path}: {name}");
        }
    }
    assert_eq!(bench.two.log().count(&Selector::any()), 0);
}

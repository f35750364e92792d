//! Traces of requests as a collector gets them, and what a collector that does not work means for requests: nothing.

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tidegate_integration::{Answer, CLIENT_KEY, LIMIT, World, chat, metric, send};
use tidegate_test_support::upstream::{Mode, Selector};
use tidegate_test_support::{
    ADMIN_TOKEN, CollectedSpan, Collector, CollectorMode, DATA_PLANE_TOKEN, Fleet, FleetOptions,
    eventually,
};

/// What a client says of its trace.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
/// What no span may hold.
const OWNER: &str = "vlo_Rg7-hWcZ_q3NfT9xKdLm2PvYsB8uJaE5iXoQr6tGkVw";
const BODY: &str = "canary-of-the-body";
const WORDS: &str = "canary-of-the-upstream";
const COLLECTOR_KEY: &str = "canary-of-the-collector";
/// Requests whose spans certainly fill a queue.
const MANY: u32 = 500;
/// Requests while it is full.
const AFTERWARDS: u32 = 20;

fn options(collector: &Collector) -> FleetOptions {
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    FleetOptions {
        control_planes: 1,
        data_planes: 1,
        env: vec![
            set("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url()),
            set(
                "OTEL_EXPORTER_OTLP_HEADERS",
                &format!("x-collector-key={COLLECTOR_KEY}"),
            ),
            set("OTEL_BSP_SCHEDULE_DELAY", "50"),
            // Longer than any test waits: whoever waited for the collector would be seen.
            set("OTEL_EXPORTER_OTLP_TIMEOUT", "60000"),
            set("OTEL_BSP_MAX_QUEUE_SIZE", "64"),
            set("TIDEGATE_PROPAGATE_TRACE_CONTEXT", "true"),
            set("TIDEGATE_LOG", "info,tidegate::decisions=debug"),
        ],
        ..FleetOptions::default()
    }
}

/// A stream or not, by a client that is traced.
async fn traced(world: &World, model: &str, stream: bool) -> Result<Answer> {
    let body = json!({
        "model": model,
        "stream": stream,
        "messages": [{"role": "user", "content": BODY}],
    });
    let request = Request::post(format!(
        "http://{}/v1/chat/completions",
        world.data_plane(0)?
    ))
    .header("content-type", "application/json")
    .header("authorization", format!("Bearer {CLIENT_KEY}"))
    .header("traceparent", format!("00-{TRACE}-{CALLER}-01"))
    .header("tracestate", "vendor=1")
    .header("baggage", "user=somebody")
    .header("x-omniroute-lease-owner", OWNER)
    .body(Full::new(Bytes::from(body.to_string())))?;
    send(request).await
}

/// The span of a client's request with all that belongs to it, once it has ended.
async fn of_request(collector: &Collector, answer: &Answer) -> Result<Vec<CollectedSpan>> {
    let id = answer.headers["x-omniroute-request-id"].to_str()?;
    let about = |span: &&CollectedSpan| {
        let of_data_plane = span.service == "tidegate-data-plane" && span.kind == "server";
        of_data_plane && span.attribute("tidegate.request.id") == id
    };
    let what = format!("the spans of {id}");
    collector
        .wait_for(LIMIT, &what, |spans| {
            let request = spans.iter().find(about)?;
            let children = |parent: &CollectedSpan| {
                let of_parent = spans.iter().filter(|it| it.parent_id == parent.span_id);
                of_parent.cloned().collect::<Vec<_>>()
            };
            let mut found = vec![request.clone()];
            for child in children(request) {
                let decided = children(&child);
                // What the control plane does is told by itself, and may come later.
                if child.name == "decide" && decided.is_empty() {
                    return None;
                }
                found.push(child);
                found.extend(decided);
            }
            Some(found)
        })
        .await
}

fn names(spans: &[CollectedSpan]) -> Vec<&str> {
    let mut names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    names.sort_unstable();
    names
}

fn named<'s>(spans: &'s [CollectedSpan], name: &str) -> Result<Vec<&'s CollectedSpan>> {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    ensure!(!found.is_empty(), "no {name} in {:?}", names(spans));
    Ok(found)
}

/// A line of a log about a request.
fn line(log: &str, message: &str, request_id: &str) -> Result<Value> {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut about = lines.filter(|it| it["request_id"] == request_id && it["message"] == message);
    about
        .next()
        .with_context(|| format!("no {message:?} about {request_id}"))
}

#[tokio::test]
async fn a_trace_tells_every_step_of_a_request_and_no_secret() -> Result<()> {
    let collector = Collector::start().await?;
    let world = World::start_with(options(&collector)).await?;
    let (plane, replica) = (&world.fleet.data_planes[0], &world.fleet.control_planes[0]);
    let log = replica.process.log()?;
    let warned = log.lines().find(|line| line.contains("a new incarnation"));
    assert_eq!(warned, None, "a new store forgot nothing");
    let failing = json!({"error": {"message": WORDS}});
    world
        .one
        .set_default(Mode::status_with_body(503, failing.to_string()));
    let answer = traced(&world, "main", false).await?;
    assert_eq!(answer.status, 200, "{answer:?}");

    let spans = of_request(&collector, &answer).await?;
    let [request] = named(&spans, "POST /v1/chat/completions")?[..] else {
        anyhow::bail!("{spans:?}");
    };
    assert_eq!(request.trace_id, TRACE);
    assert_eq!(request.parent_id, CALLER);
    for (name, value) in [
        ("http.response.status_code", "200"),
        ("gen_ai.request.model", "main"),
        ("gen_ai.operation.name", "chat"),
        ("tidegate.key", "client"),
    ] {
        assert_eq!(request.attribute(name), value, "{name}");
    }
    let attempts = named(&spans, "chat m")?;
    let (last, failed) = attempts.split_last().context("no attempts")?;
    assert!(!failed.is_empty());
    for attempt in failed {
        for (name, value) in [
            ("gen_ai.provider.name", "one"),
            ("error.type", "503"),
            ("tidegate.failure.reason", "server_error"),
            ("tidegate.decision.by", "control_plane"),
            ("server.address", "127.0.0.1"),
        ] {
            assert_eq!(attempt.attribute(name), value, "{name}");
        }
        assert!(attempt.failed && attempt.kind == "client");
        assert!(attempt.attribute("tidegate.connection").starts_with("one-"));
    }
    assert!(!last.failed, "{last:?}");
    assert_eq!(last.attribute("gen_ai.provider.name"), "two");
    assert_eq!(last.attribute("tidegate.connection"), "two-a");
    assert_eq!(last.attribute("tidegate.decision.strategy"), "priority");
    assert!(!last.attribute("gen_ai.usage.output_tokens").is_empty());
    // Each question was answered by the control plane, in the same trace.
    let decided = named(&spans, "tidegate.routing.v1.RoutingService/Decide")?;
    assert_eq!(decided.len(), named(&spans, "decide")?.len());
    assert!(
        decided
            .iter()
            .all(|span| span.service == "tidegate-control-plane" && span.trace_id == TRACE)
    );

    // Upstreams were told which attempt they are part of, and nothing else.
    let told = world.two.log().requests(&Selector::any());
    let told = told.last().context("nothing was sent")?;
    let expected = format!("00-{TRACE}-{}-01", last.span_id);
    assert_eq!(told.header("traceparent"), Some(expected.as_str()));
    assert_eq!(told.header("tracestate"), Some("vendor=1"));
    assert_eq!(told.header("baggage"), None);

    // The same ids are in both logs.
    let id = answer.headers["x-omniroute-request-id"].to_str()?;
    let access = line(&plane.process.log()?, "request", id)?;
    assert_eq!(access["trace_id"], TRACE);
    let attempt = last.attribute("tidegate.attempt.id");
    assert!(
        access["attempts"]
            .as_str()
            .is_some_and(|it| it.contains(attempt))
    );
    let decision = line(&replica.process.log()?, "decided", id)?;
    assert_eq!(decision["trace_id"], TRACE);
    assert!(!decision["attempt"].is_null() && !decision["step"].is_null());

    // A stream ends when its last byte has passed, and a refusal has no attempt.
    world.one.heal();
    let stream = traced(&world, "main", true).await?;
    let spans = of_request(&collector, &stream).await?;
    let ready = named(&spans, "chat m")?;
    let ready = ready.last().context("no attempt")?;
    assert!(
        !ready
            .attribute("gen_ai.response.time_to_first_chunk")
            .is_empty()
    );
    let refused = traced(&world, "no-such-model", false).await?;
    let spans = of_request(&collector, &refused).await?;
    let refused = refused.status.as_u16().to_string();
    assert_eq!(spans[0].attribute("http.response.status_code"), refused);
    assert!(!spans.iter().any(|span| span.name.starts_with("chat")));

    let text = collector.text();
    assert!(text.contains("one-a") && text.contains("tidegate-control-plane"));
    assert!(
        collector
            .headers()
            .contains(&format!("x-collector-key: {COLLECTOR_KEY}"))
    );
    let secrets = [
        OWNER,
        BODY,
        WORDS,
        COLLECTOR_KEY,
        CLIENT_KEY,
        ADMIN_TOKEN,
        DATA_PLANE_TOKEN,
        "sk-one-a",
        "sk-one-b",
        "sk-two-a",
        "somebody",
    ];
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} is in a span");
    }

    a_broken_collector_slows_nobody(&world.fleet, &world, &collector).await?;

    // What is not sent yet is sent at the end.
    let last = traced(&world, "main", false).await?;
    plane.process.terminate(LIMIT).await?;
    of_request(&collector, &last).await?;
    Ok(())
}

/// While it does not answer and as many spans wait as may, and after it is back.
async fn a_broken_collector_slows_nobody(
    fleet: &Fleet,
    world: &World,
    collector: &Collector,
) -> Result<()> {
    collector.set_mode(CollectorMode::Stalls);
    let admin = fleet.data_planes[0].admin;
    let dropped = "tidegate_dp_spans_dropped_total{reason=\"queue_full\"}";
    let served = async || -> Result<()> {
        let answer = chat(world.data_plane(0)?, "two/m").await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    };
    tokio::time::timeout(LIMIT, async {
        let mut asked = 0;
        while metric(admin, dropped).await.unwrap_or_default() == 0.0 {
            served().await?;
            asked += 1;
            ensure!(asked < MANY, "no span is dropped");
        }
        for _ in 0..AFTERWARDS {
            served().await?;
        }
        Ok(())
    })
    .await
    .context("requests wait for the collector")??;
    let exported = "tidegate_dp_spans_exported_total";
    let before = metric(admin, exported).await?;
    collector.set_mode(CollectorMode::Keeps);
    eventually(LIMIT, "spans are delivered again", || async {
        let after = metric(admin, exported).await.ok()?;
        (after > before).then_some(())
    })
    .await?;
    served().await
}

//! Sessions with leases before the whole fleet: what is in flight, to its end or to its horizon.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tidegate_integration::{Answer, LIMIT, World, send};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Gate, Mode, Reply, Selector};

use super::permits::{held_at, one_a, reaches};

const LEASE_KEY: &str = "tg-lease-key";
const LEASES: &str = "/api/v1/session-leases";

/// The fleet with a key that may lease `one-a` only, and these settings of leases.
async fn world(leases: &str) -> Result<World> {
    let world = World::start().await?;
    world.fleet.write_secret("lease.key", LEASE_KEY)?;
    let document = format!(
        "{}  leases: {{{leases}}}\n",
        world.document().replace(
            "keys:",
            "keys:\n  - {id: session, secret: {file: lease.key}, scopes: [\"lease:exclusive\"], \
             allowedConnections: [one-a]}",
        )
    );
    world.fleet.apply(&document).await?;
    let session = Session::new('Z');
    eventually(
        LIMIT,
        "the key that may lease is known everywhere",
        || async {
            for plane in 0..2 {
                let told = session.act(&world, plane, "status", 1).await;
                (told.ok()?.json()["error"]["code"] == "LEASE_FENCE_STALE").then_some(())?;
            }
            Some(())
        },
    )
    .await?;
    Ok(world)
}

/// A client with an owner token of its own.
struct Session {
    owner: String,
}

impl Session {
    fn new(letter: char) -> Self {
        Self {
            owner: format!("vlo_{}", String::from(letter).repeat(43)),
        }
    }

    async fn lease(&self, world: &World, plane: usize, body: &Value) -> Result<Answer> {
        let addr = world.data_plane(plane)?;
        let request = Request::post(format!("http://{addr}{LEASES}"))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {LEASE_KEY}"))
            .header("x-omniroute-lease-owner", &self.owner)
            .body(Full::new(Bytes::from(body.to_string())))?;
        send(request).await
    }

    async fn acquire(&self, world: &World, plane: usize) -> Result<Answer> {
        let body = json!({"action": "acquire", "model": "one/m"});
        self.lease(world, plane, &body).await
    }

    /// Acquires, and tells the generation.
    async fn acquired(&self, world: &World) -> Result<u64> {
        let answer = self.acquire(world, 0).await?;
        ensure!(answer.status == 200, "{answer:?}");
        answer.json()["generation"]
            .as_u64()
            .context("no generation")
    }

    async fn act(
        &self,
        world: &World,
        plane: usize,
        action: &str,
        generation: u64,
    ) -> Result<Answer> {
        let body = json!({"action": action, "generation": generation});
        self.lease(world, plane, &body).await
    }

    fn asking(
        &self,
        world: &World,
        plane: usize,
        generation: u64,
        stream: bool,
    ) -> Result<Request<Full<Bytes>>> {
        let addr = world.data_plane(plane)?;
        let body = json!({
            "model": "one/m", "stream": stream,
            "messages": [{"role": "user", "content": "hi"}],
        });
        Ok(Request::post(format!("http://{addr}/v1/chat/completions"))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {LEASE_KEY}"))
            .header("x-omniroute-lease-owner", &self.owner)
            .header("x-omniroute-lease-generation", generation)
            .body(Full::new(Bytes::from(body.to_string())))?)
    }

    async fn chat(&self, world: &World, plane: usize, generation: u64) -> Result<Answer> {
        send(self.asking(world, plane, generation, false)?).await
    }

    /// A stream whose first piece has come.
    async fn stream(&self, world: &World, plane: usize, generation: u64) -> Result<Incoming> {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let response = client
            .request(self.asking(world, plane, generation, true)?)
            .await?;
        ensure!(response.status() == 200, "{}", response.status());
        let mut body = response.into_body();
        body.frame().await.context("an empty stream")??;
        Ok(body)
    }
}

async fn rest(body: Incoming) -> Result<String> {
    let rest = tokio::time::timeout(LIMIT * 2, body.collect()).await??;
    Ok(String::from_utf8_lossy(&rest.to_bytes()).into_owned())
}

fn code(answer: &Answer) -> (u16, String) {
    let code = answer.json()["error"]["code"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    (answer.status.as_u16(), code)
}

/// Another owner is given the connection within the time.
async fn granted_within(world: &World, other: &Session, limit: Duration) -> Result<()> {
    eventually(limit, "the connection is free", || async {
        let answer = other.acquire(world, 1).await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await
}

#[tokio::test]
async fn vector_sessions_04_a_lease_is_acquired_used_and_given_back() -> Result<()> {
    let world = world("").await?;
    let (session, other) = (Session::new('A'), Session::new('B'));
    let generation = session.acquired(&world).await?;
    for plane in 0..2 {
        let answer = session.chat(&world, plane, generation).await?;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(world.one.log().count(&one_a()), 2);
    let refused = other.acquire(&world, 1).await?;
    assert_eq!(
        code(&refused),
        (429, "lease-capacity-unavailable".to_owned())
    );
    let released = session.act(&world, 1, "release", generation).await?;
    assert_eq!(released.json()["state"], "RELEASED");
    let stale = session.chat(&world, 0, generation).await?;
    assert_eq!(code(&stale), (409, "LEASE_REQUIRED".to_owned()));
    assert_eq!(world.one.log().count(&one_a()), 2);
    // Nothing is in flight, so it is free at once.
    granted_within(&world, &other, LIMIT).await
}

#[tokio::test]
async fn vector_sessions_18_bad_headers_send_nothing() -> Result<()> {
    let world = world("").await?;
    let session = Session::new('A');
    session.acquired(&world).await?;
    for generation in ["", "01", "+1", "1.0", "0", "9007199254740992"] {
        let mut request = session.asking(&world, 0, 1, false)?;
        request.headers_mut().remove("x-omniroute-lease-generation");
        if !generation.is_empty() {
            let value = generation.parse()?;
            request
                .headers_mut()
                .insert("x-omniroute-lease-generation", value);
        }
        let answer = send(request).await?;
        assert_eq!(
            code(&answer),
            (400, "LEASE_CONTEXT_INVALID".to_owned()),
            "{generation}"
        );
    }
    let mut request = session.asking(&world, 0, 1, false)?;
    request.headers_mut().remove("x-omniroute-lease-owner");
    let answer = send(request).await?;
    assert_eq!(code(&answer), (400, "LEASE_CONTEXT_REQUIRED".to_owned()));
    assert_eq!(world.one.log().count(&Selector::any()), 0);
    Ok(())
}

#[tokio::test]
async fn vector_sessions_59_what_is_in_flight_when_its_lease_is_released_ends_well() -> Result<()> {
    let world = world("").await?;
    let (session, other) = (Session::new('A'), Session::new('B'));
    let generation = session.acquired(&world).await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let running = session.chat(&world, 0, generation);
    let meanwhile = async {
        reaches(&world, 1).await?;
        let released = session.act(&world, 1, "release", generation).await?;
        ensure!(released.status == 200, "{released:?}");
        let refused = other.acquire(&world, 1).await?;
        assert_eq!(
            code(&refused),
            (429, "lease-capacity-unavailable".to_owned())
        );
        let seconds = refused.json()["retryAfter"].as_u64().unwrap_or_default();
        assert!((1..=32).contains(&seconds), "{seconds}");
        gate.open();
        Ok(())
    };
    let (answer, meanwhile) = tokio::join!(running, meanwhile);
    meanwhile?;
    assert_eq!(answer?.status, 200);
    granted_within(&world, &other, LIMIT).await
}

#[tokio::test]
async fn vector_sessions_61_without_a_drain_it_is_cut_when_its_lease_is_released() -> Result<()> {
    let world = world("drainMs: 0, horizonMs: 120000, guardMs: 500").await?;
    let (session, other) = (Session::new('A'), Session::new('B'));
    let generation = session.acquired(&world).await?;
    world.one.set(one_a(), Mode::Stall { events: 3 });
    let body = session.stream(&world, 0, generation).await?;
    let released = session.act(&world, 1, "release", generation).await?;
    ensure!(released.status == 200, "{released:?}");
    let start = Instant::now();
    let rest = rest(body).await?;
    assert!(rest.contains("LEASE_FENCE_STALE"), "{rest}");
    assert!(!rest.contains("[DONE]"));
    // It would be asked about anyway after 40 s.
    assert!(start.elapsed() < Duration::from_secs(30));
    granted_within(&world, &other, LIMIT).await
}

/// The lease itself lasts two minutes, so the authority stands for its end: without it nothing is renewed.
#[tokio::test]
async fn vector_sessions_60_what_is_not_renewed_is_cut_at_its_horizon() -> Result<()> {
    let mut world = world("horizonMs: 5000, guardMs: 500").await?;
    let session = Session::new('A');
    let generation = session.acquired(&world).await?;
    world.one.set(one_a(), Mode::Stall { events: 3 });
    let body = session.stream(&world, 0, generation).await?;
    for replica in &mut world.fleet.control_planes {
        replica.process.kill().await?;
    }
    let start = Instant::now();
    let rest = rest(body).await?;
    assert!(rest.contains("LEASE_FENCE_STALE"), "{rest}");
    assert!(!rest.contains("[DONE]"));
    assert!(start.elapsed() < Duration::from_secs(5) + LIMIT / 2);
    let refused = session.chat(&world, 0, generation).await?;
    assert_eq!(
        code(&refused),
        (503, "LEASE_SERVICE_UNAVAILABLE".to_owned())
    );
    Ok(())
}

#[tokio::test]
async fn a_stream_goes_on_beyond_its_horizon_while_its_lease_holds() -> Result<()> {
    let world = world("horizonMs: 5000, guardMs: 500").await?;
    let session = Session::new('A');
    let generation = session.acquired(&world).await?;
    world.one.set(
        one_a(),
        Mode::SlowDrip {
            gap: Duration::from_secs(1),
        },
    );
    world.one.set_reply(Reply {
        chunks: 60,
        ..Reply::default()
    });
    let mut body = session.stream(&world, 0, generation).await?;
    let start = Instant::now();
    let mut text = String::new();
    // Two horizons.
    while start.elapsed() < Duration::from_secs(11) {
        let frame = tokio::time::timeout(LIMIT, body.frame()).await?;
        let frame = frame.context("the stream ended")?;
        if let Ok(data) = frame?.into_data() {
            text.push_str(&String::from_utf8_lossy(&data));
        }
    }
    assert!(!text.contains("LEASE_FENCE_STALE"), "{text}");
    Ok(())
}

#[tokio::test]
async fn an_operator_sees_a_lease_and_ends_it() -> Result<()> {
    let world = world("").await?;
    let (session, other) = (Session::new('A'), Session::new('B'));
    let generation = session.acquired(&world).await?;
    let listed = world.fleet.ctl_json(1, &["lease", "list"]).await?;
    assert_eq!(listed[0]["connection"], "one-a", "{listed}");
    assert_eq!(listed[0]["key"], "session", "{listed}");
    assert_eq!(listed[0]["generation"], generation, "{listed}");
    assert_eq!(listed[1], Value::Null, "{listed}");
    assert!(!listed.to_string().contains(&session.owner), "{listed}");
    let of_two = ["lease", "list", "--provider", "two"];
    assert_eq!(world.fleet.ctl_json(1, &of_two).await?, json!([]));

    // One of another generation is left alone.
    let later = (generation + 1).to_string();
    let end_later = ["lease", "end", "one-a", "--generation", &later];
    let nothing = world.fleet.ctl(1, &end_later).await?;
    assert!(nothing.status.success(), "{nothing:?}");
    assert!(nothing.stdout.contains("no such lease"), "{nothing:?}");
    let renewed = session.act(&world, 0, "renew", generation).await?;
    ensure!(renewed.status == 200, "{renewed:?}");

    let ended = world.fleet.ctl(1, &["lease", "end", "one-a"]).await?;
    assert!(ended.status.success(), "{ended:?}");
    let told = format!("ended: one-a of key session, generation {generation}");
    assert!(ended.stdout.contains(&told), "{ended:?}");
    let stale = session.act(&world, 0, "renew", generation).await?;
    assert_eq!(code(&stale), (409, "LEASE_FENCE_STALE".to_owned()));
    let fenced = session.chat(&world, 0, generation).await?;
    assert_eq!(code(&fenced), (409, "LEASE_REQUIRED".to_owned()));
    assert_eq!(world.one.log().count(&Selector::any()), 0);
    let listed = world.fleet.ctl_json(0, &["lease", "list"]).await?;
    assert_eq!(listed, json!([]));
    let again = ["lease", "end", "one-a"];
    let again = world.fleet.ctl_json(0, &again).await?;
    assert_eq!(again, json!({"ended": false}));

    // Who did it is written down, and the connection is free.
    let operations = ["get", "events", "--kind", "operation"];
    let operations = world.fleet.ctl_json(0, &operations).await?;
    let told = format!("lease of connection one-a ended, generation {generation}");
    assert!(operations.to_string().contains(&told), "{operations}");
    granted_within(&world, &other, LIMIT).await
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_connection_at_once() -> Result<()> {
    let world = world("horizonMs: 300000").await?;
    let (session, other) = (Session::new('A'), Session::new('B'));
    let generation = session.acquired(&world).await?;
    world.one.set(one_a(), Mode::Stall { events: 3 });
    let body = session.stream(&world, 0, generation).await?;
    let released = session.act(&world, 1, "release", generation).await?;
    ensure!(released.status == 200, "{released:?}");
    let refused = other.acquire(&world, 1).await?;
    assert_eq!(refused.status, 429);
    drop(body);
    // Far sooner than its horizon or the drain.
    granted_within(&world, &other, LIMIT).await
}

//! Both planes in one process: real SDK clients, restarts, bad configuration, the demo.

mod drain;
mod strangers;
mod streams;
mod telemetry;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::Value;
use tidegate_integration::{Answer, CLIENT_KEY, LIMIT, chat, send};
use tidegate_test_support::upstream::{FakeUpstream, Mode, Selector};
use tidegate_test_support::{
    ClientCall, Process, ProcessBuilder, PythonClients, ReservedPort, ScratchDir, bin_dir,
    eventually,
};

/// A standalone process before a provider of each protocol.
struct Standalone {
    process: Process,
    http: SocketAddr,
    grpc: SocketAddr,
    openai: FakeUpstream,
    anthropic: FakeUpstream,
    folder: ScratchDir,
    /// Nobody else's, also before it listens.
    _ports: [ReservedPort; 2],
}

impl Standalone {
    async fn start() -> Result<Self> {
        Self::start_with(|document| document).await
    }

    /// With the document changed.
    async fn start_with(change: impl FnOnce(String) -> String) -> Result<Self> {
        Self::start_as(&[], &[], change).await
    }

    /// With the document changed, and further environment and arguments.
    async fn start_as(
        env: &[(&str, &str)],
        arguments: &[&str],
        change: impl FnOnce(String) -> String,
    ) -> Result<Self> {
        let folder = ScratchDir::new("standalone")?;
        let (openai, anthropic) = (FakeUpstream::start().await?, FakeUpstream::start().await?);
        std::fs::write(folder.path().join("client.key"), CLIENT_KEY)?;
        std::fs::write(folder.path().join("a.key"), "sk-a")?;
        std::fs::write(folder.path().join("b.key"), "sk-b")?;
        let config = folder.path().join("tidegate.yaml");
        std::fs::write(&config, change(document(&openai, &anthropic)))?;
        let (http, grpc) = (ReservedPort::reserve()?, ReservedPort::reserve()?);
        let (http_addr, grpc_addr) = (http.addr(), grpc.addr());
        let mut process = ProcessBuilder::workspace_binary("tidegate")?;
        for (name, value) in env {
            process = process.env(*name, *value);
        }
        let process = process
            .arg("run")
            .args(["--listen", &http_addr.to_string()])
            .args(["--grpc-listen", &grpc_addr.to_string()])
            .args(["--config".as_ref(), config.as_os_str()])
            .args(["--data".as_ref(), folder.path().join("data").as_os_str()])
            .args(arguments.iter().copied())
            .start()?;
        process.wait_for_http(http_addr, "/readyz", LIMIT).await?;
        Ok(Self {
            process,
            http: http_addr,
            grpc: grpc_addr,
            _ports: [http, grpc],
            openai,
            anthropic,
            folder,
        })
    }

    async fn get(&self, kind: &str) -> Result<Value> {
        let finished = ProcessBuilder::program("tidegatectl", bin_dir()?.join("tidegatectl"))
            .args(["--control-plane", &format!("http://{}", self.grpc)])
            .args(["get", kind, "-o", "json"])
            .run(LIMIT)
            .await?;
        Ok(serde_json::from_str(&finished.stdout)?)
    }

    /// State of a connection, once it is the wanted one.
    async fn wait_for_state(&self, connection: &str, wanted: &str) -> Result<()> {
        eventually(LIMIT, "the connection has the state", || async {
            let connections = self.get("connections").await.ok()?;
            let found = connections
                .as_array()?
                .iter()
                .find(|row| row["id"] == connection)?;
            (found["state"] == wanted).then_some(())
        })
        .await
    }
}

fn document(openai: &FakeUpstream, anthropic: &FakeUpstream) -> String {
    format!(
        "
providers:
  - {{id: one, protocol: openai, baseUrl: {}, class: apikey, models: [m]}}
  - {{id: claude, protocol: anthropic, baseUrl: {}, class: apikey, models: [m]}}
connections:
  - {{id: a, provider: one, priority: 1, credential: {{file: a.key}}}}
  - {{id: b, provider: one, priority: 2, credential: {{file: b.key}}}}
  - {{id: c, provider: claude, credential: {{file: a.key}}}}
combos:
  - {{name: main, steps: [one/m]}}
keys:
  - {{id: client, secret: {{file: client.key}}}}
",
        openai.base_url(),
        anthropic.base_url()
    )
}

#[tokio::test]
async fn official_sdks_work() -> Result<()> {
    let clients = PythonClients::prepare().await?;
    let standalone = Standalone::start().await?;
    let base = format!("http://{}", standalone.http);
    let call = ClientCall::new(format!("{base}/v1"), "main", CLIENT_KEY)
        .modes(["json", "stream", "models"]);
    let run = clients.run("openai_chat.py", &call).await?;
    assert!(run.ok, "{run:?}");
    let call = ClientCall::new(&base, "claude/m", CLIENT_KEY).modes(["json", "stream"]);
    let run = clients.run("anthropic_messages.py", &call).await?;
    assert!(run.ok, "{run:?}");
    Ok(())
}

/// The account `a` runs one request at a time, and nothing else serves the combo `only`.
fn one_at_a_time(strategy: &str, queue_depth: u32, document: &str) -> String {
    document
        .replace("{id: a,", "{id: a, maxConcurrent: 1,")
        .replace("{id: b,", "{id: b, enabled: false,")
        .replace(
            "keys:",
            &format!(
                "  - {{name: only, strategy: {strategy}, steps: [one/m], config: {{queueDepth: {queue_depth}}}}}\nkeys:"
            ),
        )
}

async fn burst(standalone: &Standalone, clients: usize) -> Result<Vec<Answer>> {
    let latency = Mode::Latency {
        before: Duration::from_millis(5),
    };
    standalone.openai.set(Selector::any(), latency);
    let sent = (0..clients).map(|_| chat(standalone.http, "only"));
    futures::future::try_join_all(sent).await
}

#[tokio::test]
async fn a_burst_waits_for_an_account_that_runs_one_request_at_a_time() -> Result<()> {
    let standalone =
        Standalone::start_with(|document| one_at_a_time("round-robin", 100, &document)).await?;
    for answer in burst(&standalone, 60).await? {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(standalone.openai.log().most_at_once(&Selector::any()), 1);
    Ok(())
}

#[tokio::test]
async fn a_client_that_asks_one_after_the_other_finds_its_permit_free() -> Result<()> {
    let standalone =
        Standalone::start_with(|document| one_at_a_time("priority", 0, &document)).await?;
    for _ in 0..60 {
        let answer = chat(standalone.http, "only").await?;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_burst_that_does_not_wait_is_told_when_to_come_back() -> Result<()> {
    let standalone =
        Standalone::start_with(|document| one_at_a_time("priority", 0, &document)).await?;
    let answers = burst(&standalone, 60).await?;
    let (served, refused): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.status == 200);
    assert!(!served.is_empty());
    for answer in refused {
        assert_eq!(answer.status, 429, "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], "concurrency_cap");
        assert_eq!(answer.headers["retry-after"], "1");
    }
    assert_eq!(standalone.openai.log().most_at_once(&Selector::any()), 1);
    Ok(())
}

async fn metrics(standalone: &Standalone) -> Result<String> {
    let request = Request::get(format!("http://{}/metrics", standalone.http));
    let answer = send(request.body(Full::default())?).await?;
    Ok(String::from_utf8(answer.body.to_vec())?)
}

#[tokio::test]
async fn the_metrics_of_both_planes_are_shown_together() -> Result<()> {
    let standalone = Standalone::start().await?;
    let text = metrics(&standalone).await?;
    for name in [
        "tidegate_cp_configuration_version 1\n",
        "tidegate_dp_configuration_version 1\n",
        "tidegate_dp_control_plane_gone 0\n",
    ] {
        assert!(text.contains(name), "{name} is missing");
    }
    assert_eq!(text.matches("# EOF").count(), 1);
    Ok(())
}

#[tokio::test]
async fn what_was_learned_survives_a_restart() -> Result<()> {
    let standalone = Standalone::start().await?;
    let refused = Selector::any().credential("sk-a");
    standalone.openai.set(refused.clone(), Mode::status(401));
    assert_eq!(chat(standalone.http, "main").await?.status, 200);
    standalone.wait_for_state("a", "expired").await?;
    // A clean end writes the last checkpoint.
    let ended = standalone
        .process
        .terminate(Duration::from_secs(20))
        .await?;
    assert!(ended.success(), "{ended}");
    standalone.process.start_again()?;
    standalone
        .process
        .wait_for_http(standalone.http, "/readyz", LIMIT)
        .await?;
    standalone.wait_for_state("a", "expired").await?;
    assert_eq!(chat(standalone.http, "main").await?.status, 200);
    assert_eq!(standalone.openai.log().count(&refused), 1);
    Ok(())
}

/// Sends a request of a session; the credential that served it.
async fn of_session(standalone: &Standalone) -> Result<String> {
    let body = r#"{"model": "one/m", "messages": [{"role": "user", "content": "hi"}]}"#;
    let request = Request::post(format!("http://{}/v1/chat/completions", standalone.http))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {CLIENT_KEY}"))
        .header("x-session-id", "abc")
        .body(Full::new(Bytes::from_static(body.as_bytes())))?;
    let answer = send(request).await?;
    ensure!(answer.status == 200, "{answer:?}");
    let last = standalone.openai.log().last(&Selector::any());
    last.and_then(|it| it.credential)
        .context("nothing was sent")
}

#[tokio::test]
async fn a_session_stays_with_its_account_over_a_restart() -> Result<()> {
    let affinity = "settings: {sessionAffinityTtlMs: 1800000}\n";
    let standalone = Standalone::start_with(|document| document + affinity).await?;
    let placed = of_session(&standalone).await?;
    let first = Selector::any().credential(placed.as_str());
    standalone
        .openai
        .set(first.clone(), Mode::rate_limited("600"));
    let moved = of_session(&standalone).await?;
    ensure!(moved != placed);
    standalone.openai.set(first, Mode::Ok);
    let ctl = ProcessBuilder::program("tidegatectl", bin_dir()?.join("tidegatectl"));
    ctl.args(["--control-plane", &format!("http://{}", standalone.grpc)])
        .args(["reset", "cooldowns"])
        .run(LIMIT)
        .await?;
    standalone.process.terminate(LIMIT).await?;
    standalone.process.start_again()?;
    let ready = standalone
        .process
        .wait_for_http(standalone.http, "/readyz", LIMIT);
    ready.await?;
    eventually(LIMIT, "the pin is put back", || async {
        let text = metrics(&standalone).await.ok()?;
        let restored = text.contains("tidegate_cp_pins_total{event=\"restored\"} 1\n");
        restored.then_some(())
    })
    .await?;
    assert_eq!(of_session(&standalone).await?, moved);
    Ok(())
}

#[tokio::test]
async fn a_configuration_that_is_not_valid_is_refused_before_a_port_opens() -> Result<()> {
    let folder = ScratchDir::new("invalid")?;
    for (what, document, named) in [
        ("unknown member", "providerz: []", "providerz"),
        (
            "dangling reference",
            "connections: [{id: a, provider: gone}]",
            "gone",
        ),
        (
            "missing secret",
            "providers: [{id: p, protocol: openai, baseUrl: 'https://x.test/v1'}]\n\
             connections: [{id: a, provider: p, credential: {env: TIDEGATE_TEST_NOT_SET}}]",
            "TIDEGATE_TEST_NOT_SET",
        ),
        (
            "settings out of bounds",
            "settings: {streams: {connectTimeoutMs: 0}}",
            "settings.streams.connectTimeoutMs: must be between 1 and 600000, is 0",
        ),
        ("nothing", "", "describes nothing"),
    ] {
        let config = folder.path().join("tidegate.yaml");
        std::fs::write(&config, document)?;
        for command in ["run", "validate"] {
            let finished = ProcessBuilder::workspace_binary("tidegate")?
                .arg(command)
                .args(["--config".as_ref(), config.as_os_str()])
                .run(LIMIT)
                .await?;
            assert_eq!(finished.status.code(), Some(65), "{what}: {finished:?}");
            assert!(finished.stderr.contains(named), "{what}: {finished:?}");
        }
    }
    let finished = ProcessBuilder::workspace_binary("tidegate")?
        .args(["validate", "--confg", "x"])
        .run(LIMIT)
        .await?;
    assert_eq!(finished.status.code(), Some(64), "{finished:?}");
    Ok(())
}

#[tokio::test]
async fn the_demo_fails_over_without_a_client_error() -> Result<()> {
    let finished = ProcessBuilder::workspace_binary("tidegate")?
        .args(["demo", "--requests", "14"])
        .args(["--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
        .run(Duration::from_secs(60))
        .await?;
    assert!(finished.status.success(), "{finished:?}");
    let out = &finished.stdout;
    assert!(out.contains("14 requests, 0 of them failed"), "{out}");
    assert!(out.contains("excluded now: bursty-1"), "{out}");
    Ok(())
}

#[tokio::test]
async fn an_example_in_the_repository_is_valid() -> Result<()> {
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/standalone/tidegate.example.yaml");
    let folder = ScratchDir::new("example")?;
    let copy = folder.path().join("tidegate.yaml");
    std::fs::copy(&example, &copy).with_context(|| example.display().to_string())?;
    std::fs::write(folder.path().join("openai-second.key"), "sk-x")?;
    let finished = ProcessBuilder::workspace_binary("tidegate")?
        .arg("validate")
        .args(["--config".as_ref(), copy.as_os_str()])
        .env("OPENAI_API_KEY", "sk-x")
        .env("ANTHROPIC_API_KEY", "sk-x")
        .env("TEAM_API_KEY", "tg-x")
        .run(LIMIT)
        .await?;
    assert!(finished.status.success(), "{finished:?}");
    Ok(())
}

#[tokio::test]
async fn management_is_for_keys_that_may_though_everybody_here_may_administer() -> Result<()> {
    // No token of operators is set, and the listener may be open to the network.
    let standalone = Standalone::start_with(|document| {
        format!("{document}  - {{id: boss, secret: {{file: a.key}}, scopes: [manage]}}\n")
    })
    .await?;
    let ask = async |method: &str, path: &str, token: Option<&str>| {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", standalone.http));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        send(request.body(Full::<Bytes>::default())?).await
    };
    let health = "/api/monitoring/health";
    let reset = "/api/resilience/reset";
    eventually(LIMIT, "health in one word", || async {
        let word = ask("GET", health, None).await.ok()?;
        (word.json() == serde_json::json!({"status": "healthy"})).then_some(())
    })
    .await?;
    for (token, status) in [
        (None, 401),
        (Some("x"), 401),
        (Some(CLIENT_KEY), 403),
        (Some("sk-a"), 200),
    ] {
        let answer = ask("POST", reset, token).await?;
        assert_eq!(answer.status, status, "{token:?}");
    }
    let whole = ask("GET", health, Some("sk-a")).await?.json();
    assert_eq!(
        whole["providerBreakers"].as_array().map(Vec::len),
        Some(2),
        "{whole}"
    );
    let models = ask("GET", "/v1/models/health", Some(CLIENT_KEY)).await?;
    assert_eq!(models.json()["data"][0]["state"], "ok", "{models:?}");
    Ok(())
}

//! What the end-to-end tests share: a fleet before fake providers, and a plain HTTP client.

pub mod strangers;
pub mod streams;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tidegate_test_support::upstream::FakeUpstream;
use tidegate_test_support::{Fleet, FleetOptions};

/// How long a condition of the fleet may take to come true on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A fleet before two OpenAI providers and an Anthropic one.
#[derive(Debug)]
pub struct World {
    /// The fleet.
    pub fleet: Fleet,
    /// Upstream of provider `one`, connections `one-a` (credential `sk-one-a`) and `one-b`.
    pub one: FakeUpstream,
    /// Upstream of provider `two`, connection `two-a` (credential `sk-two-a`).
    pub two: FakeUpstream,
    /// Upstream of provider `claude`, connection `claude-a`.
    pub claude: FakeUpstream,
}

/// Key that clients of a [`World`] show.
pub const CLIENT_KEY: &str = "tg-client-key";

impl World {
    /// Two control planes, two data planes, configured.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn start() -> Result<Self> {
        Self::start_with(FleetOptions::default()).await
    }

    /// A fleet of another size, configured.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn start_with(options: FleetOptions) -> Result<Self> {
        let world = Self {
            one: FakeUpstream::start().await?,
            two: FakeUpstream::start().await?,
            claude: FakeUpstream::start().await?,
            fleet: Fleet::start_with(options).await?,
        };
        for connection in ["one-a", "one-b", "two-a", "claude-a"] {
            world
                .fleet
                .write_secret(&format!("{connection}.key"), &format!("sk-{connection}"))?;
        }
        world.fleet.write_secret("client.key", CLIENT_KEY)?;
        world.fleet.apply(&world.document()).await?;
        Ok(world)
    }

    /// The configuration: small thresholds, no de-duplication and no waiting, so that few requests show a rule.
    #[must_use]
    pub fn document(&self) -> String {
        format!(
            "
providers:
  - {{id: one, protocol: openai, baseUrl: {one}, class: apikey, models: [m]}}
  - {{id: two, protocol: openai, baseUrl: {two}, class: apikey, models: [m]}}
  - {{id: claude, protocol: anthropic, baseUrl: {claude}, class: apikey, models: [m]}}
connections:
  - {{id: one-a, provider: one, priority: 1, credential: {{file: one-a.key}}}}
  - {{id: one-b, provider: one, priority: 2, credential: {{file: one-b.key}}}}
  - {{id: two-a, provider: two, credential: {{file: two-a.key}}}}
  - {{id: claude-a, provider: claude, credential: {{file: claude-a.key}}}}
combos:
  - {{name: main, steps: [one/m, two/m], config: {{maxRetries: 0}}}}
keys:
  - {{id: client, secret: {{file: client.key}}}}
settings:
  providerBreaker:
    apikey: {{failureThreshold: 3, degradationThreshold: 2, resetTimeoutMs: 600000}}
    dedupConnectionMs: 0
    dedupProviderMs: 0
  modelLockout: {{enabled: true}}
  waitForCooldown: {{enabled: false}}
  comboCooldownWait: {{enabled: false}}
",
            one = self.one.base_url(),
            two = self.two.base_url(),
            claude = self.claude.base_url(),
        )
    }

    /// Where a data plane serves clients.
    ///
    /// # Errors
    /// When there is no such data plane.
    pub fn data_plane(&self, number: usize) -> Result<SocketAddr> {
        let plane = self.fleet.data_planes.get(number);
        Ok(plane.context("no such data plane")?.http)
    }

    /// State of a provider's breaker as one control plane tells it.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub async fn breaker(&self, replica: usize, provider: &str) -> Result<Value> {
        let breakers = self.fleet.ctl_json(replica, &["get", "breakers"]).await?;
        find(&breakers, "provider", provider)
    }

    /// State of a connection as one control plane tells it.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub async fn connection(&self, replica: usize, connection: &str) -> Result<Value> {
        let connections = self
            .fleet
            .ctl_json(replica, &["get", "connections"])
            .await?;
        find(&connections, "id", connection)
    }
}

fn find(listing: &Value, member: &str, wanted: &str) -> Result<Value> {
    listing
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row[member] == wanted))
        .cloned()
        .with_context(|| format!("no {wanted} in {listing}"))
}

/// An answer of a data plane, read whole.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Sends a chat request for a model and reads the answer whole.
///
/// # Errors
/// When the connection fails.
pub async fn chat(addr: SocketAddr, model: &str) -> Result<Answer> {
    let body = serde_json::json!({
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
    });
    post(addr, "/v1/chat/completions", body.to_string()).await
}

/// Sends a body with the client's key and reads the answer whole.
///
/// # Errors
/// When the connection fails.
pub async fn post(addr: SocketAddr, path: &str, body: impl Into<Bytes>) -> Result<Answer> {
    let request = Request::post(format!("http://{addr}{path}"))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {CLIENT_KEY}"))
        .body(Full::new(body.into()))?;
    send(request).await
}

/// Sends a request and reads the answer whole.
///
/// # Errors
/// When the connection fails.
pub async fn send(request: Request<Full<Bytes>>) -> Result<Answer> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let (parts, body) = client.request(request).await?.into_parts();
    Ok(Answer {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await?.to_bytes(),
    })
}

/// A sample of a process's `/metrics`, whose line begins with `sample`.
///
/// # Errors
/// When it cannot be asked, or shows no such sample.
pub async fn metric(addr: SocketAddr, sample: &str) -> Result<f64> {
    let text = served(addr).await?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {sample}"))?.parse()?)
}

/// The samples of a metric that are not 0, as served.
///
/// # Errors
/// When there is no answer.
pub async fn samples(addr: SocketAddr, name: &str) -> Result<Vec<String>> {
    let text = served(addr).await?;
    let lines = text
        .lines()
        .filter(|line| line.starts_with(name) && !line.ends_with(" 0"));
    Ok(lines.map(str::to_owned).collect())
}

async fn served(addr: SocketAddr) -> Result<String> {
    let request = Request::get(format!("http://{addr}/metrics")).body(Full::default())?;
    Ok(String::from_utf8(send(request).await?.body.to_vec())?)
}

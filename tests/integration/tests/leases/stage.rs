//! A fleet whose client key may lease, and its clients: over HTTP through a data plane, and over gRPC as a data plane.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use secrecy::SecretString;
use serde_json::{Value, json};
use tidegate_core::lease::OwnerHash;
use tidegate_integration::{Answer, send};
use tidegate_plane_client::endpoint::{Address, ChannelSettings, PlaneChannel, channel};
use tidegate_proto::common::v1 as common;
use tidegate_proto::lease::v1::lease_service_client::LeaseServiceClient;
use tidegate_test_support::upstream::{FakeUpstream, Selector};
use tidegate_test_support::{DATA_PLANE_TOKEN, Fleet, FleetOptions};

use super::history::{LeaseName, Row, Span};

/// Keys of the fleet: two may lease connections, the third may not and uses them all.
pub(crate) const KEYS: [&str; 3] = ["k1", "k2", "ordinary"];

/// How the fleet is configured.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Connections `c1` and so on, of provider `p`, with credentials `sk-c1` and so on.
    pub(crate) connections: usize,
    /// How many of them, the first, may be leased; all unless set.
    pub(crate) leasable: Option<usize>,
    /// Models of provider `p`, in each of which the upstream may behave in its own way.
    pub(crate) models: Vec<&'static str>,
    /// Further members of every connection.
    pub(crate) connection: Value,
    /// How many requests each of the first connections runs at a time; the others run all.
    pub(crate) concurrent: &'static [u32],
    /// The settings.
    pub(crate) settings: Value,
    pub(crate) combos: Value,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            connections: 1,
            leasable: None,
            models: vec!["m"],
            connection: json!({}),
            concurrent: &[],
            settings: json!({}),
            combos: json!([]),
        }
    }
}

impl Setup {
    pub(crate) fn names(&self) -> Vec<String> {
        (1..=self.connections)
            .map(|number| format!("c{number}"))
            .collect()
    }

    pub(crate) fn document(&self, base_url: &str) -> Value {
        let names = self.names();
        let connection = |(index, name): (usize, &String)| {
            let mut connection = json!({
                "id": name,
                "provider": "p",
                "priority": index + 1,
                "credential": {"file": format!("{name}.key")},
            });
            merge(&mut connection, &self.connection);
            if let Some(concurrent) = self.concurrent.get(index) {
                connection["maxConcurrent"] = json!(concurrent);
            }
            connection
        };
        let connections: Vec<Value> = names.iter().enumerate().map(connection).collect();
        let leasable = self.leasable.unwrap_or(names.len());
        let leasable: Vec<&String> = names.iter().take(leasable).collect();
        let keys = KEYS.map(|key| {
            let mut document = json!({"id": key, "secret": {"file": format!("{key}.key")}});
            if key != "ordinary" {
                document["scopes"] = json!(["lease:exclusive"]);
                document["allowedConnections"] = json!(leasable);
            }
            document
        });
        let mut settings = json!({
            "waitForCooldown": {"enabled": false},
            "comboCooldownWait": {"enabled": false},
        });
        merge(&mut settings, &self.settings);
        json!({
            "providers": [{
                "id": "p",
                "protocol": "openai",
                "baseUrl": base_url,
                "class": "apikey",
                "models": self.models,
            }],
            "connections": connections,
            "combos": self.combos,
            "keys": keys,
            "settings": settings,
        })
    }
}

fn merge(into: &mut Value, from: &Value) {
    if let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) {
        into.extend(from.clone());
    }
}

/// A token of an owner: no two numbers have the same.
pub(crate) fn token(owner: u8) -> String {
    format!("vlo_{owner:B>43}")
}

/// What the planes call an owner.
pub(crate) fn hash(owner: u8) -> Result<OwnerHash> {
    Ok(OwnerHash::of_header(Some(token(owner).as_bytes()))?)
}

pub(crate) fn wire_name(lease: LeaseName) -> Result<common::LeaseName> {
    Ok(common::LeaseName {
        owner_sha256: hash(lease.owner)?.as_bytes().to_vec(),
        generation: lease.generation,
    })
}

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) fleet: Fleet,
    pub(crate) upstream: FakeUpstream,
    /// One client of each control plane.
    leases: Vec<LeaseServiceClient<PlaneChannel>>,
}

impl Stage {
    pub(crate) async fn start(setup: &Setup, options: FleetOptions) -> Result<Self> {
        let upstream = FakeUpstream::builder()
            .log_capacity(100_000)
            .start()
            .await?;
        let fleet = Fleet::start_with(options).await?;
        let mut leases = Vec::new();
        for replica in &fleet.control_planes {
            let address = Address::Tcp(format!("http://{}", replica.grpc).parse()?);
            let token = SecretString::from(DATA_PLANE_TOKEN);
            let channel = channel(&address, &ChannelSettings::default(), None, Some(&token))?;
            leases.push(LeaseServiceClient::new(channel));
        }
        for connection in setup.names() {
            fleet.write_secret(&format!("{connection}.key"), &format!("sk-{connection}"))?;
        }
        for key in KEYS {
            fleet.write_secret(&format!("{key}.key"), &key_secret(key))?;
        }
        let stage = Self {
            fleet,
            upstream,
            leases,
        };
        stage.apply(setup).await?;
        Ok(stage)
    }

    pub(crate) async fn apply(&self, setup: &Setup) -> Result<()> {
        let document = setup.document(&self.upstream.base_url());
        self.fleet.apply(&document.to_string()).await?;
        Ok(())
    }

    /// The service of one control plane.
    pub(crate) fn leases(&self, replica: usize) -> Result<LeaseServiceClient<PlaneChannel>> {
        self.leases
            .get(replica)
            .cloned()
            .context("no such control plane")
    }

    pub(crate) fn data_plane(&self, number: usize) -> Result<SocketAddr> {
        let plane = self.fleet.data_planes.get(number);
        Ok(plane.context("no such data plane")?.http)
    }

    /// The rows of all leases, of the owners whose numbers are below `owners`.
    pub(crate) async fn rows(&self, owners: u8) -> Result<Vec<Row>> {
        let mut numbers = BTreeMap::new();
        for owner in 0..owners {
            numbers.insert(hash(owner)?.to_string(), owner);
        }
        let rows = self
            .fleet
            .postgres
            .execute(
                &self.fleet.database,
                "SELECT owner, generation, connection, acquired_at,
                     least(coalesce(ended_at, expires_at), expires_at), end_reason FROM leases ORDER BY seq",
            )
            .await?;
        let mut read = Vec::new();
        for row in &rows {
            let [
                Some(owner),
                Some(generation),
                Some(connection),
                Some(from),
                Some(until),
                ended,
            ] = &row[..]
            else {
                anyhow::bail!("not a row of a lease: {row:?}");
            };
            let Some(owner) = numbers.get(owner) else {
                continue;
            };
            let ms = |text: &str| Ok::<_, anyhow::Error>(Duration::from_millis(text.parse()?));
            read.push(Row {
                lease: LeaseName {
                    owner: *owner,
                    generation: generation.parse()?,
                },
                connection: connection.clone(),
                held: Span::new(ms(from)?, ms(until)?),
                ended: ended.clone(),
            });
        }
        Ok(read)
    }

    // === What clients do over HTTP ===

    /// Asks for something about a lease with key `k1` through a data plane.
    pub(crate) async fn ask(&self, plane: usize, owner: u8, body: &Value) -> Result<Answer> {
        self.ask_with(plane, "k1", owner, body).await
    }

    pub(crate) async fn ask_with(
        &self,
        plane: usize,
        key: &str,
        owner: u8,
        body: &Value,
    ) -> Result<Answer> {
        let request = Request::post(format!(
            "http://{}/api/v1/session-leases",
            self.data_plane(plane)?
        ))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {}", key_secret(key)))
        .header("x-omniroute-lease-owner", token(owner))
        .body(Full::new(Bytes::from(body.to_string())))?;
        send(request).await
    }

    /// Acquires `p/m` and gives the generation.
    pub(crate) async fn acquire(&self, plane: usize, owner: u8) -> Result<u64> {
        let acquire = json!({"action": "acquire", "model": "p/m"});
        let answer = self.ask(plane, owner, &acquire).await?;
        ensure!(answer.status == 200, "{answer:?}");
        answer.json()["generation"]
            .as_u64()
            .context("no generation")
    }

    pub(crate) async fn release(&self, plane: usize, lease: LeaseName) -> Result<()> {
        let release = json!({"action": "release", "generation": lease.generation});
        let answer = self.ask(plane, lease.owner, &release).await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    }

    /// Sends a request under a lease and reads the answer whole.
    pub(crate) async fn infer(&self, plane: usize, lease: LeaseName) -> Result<Answer> {
        let request = inference(
            self.data_plane(plane)?,
            "k1",
            lease,
            &chat_body("p/m", false),
        )?;
        send(request).await
    }

    /// Sends a request without a lease; where it was answered.
    pub(crate) async fn goes_to(&self, plane: usize) -> Result<String> {
        let body = chat_body("p/m", false).to_string();
        let url = format!("http://{}/v1/chat/completions", self.data_plane(plane)?);
        let request = Request::post(url)
            .header("content-type", "application/json")
            .header(
                "authorization",
                format!("Bearer {}", key_secret("ordinary")),
            )
            .body(Full::new(Bytes::from(body)))?;
        let answer = send(request).await?;
        ensure!(answer.status == 200, "{answer:?}");
        let last = self.upstream.log().last(&Selector::any());
        let credential = last.and_then(|last| last.credential);
        let credential = credential.context("no request with a credential")?;
        let connection = credential.strip_prefix("sk-");
        Ok(connection.context("a foreign credential")?.to_owned())
    }

    /// Sends a streaming request under a lease; its answer goes on.
    pub(crate) async fn stream(
        &self,
        plane: usize,
        lease: LeaseName,
    ) -> Result<http::Response<Incoming>> {
        let request = inference(
            self.data_plane(plane)?,
            "k1",
            lease,
            &chat_body("p/m", true),
        )?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(client.request(request).await?)
    }
}

/// What clients show.
pub(crate) fn key_secret(key: &str) -> String {
    format!("tg-client-{key}")
}

pub(crate) fn chat_body(model: &str, stream: bool) -> Value {
    json!({
        "model": model,
        "stream": stream,
        "messages": [{"role": "user", "content": "hi"}],
    })
}

/// A request under a lease.
pub(crate) fn inference(
    addr: SocketAddr,
    key: &str,
    lease: LeaseName,
    body: &Value,
) -> Result<Request<Full<Bytes>>> {
    Ok(Request::post(format!("http://{addr}/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {}", key_secret(key)))
        .header("x-omniroute-lease-owner", token(lease.owner))
        .header("x-omniroute-lease-generation", lease.generation.to_string())
        .body(Full::new(Bytes::from(body.to_string())))?)
}

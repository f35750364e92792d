//! The demo's own requests, and what it tells about them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tidegate_plane_client::endpoint::{Address, ChannelSettings, PlaneChannel, channel};
use tidegate_proto::admin::v1::ExplainRequest;
use tidegate_proto::admin::v1::admin_service_client::AdminServiceClient;

/// Between two requests.
const GAP: Duration = Duration::from_millis(500);
/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A client of the demo.
pub(crate) struct Traffic {
    client: Client<HttpConnector, Full<Bytes>>,
    admin: AdminServiceClient<PlaneChannel>,
    http: SocketAddr,
    /// Requests by who answered.
    answered: BTreeMap<String, u64>,
    sent: u64,
    failed: u64,
    further_attempts: u64,
    excluded: String,
}

impl Traffic {
    /// A client that has sent nothing.
    pub(crate) fn new(http: SocketAddr, grpc: SocketAddr) -> Result<Self> {
        let address = Address::Tcp(format!("http://{grpc}").parse()?);
        let made = channel(&address, &ChannelSettings::default(), None, None)?;
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            admin: AdminServiceClient::new(made),
            http,
            answered: BTreeMap::new(),
            sent: 0,
            failed: 0,
            further_attempts: 0,
            excluded: String::new(),
        })
    }

    /// Sends requests, `requests` of them or for ever.
    pub(crate) async fn run(&mut self, requests: u64) -> Result<()> {
        while requests == 0 || self.sent < requests {
            self.request().await?;
            self.tell_exclusions().await?;
            tokio::time::sleep(GAP).await;
        }
        Ok(())
    }

    async fn request(&mut self) -> Result<()> {
        let body = r#"{"model":"demo","messages":[{"role":"user","content":"hi"}]}"#;
        let request = Request::post(format!("http://{}/v1/chat/completions", self.http))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(body.as_bytes())))?;
        let (status, headers) = tokio::time::timeout(LIMIT, async {
            let response = self.client.request(request).await?;
            let (parts, body) = response.into_parts();
            body.collect().await?;
            anyhow::Ok((parts.status, parts.headers))
        })
        .await??;
        self.note(status, &headers);
        Ok(())
    }

    fn note(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.sent = self.sent.saturating_add(1);
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let provider = header("x-omniroute-provider")
            .unwrap_or("nobody")
            .to_owned();
        let further: u64 = header("x-omniroute-fallback-attempts")
            .and_then(|count| count.parse().ok())
            .unwrap_or(0);
        self.further_attempts = self.further_attempts.saturating_add(further);
        if !status.is_success() {
            self.failed = self.failed.saturating_add(1);
        }
        let again = match further {
            0 => String::new(),
            1 => ", after 1 failed attempt".to_owned(),
            count => format!(", after {count} failed attempts"),
        };
        println!(
            "#{:<4} {} from {provider}{again}",
            self.sent,
            status.as_u16()
        );
        let answered = self.answered.entry(provider).or_default();
        *answered = answered.saturating_add(1);
    }

    /// Tells what is excluded when that has changed.
    async fn tell_exclusions(&mut self) -> Result<()> {
        let mut request = tonic::Request::new(ExplainRequest {
            model: "demo".to_owned(),
            ..ExplainRequest::default()
        });
        request.set_timeout(LIMIT);
        let explained = self.admin.explain(request).await?.into_inner();
        let excluded = explained
            .targets
            .iter()
            .filter_map(|target| Some((target, target.exclusions.first()?)))
            .map(|(target, exclusion)| format!("{} {}", target.connection, exclusion.reason))
            .collect::<Vec<_>>()
            .join(", ");
        if excluded != self.excluded {
            let told = if excluded.is_empty() {
                "nothing"
            } else {
                &excluded
            };
            println!("      excluded now: {told}");
            self.excluded = excluded;
        }
        Ok(())
    }

    /// What happened, in a few lines.
    pub(crate) fn summary(&self) -> String {
        let mut text = format!(
            "{} requests, {} of them failed; {} attempts failed and were made up for by another",
            self.sent, self.failed, self.further_attempts
        );
        for (provider, count) in &self.answered {
            text.push_str(&format!("\n  {count:>5} answered by {provider}"));
        }
        text
    }
}

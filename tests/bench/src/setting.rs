//! What is measured: a fleet of one control plane and one data plane with real stores, the two limits, and a fake
//! upstream in this process.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use tidegate_test_support::upstream::{FakeUpstream, FakeUpstreamBuilder, Reply};
use tidegate_test_support::{Fleet, FleetOptions, LocalTls, Process, ProcessBuilder};

use crate::process::resident_mib;
use crate::summary::Summary;

/// Connections in the configuration, all but one of which the requests never use.
const CONNECTIONS: usize = 1_000;
/// How long a limit may take to start.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Everything that runs.
pub(crate) struct Setting {
    pub(crate) fleet: Fleet,
    pub(crate) upstream: FakeUpstream,
    pub(crate) echo: (Process, SocketAddr),
    pub(crate) bare_proxy: (Process, SocketAddr),
}

impl Setting {
    /// Starts everything and applies a configuration of [`CONNECTIONS`] connections.
    pub(crate) async fn start() -> Result<Self> {
        Self::start_with(Vec::new()).await
    }

    /// The same with further environment of both planes.
    pub(crate) async fn start_with(env: Vec<(String, String)>) -> Result<Self> {
        Self::start_before(FakeUpstream::builder(), env, Vec::new()).await
    }

    /// The same with an upstream that speaks HTTP/2 over TLS, as those of large providers do.
    pub(crate) async fn start_before_http2() -> Result<Self> {
        // What reads the file has read it when all has started.
        let tls = LocalTls::new()?;
        let upstream = FakeUpstream::builder().https(tls.server());
        let trusted = tls.authority_file().display().to_string();
        Self::start_before(upstream, vec![tls.env()], vec![trusted]).await
    }

    async fn start_before(
        upstream: FakeUpstreamBuilder,
        env: Vec<(String, String)>,
        trusted: Vec<String>,
    ) -> Result<Self> {
        let upstream = upstream
            .reply(Reply {
                chunks: 50,
                ..Reply::default()
            })
            .start()
            .await?;
        let fleet = Fleet::start_with(FleetOptions {
            control_planes: 1,
            data_planes: 1,
            env,
            ..FleetOptions::default()
        })
        .await?;
        fleet.write_secret("bench.key", "sk-bench")?;
        fleet.apply(&document(&upstream.base_url())).await?;
        let echo = limit("bench-echo", Vec::new()).await?;
        let mut arguments = vec![upstream.origin()];
        arguments.extend(trusted);
        let bare_proxy = limit("bench-bare-proxy", arguments).await?;
        Ok(Self {
            fleet,
            upstream,
            echo,
            bare_proxy,
        })
    }

    /// Notes the resident memory of both planes at a stage.
    pub(crate) fn memory(&self, stage: &str, summary: &mut Summary) -> Result<()> {
        for plane in &self.fleet.data_planes {
            let mib = resident_mib(plane.process.pid())?;
            summary.set(format!("rss.data_plane.{stage}_mib"), mib);
        }
        for replica in &self.fleet.control_planes {
            let mib = resident_mib(replica.process.pid())?;
            summary.set(format!("rss.control_plane.{stage}_mib"), mib);
        }
        Ok(())
    }
}

async fn limit(name: &str, arguments: Vec<String>) -> Result<(Process, SocketAddr)> {
    let process = ProcessBuilder::workspace_binary(name)?
        .args(arguments)
        .start()?;
    let addr = process.wait_for_addr("listening", START_LIMIT).await?;
    Ok((process, addr))
}

fn document(base_url: &str) -> String {
    let mut yaml = String::from("providers:\n");
    let providers = CONNECTIONS / 100;
    for provider in 0..providers {
        yaml.push_str(&format!(
            "  - {{id: p{provider}, protocol: openai, baseUrl: \"{base_url}\", class: apikey}}\n"
        ));
    }
    yaml.push_str("connections:\n");
    for connection in 0..CONNECTIONS {
        let provider = connection % providers;
        yaml.push_str(&format!(
            "  - {{id: c{connection}, provider: p{provider}, credential: {{file: bench.key}}}}\n"
        ));
    }
    yaml.push_str("combos:\n  - {name: bench, steps: [p0/m, p1/m, p2/m, p3/m, p4/m]}\n");
    yaml
}

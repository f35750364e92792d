//! `tidegate demo`: something worth seeing without any key.
//!
//! Three fake providers run in this process. Clients ask for the combo `demo`, which prefers the one that fails in
//! bursts, then the one that is rate-limited, then the healthy one. The demo sends requests of its own and tells, line by
//! line, who answered and what is excluded for how long.

mod providers;
mod traffic;

use anyhow::Result;
use tidegate_document::{Machine, parse, resolve};
use tidegate_proxy::{Heartbeats, UpstreamAuthorities};

use crate::cli::DemoArguments;
use crate::standalone::{Options, Standalone};
use providers::Providers;
use traffic::Traffic;

/// How long the demo's streams may take to finish.
const GRACE: std::time::Duration = std::time::Duration::from_secs(2);

/// Runs the demo until it is interrupted, or has sent its requests.
pub(crate) async fn run(arguments: DemoArguments) -> Result<()> {
    let DemoArguments {
        listen,
        grpc_listen,
        requests,
    } = arguments;
    let providers = Providers::start().await?;
    let folder = DataFolder::make()?;
    providers.write_keys(folder.path())?;
    let document = parse(&providers.document())?;
    let loaded = resolve(document, folder.path(), &Machine)
        .map_err(tidegate_document::DocumentError::Secrets)?;
    let standalone = Standalone::start(
        Options {
            listen,
            grpc_listen,
            data: folder.path().to_owned(),
            admin_token: None,
            require_key: false,
            upstream_authorities: UpstreamAuthorities::default(),
            heartbeats: Heartbeats::default(),
            traces: None,
            propagate_trace_context: false,
        },
        loaded,
    )
    .await?;
    let (http, grpc) = (standalone.http, standalone.grpc);
    println!(
        "Tidegate serves three fake providers:

  bursty    works and fails in turns of some seconds
  limited   answers a few requests, then 429 with Retry-After
  steady    always works

A request for the model `demo` prefers them in this order. Try it:

  curl -s http://{http}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{\"model\": \"demo\", \"messages\": [{{\"role\": \"user\", \"content\": \"hi\"}}]}}'
  cargo run -q -p tidegatectl -- --control-plane http://{grpc} explain demo
  cargo run -q -p tidegatectl -- --control-plane http://{grpc} get connections

Below are requests that the demo sends itself, two a second. Ctrl-C ends it.
"
    );
    let mut traffic = Traffic::new(http, grpc)?;
    tokio::select! {
        ended = traffic.run(requests) => ended?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        failed = standalone.failed() => return Err(failed),
    }
    println!("\n{}", traffic.summary());
    standalone.drain(GRACE).await;
    Ok(())
}

/// A folder that is gone with the demo.
struct DataFolder(std::path::PathBuf);

impl DataFolder {
    fn make() -> Result<Self> {
        let name = format!("tidegate-demo-{:016x}", rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

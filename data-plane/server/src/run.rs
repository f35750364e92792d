//! From settings to a running process, and to its end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use tidegate_plane_client::PlaneClient;
use tidegate_proxy::{Proxy, Surface, Tracing};
use tidegate_telemetry::Traces;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::ServerConfig;
use crate::footprint::Footprint;
use crate::ready_file;

/// Reports and usage that wait are delivered within this once no request runs any more.
const FLUSH: Duration = Duration::from_secs(6);
/// What the last traces may take at the end.
const TRACES_LIMIT: Duration = Duration::from_secs(2);

/// The settings are to blame, not the world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadConfiguration;

impl std::fmt::Display for BadConfiguration {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the settings cannot be used")
    }
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When something needed at the start is not to be had; never because of traffic.
pub(crate) fn run(config: ServerConfig) -> Result<()> {
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        tracing::debug!("a TLS provider was installed before");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime")?;
    runtime.block_on(serve(config))
}

async fn serve(config: ServerConfig) -> Result<()> {
    let ServerConfig {
        listen,
        admin_listen,
        ready_file,
        plane,
        limits,
        drain_delay,
        grace,
        traces,
        propagate_trace_context,
        validate_only: _,
    } = config;
    let traces = Traces::start(traces, "tidegate-data-plane", &plane.name);
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let client = PlaneClient::start(plane, &tasks, stop.clone()).context(BadConfiguration)?;
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let clients = bind(listen).await?;
    let admin = match admin_listen {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let mut addresses = BTreeMap::from([("http", clients.local_addr()?)]);
    if let Some(admin) = &admin {
        addresses.insert("admin", admin.local_addr()?);
    }

    let registry = Arc::new(RwLock::new(Registry::default()));
    {
        let mut registry = registry.write();
        let ours = registry.sub_registry_with_prefix("tidegate_dp");
        client.metrics().register(ours);
        traces.metrics().name_in(ours);
        ours.register_collector(Box::new(Footprint::new(Handle::current().metrics())));
    }
    let tracing = Tracing {
        traces: traces.clone(),
        tell_upstreams: propagate_trace_context,
    };
    let proxy = Arc::new(Proxy::new(client, limits, registry, tracing)?);
    let surface = if admin.is_some() {
        Surface::Clients
    } else {
        Surface::Everything
    };
    let listeners = TaskTracker::new();
    for (listener, surface) in [(Some(clients), surface), (admin, Surface::Admin)] {
        if let Some(listener) = listener {
            let proxy = Arc::clone(&proxy);
            listeners.spawn(async move { proxy.serve(listener, surface).await });
        }
    }
    if let Some(path) = &ready_file {
        ready_file::write(path, &addresses)?;
    }
    tracing::info!(?addresses, "the data plane listens");

    asked_to_end(&mut terminate, &mut interrupt).await;
    tracing::info!(?drain_delay, ?grace, "the data plane drains");
    proxy.announce_drain();
    tokio::select! {
        () = tokio::time::sleep(drain_delay) => {}
        // Asked again: at once.
        () = asked_to_end(&mut terminate, &mut interrupt) => {}
    }
    proxy.drain(grace).await;
    stop.cancel();
    tasks.close();
    if tokio::time::timeout(FLUSH, tasks.wait()).await.is_err() {
        tracing::warn!("reports or usage were left undelivered");
    }
    traces.shutdown(TRACES_LIMIT).await;
    tracing::info!("the data plane ended");
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("listening at {address}"))
}

async fn asked_to_end(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

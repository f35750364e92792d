//! Starting and ending.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use secrecy::ExposeSecret as _;
use tidegate_control::plane::{ControlPlane, ControlPlaneConfig, SharedRegistry};
use tidegate_store::durable::DurableStoreError;
use tidegate_store_redis::RedisHotStore;
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_telemetry::{LogOutput, Traces, start_logging};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::task::TaskTracker;

use crate::cli::Command;
use crate::config::Settings;
use crate::ready_file;

/// Pause between two tries to open the database at start.
const OPEN_PAUSE: Duration = Duration::from_millis(500);
/// What the last traces may take at the end.
const TRACES_LIMIT: Duration = Duration::from_secs(2);

/// Runs a command to its end.
pub(crate) fn run(settings: Settings, command: Command) -> Result<ExitCode> {
    start_logging(&settings.log, LogOutput::Stdout)?;
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| anyhow!("another TLS library is installed already"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async move {
        match command {
            Command::Migrate => migrate(settings).await,
            Command::Run => serve(settings).await,
        }
    })
}

async fn migrate(settings: Settings) -> Result<ExitCode> {
    let url = settings.database_url.expose_secret();
    let migrate = async || PgDurableStore::migrate(url, SqlLimits::default()).await;
    patiently(settings.start_limit, migrate)
        .await
        .context("the database was not migrated")?;
    tracing::info!("the database is migrated");
    Ok(ExitCode::SUCCESS)
}

async fn serve(settings: Settings) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let Settings {
        grpc_listen,
        http_listen,
        api_listen,
        database_url,
        migrate,
        redis,
        sealer,
        tokens,
        tls,
        replica,
        ready_file,
        grace,
        decision_limits,
        silence_limit,
        retention,
        start_limit,
        environment,
        traces,
        ..
    } = settings;
    let redis = redis.context("TIDEGATE_REDIS_URL is not set")?;
    let sealer = sealer.context("TIDEGATE_SEALING_KEY is not set")?;
    let open = async || {
        let url = database_url.expose_secret();
        if migrate {
            PgDurableStore::open(url, SqlLimits::default()).await
        } else {
            PgDurableStore::open_migrated(url, SqlLimits::default()).await
        }
    };
    let durable = tokio::select! {
        durable = patiently(start_limit, open) => durable.context("the database was not opened")?,
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    let durable = Arc::new(durable);
    let hot = Arc::new(RedisHotStore::new(&redis)?);
    let (grpc, http) = (bind(grpc_listen).await?, bind(http_listen).await?);
    let api = match api_listen {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let mut addresses =
        BTreeMap::from([("grpc", grpc.local_addr()?), ("http", http.local_addr()?)]);
    if let Some(api) = &api {
        addresses.insert("api", api.local_addr()?);
    }
    let traces = Traces::start(traces, "tidegate-control-plane", &replica);
    let registry = SharedRegistry::default();
    let shown = traces.metrics();
    shown.name_in(registry.write().sub_registry_with_prefix("tidegate_cp"));
    let plane = ControlPlane::start(
        ControlPlaneConfig {
            replica: replica.clone(),
            tokens,
            environment,
            drain_limit: grace,
            decision_limits,
            silence_limit,
            retention,
            registry,
            traces: traces.clone(),
        },
        hot.clone(),
        durable.clone(),
        Arc::new(sealer),
    );
    let tasks = TaskTracker::new();
    let (grpc_tls, api_tls) = tls.map(|tls| (tls.grpc, tls.api)).unzip();
    let mut serving = tasks.spawn(plane.serve_tcp(grpc, grpc_tls)?);
    tasks.spawn(plane.serve_telemetry(http));
    if let Some(api) = api {
        tasks.spawn(plane.serve_api(api, api_tls));
    }
    tracing::info!(%replica, ?addresses, "listening");
    let early = {
        let ready = async {
            plane.ready().await;
            tracing::info!("decisions can be served");
            match &ready_file {
                Some(path) => ready_file::write(path, &addresses),
                None => Ok(()),
            }
        };
        let mut ready = std::pin::pin!(ready);
        let mut told = false;
        loop {
            tokio::select! {
                result = &mut ready, if !told => {
                    result?;
                    told = true;
                }
                _ = terminate.recv() => break None,
                _ = interrupt.recv() => break None,
                ended = &mut serving => break Some(ended),
            }
        }
    };
    tracing::info!("draining");
    let in_time = plane.shutdown().await;
    tasks.close();
    if let Err(_elapsed) = tokio::time::timeout(grace, tasks.wait()).await {
        tracing::warn!("listeners did not end in time");
    }
    traces.shutdown(TRACES_LIMIT).await;
    hot.close().await;
    durable.close().await;
    if let Some(ended) = early {
        ended.context("the gRPC listener failed")??;
        return Err(anyhow!("the gRPC listener ended by itself"));
    }
    if !in_time {
        tracing::warn!("what ran did not end in time");
    }
    tracing::info!("ended");
    Ok(ExitCode::SUCCESS)
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.with_context(|| format!("cannot listen on {address}"))
}

/// Tries again while the database is not there, for at most `limit`.
async fn patiently<T>(
    limit: Duration,
    open: impl AsyncFn() -> Result<T, DurableStoreError>,
) -> Result<T, DurableStoreError> {
    let began = tokio::time::Instant::now();
    loop {
        match open().await {
            Err(error @ (DurableStoreError::Unreachable(_) | DurableStoreError::Contended(_)))
                if began.elapsed() < limit =>
            {
                tracing::warn!(%error, "the database is not there yet");
                tokio::time::sleep(OPEN_PAUSE).await;
            }
            result => return result,
        }
    }
}

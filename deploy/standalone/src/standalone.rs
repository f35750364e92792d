//! Both planes in one process, over an in-process connection.
//!
//! Order of starting: stores, control plane, its listener for `tidegatectl`, the configuration (applied through the same
//! API that `tidegatectl` uses), data plane, its listener. A configuration that is refused ends the start before clients
//! could connect.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use secrecy::SecretString;
use tidegate_control::plane::{
    ControlPlane, ControlPlaneConfig, DEFAULT_SILENCE_LIMIT, DecisionLimits, Retention, Tokens,
};
use tidegate_core::config::{Config, Document};
use tidegate_core::ids::EgressId;
use tidegate_core::settings::Overrides;
use tidegate_document::{Loaded, Machine, exposed};
use tidegate_plane_client::endpoint::{Address, ChannelSettings, channel, in_process};
use tidegate_plane_client::{Limits as PlaneLimits, PlaneClient, PlaneClientConfig};
use tidegate_proto::admin::v1::ApplyConfigurationRequest;
use tidegate_proto::admin::v1::admin_service_client::AdminServiceClient;
use tidegate_proxy::{Heartbeats, Limits, Proxy, Surface, Tracing, UpstreamAuthorities};
use tidegate_store::memory::MemoryHotStore;
use tidegate_store::seal::{Sealer, SealingKey};
use tidegate_store_sql::{SqlLimits, SqliteDurableStore};
use tidegate_telemetry::{TraceSettings, Traces};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic_types::StatusExt as _;

use crate::sealing_key;

/// Name of this process in logs and lists.
const NAME: &str = "standalone";
/// How long the control plane may take until it can decide.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long the data plane may take to deliver its last reports; longer than the client's own limit.
const CLIENT_DRAIN: Duration = Duration::from_secs(6);
/// How long the control plane may take to end.
const CONTROL_DRAIN: Duration = Duration::from_secs(5);
/// How long the last traces may take.
const TRACES_DRAIN: Duration = Duration::from_secs(2);
/// Parts that can fail while running.
const PARTS: usize = 2;
/// Variable of the contract that requires a key even when none is configured.
const REQUIRE_KEY_VARIABLE: &str = "REQUIRE_API_KEY";

/// Where to listen and where to keep things.
#[derive(Debug)]
pub(crate) struct Options {
    /// What `tidegatectl` must show; unset: nothing, since it can only come from this machine.
    pub(crate) admin_token: Option<SecretString>,
    pub(crate) listen: SocketAddr,
    pub(crate) grpc_listen: SocketAddr,
    pub(crate) data: PathBuf,
    pub(crate) require_key: bool,
    /// Who may sign upstreams' certificates besides the roots of the web.
    pub(crate) upstream_authorities: UpstreamAuthorities,
    /// Signs of life in streams.
    pub(crate) heartbeats: Heartbeats,
    /// How traces are made, if they are.
    pub(crate) traces: Option<TraceSettings>,
    /// Upstreams are told which trace an attempt belongs to.
    pub(crate) propagate_trace_context: bool,
}

/// Reads the authorities in a PEM file.
pub(crate) fn authorities(path: &Path) -> Result<UpstreamAuthorities> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    UpstreamAuthorities::from_pem(&text).with_context(|| path.display().to_string())
}

/// The egress identity of the one data plane there is.
const EGRESS: &str = "standalone";

/// Both planes, running.
pub(crate) struct Standalone {
    control: ControlPlane,
    proxy: Arc<Proxy<PlaneClient>>,
    /// Where clients connect.
    pub(crate) http: SocketAddr,
    /// Where `tidegatectl` connects.
    pub(crate) grpc: SocketAddr,
    database: Arc<SqliteDurableStore>,
    traces: Traces,
    stop_client: CancellationToken,
    /// The client's tasks: they end when everything is delivered.
    client_tasks: TaskTracker,
    /// Everything else.
    tasks: TaskTracker,
    failed: tokio::sync::Mutex<mpsc::Receiver<anyhow::Error>>,
}

/// Reads and checks a configuration file with its secrets.
pub(crate) fn load(config: &Path) -> Result<Loaded> {
    let loaded = tidegate_document::load(config, &Machine)?;
    ensure!(
        loaded.document != Document::default(),
        "{} describes nothing",
        config.display()
    );
    let overrides = Overrides::from_environment(contract_variables());
    Config::build(loaded.document.clone(), 1, &overrides).map_err(|violations| {
        let lines: Vec<String> = violations
            .iter()
            .map(|violation| format!("\n  {}: {}", violation.field, violation.message))
            .collect();
        anyhow!("{} is not valid:{}", config.display(), lines.concat())
    })?;
    Ok(loaded)
}

/// Whether the environment asks for a key on every request.
pub(crate) fn key_is_required() -> bool {
    std::env::var(REQUIRE_KEY_VARIABLE).is_ok_and(|value| value == "true")
}

fn contract_variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| Overrides::reads(name))
}

impl Standalone {
    /// Starts everything; returns when clients can connect.
    pub(crate) async fn start(options: Options, loaded: Loaded) -> Result<Self> {
        let admin_token = options.admin_token.clone();
        // Fails only when a provider is installed already, which is then the one in use.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        std::fs::create_dir_all(&options.data)
            .with_context(|| options.data.display().to_string())?;
        let key = SealingKey::parse(&sealing_key::load_or_make(&options.data)?)?;
        let database = Arc::new(
            SqliteDurableStore::open(&options.data.join("tidegate.sqlite"), SqlLimits::default())
                .await?,
        );
        let listener = TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("cannot listen on {}", options.listen))?;
        let grpc_listener = TcpListener::bind(options.grpc_listen)
            .await
            .with_context(|| format!("cannot listen on {}", options.grpc_listen))?;
        let (http, grpc) = (listener.local_addr()?, grpc_listener.local_addr()?);

        let registry = Arc::new(RwLock::new(Registry::default()));
        let traces = Traces::start(options.traces, "tidegate", NAME);
        traces
            .metrics()
            .name_in(registry.write().sub_registry_with_prefix("tidegate_dp"));
        let control = ControlPlane::start(
            ControlPlaneConfig {
                replica: NAME.to_owned(),
                tokens: Tokens {
                    admin: options.admin_token,
                    ..Tokens::default()
                },
                environment: contract_variables().collect(),
                drain_limit: CONTROL_DRAIN,
                decision_limits: DecisionLimits::same_process(),
                silence_limit: DEFAULT_SILENCE_LIMIT,
                retention: Retention::default(),
                registry: Arc::clone(&registry),
                traces: traces.clone(),
            },
            Arc::new(MemoryHotStore::default()),
            Arc::clone(&database) as Arc<_>,
            Arc::new(Sealer::new(&key)?),
        );
        let tasks = TaskTracker::new();
        let (report_failure, failed) = mpsc::channel(PARTS);
        let (address, connections) = in_process(NAME);
        let over_tcp = control.serve_admin_tcp(grpc_listener, None)?;
        let over_memory = control.serve(connections);
        let report = report_failure.clone();
        tasks.spawn(async move {
            if let Err(error) = over_tcp.await {
                // Nobody listens any more when the program is ending.
                drop(report.try_send(error.into()));
            }
        });
        tasks.spawn(async move {
            if let Err(error) = over_memory.await {
                drop(report_failure.try_send(error.into()));
            }
        });
        apply(&address, admin_token.as_ref(), loaded).await?;
        tokio::time::timeout(START_LIMIT, control.ready())
            .await
            .context("the control plane does not become ready")?;

        let stop_client = CancellationToken::new();
        let client_tasks = TaskTracker::new();
        let client = PlaneClient::start(
            PlaneClientConfig {
                limits: PlaneLimits::same_process(),
                ..PlaneClientConfig::new(NAME, vec![address])
            },
            &client_tasks,
            stop_client.clone(),
        )?;
        client
            .metrics()
            .register(registry.write().sub_registry_with_prefix("tidegate_dp"));
        let limits = Limits {
            require_key: options.require_key,
            egress: EgressId::new(EGRESS).ok(),
            upstream_authorities: options.upstream_authorities,
            heartbeats: options.heartbeats,
            ..Limits::default()
        };
        let tracing = Tracing {
            traces: traces.clone(),
            tell_upstreams: options.propagate_trace_context,
        };
        let proxy = Arc::new(Proxy::new(client.clone(), limits, registry, tracing)?);
        tokio::time::timeout(START_LIMIT, async {
            while !client.is_ready() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .context("the data plane does not become ready")?;
        let serving = Arc::clone(&proxy);
        tasks.spawn(async move { serving.serve(listener, Surface::Everything).await });
        tracing::info!(%http, %grpc, "serving");
        Ok(Self {
            control,
            proxy,
            http,
            grpc,
            database,
            traces,
            stop_client,
            client_tasks,
            tasks,
            failed: tokio::sync::Mutex::new(failed),
        })
    }

    /// Waits until a part fails; for ever when none does.
    pub(crate) async fn failed(&self) -> anyhow::Error {
        match self.failed.lock().await.recv().await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    /// Writes the addresses in use.
    pub(crate) fn write_ready_file(&self, path: &Path) -> Result<()> {
        let text = serde_json::json!({
            "http": self.http.to_string(),
            "grpc": self.grpc.to_string(),
        });
        let draft = path.with_extension("draft");
        std::fs::write(&draft, text.to_string())
            .and_then(|()| std::fs::rename(&draft, path))
            .with_context(|| path.display().to_string())
    }

    /// Readiness goes off; connections are still accepted.
    pub(crate) fn announce_drain(&self) {
        self.proxy.announce_drain();
    }

    /// Finishes what runs within `grace`, delivers reports, writes the last checkpoint, ends.
    pub(crate) async fn drain(self, grace: Duration) {
        self.proxy.drain(grace).await;
        // The client delivers what waits while the control plane still takes it.
        self.stop_client.cancel();
        self.client_tasks.close();
        if tokio::time::timeout(CLIENT_DRAIN, self.client_tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("reports were cut off at the end of the drain");
        }
        self.tasks.close();
        if !self.control.shutdown().await {
            tracing::warn!("the control plane was cut off at the end of its limit");
        }
        if tokio::time::timeout(CONTROL_DRAIN, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("tasks were cut off at the end of the drain");
        }
        self.traces.shutdown(TRACES_DRAIN).await;
        self.database.close().await;
    }
}

/// Applies the configuration as `tidegatectl apply --prune` does.
async fn apply(address: &Address, token: Option<&SecretString>, loaded: Loaded) -> Result<()> {
    let made = channel(address, &ChannelSettings::default(), None, token)?;
    let mut request = tonic::Request::new(ApplyConfigurationRequest {
        document: Some(tidegate_wire::document::to_proto(&loaded.document)),
        credentials: exposed(&loaded.credentials),
        refresh_tokens: exposed(&loaded.refresh_tokens),
        client_secrets: exposed(&loaded.client_secrets),
        expected_version: None,
        dry_run: false,
        // The file gives every secret, and nobody else has a key: if ours is new, the old one is lost.
        reseal: true,
        part: None,
        author: String::new(),
    });
    request.set_timeout(START_LIMIT);
    AdminServiceClient::new(made)
        .apply_configuration(request)
        .await
        .map(drop)
        .map_err(|status| {
            let violations: Vec<String> = status
                .get_details_bad_request()
                .into_iter()
                .flat_map(|details| details.field_violations)
                .map(|violation| format!("\n  {}: {}", violation.field, violation.description))
                .collect();
            anyhow!(
                "the configuration is refused: {}{}",
                status.message(),
                violations.concat()
            )
        })
}

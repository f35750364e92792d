//! A control plane: everything wired, started, and ended in order.
//!
//! [`ControlPlane::start`] needs nothing but the two stores, a sealer and what is in [`ControlPlaneConfig`]; it names no
//! adapter, so the standalone binary and tests hand it theirs. What it listens on is handed to it as well: a TCP
//! listener, or any stream of connections.
//!
//! **Ending** ([`ControlPlane::shutdown`]): listeners take nothing new and streams of data planes end, so that they turn
//! to another replica; then the reports that wait are written a last time, and after them the checkpoint. All of it has
//! one limit. The futures that serve end
//! when the requests under way are answered, which is for their owner to await.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use parking_lot::Mutex;
use secrecy::SecretString;
use tidegate_store::durable::DurableStore;
use tidegate_store::hot::HotStore;
use tidegate_store::seal::Sealer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::transport::server::{Connected, TcpIncoming};

pub use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::admin::Admin;
use crate::checkpoint::Checkpoint;
use crate::clock::{Clock, local_now};
use crate::config::Published;
use crate::decide::Decider;
pub use crate::decide::DecisionLimits;
use crate::fleet::Gatherer;
use crate::follow::Follower;
use crate::grpc::server::{Offered, Services, routes, server, show_health};
use crate::handoff::Handoffs;
use crate::hot::Hot;
use crate::lanes::Lanes;
use crate::lease::mirror::Mirror;
use crate::lease::upkeep::Upkeep;
use crate::lease::{self, Leases};
use crate::live::Teller;
use crate::permits::{self, Permits};
use crate::pins::Pins;
use crate::quota_poll::{self, Poller};
use crate::record::history::history;
use crate::record::{Parts, Recorder};
use crate::refresh::{self, Refresher};
use crate::schema::Schemas;
use crate::telemetry;
use crate::telemetry::metrics::Metrics;
pub use crate::telemetry::metrics::SharedRegistry;
use crate::view::View;
use crate::watch::{Live, Watchers};

/// How often [`ControlPlane::ready`] looks.
const READY_POLL: Duration = Duration::from_millis(10);

/// Who may call. Without a token a service is open to everybody who reaches it.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// Of data planes.
    pub data_plane: Option<SecretString>,
    /// Of operators.
    pub admin: Option<SecretString>,
}

/// What a control plane is told.
#[derive(Clone, Debug)]
pub struct ControlPlaneConfig {
    /// Name of this replica, unique in the fleet.
    pub replica: String,
    /// Who may call.
    pub tokens: Tokens,
    /// Contract environment variables that override defaults (`OMNIROUTE_*`), by name. Data planes get the same.
    pub environment: BTreeMap<String, String>,
    /// How long [`ControlPlane::shutdown`] may take.
    pub drain_limit: Duration,
    /// Time limits of decisions.
    pub decision_limits: DecisionLimits,
    /// Where this replica's metrics are named, with the prefix `tidegate_cp`.
    pub registry: SharedRegistry,
}

/// Why a listener is not served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Anybody on the network could call.
    #[error(
        "{address} is not a loopback address, and {missing} is not set: plain access without a token is for loopback only"
    )]
    OpenToNetwork {
        /// The address.
        address: SocketAddr,
        /// What would have to be set.
        missing: &'static str,
    },
    /// The certificate or key is not usable.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] tonic::transport::Error),
    /// The listener has no address.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Why serving ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[error("serving ended: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    services: Services,
    tokens: Tokens,
    hot: Arc<Hot>,
    readiness: Readiness,
    /// Tasks that serve.
    serving: TaskTracker,
    /// Follow and write the hot state.
    recording: Background,
    /// Everything else, what saves the last of the hot state included.
    background: Background,
    drain_limit: Duration,
}

/// Tasks that end together.
#[derive(Debug, Default)]
struct Background {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Background {
    /// Ends them and waits.
    async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Whether decisions can be served.
#[derive(Clone, Debug)]
struct Readiness {
    view: Arc<View>,
    config: Arc<Published>,
    /// Ends what data planes and operators are served with.
    drain: CancellationToken,
}

impl Readiness {
    fn is_ready(&self) -> bool {
        self.config.current().is_some() && self.view.is_filled() && !self.drain.is_cancelled()
    }
}

impl ControlPlane {
    /// Starts the background tasks. Nothing listens yet.
    ///
    /// Neither store needs to answer: [`ControlPlane::ready`] tells when decisions can be served.
    #[must_use]
    pub fn start(
        config: ControlPlaneConfig,
        hot: Arc<dyn HotStore>,
        durable: Arc<dyn DurableStore>,
        sealer: Arc<Sealer>,
    ) -> Self {
        let metrics = Arc::new(Metrics::new(config.registry));
        let clock = Arc::new(Clock::new());
        let view = Arc::new(View::new(local_now()));
        let hot = Arc::new(Hot::new(hot, Arc::clone(&clock), Arc::clone(&metrics)));
        let published = Arc::new(Published::new(
            Arc::clone(&durable),
            Arc::clone(&sealer),
            config.environment,
            Arc::clone(&metrics),
        ));
        let follower = Arc::new(Follower::new(
            Arc::clone(&hot),
            Arc::clone(&durable),
            Arc::clone(&view),
            Arc::clone(&clock),
            Arc::clone(&metrics),
        ));
        let schemas = Arc::new(Schemas::new(&config.replica));
        let (history, history_writer) = history(Arc::clone(&durable), Arc::clone(&metrics));
        let history = Arc::new(history);
        let recorder = Arc::new(Recorder::new(Parts {
            hot: Arc::clone(&hot),
            view: Arc::clone(&view),
            clock: Arc::clone(&clock),
            config: Arc::clone(&published),
            follower: Arc::clone(&follower),
            schemas: Arc::clone(&schemas),
            history: Arc::clone(&history),
            metrics: Arc::clone(&metrics),
        }));
        let checkpoint = Arc::new(Checkpoint::new(
            Arc::clone(&durable),
            Arc::clone(&view),
            Arc::clone(&clock),
            Arc::clone(&metrics),
        ));
        let background = Background::default();
        let refresher = Refresher::new(
            refresh::Parts {
                replica: config.replica.clone(),
                durable: Arc::clone(&durable),
                sealer: Arc::clone(&sealer),
                view: Arc::clone(&view),
                clock: Arc::clone(&clock),
                config: Arc::clone(&published),
                recorder: Arc::clone(&recorder),
                history,
                metrics: Arc::clone(&metrics),
            },
            &background.tasks,
            &background.stop,
        );
        let fleet = Arc::new(Gatherer::new(
            &config.replica,
            Arc::clone(&hot),
            Arc::clone(&clock),
            Arc::clone(&metrics),
        ));
        let quotas = Poller::new(
            quota_poll::Parts {
                durable: Arc::clone(&durable),
                clock: Arc::clone(&clock),
                config: Arc::clone(&published),
                fleet: Arc::clone(&fleet),
                metrics: Arc::clone(&metrics),
            },
            &background.tasks,
            &background.stop,
        );
        let mirror = Arc::new(Mirror {
            hot: Arc::clone(&hot),
            view: Arc::clone(&view),
            clock: Arc::clone(&clock),
            recorder: Arc::clone(&recorder),
            metrics: Arc::clone(&metrics),
        });
        let upkeep = Upkeep::new(
            Arc::clone(&durable),
            Arc::clone(&published),
            Arc::clone(&mirror),
        );
        let live = Live::default();
        let teller = Teller {
            replica: config.replica.clone(),
            hot: Arc::clone(&hot),
            clock: Arc::clone(&clock),
            live: live.clone(),
        };
        let drain = CancellationToken::new();
        let serving = TaskTracker::new();
        let permits = Arc::new(Permits::new(permits::Parts {
            hot: Arc::clone(&hot),
            clock: Arc::clone(&clock),
            config: Arc::clone(&published),
            live: live.clone(),
            metrics: Arc::clone(&metrics),
            replica: config.replica.clone(),
            tasks: serving.clone(),
            drain: drain.clone(),
        }));
        let leases = Arc::new(Leases::new(lease::Parts {
            durable: Arc::clone(&durable),
            view: Arc::clone(&view),
            clock: Arc::clone(&clock),
            config: Arc::clone(&published),
            fleet: Arc::clone(&fleet),
            mirror,
            metrics: Arc::clone(&metrics),
        }));
        let pins = Arc::new(Pins::new(
            Arc::clone(&hot),
            Arc::clone(&clock),
            Arc::clone(&metrics),
        ));
        let pin_keeper = pins.keeper(Arc::clone(&durable));
        let services = Services {
            decider: Arc::new(Decider {
                hot: Arc::clone(&hot),
                view: Arc::clone(&view),
                clock: Arc::clone(&clock),
                config: Arc::clone(&published),
                recorder: Arc::clone(&recorder),
                permits: Arc::clone(&permits),
                leases: Arc::clone(&leases),
                pins: Arc::clone(&pins),
                fleet: Arc::clone(&fleet),
                metrics: Arc::clone(&metrics),
                limits: config.decision_limits,
                unheld_lines: Mutex::default(),
                afterwards: serving.clone(),
            }),
            recorder: Arc::clone(&recorder),
            watchers: Arc::new(Watchers {
                view: Arc::clone(&view),
                config: Arc::clone(&published),
                clock: Arc::clone(&clock),
                metrics: Arc::clone(&metrics),
                live: live.clone(),
            }),
            lanes: Arc::new(Lanes {
                hot: Arc::clone(&hot),
                clock: Arc::clone(&clock),
                metrics: Arc::clone(&metrics),
                lanes: Mutex::default(),
            }),
            handoffs: Arc::new(Handoffs {
                hot: Arc::clone(&hot),
                durable: Arc::clone(&durable),
                sealer,
                clock: Arc::clone(&clock),
                config: Arc::clone(&published),
                fleet: Arc::clone(&fleet),
                metrics: Arc::clone(&metrics),
            }),
            leases,
            admin: Arc::new(Admin {
                replica: config.replica,
                hot: Arc::clone(&hot),
                durable,
                view: Arc::clone(&view),
                clock,
                config: Arc::clone(&published),
                recorder: Arc::clone(&recorder),
                permits,
                pins,
                fleet: Arc::clone(&fleet),
                checkpoint: Arc::clone(&checkpoint),
                schemas: Arc::clone(&schemas),
                metrics: Arc::clone(&metrics),
                live,
            }),
            metrics,
            tasks: serving.clone(),
            drain: drain.clone(),
        };
        let recording = Background::default();
        follower.start(&recording.tasks, &recording.stop);
        recorder.start(&recording.tasks, &recording.stop);
        let Background { tasks, stop } = &background;
        tasks.spawn(history_writer.run(stop.clone()));
        let checkpoint_stop = stop.clone();
        tasks.spawn(async move { checkpoint.run(checkpoint_stop).await });
        tasks.spawn(pin_keeper.run(stop.clone()));
        tasks.spawn(refresher.run());
        tasks.spawn(quotas.run());
        tasks.spawn(upkeep.run(stop.clone()));
        let own_hot = Arc::clone(&hot);
        let own_config = Arc::clone(&published);
        let fleet_config = Arc::clone(&published);
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            tokio::join!(
                schemas.run(own_hot),
                own_config.follow_forever(),
                recorder.adopt_credentials_forever(),
                fleet.run(fleet_config),
                teller.run(),
            );
        }));
        Self {
            services,
            tokens: config.tokens,
            hot,
            readiness: Readiness {
                view,
                config: published,
                drain,
            },
            serving,
            recording,
            background,
            drain_limit: config.drain_limit,
        }
    }

    /// Decisions can be served: there is a configuration and a view, even an old one.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.readiness.is_ready()
    }

    /// Waits until decisions can be served.
    pub async fn ready(&self) {
        while !self.is_ready() {
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// The hot store answered the last call, and the view is complete up to now or nearly.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.hot.answers() && !self.readiness.view.age(local_now()).stale
    }

    /// All gRPC services, guarded by the tokens, with health and reflection. For a server of one's own.
    #[must_use]
    pub fn routes(&self) -> Routes {
        self.routes_of(Offered::Everything)
    }

    fn routes_of(&self, offered: Offered) -> Routes {
        let (routes, reporter) = routes(&self.services, &self.tokens, offered);
        let readiness = self.readiness.clone();
        let health = show_health(reporter, offered, move || readiness.is_ready());
        let Background { tasks, stop } = &self.background;
        tasks.spawn(stop.clone().run_until_cancelled_owned(health));
        routes
    }

    /// Serves gRPC over any stream of connections, until [`ControlPlane::shutdown`].
    ///
    /// # Errors
    /// [`ServeError`] when the stream of connections cannot be served.
    pub fn serve<I, IO, E>(
        &self,
        incoming: I,
    ) -> impl Future<Output = Result<(), ServeError>> + use<I, IO, E>
    where
        I: Stream<Item = Result<IO, E>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    {
        let router = server().add_routes(self.routes());
        let drain = self.readiness.drain.clone();
        async move {
            Ok(router
                .serve_with_incoming_shutdown(incoming, drain.cancelled_owned())
                .await?)
        }
    }

    /// Serves gRPC on a TCP listener, until [`ControlPlane::shutdown`].
    ///
    /// Data planes get the credentials of all connections here. On loopback no token is needed, so that without one
    /// every local user can get them; that is logged.
    ///
    /// # Errors
    /// [`ListenError`] when access would be open to the network, or TLS cannot be set up.
    pub fn serve_tcp(
        &self,
        listener: TcpListener,
        tls: Option<ServerTlsConfig>,
    ) -> Result<impl Future<Output = Result<(), ServeError>> + use<>, ListenError> {
        let address = listener.local_addr()?;
        self.tokens.allow(address)?;
        if self.tokens.data_plane.is_none() {
            tracing::warn!(
                %address,
                "the token of data planes is not set: every local user can read the credentials of all connections here"
            );
        }
        self.serve_listener(listener, tls, Offered::Everything)
    }

    /// Serves operators only on a TCP listener, until [`ControlPlane::shutdown`]: administration, health and
    /// reflection. For a process that has its data plane inside it, so that no credential leaves it.
    ///
    /// # Errors
    /// [`ListenError`] when access would be open to the network, or TLS cannot be set up.
    pub fn serve_admin_tcp(
        &self,
        listener: TcpListener,
        tls: Option<ServerTlsConfig>,
    ) -> Result<impl Future<Output = Result<(), ServeError>> + use<>, ListenError> {
        self.tokens.allow_operators(listener.local_addr()?)?;
        self.serve_listener(listener, tls, Offered::Administration)
    }

    fn serve_listener(
        &self,
        listener: TcpListener,
        tls: Option<ServerTlsConfig>,
        offered: Offered,
    ) -> Result<impl Future<Output = Result<(), ServeError>> + use<>, ListenError> {
        let mut server = server();
        if let Some(tls) = tls {
            server = server.tls_config(tls).map_err(ListenError::Tls)?;
        }
        let router = server.add_routes(self.routes_of(offered));
        let drain = self.readiness.drain.clone();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Ok(async move {
            Ok(router
                .serve_with_incoming_shutdown(incoming, drain.cancelled_owned())
                .await?)
        })
    }

    /// Serves `/livez`, `/readyz` and `/metrics` until [`ControlPlane::shutdown`] is done.
    pub fn serve_telemetry(&self, listener: TcpListener) -> impl Future<Output = ()> + use<> {
        let readiness = self.readiness.clone();
        let is_ready = Arc::new(move || readiness.is_ready());
        telemetry::http::serve(
            listener,
            Arc::clone(&self.services.metrics),
            is_ready,
            self.background.tasks.clone(),
            self.background.stop.clone(),
        )
    }

    /// Ends everything in order. Returns whether that was done within the limit.
    pub async fn shutdown(self) -> bool {
        let Self {
            services,
            readiness,
            serving,
            recording,
            background,
            drain_limit,
            ..
        } = self;
        drop(services);
        let ending = async {
            readiness.drain.cancel();
            serving.close();
            serving.wait().await;
            // The last save of the checkpoint must know the last write of the recorder.
            recording.end().await;
            background.end().await;
        };
        tokio::time::timeout(drain_limit, ending).await.is_ok()
    }
}

impl Tokens {
    /// Whether a listener for operators only may be served with these.
    fn allow_operators(&self, address: SocketAddr) -> Result<(), ListenError> {
        if self.admin.is_some() || address.ip().is_loopback() {
            return Ok(());
        }
        let missing = "the token of operators";
        Err(ListenError::OpenToNetwork { address, missing })
    }

    /// Whether a listener may be served with these.
    fn allow(&self, address: SocketAddr) -> Result<(), ListenError> {
        let missing = match (&self.data_plane, &self.admin) {
            (Some(_), Some(_)) => return Ok(()),
            (None, _) => "the token of data planes",
            (Some(_), None) => "the token of operators",
        };
        if address.ip().is_loopback() {
            return Ok(());
        }
        Err(ListenError::OpenToNetwork { address, missing })
    }
}

//! One proxy: what all its requests share, and how it starts and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use tidegate_plane_client::Snapshot;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::control_port::ControlPort;
use crate::endpoint::{Guard, Route};
use crate::handle::management::Forwarding;
use crate::handle::read::Unread;
use crate::idempotency::Repetitions;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::occupants::Occupants;
use crate::queues::Queues;
use crate::retries::Retries;
use crate::server;
use crate::spans::Tracing;
use crate::upstream::Upstream;
use crate::waiting_room::WaitingRoom;

/// Time for clients to take the in-band error of a stream that was ended by a drain.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Connections at once to listeners of [`Surface::Admin`], which clients must not be able to use up.
const MAX_ADMIN_CONNECTIONS: usize = 64;

/// Most notes that are made at once.
const MAX_HANDOFFS: usize = 32;

/// What a listener answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// Clients' paths and the process's own.
    Everything,
    /// `/v1/*` and `/api/v1/*` only.
    Clients,
    /// `/livez`, `/readyz` and `/metrics` only.
    Admin,
}

/// A path that a proxy serves, for whoever checks that none is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The path.
    pub path: &'static str,
    /// The methods for an `Allow` header; every other one is 405.
    pub allow: &'static str,
    /// Who gets an answer.
    pub guard: Guard,
    /// It is of [`Surface::Admin`], not of [`Surface::Clients`].
    pub is_admin: bool,
}

/// Every path of [`Surface::Everything`].
pub fn served() -> impl Iterator<Item = Served> {
    let all = Route::all().iter();
    all.map(|(path, route)| Served {
        path,
        allow: route.allow(),
        guard: route.guard(),
        is_admin: Surface::Admin.answers(*route),
    })
}

/// A proxy that serves any number of listeners until it is drained.
#[derive(Debug)]
pub struct Proxy<C> {
    shared: Arc<Shared<C>>,
}

/// What all requests of a proxy share.
#[derive(Debug)]
pub(crate) struct Shared<C> {
    pub(crate) control: C,
    pub(crate) upstream: Upstream,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    pub(crate) tracing: Tracing,
    pub(crate) registry: Arc<RwLock<Registry>>,
    /// Room for requests that wait for a cooldown.
    pub(crate) waiting: WaitingRoom,
    /// Room for notes that are being made.
    pub(crate) handoffs: Arc<Semaphore>,
    /// How much of what is in flight are retries.
    pub(crate) retries: Arc<Retries>,
    /// Requests that wait until their connections may take them.
    pub(crate) queues: Queues,
    /// Requests with an `Idempotency-Key`.
    pub(crate) repetitions: Arc<Repetitions>,
    /// Which OAuth accounts sessions are using.
    pub(crate) occupants: Arc<Occupants>,
    /// Requests that the control plane answers.
    pub(crate) forwarding: Forwarding,
    /// Room for bodies of requests whose heads are refused.
    pub(crate) unread: Unread,
    /// Room for one who asks which models can be had.
    pub(crate) models_health: Semaphore,
    /// Room for client connections.
    connections: Arc<Semaphore>,
    /// Room for connections to the process's own paths.
    admin_connections: Arc<Semaphore>,
    /// Connections and everything they started.
    pub(crate) tasks: TaskTracker,
    /// No new connections and no further requests on old ones.
    pub(crate) stop: CancellationToken,
    /// What still runs ends now.
    pub(crate) end: CancellationToken,
    draining: AtomicBool,
    request_prefix: u32,
    request_number: AtomicU64,
}

/// Why a proxy could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// TLS towards providers.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

impl<C: ControlPort> Proxy<C> {
    /// Makes a proxy. Its metrics are added to `registry`, which `/metrics` shows.
    ///
    /// # Errors
    /// When TLS towards providers cannot be set up.
    pub fn new(
        control: C,
        limits: Limits,
        registry: Arc<RwLock<Registry>>,
        tracing: Tracing,
    ) -> Result<Self, StartError> {
        let metrics = Metrics::register(&mut registry.write());
        let shared = Shared {
            control,
            upstream: Upstream::new(
                &limits.upstream_authorities,
                metrics.upstream_resends.clone(),
            )?,
            waiting: WaitingRoom::default(),
            handoffs: Arc::new(Semaphore::new(MAX_HANDOFFS)),
            retries: Arc::default(),
            queues: Queues::new(metrics.queued.clone()),
            repetitions: Repetitions::new(limits.idempotency, limits.max_waiting, metrics.clone()),
            occupants: Arc::new(Occupants::new(
                metrics.oauth_occupants.clone(),
                metrics.oauth_occupants_unknown.clone(),
            )),
            forwarding: Forwarding::default(),
            unread: Unread::default(),
            models_health: Semaphore::new(1),
            connections: Arc::new(Semaphore::new(
                limits.max_connections.min(Semaphore::MAX_PERMITS),
            )),
            admin_connections: Arc::new(Semaphore::new(MAX_ADMIN_CONNECTIONS)),
            limits,
            metrics,
            tracing,
            registry,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            end: CancellationToken::new(),
            draining: AtomicBool::new(false),
            request_prefix: rand::random(),
            request_number: AtomicU64::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Accepts connections until [`Proxy::drain`] is called.
    pub async fn serve(&self, listener: TcpListener, surface: Surface) {
        server::accept(&self.shared, listener, surface).await;
    }

    /// Readiness goes off; connections are still accepted, so that balancers can notice.
    pub fn announce_drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    /// Stops accepting, lets what runs finish within `grace`, ends the rest with the in-band error, and
    /// returns when no connection is left, at most two seconds after `grace`.
    pub async fn drain(&self, grace: Duration) {
        self.announce_drain();
        self.shared.stop.cancel();
        self.shared.tasks.close();
        if tokio::time::timeout(grace, self.shared.tasks.wait())
            .await
            .is_err()
        {
            self.shared.end.cancel();
            let rest = tokio::time::timeout(LAST_WORDS, self.shared.tasks.wait()).await;
            if rest.is_err() {
                let connections = self.shared.tasks.len();
                tracing::warn!(
                    connections,
                    "connections were cut off at the end of the drain"
                );
            }
        }
    }
}

impl<C: ControlPort> Shared<C> {
    /// Room for connections to a listener of `surface`.
    pub(crate) fn room(&self, surface: Surface) -> &Arc<Semaphore> {
        match surface {
            Surface::Everything | Surface::Clients => &self.connections,
            Surface::Admin => &self.admin_connections,
        }
    }

    /// Requests can be served (decision 55).
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_draining() && self.control.is_ready()
    }

    /// The process was asked to end, and balancers are looking elsewhere.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// The configuration in force. That nothing was ever applied is as good as none: nobody can be served, and that no
    /// key is named there yet must not open any door.
    pub(crate) fn configured(&self) -> Option<Arc<Snapshot>> {
        let snapshot = self.control.snapshot();
        snapshot.filter(|snapshot| snapshot.config.version > 0)
    }

    /// A name for a request, unique enough to find it in the logs of a fleet.
    pub(crate) fn next_request_id(&self) -> String {
        let number = self.request_number.fetch_add(1, Ordering::Relaxed);
        format!("req_{:08x}{number:08x}", self.request_prefix)
    }
}

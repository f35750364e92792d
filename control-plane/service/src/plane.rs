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

mod serving;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::usage::MIN_SILENCE_MS;
use tidegate_store::durable::DurableStore;
use tidegate_store::hot::HotStore;
use tidegate_store::seal::Sealer;
use tidegate_telemetry::Traces;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use serving::{ListenError, ServeError, SharedToken, Tokens};
pub use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::access::Access;
use crate::admin::Admin;
use crate::checkpoint::Checkpoint;
use crate::clock::{Clock, local_now};
use crate::config::Published;
use crate::decide::Decider;
pub use crate::decide::DecisionLimits;
use crate::events::Events;
use crate::fleet::Gatherer;
use crate::follow::Follower;
pub use crate::grpc::rules::{GrpcMethod, grpc_methods};
use crate::grpc::server::Services;
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
use crate::rest::Rest;
pub use crate::rest::{ApiTls, ApiTlsError};
use crate::retention::Cleaner;
pub use crate::retention::Retention;
use crate::schema::Schemas;
use crate::telemetry::metrics::Metrics;
pub use crate::telemetry::metrics::SharedRegistry;
use crate::usage::Usages;
use crate::usage::reaper::Reaper;
use crate::view::View;
use crate::watch::{Live, Watchers};

/// A data plane with answers under way that is silent for so long is taken for lost, unless told otherwise.
pub const DEFAULT_SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// Of a shorter silence a data plane that lives may be taken for lost.
pub const MIN_SILENCE_LIMIT: Duration = Duration::from_millis(MIN_SILENCE_MS);
/// How often [`ControlPlane::ready`] looks.
const READY_POLL: Duration = Duration::from_millis(10);

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
    /// A data plane that has answers under way and is silent for so long is lost.
    pub silence_limit: Duration,
    /// How long history is kept.
    pub retention: Retention,
    /// Where this replica's metrics are named, with the prefix `tidegate_cp`.
    pub registry: SharedRegistry,
    /// Makes spans of decisions, or does not.
    pub traces: Traces,
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    services: Services,
    tokens: Tokens,
    access: Access,
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
        metrics.show_foresight(Arc::clone(&durable));
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
        let usages = Arc::new(Usages {
            durable: Arc::clone(&durable),
            metrics: Arc::clone(&metrics),
            silence_limit: config.silence_limit,
        });
        let reaper = Reaper::new(
            Arc::clone(&durable),
            Arc::clone(&metrics),
            config.silence_limit,
        );
        let cleaner = Cleaner {
            durable: Arc::clone(&durable),
            clock: Arc::clone(&clock),
            metrics: Arc::clone(&metrics),
            retention: config.retention,
        };
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
        let events = Arc::new(Events::new(Arc::clone(&durable), Arc::clone(&metrics)));
        let lanes = Arc::new(Lanes {
            hot: Arc::clone(&hot),
            clock: Arc::clone(&clock),
            metrics: Arc::clone(&metrics),
            lanes: Mutex::default(),
        });
        let pin_keeper = pins.keeper(Arc::clone(&durable));
        let access = Access::new(&config.tokens, Arc::clone(&published), Arc::clone(&metrics));
        let admin = Arc::new(Admin {
            leases: Arc::clone(&leases),
            events: Arc::clone(&events),
            replica: config.replica,
            hot: Arc::clone(&hot),
            durable: Arc::clone(&durable),
            view: Arc::clone(&view),
            clock: Arc::clone(&clock),
            config: Arc::clone(&published),
            recorder: Arc::clone(&recorder),
            permits: Arc::clone(&permits),
            lanes: Arc::clone(&lanes),
            pins: Arc::clone(&pins),
            fleet: Arc::clone(&fleet),
            checkpoint: Arc::clone(&checkpoint),
            schemas: Arc::clone(&schemas),
            metrics: Arc::clone(&metrics),
            live: live.clone(),
        });
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
                live,
            }),
            lanes: Arc::clone(&lanes),
            handoffs: Arc::new(Handoffs {
                hot: Arc::clone(&hot),
                durable: Arc::clone(&durable),
                sealer,
                clock: Arc::clone(&clock),
                config: Arc::clone(&published),
                fleet: Arc::clone(&fleet),
                metrics: Arc::clone(&metrics),
            }),
            leases: Arc::clone(&leases),
            traces: config.traces,
            usages,
            rest: Rest::new(Arc::clone(&admin), access.clone(), serving.clone()),
            admin,
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
                reaper.run(),
                cleaner.run(),
                events.run(),
            );
        }));
        Self {
            services,
            access,
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

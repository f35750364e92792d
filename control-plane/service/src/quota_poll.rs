//! Asks quota endpoints what is left of each connection's quotas (decision 39).
//!
//! One replica does it for the fleet, the one that leads the task ([`crate::lead`]); when a connection is due is the
//! core's affair ([`tidegate_core::telemetry::quota::Poll`]). What an endpoint tells goes where the quotas in headers go
//! ([`crate::fleet`]), so that every replica knows it about a second later. A poll that fails changes nothing: what was
//! told last stands, and its age shows. A quota is only a hint, so a poll never counts for or against a connection.
//!
//! **Stance:** without the durable store nobody polls; quotas age, and traffic goes on. **Bounds:** [`AT_ONCE`] polls, each
//! with the limits of its endpoint; what is due and has no room waits, the longest due first. Nobody claims the lead, and
//! nothing is asked, while no endpoint is configured.

mod endpoint;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_core::config::{Config, Connection, QuotaAuthentication, QuotaEndpoint};
use tidegate_core::ids::ConnectionId;
use tidegate_core::random::Random;
use tidegate_core::telemetry::QuotaSnapshot;
use tidegate_core::telemetry::quota::{Poll, QuotaSource};
use tidegate_core::time::Timestamp;
use tidegate_store::durable::DurableStore;
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, local_now};
use crate::config::{Current, Published};
use crate::fleet::Gatherer;
use crate::lead::Lead;
use crate::outbound::Outbound;
use crate::telemetry::metrics::{Metrics, QuotaPoll};

use endpoint::{NotTold, Question};

/// The task that one replica leads. Part of the contract between replicas of different releases.
const TASK: &str = "quota-polls";
/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(250);
/// Between two confirmations of the lead.
const LEAD_EVERY: Duration = Duration::from_secs(1);
/// Most polls under way.
const AT_ONCE: usize = 16;

/// What the poller is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) durable: Arc<dyn DurableStore>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) config: Arc<Published>,
    pub(crate) fleet: Arc<Gatherer>,
    pub(crate) metrics: Arc<Metrics>,
}

/// Polls.
#[derive(Debug)]
pub(crate) struct Poller {
    parts: Parts,
    lead: Lead,
    outbound: Outbound,
    plan: Mutex<Plan>,
    room: Arc<Semaphore>,
    begun: Instant,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What is polled, and when.
#[derive(Debug, Default)]
struct Plan {
    /// The configuration that it is made of.
    of: Option<Arc<Current>>,
    polled: BTreeMap<ConnectionId, Polled>,
    /// Number of the last entry that was made.
    last: u64,
}

/// A connection whose endpoint is asked.
#[derive(Debug)]
struct Polled {
    /// Another one with each change of what is asked, so that a late answer to an older question is not taken.
    number: u64,
    endpoint: Arc<QuotaEndpoint>,
    credential_version: u64,
    poll: Poll,
    under_way: bool,
}

impl Plan {
    /// Begins anew, on what is known then.
    fn forget(&mut self) {
        self.of = None;
        self.polled.clear();
    }
}

/// A poll that begins.
struct Begun {
    connection: ConnectionId,
    number: u64,
    endpoint: Arc<QuotaEndpoint>,
}

impl Poller {
    pub(crate) fn new(parts: Parts, tasks: &TaskTracker, stop: &CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            lead: Lead::new(TASK, Arc::clone(&parts.durable)),
            parts,
            outbound: Outbound::new(),
            plan: Mutex::default(),
            room: Arc::new(Semaphore::new(AT_ONCE)),
            begun: local_now(),
            tasks: tasks.clone(),
            stop: stop.clone(),
        })
    }

    /// Polls whenever this replica leads, until told to stop; then gives the lead back.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut claimed: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.stop.cancelled() => break,
            }
            let current = self.parts.config.current();
            let Some(current) = current.filter(|current| has_endpoints(&current.config)) else {
                self.step_down().await;
                claimed = None;
                continue;
            };
            // Before anything is asked, also after this process was stopped for a while.
            let since = claimed.map(|claimed| local_now().saturating_duration_since(claimed));
            if since.is_none_or(|since| since >= LEAD_EVERY) {
                if self.lead.claim().await {
                    self.plan.lock().forget();
                }
                claimed = Some(local_now());
            }
            let leads = self.lead.is_held();
            self.parts.metrics.quota.leads(leads);
            let waiting = if leads { self.sweep(&current) } else { 0 };
            self.parts.metrics.quota.waiting(waiting);
        }
        self.step_down().await;
    }

    async fn step_down(&self) {
        self.lead.resign().await;
        self.parts.metrics.quota.leads(false);
        self.parts.metrics.quota.waiting(0);
    }

    /// Starts what is due, as far as there is room. Returns how many polls wait.
    fn sweep(self: &Arc<Self>, current: &Arc<Current>) -> u64 {
        let now = self.now();
        let mut plan = self.plan.lock();
        if !plan.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, current)) {
            self.renew(&mut plan, current, now);
        }
        let polled = plan.polled.iter_mut();
        let mut due: Vec<_> = polled
            .filter(|(_, polled)| !polled.under_way && polled.poll.due_at() <= now)
            .collect();
        due.sort_by_key(|(_, polled)| polled.poll.due_at());
        let mut waiting: u64 = 0;
        for (connection, polled) in due {
            let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
                waiting = waiting.saturating_add(1);
                continue;
            };
            polled.under_way = true;
            let begun = Begun {
                connection: connection.clone(),
                number: polled.number,
                endpoint: Arc::clone(&polled.endpoint),
            };
            let (poller, current) = (Arc::clone(self), Arc::clone(current));
            self.tasks.spawn(async move {
                let stop = poller.stop.clone();
                stop.run_until_cancelled(poller.poll(begun, &current)).await;
                drop(place);
            });
        }
        waiting
    }

    /// Makes the plan anew of a configuration, and keeps what did not change.
    fn renew(&self, plan: &mut Plan, current: &Arc<Current>, now: Timestamp) {
        let mut before = std::mem::take(&mut plan.polled);
        for connection in current.config.connections.values() {
            let Some(endpoint) = endpoint_of(&current.config, connection) else {
                continue;
            };
            let credential = current.credentials.get(&connection.id);
            if credential.is_none() && endpoint.authentication != QuotaAuthentication::None {
                continue;
            }
            let version = credential.map_or(0, |credential| credential.version);
            let before = before.remove(&connection.id);
            // What an earlier account or endpoint told says nothing of when to ask this one.
            let is_changed = before.is_some();
            let same = before.filter(|before| {
                *before.endpoint == *endpoint && before.credential_version == version
            });
            let polled = same.unwrap_or_else(|| {
                plan.last = plan.last.saturating_add(1);
                Polled {
                    number: plan.last,
                    poll: self.first(&connection.id, endpoint, is_changed, now),
                    endpoint: Arc::new(endpoint.clone()),
                    credential_version: version,
                    under_way: false,
                }
            });
            plan.polled.insert(connection.id.clone(), polled);
        }
        plan.of = Some(Arc::clone(current));
    }

    fn first(
        &self,
        connection: &ConnectionId,
        endpoint: &QuotaEndpoint,
        is_changed: bool,
        now: Timestamp,
    ) -> Poll {
        let told = self.parts.fleet.told(connection);
        let store_now = self.parts.clock.now();
        let age_ms = told
            .get(&QuotaSource::Fetched)
            .filter(|_| !is_changed)
            .map(|quota| store_now.ms_since(quota.observed_at));
        Poll::begin(endpoint.interval_ms, age_ms, now, &mut random())
    }

    async fn poll(&self, begun: Begun, current: &Current) {
        let asked_at = self.now();
        let answer = self.ask(&begun, current).await;
        let now = self.now();
        let Begun {
            connection, number, ..
        } = begun;
        let mut plan = self.plan.lock();
        let polled = plan.polled.get_mut(&connection);
        let polled = polled.filter(|polled| polled.number == number);
        let result = answer.and_then(|quota| match &polled {
            // The answer of another account, or to an older question.
            None => Ok(()),
            Some(_) => self.take(&connection, quota),
        });
        self.parts.metrics.quota.poll(match &result {
            Ok(()) => QuotaPoll::Ok,
            Err(error) => error.label(),
        });
        let Some(polled) = polled else {
            return;
        };
        polled.under_way = false;
        let failed_before = polled.poll.failures() > 0;
        match result {
            Ok(()) => {
                polled.poll.succeed(asked_at, &mut random());
                if failed_before {
                    tracing::info!(%connection, "a quota endpoint tells again");
                }
            }
            Err(error) => {
                polled.poll.fail(error.wait_ms(), now, &mut random());
                // Once, until it tells again.
                if !failed_before {
                    tracing::warn!(%connection, %error, "a quota was not told");
                }
            }
        }
    }

    async fn ask(&self, begun: &Begun, current: &Current) -> Result<QuotaSnapshot, NotTold> {
        let connection = current.config.connection(&begun.connection);
        let provider =
            connection.and_then(|connection| current.config.provider(&connection.provider));
        let question = Question {
            endpoint: &begun.endpoint,
            protocol: provider.ok_or(NotTold::NoRoom)?.provider.protocol,
            credential: current
                .credentials
                .get(&begun.connection)
                .map(|credential| credential.secret()),
        };
        let now = || self.parts.clock.now();
        endpoint::ask(&self.outbound, &question, now).await
    }

    fn take(&self, connection: &ConnectionId, quota: QuotaSnapshot) -> Result<(), NotTold> {
        let fleet = &self.parts.fleet;
        fleet
            .add_quota(connection.clone(), QuotaSource::Fetched, quota)
            .map(drop)
            .map_err(|_full| NotTold::NoRoom)
    }

    /// Time of this process, which does not go back.
    fn now(&self) -> Timestamp {
        let since = local_now().saturating_duration_since(self.begun);
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Where the quotas of a connection are asked for; nowhere while it is switched off.
pub(crate) fn endpoint_of<'a>(
    config: &'a Config,
    connection: &'a Connection,
) -> Option<&'a QuotaEndpoint> {
    if !connection.enabled {
        return None;
    }
    let of_provider = || {
        let entry = config.provider(&connection.provider)?;
        entry.provider.quota_endpoint.as_ref()
    };
    connection.quota_endpoint.as_ref().or_else(of_provider)
}

fn has_endpoints(config: &Config) -> bool {
    let document = &config.document;
    let of_providers = document.providers.iter();
    let of_connections = document.connections.iter();
    of_providers
        .map(|it| &it.quota_endpoint)
        .any(Option::is_some)
        || of_connections
            .map(|it| &it.quota_endpoint)
            .any(Option::is_some)
}

fn random() -> Random {
    Random::new(rand::random())
}

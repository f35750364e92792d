//! The configuration in force: loaded, followed, replaced.
//!
//! The truth is one versioned document in the durable store. Every replica polls its version, builds the document and
//! swaps it in as one immutable snapshot, credentials opened. Its settings are read leniently: whatever stands there
//! gives settings that can be run, and what was mended is logged. A document that does not validate otherwise, or whose
//! credentials cannot be opened, never replaces a good one; it is logged and counted, and what was good stays in force.
//!
//! **Stance:** fail-open for reading: with the durable store away, the last configuration stays in force. Fail-closed
//! for writing ([`apply`]). **Staleness:** a change is in force within a second everywhere, at once where it was made.

pub(crate) mod apply;
pub(crate) mod change;
mod credentials;
mod difference;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tidegate_core::config::{ApiKey, Config};
use tidegate_core::ids::{ConnectionId, KeyId};
use tidegate_core::routing::Counters;
use tidegate_core::settings::Overrides;
use tidegate_proto::config::v1 as proto;
use tidegate_store::durable::{DurableStore, DurableStoreError, StoredDocument, StoredVersion};
use tidegate_store::seal::Sealer;
use tidegate_wire as wire;
use tokio::sync::{Mutex, Notify, watch};

use crate::clock::local_now;
use crate::telemetry::metrics::{Metrics, gauge_value};

pub(crate) use credentials::Credential;

/// How often the version of the document is asked for.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// How long a version that did not come is not waited for again.
const MISSED_FOR: Duration = Duration::from_secs(1);
/// Failures in a row of which one is logged.
const LOG_EACH_FAILURES: u32 = 20;
/// Limit of the cheap question (decision 54).
const POLL_LIMIT: Duration = Duration::from_millis(500);
/// Limit of loading and saving, which may be large.
pub(crate) const DOCUMENT_LIMIT: Duration = Duration::from_secs(10);

/// A configuration in force.
#[derive(Debug)]
pub(crate) struct Current {
    /// Validated and indexed.
    pub(crate) config: Arc<Config>,
    /// Clients' keys by id.
    pub(crate) keys: HashMap<KeyId, Arc<ApiKey>>,
    /// Credentials in the clear.
    pub(crate) credentials: BTreeMap<ConnectionId, Credential>,
    /// Grows with each renewed access token, while the version stays.
    pub(crate) secrets_revision: u64,
    /// Whose turn it is.
    pub(crate) counters: Arc<Counters>,
    /// The same as data planes get it.
    pub(crate) snapshot: Arc<proto::Snapshot>,
}

/// The configuration in force, and how it is replaced.
#[derive(Debug)]
pub(crate) struct Published {
    current: ArcSwapOption<Current>,
    version: watch::Sender<Option<u64>>,
    durable: Arc<dyn DurableStore>,
    sealer: Arc<Sealer>,
    environment: BTreeMap<String, String>,
    overrides: Overrides,
    metrics: Arc<Metrics>,
    /// One load or apply at a time.
    turn: Mutex<Turn>,
    wake: Notify,
    /// A version that was waited for in vain, and when.
    missed: parking_lot::Mutex<Option<(u64, Instant)>>,
}

#[derive(Debug, Default)]
struct Turn {
    /// The stored version that was found not to be usable. Building it again would come to the same, so it is not tried
    /// again; another version is, and a process with another sealing key.
    refused: Option<StoredVersion>,
}

/// Why a stored document is not in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Store(#[from] DurableStoreError),
    #[error("the durable store did not answer in time")]
    Timeout,
    #[error("the stored configuration {version} does not validate: {first}")]
    Invalid { version: u64, first: String },
    #[error("a credential of the stored configuration {version} cannot be opened: {reason}")]
    Sealed { version: u64, reason: String },
}

impl Published {
    /// Nothing in force yet. `environment` holds contract variables that override defaults.
    pub(crate) fn new(
        durable: Arc<dyn DurableStore>,
        sealer: Arc<Sealer>,
        environment: BTreeMap<String, String>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let overrides = Overrides::from_environment(&environment);
        Self {
            current: ArcSwapOption::empty(),
            version: watch::Sender::new(None),
            durable,
            sealer,
            environment,
            overrides,
            metrics,
            turn: Mutex::default(),
            wake: Notify::new(),
            missed: parking_lot::Mutex::default(),
        }
    }

    /// What is in force.
    pub(crate) fn current(&self) -> Option<Arc<Current>> {
        self.current.load_full()
    }

    /// What is in force, once it has this version or a newer one. A data plane may have heard of a change before this
    /// replica's next poll; then it is fetched now. At `deadline`, what is in force anyway.
    pub(crate) async fn at_least(&self, version: u64, deadline: Instant) -> Option<Arc<Current>> {
        let current = self.current();
        let known = current.as_ref().map(|current| current.config.version);
        let now = local_now();
        let in_vain = |(missed, at): (u64, Instant)| {
            missed >= version && now.saturating_duration_since(at) < MISSED_FOR
        };
        if known.unwrap_or(0) >= version || self.missed.lock().is_some_and(in_vain) {
            return current;
        }
        self.wake.notify_one();
        let mut versions = self.version.subscribe();
        let comes = versions.wait_for(|known| known.is_some_and(|known| known >= version));
        if tokio::time::timeout_at(deadline.into(), comes)
            .await
            .is_err()
        {
            *self.missed.lock() = Some((version, now));
        }
        self.current()
    }

    /// What the environment of this replica says.
    pub(crate) fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// The validated document in force.
    pub(crate) fn config(&self) -> Option<Arc<Config>> {
        let current = self.current.load();
        current.as_ref().map(|current| Arc::clone(&current.config))
    }

    /// Tells each new version, and the same again when credentials were renewed.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<u64>> {
        self.version.subscribe()
    }

    /// Follows the stored document for ever.
    pub(crate) async fn follow_forever(&self) {
        let mut failures: u32 = 0;
        loop {
            match self.refresh().await {
                Ok(()) => failures = 0,
                Err(error) => {
                    if failures.is_multiple_of(LOG_EACH_FAILURES) {
                        tracing::warn!(%error, "the configuration could not be refreshed");
                    }
                    failures = failures.wrapping_add(1);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_EVERY) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Loads the stored document if it is another than the one in force.
    pub(crate) async fn refresh(&self) -> Result<(), LoadError> {
        let mut turn = self.turn.lock().await;
        let known = self.current.load().as_ref().map(|it| it.stored_version());
        let stored = limited(POLL_LIMIT, self.durable.stored_version()).await?;
        if known == Some(stored) || turn.refused == Some(stored) {
            return Ok(());
        }
        let stored = limited(DOCUMENT_LIMIT, self.durable.load_document()).await?;
        self.take(stored, &mut turn)
    }

    /// Puts a stored document in force, if it is good.
    fn take(&self, stored: StoredDocument, turn: &mut Turn) -> Result<(), LoadError> {
        let version = stored.version;
        let revision = stored.secrets.revision;
        let stored_version = stored.stored_version();
        match self.build(stored) {
            Ok(current) => {
                turn.refused = None;
                let is_new = self.config().is_none_or(|it| it.version != version);
                if let Some(first) = current.config.mended.first().filter(|_| is_new) {
                    let count = current.config.mended.len();
                    tracing::warn!(version, count, field = %first.field, what = %first.message, "stored settings were mended");
                }
                self.metrics
                    .configuration_version
                    .set(gauge_value(current.config.version));
                self.current.store(Some(Arc::new(current)));
                self.version.send_replace(Some(version));
                tracing::info!(version, revision, "configuration is in force");
                Ok(())
            }
            Err(error) => {
                turn.refused = Some(stored_version);
                self.metrics.bad_configurations.inc();
                Err(error)
            }
        }
    }

    fn build(&self, stored: StoredDocument) -> Result<Current, LoadError> {
        let version = stored.version;
        let secrets_revision = stored.secrets.revision;
        let credentials = credentials::open(&self.sealer, &stored.secrets.credentials)
            .map_err(|reason| LoadError::Sealed { version, reason })?;
        let in_force = self.current();
        if let Some(current) = in_force
            .as_ref()
            .filter(|current| current.config.version == version)
        {
            // Only access tokens were renewed.
            let snapshot = proto::Snapshot {
                credentials: credentials::to_proto(&credentials),
                credentials_revision: secrets_revision,
                ..proto::Snapshot::clone(&current.snapshot)
            };
            return Ok(Current {
                config: Arc::clone(&current.config),
                keys: current.keys.clone(),
                credentials,
                secrets_revision,
                counters: Arc::clone(&current.counters),
                snapshot: Arc::new(snapshot),
            });
        }
        let config =
            Config::build_stored(stored.document, version, &self.overrides).map_err(|found| {
                let first = found
                    .first()
                    .map(|violation| format!("{}: {}", violation.field, violation.message))
                    .unwrap_or_default();
                LoadError::Invalid { version, first }
            })?;
        let snapshot = proto::Snapshot {
            version,
            document: Some(wire::document::to_proto(&config.document)),
            credentials: credentials::to_proto(&credentials),
            credentials_revision: secrets_revision,
            overrides: self.environment.clone().into_iter().collect(),
        };
        let known = in_force.as_ref().map(|current| &*current.counters);
        Ok(Current {
            counters: Arc::new(Counters::of(&config, known, rand::random())),
            keys: config
                .keys
                .values()
                .map(|key| (key.id.clone(), Arc::clone(key)))
                .collect(),
            config: Arc::new(config),
            credentials,
            secrets_revision,
            snapshot: Arc::new(snapshot),
        })
    }
}

impl Current {
    /// Which stored configuration it is.
    pub(crate) fn stored_version(&self) -> StoredVersion {
        StoredVersion {
            document: self.config.version,
            secrets: self.secrets_revision,
        }
    }
}

/// A call to the durable store with a limit.
pub(crate) async fn limited<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, DurableStoreError>>,
) -> Result<T, LoadError> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => Ok(result?),
        Err(_elapsed) => Err(LoadError::Timeout),
    }
}

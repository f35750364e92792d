//! Notes that follow conversations to another account (`routing.md` §8.4): whether one is made, and where it is kept.
//!
//! A note is made by the data plane that served, once in the fleet at a time: it is told to by whoever puts the guard
//! into the hot store, a value that ends by itself after [`GUARD`]. The guard is never taken away. When the note is
//! saved, the note itself keeps others from making one; when it could not be made, the guard is the pause before the
//! next try. The note is in the durable store, sealed.
//!
//! **Stance:** fail-open. Without both stores and a quota that is known nothing is made, and what cannot be read is not
//! there; the requests it is about are served all the same. No decision waits for anything here.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tidegate_core::ids::{ConnectionId, ModelId, ProviderId, Shard};
use tidegate_core::routing::relay::{
    HandoffName, MAX_LIFE_MS, NoHandoff, Note, Served, Standing, Terms, wanted,
};
use tidegate_core::routing::resolve;
use tidegate_core::telemetry::QuotaSnapshot;
use tidegate_core::telemetry::quota::{self, QuotaSource};
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStore, DurableStoreError, SealedHandoff};
use tidegate_store::hot::{HotStoreError, Swap, SwapOutcome, SwapRefusal};
use tidegate_store::seal::{SealError, Sealer};
use tokio::time::timeout;

use crate::clock::Clock;
use crate::config::Published;
use crate::fleet::Gatherer;
use crate::hot::Hot;
use crate::telemetry::handoff_metrics::{HandoffEvent, HandoffMetrics};
use crate::telemetry::metrics::Metrics;

/// How long nobody else is told to make a note. Data planes take 45 s at most; the rest keeps a model that fails to sum
/// up from being asked again after each turn.
const GUARD: Duration = Duration::from_secs(300);
/// Schema of the guard's value.
const SCHEMA: u32 = 1;
/// Limit of a call to a store. No decision waits for one.
const LIMIT: Duration = Duration::from_millis(500);

/// A success that may call for a note.
#[derive(Clone, Debug)]
pub(crate) struct Success {
    pub(crate) name: HandoffName,
    pub(crate) provider: ProviderId,
    pub(crate) connection: ConnectionId,
    pub(crate) model: ModelId,
    /// What its answer told, which is newer than what was gathered.
    pub(crate) quota: Option<QuotaSnapshot>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandoffError {
    /// This replica has no configuration yet.
    #[error("this replica has no configuration yet")]
    NotReady,
    /// The durable store.
    #[error(transparent)]
    Durable(#[from] DurableStoreError),
    /// The durable store, in silence.
    #[error("the durable store did not answer in time")]
    Late,
    /// The hot store.
    #[error(transparent)]
    Hot(#[from] HotStoreError),
    /// The call to the hot store came too late to count.
    #[error("the hot store was asked too late")]
    GuardLate,
    /// The note cannot be sealed or opened.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// What was sealed is no note.
    #[error("a note does not decode")]
    NotANote,
}

/// Notes.
#[derive(Debug)]
pub(crate) struct Handoffs {
    pub(crate) hot: Arc<Hot>,
    pub(crate) durable: Arc<dyn DurableStore>,
    pub(crate) sealer: Arc<Sealer>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) config: Arc<Published>,
    pub(crate) fleet: Arc<Gatherer>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Handoffs {
    /// Whether whoever asks is to make a note.
    pub(crate) async fn begin(
        &self,
        success: Success,
    ) -> Result<Result<Terms, NoHandoff>, HandoffError> {
        let answer = self.admit(success).await;
        self.count(match &answer {
            Ok(Ok(_)) => HandoffEvent::Begun,
            Ok(Err(NoHandoff::Active)) => HandoffEvent::Active,
            Ok(Err(NoHandoff::Running)) => HandoffEvent::Running,
            Ok(Err(_)) => HandoffEvent::NotWanted,
            Err(_) => HandoffEvent::Failed,
        });
        answer
    }

    async fn admit(&self, success: Success) -> Result<Result<Terms, NoHandoff>, HandoffError> {
        let now = self.clock.now();
        // From memory, so that all those successes that call for nothing cost nothing.
        let terms = match self.wanted(&success, now)? {
            Ok(terms) => terms,
            Err(why_not) => return Ok(Err(why_not)),
        };
        let standing = match self.load(&success.name, now).await? {
            Some(_) => Standing::Active,
            None => self.guard(&success.name, now).await?,
        };
        Ok(terms.unless(standing))
    }

    fn wanted(
        &self,
        success: &Success,
        now: Timestamp,
    ) -> Result<Result<Terms, NoHandoff>, HandoffError> {
        let config = self.config.config().ok_or(HandoffError::NotReady)?;
        let Some(route) = resolve(&config, success.name.combo.as_str()) else {
            return Ok(Err(NoHandoff::OtherStrategy));
        };
        let mut told = self.fleet.told(&success.connection);
        if let Some(seen) = success.quota.clone() {
            quota::add(&mut told, QuotaSource::Headers, seen);
        }
        let quota = quota::combined(told, now);
        let served = Served {
            provider: &success.provider,
            model: &success.model,
            quota: quota.as_ref(),
        };
        Ok(wanted(&route, served, now))
    }

    /// Puts the guard up.
    async fn guard(&self, name: &HandoffName, now: Timestamp) -> Result<Standing, HandoffError> {
        let guard_ms = u64::try_from(GUARD.as_millis()).unwrap_or(u64::MAX);
        let swap = Swap {
            shard: Shard::of_name(name.combo.as_str()),
            key: format!("handoff:{}:{}", name.session.to_hex(), name.combo),
            expected: None,
            schema: SCHEMA,
            payload: Vec::new(),
            expires_at: now.plus_ms(guard_ms),
            // Set by the call.
            not_after: now,
            sheddable: false,
        };
        match self.hot.swap(swap, LIMIT).await? {
            SwapOutcome::Swapped { .. } => Ok(Standing::Nothing),
            SwapOutcome::Refused {
                reason: SwapRefusal::Conflict,
                ..
            } => Ok(Standing::Running),
            SwapOutcome::Refused {
                reason: SwapRefusal::Late,
                ..
            } => Err(HandoffError::GuardLate),
        }
    }

    /// Keeps a note, unless one stands or its time is over; whether it is kept.
    pub(crate) async fn save(
        &self,
        name: HandoffName,
        connection: ConnectionId,
        expires_at: Timestamp,
        note: &Note,
    ) -> Result<bool, HandoffError> {
        let now = self.clock.now();
        let expires_at = expires_at.min(now.plus_ms(MAX_LIFE_MS));
        if expires_at <= now {
            self.count(HandoffEvent::Superseded);
            return Ok(false);
        }
        let text = serde_json::to_string(note).map_err(|_| HandoffError::NotANote)?;
        let sealed =
            self.sealer
                .seal_handoff(name, connection, expires_at, &SecretString::from(text))?;
        let saved = limited(self.durable.save_handoff(&sealed, now)).await;
        self.count(match &saved {
            Ok(true) => HandoffEvent::Saved,
            Ok(false) => HandoffEvent::Superseded,
            Err(_) => HandoffEvent::Failed,
        });
        saved
    }

    /// The note that stands, and the account that it was made on.
    pub(crate) async fn fetch(
        &self,
        name: &HandoffName,
    ) -> Result<Option<(Note, ConnectionId)>, HandoffError> {
        let found = self.read(name).await;
        self.count(match &found {
            Ok(Some(_)) => HandoffEvent::Found,
            Ok(None) => HandoffEvent::Absent,
            Err(_) => HandoffEvent::Failed,
        });
        found
    }

    async fn read(&self, name: &HandoffName) -> Result<Option<(Note, ConnectionId)>, HandoffError> {
        let Some(sealed) = self.load(name, self.clock.now()).await? else {
            return Ok(None);
        };
        let text = self.sealer.open_handoff(&sealed)?;
        let note: Note =
            serde_json::from_str(text.expose_secret()).map_err(|_| HandoffError::NotANote)?;
        Ok(Some((note, sealed.connection)))
    }

    async fn load(
        &self,
        name: &HandoffName,
        now: Timestamp,
    ) -> Result<Option<SealedHandoff>, HandoffError> {
        limited(self.durable.load_handoff(name, now)).await
    }

    fn count(&self, event: HandoffEvent) {
        let metrics: &HandoffMetrics = &self.metrics.handoffs;
        metrics.count(event);
    }
}

async fn limited<T>(
    call: impl Future<Output = Result<T, DurableStoreError>>,
) -> Result<T, HandoffError> {
    match timeout(LIMIT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_elapsed) => Err(HandoffError::Late),
    }
}

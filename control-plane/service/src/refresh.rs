//! Renews access tokens (`failure-state.md` §3.9, decision 15).
//!
//! Every replica sweeps; when something is due is the core's affair ([`tidegate_core::refresh`]), who may do it that
//! of the durable store ([`tidegate_store::durable::TokenStore`]): one lease for each connection, and what a dead holder
//! left is waited out. Under the lease everything is looked at again, since another replica may have done it just now.
//!
//! **What must not get lost:** a refresh token that replaces the one that was used. From the answer to the commit there
//! is nothing but sealing. If the store does not take it, it is offered again for [`KEEP_FOR`], also after the lease
//! is lost: under a new lease, and only if the stored token is still the one that was used. What is left is the death
//! of the process in that window (`docs/operations/token-refresh.md`).
//!
//! **Stance:** fail-closed without the durable store: nothing is renewed, traffic goes on with the tokens there are.
//! Faults of our own (the store, sealing) count against no connection.

mod endpoint;
mod keep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use secrecy::SecretString;
use tidegate_core::config::{Connection, OauthClient};
use tidegate_core::ids::ConnectionId;
use tidegate_core::refresh::{FailedRefresh, TokenCondition};
use tidegate_core::routing::View as _;
use tidegate_core::settings::TokenRefreshSettings;
use tidegate_core::state::{Transition, TransitionKind};
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{
    DurableStore, DurableStoreError, LeaseAnswer, LeasedToken, SaveAnswer, TokenLease, TokenRow,
};
use tidegate_store::seal::{SealError, Sealer, TokenKind};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::clock::{Clock, local_now};
use crate::config::{Current, Published};
use crate::outbound::Outbound;
use crate::record::Recorder;
use crate::record::history::History;
use crate::telemetry::metrics::{Metrics, TokenRefresh};
use crate::view::View;

use endpoint::{Grant, NotIssued};

/// Longest pause between two looks at the hot state for tokens that were refused since.
const TICK: Duration = Duration::from_secs(1);
/// How long after a failure of the store it is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long after the end of a lease it is asked for.
const LEASE_MARGIN: Duration = Duration::from_millis(10);
/// Limit of a small call to the durable store (decision 54), and of one that may be large.
const LIMIT: Duration = Duration::from_millis(500);
const LIST_LIMIT: Duration = Duration::from_secs(5);
/// How long a token that was issued is offered to a store that does not take it.
const KEEP_FOR: Duration = Duration::from_secs(3_600);

/// What the refresher is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) replica: String,
    pub(crate) durable: Arc<dyn DurableStore>,
    pub(crate) sealer: Arc<Sealer>,
    pub(crate) view: Arc<View>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) config: Arc<Published>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) history: Arc<History>,
    pub(crate) metrics: Arc<Metrics>,
}

/// Renews what is due.
#[derive(Debug)]
pub(crate) struct Refresher {
    parts: Parts,
    outbound: Outbound,
    /// Connections with a refresh under way here.
    under_way: Mutex<BTreeSet<ConnectionId>>,
    /// A refresh that came to nothing is tried again by then, however far the next sweep is.
    again: Mutex<Option<Instant>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Tokens as the last sweep found them.
#[derive(Debug, Default)]
struct Swept {
    rows: Vec<TokenRow>,
    /// Credential versions that were seen refused, so that each causes one sweep ahead of time.
    refused: BTreeMap<ConnectionId, u64>,
}

/// Why a refresh was not even tried. No connection is to blame.
#[derive(Debug, thiserror::Error)]
enum OwnFault {
    #[error(transparent)]
    Store(#[from] DurableStoreError),
    #[error("the durable store did not answer in time")]
    Late,
    #[error("a stored secret cannot be used: {0}")]
    Seal(#[from] SealError),
}

impl OwnFault {
    /// Whether what was asked for may have been done.
    fn leaves_open(&self) -> bool {
        matches!(
            self,
            Self::Late | Self::Store(DurableStoreError::Indeterminate(_))
        )
    }

    /// Whether another try may do better.
    fn may_pass(&self) -> bool {
        !matches!(self, Self::Seal(_))
    }
}

/// A connection whose token can be renewed, as configured.
struct Configured {
    connection: Arc<Connection>,
    client: OauthClient,
}

impl Refresher {
    pub(crate) fn new(parts: Parts, tasks: &TaskTracker, stop: &CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            parts,
            outbound: Outbound::new(),
            under_way: Mutex::default(),
            again: Mutex::default(),
            tasks: tasks.clone(),
            stop: stop.clone(),
        })
    }

    /// Sweeps until told to stop. What is under way then goes on, within the limit of the shutdown.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut versions = self.parts.config.subscribe();
        let mut swept = Swept::default();
        let mut next_sweep = local_now();
        loop {
            let settings = self.settings();
            let interval = Duration::from_millis(settings.sweep_interval_ms);
            tokio::select! {
                () = tokio::time::sleep(interval.min(TICK)) => {}
                () = self.stop.cancelled() => return,
            }
            let changed = versions.has_changed().unwrap_or(false);
            versions.mark_unchanged();
            let early = self.newly_refused(&mut swept);
            let is_due = local_now() >= next_sweep;
            if !settings.enabled || !(changed || early || is_due || self.is_again_due()) {
                continue;
            }
            next_sweep = local_now() + interval;
            match self.sweep(&settings, &mut swept).await {
                Ok(true) => {}
                // There was no room for all.
                Ok(false) => next_sweep = local_now(),
                Err(error) => {
                    self.look_again_in(AGAIN_AFTER);
                    tracing::warn!(%error, "tokens were not looked at");
                }
            }
        }
    }

    fn look_again_in(&self, pause: Duration) {
        let Some(at) = local_now().checked_add(pause) else {
            return;
        };
        let mut again = self.again.lock();
        *again = Some(again.map_or(at, |earlier| earlier.min(at)));
    }

    /// Says so once.
    fn is_again_due(&self) -> bool {
        self.again.lock().take_if(|at| *at <= local_now()).is_some()
    }

    fn settings(&self) -> TokenRefreshSettings {
        let config = self.parts.config.config();
        config.map_or_else(TokenRefreshSettings::default, |config| {
            config.settings.token_refresh.clone()
        })
    }

    /// Whether the upstream refused a token since the last look.
    fn newly_refused(&self, swept: &mut Swept) -> bool {
        let Some(current) = self.parts.config.current() else {
            return false;
        };
        let mut found = false;
        for row in &swept.rows {
            let Some(configured) = configured(&current, &row.connection) else {
                continue;
            };
            let version = current
                .credentials
                .get(&row.connection)
                .map_or(0, |credential| credential.version);
            let condition = self.condition(&configured.connection, version);
            let refused = matches!(condition, TokenCondition::Expired | TokenCondition::Refused);
            if refused && swept.refused.get(&row.connection) != Some(&version) {
                swept.refused.insert(row.connection.clone(), version);
                found = true;
            }
        }
        found
    }

    fn condition(&self, connection: &Connection, credential_version: u64) -> TokenCondition {
        let state = self
            .parts
            .view
            .connection(&connection.provider, &connection.id)
            .unwrap_or_default();
        TokenCondition::of(&state, credential_version)
    }

    /// Starts what is due; `false`: there was no room for all of it.
    async fn sweep(
        self: &Arc<Self>,
        settings: &TokenRefreshSettings,
        swept: &mut Swept,
    ) -> Result<bool, OwnFault> {
        let list = self.parts.durable.list_tokens();
        let (now, mut rows) = limited(LIST_LIMIT, list).await?;
        // A database may have its own idea of the order of names.
        rows.sort_by(|one, other| one.connection.cmp(&other.connection));
        swept.refused.retain(|connection, _| {
            rows.binary_search_by(|row| row.connection.cmp(connection))
                .is_ok()
        });
        swept.rows = rows;
        let Some(current) = self.parts.config.current() else {
            return Ok(true);
        };
        let room = usize::try_from(settings.concurrency).unwrap_or(usize::MAX);
        for row in &swept.rows {
            let Some(configured) = configured(&current, &row.connection) else {
                continue;
            };
            let condition = self.condition(&configured.connection, row.credential_version);
            if !row.state.is_due(condition, settings, now) {
                continue;
            }
            let mut under_way = self.under_way.lock();
            if under_way.len() >= room {
                return Ok(false);
            }
            if under_way.insert(row.connection.clone()) {
                drop(under_way);
                let refresher = Arc::clone(self);
                let connection = row.connection.clone();
                self.tasks
                    .spawn(async move { refresher.refresh(connection).await });
            }
        }
        Ok(true)
    }

    async fn refresh(&self, connection: ConnectionId) {
        if let Err(error) = self.try_refresh(&connection).await {
            self.parts.metrics.token_refresh(TokenRefresh::OwnFault);
            tracing::warn!(%connection, %error, "an access token was not renewed");
            if error.may_pass() {
                self.look_again_in(AGAIN_AFTER);
            }
        }
        self.under_way.lock().remove(&connection);
    }

    async fn try_refresh(&self, connection: &ConnectionId) -> Result<(), OwnFault> {
        let settings = self.settings();
        // Counted from before the store was asked, so that our idea of its end is never later than the store's.
        let begun = local_now();
        let deadline = begun + Duration::from_millis(settings.answer_limit_ms());
        let leased = match self.lease(connection, &settings).await? {
            LeaseAnswer::Granted(leased) => leased,
            LeaseAnswer::Held { remaining_ms } => {
                // Whoever holds it may be dead, and it may be nobody.
                self.look_again_in(
                    Duration::from_millis(remaining_ms).saturating_add(LEASE_MARGIN),
                );
                return Ok(());
            }
            LeaseAnswer::Absent => return Ok(()),
        };
        let current = self.parts.config.current();
        let configured = current.and_then(|current| configured(&current, connection));
        let Some(configured) = configured else {
            return self.release(&leased.lease).await;
        };
        let condition = self.condition(&configured.connection, leased.row.credential_version);
        if !leased.row.state.is_due(condition, &settings, leased.now) {
            return self.release(&leased.lease).await;
        }
        let secrets = match self.open(&leased) {
            Ok(secrets) => secrets,
            Err(error) => {
                self.release(&leased.lease).await?;
                return Err(error.into());
            }
        };
        let (refresh_token, client_secret) = secrets;
        let grant = Grant {
            client: &configured.client,
            client_id: configured
                .connection
                .client_id
                .as_deref()
                .or(configured.client.client_id.as_deref()),
            client_secret: client_secret.as_ref(),
            refresh_token: &refresh_token,
        };
        tracing::info!(%connection, ?condition, "renewing an access token");
        self.parts.metrics.token_refresh(TokenRefresh::Attempt);
        match endpoint::ask(&self.outbound, &grant, deadline).await {
            Ok(issued) => {
                self.keep(&configured.connection, *leased, issued, &refresh_token)
                    .await
            }
            Err(error) => {
                self.failed(&configured.connection, &leased, condition, begun, error)
                    .await
            }
        }
    }

    async fn lease(
        &self,
        connection: &ConnectionId,
        settings: &TokenRefreshSettings,
    ) -> Result<LeaseAnswer, OwnFault> {
        let id = format!("{}#{}", self.parts.replica, Uuid::now_v7());
        let length = Duration::from_millis(settings.lease_ms);
        let lease = self.parts.durable.lease_token(connection, &id, length);
        let answer = match limited(LIMIT, lease).await {
            Err(error) if error.leaves_open() => {
                // If it was granted, nobody would use it until it ends.
                let connection = connection.clone();
                self.release(&TokenLease { connection, id }).await?;
                return Err(error);
            }
            answer => answer?,
        };
        if let LeaseAnswer::Granted(leased) = &answer
            && leased.waited_out
        {
            self.parts
                .metrics
                .token_refresh(TokenRefresh::LeaseWaitedOut);
            tracing::warn!(%connection, "the last replica that renewed this token did not finish");
        }
        Ok(answer)
    }

    async fn release(&self, lease: &TokenLease) -> Result<(), OwnFault> {
        limited(LIMIT, self.parts.durable.release_token(lease)).await
    }

    /// Refresh token and client secret in the clear.
    fn open(
        &self,
        leased: &LeasedToken,
    ) -> Result<(SecretString, Option<SecretString>), SealError> {
        let connection = &leased.grant.connection;
        let sealer = &self.parts.sealer;
        let refresh_token = &leased.grant.refresh_token;
        let refresh_token =
            sealer.open_token(TokenKind::RefreshToken, connection, refresh_token)?;
        let client_secret = leased
            .grant
            .client_secret
            .as_ref()
            .map(|secret| sealer.open_token(TokenKind::ClientSecret, connection, secret))
            .transpose()?;
        Ok((refresh_token, client_secret))
    }

    async fn failed(
        &self,
        connection: &Connection,
        leased: &LeasedToken,
        condition: TokenCondition,
        begun: Instant,
        error: NotIssued,
    ) -> Result<(), OwnFault> {
        self.parts.metrics.token_refresh(TokenRefresh::Failed);
        tracing::warn!(connection = %connection.id, %error, "an access token was not renewed");
        let took = local_now().saturating_duration_since(begun).as_millis();
        let now = leased.now.plus_ms(u64::try_from(took).unwrap_or(u64::MAX));
        let mut state = leased.row.state.clone();
        let effect = state.fail(condition, now);
        let used = leased.grant.refresh_token.version;
        let durable = &self.parts.durable;
        let save = durable.save_refresh_failure(&leased.lease, used, &state);
        match limited(LIMIT, save).await? {
            SaveAnswer::Saved => {}
            SaveAnswer::LeaseLost
            | SaveAnswer::TokenReplaced
            | SaveAnswer::CredentialReplaced { .. } => {
                // Another refresh token stands, or another replica is at it: the failure is of the past.
                self.parts.metrics.token_refresh(TokenRefresh::Superseded);
                return self.release(&leased.lease).await;
            }
        }
        let retries = match effect {
            FailedRefresh::KeptActive => 0,
            FailedRefresh::Counted | FailedRefresh::Inactive => state.retries,
        };
        let cause = error.cause();
        let kind = TransitionKind::RefreshFailed { cause, retries };
        self.tell(connection, &leased.lease, 0, kind);
        if effect == FailedRefresh::Inactive {
            self.tell(connection, &leased.lease, 1, TransitionKind::Inactive);
        }
        Ok(())
    }

    /// Into history.
    fn tell(&self, connection: &Connection, lease: &TokenLease, part: u8, kind: TransitionKind) {
        let at: Timestamp = self.parts.clock.now();
        let transition = Transition {
            at,
            provider: connection.provider.clone(),
            connection: Some(connection.id.clone()),
            kind,
            attempt: None,
            origin: None,
        };
        let id = format!("token-{}-{part}", lease.id);
        self.parts.history.append_one(id, transition);
    }
}

/// A connection whose token is to be renewed: it is switched on, and its provider says where.
fn configured(current: &Current, connection: &ConnectionId) -> Option<Configured> {
    let connection = current.config.connection(connection)?;
    let entry = current.config.provider(&connection.provider)?;
    let client = entry.provider.oauth.as_ref()?;
    connection.enabled.then(|| Configured {
        connection: Arc::clone(connection),
        client: client.clone(),
    })
}

/// A call to the durable store with a limit.
async fn limited<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, DurableStoreError>>,
) -> Result<T, OwnFault> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => Ok(result?),
        Err(_elapsed) => Err(OwnFault::Late),
    }
}

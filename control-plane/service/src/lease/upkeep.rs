//! Keeps what is shown of leases equal to the leases that there are.
//!
//! **Looking.** Every second each replica lists the leases and shows what its view lacks: a lease that could not be shown
//! when it was given, one that the hot store forgot, the end of one that nobody announced, and, with the hot store away,
//! what other replicas gave. It compares with what its view showed *before* it asked: a lease is written down before it
//! is shown, so one that was seen then and is not listed now has ended. What one
//! look leaves out, since there is too much, is shown by the next, which follows at once.
//!
//! **When nobody looks.** Without a key that may lease, without a lease in the view and with a look under this very
//! configuration that found none, there is nothing to see, and the durable store is not asked. It is safe: only a key
//! that may lease gets one. A replica that has not heard of the configuration yet may still give one; it shows it, which
//! is seen here, and when it takes up the configuration it ends it.
//!
//! **Reconciling.** Whoever takes up a configuration ends the leases that it does not cover, and tries until it could. A
//! look that finds such a lease, given meanwhile by who decided under the one before, has it ended too.
//!
//! **Tidying up.** One replica does it for all, every minute where leases are used and every hour elsewhere.
//!
//! **Stance:** fail-open. Without the durable store what is shown stays as it is; each lease holds until its end at most.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::config::Config;
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::lease::{
    Change as LeaseChange, EndReason, Lease, LeaseId, reconcile_with_document,
};
use tidegate_core::routing::View as _;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStore, DurableStoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::config::{DOCUMENT_LIMIT, Published};
use crate::lead::Lead;
use crate::telemetry::metrics::LeaseFailure;

use super::mirror::{Change, Mirror};

/// The task that one replica leads.
const TASK: &str = "leases";
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Limit of a call (decision 54).
const LIMIT: Duration = Duration::from_millis(500);
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Where no key may lease, one sweep of so many is done: what is left from before still goes.
const IDLE_SWEEPS: u32 = 60;
/// Most sweeps in a row.
const MAX_SWEEPS: u32 = 64;
/// How long the rows of ended leases are kept: a release that is repeated is known by its row, and no client repeats one
/// for longer than a week; people who ask what happened look at history, which has its own end.
const KEEP_ENDED: Duration = Duration::from_secs(7 * 86_400);

/// Looks after what is shown.
#[derive(Debug)]
pub(crate) struct Upkeep {
    durable: Arc<dyn DurableStore>,
    config: Arc<Published>,
    mirror: Arc<Mirror>,
    lead: Lead,
}

/// What one replica knows from look to look.
#[derive(Debug, Default)]
struct Known {
    /// The configuration whose leases were reconciled.
    reconciled: Option<u64>,
    /// Under this configuration a look found no lease.
    empty_under: Option<u64>,
}

impl Known {
    /// Whether there may be a lease that the view does not show, or the end of one that it does.
    fn may_be_any(&self, config: &Config, any_seen: bool) -> bool {
        !config.lease_pool.is_empty() || any_seen || self.empty_under != Some(config.version)
    }

    /// These leases were listed at `read_at`. What is merely overdue is left to the sweep.
    fn looked(&mut self, config: &Config, leases: &[Lease], read_at: Timestamp) {
        self.empty_under = leases.is_empty().then_some(config.version);
        let uncovered = |change: &LeaseChange| match change {
            LeaseChange::End { ended, .. } => ended.reason != EndReason::TtlExpired,
            _ => false,
        };
        let changes = reconcile_with_document(leases, &config.document, read_at);
        if changes.iter().any(uncovered) {
            self.reconciled = None;
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error(transparent)]
    Store(#[from] DurableStoreError),
    #[error("the durable store did not answer in time")]
    Timeout,
}

impl Upkeep {
    pub(crate) fn new(
        durable: Arc<dyn DurableStore>,
        config: Arc<Published>,
        mirror: Arc<Mirror>,
    ) -> Self {
        Self {
            lead: Lead::new(TASK, Arc::clone(&durable)),
            durable,
            config,
            mirror,
        }
    }

    /// Runs until told to stop; then gives the lead back.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let both = async { tokio::join!(self.look_forever(), self.sweep_forever()) };
        stop.run_until_cancelled(both).await;
        self.lead.resign().await;
    }

    async fn look_forever(&self) {
        let mut versions = self.config.subscribe();
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known = Known::default();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // The sender is as long-lived as this; were it gone, only ticks would be left.
                Ok(()) = versions.changed() => {}
            }
            let Some(config) = self.config.config() else {
                continue;
            };
            self.reconcile(&config, &mut known).await;
            while self.look(&config, &mut known).await {}
        }
    }

    /// Ends what the configuration does not cover, once for each.
    async fn reconcile(&self, config: &Config, known: &mut Known) {
        if known.reconciled == Some(config.version) {
            return;
        }
        let call = self
            .durable
            .reconcile_leases(&config.document, config.version);
        match limited(DOCUMENT_LIMIT, call).await {
            Ok(ended) => {
                known.reconciled = Some(config.version);
                if ended > 0 {
                    self.mirror.metrics.leases.ended_by_configuration(ended);
                    tracing::info!(
                        version = config.version,
                        ended,
                        "the configuration ended leases"
                    );
                }
            }
            Err(error) => self.failed(LeaseFailure::Reconcile, &error),
        }
    }

    /// Shows what the view lacks. Returns whether more is to be shown.
    async fn look(&self, config: &Config, known: &mut Known) -> bool {
        let metrics = &self.mirror.metrics.leases;
        let seen = self.seen(config);
        let may_be_any = known.may_be_any(config, !seen.is_empty());
        if !may_be_any || !self.mirror.view.is_filled() {
            return false;
        }
        let (read_at, leases) = match limited(LIMIT, self.durable.list_leases()).await {
            Ok(listed) => listed,
            Err(error) => {
                self.failed(LeaseFailure::List, &error);
                return false;
            }
        };
        let live = leases.iter().filter(|lease| lease.is_live(read_at)).count();
        metrics.live(u64::try_from(live).unwrap_or(u64::MAX));
        known.looked(config, &leases, read_at);
        let listed: BTreeSet<LeaseId> = leases.iter().map(|lease| lease.id).collect();
        let now = self.mirror.clock.now();
        let ended = seen
            .into_iter()
            .filter(|seen| !listed.contains(&seen.lease.lease))
            .map(|seen| Change {
                lease: seen.lease.ended(now),
                ..seen
            });
        let left_out = [
            self.mirror.show_changes(ended).await,
            self.mirror.show(&leases, read_at).await,
        ];
        left_out.into_iter().any(|left_out| left_out > 0)
    }

    /// Leases that the view shows as live, of configured connections.
    fn seen(&self, config: &Config) -> Vec<Change> {
        let now = self.mirror.clock.now();
        let of_connection = |(provider, connection): (&ProviderId, &ConnectionId)| {
            let state = self.mirror.view.connection(provider, connection)?;
            let lease = state.lease.as_ref()?;
            lease.holds_until(now)?;
            Some(Change {
                provider: provider.clone(),
                connection: connection.clone(),
                lease: lease.clone(),
            })
        };
        let connections = config.connections.values();
        connections
            .map(|it| (&it.provider, &it.id))
            .filter_map(of_connection)
            .collect()
    }

    async fn sweep_forever(&self) {
        let mut turn: u32 = 0;
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            turn = turn.wrapping_add(1);
            let leases = |config: Arc<Config>| !config.lease_pool.is_empty();
            if self.config.config().is_some_and(leases) || turn.is_multiple_of(IDLE_SWEEPS) {
                self.sweep().await;
            } else {
                self.lead.resign().await;
            }
        }
    }

    /// Tidies up until nothing is left, if this replica leads.
    async fn sweep(&self) {
        self.lead.claim().await;
        if !self.lead.is_held() {
            return;
        }
        for _ in 0..MAX_SWEEPS {
            match limited(LIMIT, self.durable.sweep_leases(KEEP_ENDED)).await {
                Ok(0) => return,
                Ok(rows) => self.mirror.metrics.leases.swept(rows),
                Err(error) => return self.failed(LeaseFailure::Sweep, &error),
            }
        }
    }

    fn failed(&self, call: LeaseFailure, error: &CallError) {
        self.mirror.metrics.leases.failed(call);
        tracing::debug!(?call, %error, "a call about leases failed");
    }
}

async fn limited<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, DurableStoreError>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => Ok(result?),
        Err(_elapsed) => Err(CallError::Timeout),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;
    use tidegate_core::ids::KeyId;
    use tidegate_core::lease::{Generation, OwnerHash};
    use tidegate_core::settings::Overrides;

    use super::*;

    fn config(scopes: &[&str]) -> Config {
        let document = json!({
            "providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
            "connections": [{"id": "c", "provider": "p"}],
            "keys": [{"id": "k", "sha256": "aa".repeat(32), "allowedConnections": ["c"],
                      "scopes": scopes}],
        });
        let document = serde_json::from_value(document).unwrap();
        Config::build(document, 3, &Overrides::default()).unwrap()
    }

    /// Who acquires while the configuration changes may get what it does not cover any more.
    #[rstest]
    #[case::covered("c", 1, Some(3))]
    #[case::not_covered("d", 1, None)]
    #[case::merely_overdue("d", 60_000, Some(3))]
    fn a_lease_that_is_not_covered_is_ended_when_it_is_seen(
        #[case] connection: &str,
        #[case] read_at: u64,
        #[case] reconciled: Option<u64>,
    ) {
        let lease = Lease {
            id: LeaseId(1),
            sequence: 1,
            owner: OwnerHash::from_bytes([7; 32]),
            key: KeyId::new("k").unwrap(),
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new(connection).unwrap(),
            generation: Generation::try_from(1).unwrap(),
            acquired_at: Timestamp(0),
            renewed_at: Timestamp(0),
            expires_at: Timestamp(60_000),
            ended: None,
        };
        let mut known = Known {
            reconciled: Some(3),
            ..Known::default()
        };
        let config = config(&["lease:exclusive"]);
        known.looked(&config, &[lease], Timestamp(read_at));
        assert_eq!(known.reconciled, reconciled);
    }

    /// A fleet that never leases is asked about once for each configuration.
    #[rstest]
    #[case::a_key_may_lease(true, false, Some(3), true)]
    #[case::one_is_shown(false, true, Some(3), true)]
    #[case::never_looked(false, false, None, true)]
    #[case::not_under_this_configuration(false, false, Some(2), true)]
    #[case::found_none(false, false, Some(3), false)]
    fn nobody_looks_where_no_lease_can_be(
        #[case] may_lease: bool,
        #[case] any_seen: bool,
        #[case] empty_under: Option<u64>,
        #[case] looks: bool,
    ) {
        let scopes: &[&str] = if may_lease { &["lease:exclusive"] } else { &[] };
        let config = config(scopes);
        let known = Known {
            empty_under,
            ..Known::default()
        };
        assert_eq!(known.may_be_any(&config, any_seen), looks);
    }
}

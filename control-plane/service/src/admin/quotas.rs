//! Quotas: what is known of them, and what somebody tells (decision 39).

use tidegate_core::config::{Config, Connection};
use tidegate_core::ids::ConnectionId;
use tidegate_core::telemetry::QuotaSnapshot;
use tidegate_core::telemetry::quota::{self, NoSense, QuotaSource, Standing, Told};
use tidegate_core::time::Timestamp;

use crate::fleet::Full;
use crate::quota_poll::endpoint_of;
use crate::telemetry::metrics::QuotaReport;

use super::Admin;

/// What is known of a connection's quotas.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    pub(crate) connection: &'a Connection,
    /// What strategies read.
    pub(crate) combined: Option<QuotaSnapshot>,
    pub(crate) told: Told,
    /// Little is left of it.
    pub(crate) low: bool,
    /// A quota endpoint is asked for it.
    pub(crate) polled: bool,
    /// When this was known.
    pub(crate) now: Timestamp,
}

impl Known<'_> {
    /// How it stands, in a word; `None` where nothing is known, and nobody asks.
    pub(crate) fn standing(&self) -> Option<Standing> {
        quota::standing(self.combined.as_ref(), self.low, self.polled, self.now)
    }
}

/// Why a quota that was told is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    #[error("there is no connection {0}")]
    NoConnection(ConnectionId),
    #[error(transparent)]
    NoSense(#[from] NoSense),
    #[error(transparent)]
    Full(#[from] Full),
}

impl Admin {
    /// What is known of the quotas of one connection.
    pub(crate) fn quotas_of<'a>(
        &self,
        config: &'a Config,
        connection: &'a Connection,
    ) -> Known<'a> {
        let now = self.clock.now();
        let told = self.fleet.told(&connection.id);
        let combined = quota::combined(told.clone(), now);
        let preflight = &config.settings.quota_preflight;
        let low = combined
            .as_ref()
            .is_some_and(|quota| quota::is_low(quota, &connection.provider, preflight, now));
        Known {
            connection,
            combined,
            told,
            low,
            polled: endpoint_of(config, connection).is_some(),
            now,
        }
    }

    /// Takes what somebody fetched; a moment of 0 means now. Returns whether it stands.
    pub(crate) fn take_quota(
        &self,
        config: &Config,
        connection: &ConnectionId,
        quota: QuotaSnapshot,
    ) -> Result<bool, NotTaken> {
        let taken = self.try_take_quota(config, connection, quota);
        self.metrics.quota.report(match &taken {
            Ok(true) => QuotaReport::Taken,
            Ok(false) => QuotaReport::Superseded,
            Err(NotTaken::NoConnection(_) | NotTaken::NoSense(_)) => QuotaReport::Refused,
            Err(NotTaken::Full(_)) => QuotaReport::NoRoom,
        });
        taken
    }

    fn try_take_quota(
        &self,
        config: &Config,
        connection: &ConnectionId,
        mut quota: QuotaSnapshot,
    ) -> Result<bool, NotTaken> {
        if config.connection(connection).is_none() {
            return Err(NotTaken::NoConnection(connection.clone()));
        }
        let now = self.clock.now();
        if quota.observed_at == Timestamp::default() {
            quota.observed_at = now;
        }
        quota::check(&quota, now)?;
        let source = QuotaSource::Fetched;
        Ok(self.fleet.add_quota(connection.clone(), source, quota)?)
    }
}

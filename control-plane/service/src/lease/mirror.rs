//! Shows leases in the hot state, so that requests without one keep off their connections (decision 42b).
//!
//! Whoever gives, extends, moves or ends a lease shows it before he answers, so that no decision anywhere comes later
//! than the answer by more than the hot state takes to spread.
//!
//! **Stance:** fail-open. A lease is given when the durable store says so; that it could not be shown is no reason to take
//! it away. This replica then knows it by itself, and [`super::upkeep`] shows it on every replica within a second or two.

use std::sync::Arc;

use futures::StreamExt as _;
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::lease::Lease;
use tidegate_core::routing::View as _;
use tidegate_core::state::{Event, LeaseMirror};
use tidegate_core::time::Timestamp;

use crate::clock::{Clock, local_now};
use crate::hot::{Hot, WRITE_LIMIT};
use crate::record::Recorder;
use crate::telemetry::metrics::{LeaseShown, Metrics};
use crate::view::View;

/// Most leases that one call shows.
const MAX_SHOWN: usize = 1_000;
/// So many of them at once.
const AT_ONCE: usize = 16;

/// Shows leases.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) hot: Arc<Hot>,
    pub(crate) view: Arc<View>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) metrics: Arc<Metrics>,
}

/// A lease of a connection as it is to be shown.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) provider: ProviderId,
    pub(super) connection: ConnectionId,
    pub(super) lease: LeaseMirror,
}

impl Mirror {
    /// Shows leases, live or ended, that the durable store told at `read_at`, its own time. One takes no longer than the
    /// limit of a write, and what is seen already takes nothing. Returns how many beyond [`MAX_SHOWN`] were left out.
    pub(crate) async fn show(&self, leases: &[Lease], read_at: Timestamp) -> usize {
        let now = self.clock.now();
        let changes = leases.iter().map(|lease| Change {
            provider: lease.provider.clone(),
            connection: lease.connection.clone(),
            lease: LeaseMirror::of(lease, read_at, now),
        });
        self.show_changes(changes).await
    }

    /// The same of what was made for showing already.
    pub(super) async fn show_changes(&self, changes: impl Iterator<Item = Change>) -> usize {
        let now = self.clock.now();
        let mut news: Vec<Change> = changes.filter(|change| self.is_news(change, now)).collect();
        let left_out = news.len().saturating_sub(MAX_SHOWN);
        news.truncate(MAX_SHOWN);
        futures::stream::iter(news)
            .for_each_concurrent(AT_ONCE, |change| self.show_one(change))
            .await;
        left_out
    }

    async fn show_one(&self, change: Change) {
        let Change {
            provider,
            connection,
            lease,
        } = change;
        let event = Event::LeaseShown {
            connection: connection.clone(),
            lease,
        };
        let shown = if self.write(&provider, &connection, &event).await {
            LeaseShown::Everywhere
        } else {
            self.recorder
                .apply_locally(&provider, Some(&connection), &event);
            LeaseShown::Here
        };
        self.metrics.leases.shown(shown);
    }

    /// Whether the hot store has it now.
    async fn write(&self, provider: &ProviderId, connection: &ConnectionId, event: &Event) -> bool {
        if self.hot.is_away() {
            return false;
        }
        let now = local_now();
        let deadline = now.checked_add(WRITE_LIMIT).unwrap_or(now);
        let done = self
            .recorder
            .direct(provider, Some(connection), event, WRITE_LIMIT, deadline)
            .await;
        if let Err(error) = &done {
            tracing::debug!(%connection, %error, "a lease is shown on this replica only");
        }
        done.is_ok()
    }

    /// Whether this replica would see something new.
    fn is_news(&self, change: &Change, now: Timestamp) -> bool {
        let state = self.view.connection(&change.provider, &change.connection);
        let shown = state.as_ref().and_then(|state| state.lease.as_ref());
        change.lease.is_news(shown, now)
    }
}

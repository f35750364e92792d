//! Queues of connections (`sessions-and-streams.md` §3) as operators see them: what went, what waits, and what for.
//!
//! Requests wait in the data planes, in order; the fleet knows of which data planes some wait, not how many.

use futures::StreamExt as _;
use tidegate_core::admission::{self, PaceLimits};
use tidegate_core::config::{Config, Connection};
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_proto::admin::v1 as proto;

use super::Admin;
use super::page::Page;
use super::permits::{ConnectionKey, LOOKS_AT_ONCE, connections, pool_name};

impl Admin {
    /// A page of queues, and the token of the next one.
    pub(crate) async fn queues(
        &self,
        config: &Config,
        provider: Option<&ProviderId>,
        connection: Option<&ConnectionId>,
        page: &Page<ConnectionKey>,
    ) -> (Vec<proto::ConnectionQueue>, String) {
        let queued = connections(config, provider, connection).filter_map(|(key, account)| {
            let terms = admission::terms(config, &account.id)?;
            Some((key, (account, terms)))
        });
        let (queued, next) = page.of(queued);
        let looks: Vec<_> = queued
            .into_iter()
            .map(|(account, terms)| self.queue(account, terms.pace, terms.depth))
            .collect();
        let queues = futures::stream::iter(looks).buffered(LOOKS_AT_ONCE);
        (queues.collect().await, next)
    }

    async fn queue(
        &self,
        account: &Connection,
        limits: PaceLimits,
        depth: u64,
    ) -> proto::ConnectionQueue {
        let (pace, stale) = self.lanes.pace(&pool_name(account)).await;
        let now = self.clock.now();
        let waiting = pace.waiting(now).map(|(plane, since)| proto::QueueWaiter {
            incarnation: format!("{:016x}", plane.0),
            oldest_ms: now.ms_since(since),
        });
        let spent = pace.spent(now).map(|(model, until)| proto::SpentModel {
            model: model.to_string(),
            remaining_ms: until.remaining_ms(now),
        });
        proto::ConnectionQueue {
            provider: account.provider.to_string(),
            connection: account.id.to_string(),
            requests_per_minute: limits.per_minute,
            min_time_between_requests_ms: limits.apart_ms,
            concurrent_requests: limits.concurrent,
            max_queue_depth: depth,
            running: pace.held(now),
            waiting: waiting.collect(),
            spent: spent.collect(),
            stale,
        }
    }
}

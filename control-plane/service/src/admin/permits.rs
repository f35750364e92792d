//! Permits as operators see them, and how they are forgotten.

use futures::StreamExt as _;
use tidegate_core::config::{Config, Connection};
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::permit;
use tidegate_proto::admin::v1 as proto;

use crate::permits::PoolName;
use crate::shared_value::Unchanged;

use super::Admin;
use super::page::Page;

/// Pools that are read at once.
pub(super) const LOOKS_AT_ONCE: usize = 32;

/// Provider, and place of the connection among its own.
pub(crate) type ConnectionKey = (String, usize);

/// Why no permits were forgotten.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotCleared {
    #[error("there is no connection {0}")]
    NoConnection(ConnectionId),
    #[error(transparent)]
    Unchanged(#[from] Unchanged),
}

/// Connections in the order of lists, each with its key.
pub(crate) fn connections<'a>(
    config: &'a Config,
    provider: Option<&'a ProviderId>,
    connection: Option<&'a ConnectionId>,
) -> impl Iterator<Item = (ConnectionKey, &'a Connection)> {
    let entries = config.providers.values();
    let entries = entries.filter(move |it| provider.is_none_or(|only| it.provider.id == *only));
    entries
        .flat_map(|entry| {
            let name = entry.provider.id.to_string();
            let numbered = entry.connections.iter().enumerate();
            numbered.map(move |(place, it)| ((name.clone(), place), &**it))
        })
        .filter(move |(_, it)| connection.is_none_or(|only| it.id == *only))
}

impl Admin {
    /// A page of pools, and the token of the next one.
    pub(crate) async fn permit_pools(
        &self,
        config: &Config,
        provider: Option<&ProviderId>,
        connection: Option<&ConnectionId>,
        page: &Page<ConnectionKey>,
    ) -> (Vec<proto::PermitPool>, String) {
        let limited = connections(config, provider, connection)
            .filter_map(|(key, account)| Some((key, (account, permit::cap(account)?))));
        let (limited, next) = page.of(limited);
        let looks: Vec<_> = limited
            .into_iter()
            .map(|(account, cap)| self.permit_pool(account, cap))
            .collect();
        let pools = futures::stream::iter(looks).buffered(LOOKS_AT_ONCE);
        (pools.collect().await, next)
    }

    async fn permit_pool(&self, account: &Connection, limit: u32) -> proto::PermitPool {
        let (pool, stale) = self.permits.look(&pool_name(account)).await;
        let now = self.clock.now();
        let queues = pool.queues(now).map(|(replica, waiting, since)| {
            let (replica, oldest_ms) = (replica.to_owned(), now.ms_since(since));
            proto::PermitQueue {
                replica,
                waiting,
                oldest_ms,
            }
        });
        let queues: Vec<_> = queues.collect();
        let holders = pool.holders(now).map(|(plane, held, until)| {
            let remaining_ms = until.remaining_ms(now);
            proto::PermitHolder {
                incarnation: format!("{:016x}", plane.0),
                held,
                remaining_ms,
            }
        });
        proto::PermitPool {
            provider: account.provider.to_string(),
            connection: account.id.to_string(),
            limit,
            held: pool.held(now),
            holders: holders.collect(),
            waiting: queues
                .iter()
                .map(|it| it.waiting)
                .fold(0, u32::saturating_add),
            queues,
            stale,
        }
    }

    /// Forgets who holds permits of a connection. Returns how many were out.
    pub(crate) async fn clear_permits(
        &self,
        config: &Config,
        connection: &ConnectionId,
    ) -> Result<u32, NotCleared> {
        let account = config
            .connection(connection)
            .ok_or_else(|| NotCleared::NoConnection(connection.clone()))?;
        Ok(self.permits.clear(&pool_name(account)).await?)
    }
}

pub(super) fn pool_name(account: &Connection) -> PoolName {
    PoolName {
        provider: account.provider.clone(),
        connection: account.id.clone(),
    }
}

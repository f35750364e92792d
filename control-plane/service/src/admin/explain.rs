//! Where a request would go, and why not elsewhere. Takes no probe and sends nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_core::config::{ApiKey, Config, Protocol};
use tidegate_core::ids::{ConnectionId, EgressId, ProviderId, Shard};
use tidegate_core::permit;
use tidegate_core::routing::{
    AttemptsSoFar, DecisionTurns, Explanation, Input, RequestFacts, View as RoutingView, explain,
    resolve,
};
use tidegate_core::state::{ConnectionState, ProviderState};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;

use crate::config::Current;
use crate::permits::PoolName;
use crate::view::View;

use super::Admin;

/// What an operator asks.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) model: String,
    pub(crate) key: Option<Arc<ApiKey>>,
    /// Absent: the protocol of the first target.
    pub(crate) protocol: Option<Protocol>,
    /// Absent: no egress lock is shown.
    pub(crate) egress: Option<EgressId>,
    /// What else is known of the request; model, key and protocol are those above.
    pub(crate) facts: Option<RequestFacts>,
}

/// Most accounts whose permits are counted for one explanation.
const MAX_COUNTED: usize = 64;

/// The view, and whose permits are all out.
struct Counted<'a> {
    view: &'a View,
    full: BTreeSet<ConnectionId>,
}

impl RoutingView for Counted<'_> {
    fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        self.view.provider(provider)
    }

    fn connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        self.view.connection(provider, connection)
    }

    fn version(&self, shard: Shard) -> Version {
        self.view.version(shard)
    }

    fn is_full(&self, connection: &ConnectionId) -> bool {
        self.full.contains(connection)
    }
}

impl Admin {
    /// Explains, with the time the explanation is of.
    pub(crate) async fn explain(
        &self,
        current: &Current,
        question: Question,
    ) -> (Explanation, Timestamp) {
        let config = &*current.config;
        let protocol = question.protocol.or_else(|| {
            let route = resolve(config, &question.model)?;
            let first = route.targets.first()?;
            Some(config.provider(&first.provider)?.provider.protocol)
        });
        let protocol = protocol.unwrap_or(Protocol::Openai);
        let facts = question
            .facts
            .unwrap_or_else(|| RequestFacts::new(String::new(), protocol));
        let facts = RequestFacts {
            key: question.key,
            model: question.model,
            protocol,
            ..facts
        };
        let view = Counted {
            view: &self.view,
            full: self.full(config, &facts.model).await,
        };
        let now = self.clock.now();
        let explanation = explain(&Input {
            config,
            view: &view,
            facts: &facts,
            so_far: &AttemptsSoFar::default(),
            egress: question.egress.as_ref(),
            telemetry: &*self.fleet.fleet(),
            turns: &DecisionTurns::peeking(&current.counters),
            now,
            random: 0,
            has_credential: &|connection: &ConnectionId| {
                current.credentials.contains_key(connection)
            },
        });
        (explanation, now)
    }

    /// Accounts of the request's targets whose permits are all out, of the first [`MAX_COUNTED`] that have a limit.
    async fn full(&self, config: &Config, model: &str) -> BTreeSet<ConnectionId> {
        let Some(route) = resolve(config, model) else {
            return BTreeSet::new();
        };
        let providers: BTreeSet<_> = route.targets.iter().map(|it| &it.provider).collect();
        let accounts = providers
            .into_iter()
            .filter_map(|provider| config.provider(provider))
            .flat_map(|entry| &entry.connections);
        let counted = accounts
            .filter_map(|account| Some((account, permit::cap(account)?)))
            .take(MAX_COUNTED)
            .map(|(account, cap)| async move {
                let pool = PoolName {
                    provider: account.provider.clone(),
                    connection: account.id.clone(),
                };
                let full = self.permits.is_full(&pool, cap).await;
                full.then_some(pool.connection)
            });
        let full = futures::future::join_all(counted).await;
        full.into_iter().flatten().collect()
    }
}

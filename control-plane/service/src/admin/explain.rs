//! Where a request would go, and why not elsewhere. Takes no probe and sends nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_core::config::{ApiKey, Config, Protocol};
use tidegate_core::ids::{ConnectionId, EgressId};
use tidegate_core::permit;
use tidegate_core::routing::{
    AttemptsSoFar, DecisionTurns, Explanation, Input, RequestFacts, WithFull, explain, resolve,
};
use tidegate_core::time::Timestamp;

use crate::config::Current;
use crate::permits::PoolName;

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
        let view = WithFull::new(&*self.view, self.full(config, &facts.model).await);
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

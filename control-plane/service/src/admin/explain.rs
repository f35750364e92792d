//! Where a request would go, and why not elsewhere. Takes no probe and sends nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::affinity::{PinKey, PinReading};
use tidegate_core::config::{ApiKey, Config, Protocol};
use tidegate_core::ids::{ConnectionId, EgressId, ProviderId, Shard};
use tidegate_core::permit;
use tidegate_core::routing::{
    AttemptsSoFar, DecisionTurns, Explanation, Input, RequestFacts, View as RoutingView, WithFull,
    explain, pin_key, resolve,
};
use tidegate_core::state::{ConnectionState, ProviderState};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;

use crate::clock::local_now;
use crate::config::Current;
use crate::permits::PoolName;
use crate::pins::{Limits, ReadPins};
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

/// Most pins that are read for one explanation, and how long that may take.
const MAX_PINS: usize = 64;
const PIN_LIMIT: Duration = Duration::from_millis(500);
/// Most accounts whose permits are counted for one explanation.
const MAX_COUNTED: usize = 64;

/// The view with the pins that were read; others are absent.
struct WithPins<'a> {
    view: &'a View,
    pins: ReadPins,
}

impl RoutingView for WithPins<'_> {
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

    fn pin(&self, key: &PinKey) -> PinReading {
        match self.pins.reading(key) {
            PinReading::Unread => PinReading::Read(None),
            read @ PinReading::Read(_) => read,
        }
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
        let full = self.full(config, &facts.model).await;
        let pins = self.pins_of(config, &facts).await;
        let view = WithPins {
            view: &self.view,
            pins,
        };
        let view = WithFull::new(view, full);
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

    /// The pins of the request's session at the first [`MAX_PINS`] providers of its targets.
    async fn pins_of(&self, config: &Config, facts: &RequestFacts) -> ReadPins {
        let mut pins = ReadPins::default();
        let Some(route) = resolve(config, &facts.model) else {
            return pins;
        };
        let providers: BTreeSet<_> = route.targets.iter().map(|it| &it.provider).collect();
        let keys = providers
            .into_iter()
            .filter_map(|provider| pin_key(config, facts, provider));
        let limits = Limits {
            call: PIN_LIMIT,
            deadline: local_now() + PIN_LIMIT,
        };
        let read = keys.take(MAX_PINS).map(|key| async move {
            let standing = self.pins.read(&key, limits).await;
            (key, standing)
        });
        for (key, standing) in futures::future::join_all(read).await {
            pins.insert(key, standing);
        }
        pins
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

//! A view in which some permits and probes are not to be had, as one decision found out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::affinity::{PinKey, PinReading};
use crate::ids::{ConnectionId, ProviderId, Shard};
use crate::state::{ConnectionState, ProviderState};
use crate::version::Version;

use super::View;

/// The view beneath, but for connections that are full (`routing.md` §3, gate 10) and providers that stand otherwise,
/// whatever that says.
#[derive(Clone, Debug)]
pub struct WithFull<V> {
    /// What everything else is read from.
    pub beneath: V,
    full: BTreeSet<ConnectionId>,
    providers: BTreeMap<ProviderId, Arc<ProviderState>>,
}

impl<V> WithFull<V> {
    /// With these connections full.
    #[must_use]
    pub fn new(beneath: V, full: BTreeSet<ConnectionId>) -> Self {
        Self {
            beneath,
            full,
            providers: BTreeMap::new(),
        }
    }

    /// This provider stands like this from now on.
    pub fn see(&mut self, provider: ProviderId, state: Arc<ProviderState>) {
        self.providers.insert(provider, state);
    }

    /// This connection is full from now on.
    pub fn fill(&mut self, connection: ConnectionId) {
        self.full.insert(connection);
    }

    /// These connections are full from now on.
    pub fn fill_all(&mut self, connections: impl IntoIterator<Item = ConnectionId>) {
        self.full.extend(connections);
    }

    /// Whether anything was said here.
    #[must_use]
    pub fn any(&self) -> bool {
        !(self.full.is_empty() && self.providers.is_empty())
    }
}

impl<V: View> View for WithFull<V> {
    fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        match self.providers.get(provider) {
            Some(state) => Some(Arc::clone(state)),
            None => self.beneath.provider(provider),
        }
    }

    fn connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        self.beneath.connection(provider, connection)
    }

    fn version(&self, shard: Shard) -> Version {
        self.beneath.version(shard)
    }

    fn is_full(&self, connection: &ConnectionId) -> bool {
        self.full.contains(connection) || self.beneath.is_full(connection)
    }

    fn reserves_pool(&self) -> bool {
        self.beneath.reserves_pool()
    }

    fn pin(&self, key: &PinKey) -> PinReading {
        self.beneath.pin(key)
    }
}

impl<V: View + ?Sized> View for &V {
    fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        (**self).provider(provider)
    }

    fn connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        (**self).connection(provider, connection)
    }

    fn version(&self, shard: Shard) -> Version {
        (**self).version(shard)
    }

    fn is_full(&self, connection: &ConnectionId) -> bool {
        (**self).is_full(connection)
    }

    fn reserves_pool(&self) -> bool {
        (**self).reserves_pool()
    }

    fn pin(&self, key: &PinKey) -> PinReading {
        (**self).pin(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a` is full.
    struct Base;

    impl View for Base {
        fn provider(&self, _: &ProviderId) -> Option<Arc<ProviderState>> {
            Some(Arc::default())
        }

        fn connection(&self, _: &ProviderId, _: &ConnectionId) -> Option<Arc<ConnectionState>> {
            None
        }

        fn version(&self, _: Shard) -> Version {
            Version::default()
        }

        fn is_full(&self, connection: &ConnectionId) -> bool {
            connection.as_str() == "a"
        }
    }

    #[test]
    fn what_is_full_beneath_or_here_is_full() {
        let id = |id: &str| ConnectionId::new(id).unwrap();
        let beneath: &dyn View = &Base;
        let mut view = WithFull::new(beneath, BTreeSet::new());
        assert!(!view.any());
        view.fill(id("b"));
        assert!(view.any());
        let full = ["a", "b", "c"].map(|connection| view.is_full(&id(connection)));
        assert_eq!(full, [true, true, false]);
        let provider = ProviderId::new("p").unwrap();
        assert!(view.provider(&provider).is_some());
        assert!(view.connection(&provider, &id("b")).is_none());
        let mut open = ProviderState::default();
        open.breaker.status = crate::breaker::BreakerStatus::Open;
        view.see(provider.clone(), Arc::new(open.clone()));
        assert_eq!(view.provider(&provider).as_deref(), Some(&open));
    }
}

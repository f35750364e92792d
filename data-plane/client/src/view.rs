//! The hot state as the watch brings it: what local decisions rest on.
//!
//! A shard never goes back: a whole shard that is not newer than what is here and a change that is older are
//! passed over, and so is a single value that is older than its cell. Values that this build cannot read (a higher schema, a
//! foreign key) are skipped and counted; the control plane knows them, only local decisions do not.
//!
//! Reading takes a shared lock of one shard for the time of a clone of an `Arc`.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tidegate_core::ids::{ConnectionId, ProviderId, SHARDS, Shard};
use tidegate_core::routing::View;
use tidegate_core::state::codec::decode_payload;
use tidegate_core::state::{ConnectionState, ProviderState, StateKey, StateValue};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tidegate_proto::common::v1::ShardVersion;
use tidegate_proto::config::v1::HotValue;
use tidegate_wire::{version_from_proto, version_to_proto};

/// How long a forgotten value stays, in ms, so that the clocks need not agree.
const FORGET_GRACE_MS: u64 = 60_000;

/// A value with the write that put it there.
#[derive(Clone, Debug)]
struct Cell<T> {
    version: Version,
    expires_at: Timestamp,
    value: Arc<T>,
}

/// Everything of one provider.
#[derive(Debug, Default)]
struct ProviderCells {
    provider: Option<Cell<ProviderState>>,
    connections: BTreeMap<ConnectionId, Cell<ConnectionState>>,
}

#[derive(Debug, Default)]
struct ShardCells {
    version: Version,
    providers: BTreeMap<ProviderId, ProviderCells>,
}

/// The view of all shards.
#[derive(Debug)]
pub(crate) struct LocalView {
    shards: [RwLock<ShardCells>; SHARDS as usize],
}

/// What an update did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Updated {
    /// The shard is newer than before.
    pub(crate) moved: bool,
    /// Values that could not be read.
    pub(crate) skipped: u64,
}

impl LocalView {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| RwLock::default()),
        }
    }

    /// What the view holds of each shard, to resume a watch with. Shards without anything are left out.
    pub(crate) fn resume_vector(&self) -> Vec<ShardVersion> {
        Shard::all()
            .filter_map(|shard| {
                let version = self.version(shard);
                (version != Version::default()).then(|| ShardVersion {
                    shard: u32::from(shard.number()),
                    version: Some(version_to_proto(version)),
                })
            })
            .collect()
    }

    /// Replaces a shard, unless what is here is as new.
    pub(crate) fn replace(&self, shard: Shard, version: Version, values: &[HotValue]) -> Updated {
        let mut fresh = ShardCells {
            version,
            ..ShardCells::default()
        };
        let skipped = fresh.put_all(values);
        let mut current = self.shard(shard).write();
        let moved = version > current.version;
        if moved {
            *current = fresh;
        }
        Updated { moved, skipped }
    }

    /// Adds what changed in a shard up to `version`. A control plane also tells values that it learned ahead
    /// of its stream: they come with the version that is here already, and are not told again.
    pub(crate) fn change(&self, shard: Shard, version: Version, values: &[HotValue]) -> Updated {
        let mut current = self.shard(shard).write();
        if version < current.version {
            return Updated::default();
        }
        let skipped = current.put_all(values);
        let moved = version > current.version;
        current.version = version;
        Updated { moved, skipped }
    }

    /// Lets go of values that nobody can read any more.
    pub(crate) fn prune(&self, now: Timestamp) {
        for shard in &self.shards {
            let mut shard = shard.write();
            for cells in shard.providers.values_mut() {
                let kept = |expires_at: Timestamp| expires_at.plus_ms(FORGET_GRACE_MS) > now;
                cells.provider = cells.provider.take().filter(|cell| kept(cell.expires_at));
                cells.connections.retain(|_, cell| kept(cell.expires_at));
            }
            shard
                .providers
                .retain(|_, cells| cells.provider.is_some() || !cells.connections.is_empty());
        }
    }

    /// The newest write among all values of a provider; the default when there are none.
    pub(crate) fn newest_of(&self, provider: &ProviderId) -> Version {
        let shard = self.shard(Shard::of_provider(provider)).read();
        let Some(cells) = shard.providers.get(provider) else {
            return Version::default();
        };
        let of_provider = cells.provider.as_ref().map(|cell| cell.version);
        cells
            .connections
            .values()
            .map(|cell| cell.version)
            .chain(of_provider)
            .max()
            .unwrap_or_default()
    }

    fn shard(&self, shard: Shard) -> &RwLock<ShardCells> {
        let [first, ..] = &self.shards;
        self.shards.get(shard.index()).unwrap_or(first)
    }
}

impl View for LocalView {
    fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        let shard = self.shard(Shard::of_provider(provider)).read();
        let cell = shard.providers.get(provider)?.provider.as_ref()?;
        Some(Arc::clone(&cell.value))
    }

    fn connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        let shard = self.shard(Shard::of_provider(provider)).read();
        let cell = shard.providers.get(provider)?.connections.get(connection)?;
        Some(Arc::clone(&cell.value))
    }

    fn version(&self, shard: Shard) -> Version {
        self.shard(shard).read().version
    }
}

impl ShardCells {
    /// Puts values into their cells; says how many could not be read.
    fn put_all(&mut self, values: &[HotValue]) -> u64 {
        let mut skipped: u64 = 0;
        for value in values {
            if !self.put(value) {
                skipped = skipped.saturating_add(1);
            }
        }
        skipped
    }

    fn put(&mut self, message: &HotValue) -> bool {
        let version = version_from_proto(message.version);
        let decoded = decode_payload(&message.key, message.schema, &message.payload);
        let (key, stored) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                tracing::debug!(error = %error, "skipped a hot value");
                return false;
            }
        };
        let expires_at = Timestamp(message.expires_at_unix_ms);
        let (value, _) = stored.open(version, version.incarnation);
        match (key, value) {
            (StateKey::Provider(provider), StateValue::Provider(value)) => {
                let cells = self.providers.entry(provider).or_default();
                let is_newer = cells
                    .provider
                    .as_ref()
                    .is_none_or(|cell| version >= cell.version);
                if is_newer {
                    cells.provider = Some(Cell {
                        version,
                        expires_at,
                        value: Arc::new(value),
                    });
                }
                true
            }
            (StateKey::Connection(provider, connection), StateValue::Connection(value)) => {
                let cells = self.providers.entry(provider).or_default();
                let is_newer = cells
                    .connections
                    .get(&connection)
                    .is_none_or(|cell| version >= cell.version);
                if is_newer {
                    let cell = Cell {
                        version,
                        expires_at,
                        value: Arc::new(value),
                    };
                    cells.connections.insert(connection, cell);
                }
                true
            }
            (StateKey::Provider(_), StateValue::Connection(_))
            | (StateKey::Connection(..), StateValue::Provider(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::state::codec::{encode_payload, key_text};
    use tidegate_core::state::{StoredValue, VALUE_SCHEMA};

    fn provider() -> ProviderId {
        ProviderId::new("openai").unwrap()
    }

    fn value(failures: u32, version: Version) -> HotValue {
        let mut state = ProviderState::default();
        state.breaker.failure_count = failures;
        let key = key_text(&StateKey::Provider(provider()));
        let stored = StoredValue::from_live(
            StateValue::Provider(state),
            Version::default(),
            Timestamp(5_000),
        );
        HotValue {
            payload: encode_payload(&key, &stored).unwrap().into(),
            key,
            version: Some(version_to_proto(version)),
            schema: VALUE_SCHEMA,
            expires_at_unix_ms: 5_000,
        }
    }

    fn failures(view: &LocalView) -> Option<u32> {
        view.provider(&provider())
            .map(|state| state.breaker.failure_count)
    }

    #[test]
    fn a_shard_never_goes_back() {
        let shard = Shard::of_provider(&provider());
        let view = LocalView::new();
        let v = |revision| Version::new(1, revision);
        assert!(view.replace(shard, v(5), &[value(2, v(5))]).moved);
        assert!(!view.replace(shard, v(4), &[value(9, v(4))]).moved);
        // An older shard version is passed over, whatever comes with it.
        assert!(!view.change(shard, v(4), &[value(9, v(6))]).moved);
        assert_eq!(failures(&view), Some(2));
        assert!(
            view.change(shard, v(7), &[value(3, v(6)), value(8, v(3))])
                .moved
        );
        assert_eq!(failures(&view), Some(3));
        assert_eq!(view.version(shard), v(7));
        // A store that lost its memory is a new incarnation, which is newer than anything of the old one.
        assert!(view.replace(shard, Version::new(2, 0), &[]).moved);
        assert_eq!(failures(&view), None);
        assert_eq!(view.resume_vector().len(), 1);
    }

    #[test]
    fn a_value_learned_ahead_of_the_stream_is_taken_in_and_stays() {
        let shard = Shard::of_provider(&provider());
        let view = LocalView::new();
        let v = |revision| Version::new(1, revision);
        view.change(shard, v(5), &[value(1, v(5))]);
        assert!(!view.change(shard, v(5), &[value(2, v(7))]).moved);
        assert_eq!(failures(&view), Some(2));
        assert_eq!(view.version(shard), v(5));
        assert!(view.change(shard, v(7), &[]).moved);
        assert_eq!(failures(&view), Some(2));
        assert_eq!(view.version(shard), v(7));
    }

    #[test]
    fn what_cannot_be_read_is_skipped_and_the_rest_is_taken() {
        let shard = Shard::of_provider(&provider());
        let view = LocalView::new();
        let v = Version::new(1, 1);
        let foreign = HotValue {
            key: "x:what".to_owned(),
            ..value(1, v)
        };
        let newer = HotValue {
            schema: VALUE_SCHEMA + 1,
            ..value(1, v)
        };
        let updated = view.change(shard, v, &[foreign, newer, value(4, v)]);
        assert_eq!(updated.skipped, 2);
        assert_eq!(failures(&view), Some(4));
    }

    #[test]
    fn forgotten_values_are_let_go() {
        let shard = Shard::of_provider(&provider());
        let view = LocalView::new();
        let v = Version::new(1, 1);
        view.change(shard, v, &[value(4, v)]);
        view.prune(Timestamp(5_000));
        assert_eq!(failures(&view), Some(4));
        view.prune(Timestamp(5_000 + FORGET_GRACE_MS));
        assert_eq!(failures(&view), None);
        assert_eq!(view.version(shard), v);
    }
}

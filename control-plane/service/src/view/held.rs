//! A value as the store has it, read.

use std::sync::Arc;

use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::state::{ConnectionState, ProviderState, StateKey, StateValue, StoredValue};
use tidegate_store::codec;
use tidegate_store::hot::Entry;

/// A value as the store has it.
#[derive(Clone, Debug)]
pub(crate) struct Held<T> {
    /// As stored; handed on to data planes and to the checkpoint untouched.
    pub(crate) entry: Entry,
    /// Decoded, marks resolved; `None` when it is of a higher schema than this build knows.
    pub(crate) stored: Option<StoredValue>,
    /// What is true now. For a value that cannot be read: what the one before it said.
    pub(crate) effective: Option<Arc<T>>,
}

/// Either value with its name.
#[derive(Clone, Debug)]
pub(crate) enum HeldValue {
    Provider(ProviderId, Held<ProviderState>),
    Connection(ProviderId, ConnectionId, Held<ConnectionState>),
}

impl HeldValue {
    /// Reads an entry; `None` when its name is none of ours.
    pub(crate) fn read(entry: Entry) -> Option<Self> {
        let key = codec::parse_key(&entry.key).ok()?;
        let stored = match codec::decode(&entry) {
            Ok((_, mut stored)) => {
                stored.resolve_marks(entry.version);
                Some(stored)
            }
            Err(error) => {
                tracing::debug!(key = entry.key, %error, "a value of the hot state cannot be read");
                None
            }
        };
        let effective = stored.as_ref().map(StoredValue::effective);
        match key {
            StateKey::Provider(provider) => {
                let effective = match effective {
                    Some(StateValue::Provider(state)) => Some(Arc::new(state)),
                    Some(StateValue::Connection(_)) => return None,
                    None => None,
                };
                let held = Held {
                    entry,
                    stored,
                    effective,
                };
                Some(Self::Provider(provider, held))
            }
            StateKey::Connection(provider, connection) => {
                let effective = match effective {
                    Some(StateValue::Connection(state)) => Some(Arc::new(state)),
                    Some(StateValue::Provider(_)) => return None,
                    None => None,
                };
                let held = Held {
                    entry,
                    stored,
                    effective,
                };
                Some(Self::Connection(provider, connection, held))
            }
        }
    }

    pub(crate) fn provider(&self) -> &ProviderId {
        match self {
            Self::Provider(provider, _) | Self::Connection(provider, _, _) => provider,
        }
    }

    pub(crate) fn entry(&self) -> &Entry {
        match self {
            Self::Provider(_, held) => &held.entry,
            Self::Connection(_, _, held) => &held.entry,
        }
    }

    pub(crate) fn stored(&self) -> Option<&StoredValue> {
        match self {
            Self::Provider(_, held) => held.stored.as_ref(),
            Self::Connection(_, _, held) => held.stored.as_ref(),
        }
    }
}

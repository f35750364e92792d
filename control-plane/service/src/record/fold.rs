//! Applies events to a shard's values and prepares the one write that replaces them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::config::{Config, Connection};
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::outcome::AttemptOutcome;
use tidegate_core::settings::ProviderPolicy;
use tidegate_core::state::apply::{Applied, Subject, apply, apply_outcome};
use tidegate_core::state::{
    ConnectionState, Event, ProviderState, StateKey, StateValue, StoredValue, Transition, forget_at,
};
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Version};
use tidegate_store::codec::{self, CodecError};
use tidegate_store::hot::{Entry, WriteValue};

use crate::view::{Held, HeldValue, View};

/// Why events cannot be folded.
#[derive(Debug, thiserror::Error)]
pub(super) enum FoldError {
    /// A value is of a schema this build does not know: a newer replica has to do it.
    #[error("a value of the hot state is of a higher schema")]
    Unreadable,
    /// A value cannot be written down.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Values that a refusal showed, which are newer than the view's.
#[derive(Debug, Default)]
pub(super) struct Shown {
    values: BTreeMap<StateKey, Option<HeldValue>>,
}

impl Shown {
    /// Takes the values of a refusal, which come in the order of the write's.
    pub(super) fn take(&mut self, keys: &[WriteValue], found: Vec<Option<Entry>>) {
        for (value, entry) in keys.iter().zip(found) {
            if let Ok(key) = codec::parse_key(&value.key) {
                self.values.insert(key, entry.and_then(HeldValue::read));
            }
        }
    }
}

/// A value that events are applied to.
#[derive(Debug)]
struct Work<T> {
    expected: Option<Version>,
    ancestor: Version,
    before: Option<Arc<T>>,
    now: T,
}

impl<T: Clone + Default + PartialEq> Work<T> {
    fn of(held: Option<&Held<T>>, incarnation: Incarnation) -> Result<Self, FoldError> {
        let Some(held) = held else {
            return Ok(Self {
                expected: None,
                ancestor: Version::default(),
                before: None,
                now: T::default(),
            });
        };
        let (Some(stored), Some(effective)) = (&held.stored, &held.effective) else {
            return Err(FoldError::Unreadable);
        };
        Ok(Self {
            expected: Some(held.entry.version),
            ancestor: stored.descends_from(held.entry.version, incarnation),
            before: Some(Arc::clone(effective)),
            now: T::clone(effective),
        })
    }

    fn changed(&self) -> bool {
        match &self.before {
            Some(before) => self.now != **before,
            None => self.now != T::default(),
        }
    }
}

/// Events applied to values so far.
#[derive(Debug)]
pub(super) struct Fold<'a> {
    config: &'a Config,
    view: &'a View,
    shown: &'a Shown,
    incarnation: Incarnation,
    now: Timestamp,
    providers: BTreeMap<ProviderId, Work<ProviderState>>,
    connections: BTreeMap<(ProviderId, ConnectionId), Work<ConnectionState>>,
    /// For history.
    pub(super) transitions: Vec<Transition>,
    /// Events of something that is not configured.
    pub(super) unknown: u64,
}

impl<'a> Fold<'a> {
    pub(super) fn new(
        config: &'a Config,
        view: &'a View,
        shown: &'a Shown,
        incarnation: Incarnation,
        now: Timestamp,
    ) -> Self {
        Self {
            config,
            view,
            shown,
            incarnation,
            now,
            providers: BTreeMap::new(),
            connections: BTreeMap::new(),
            transitions: Vec::new(),
            unknown: 0,
        }
    }

    /// Applies an event to a provider and, if named and configured, one of its connections.
    pub(super) fn event(
        &mut self,
        provider: &ProviderId,
        connection: Option<&ConnectionId>,
        event: &Event,
    ) -> Result<Applied, FoldError> {
        self.change(provider, connection, |subject, now, policy| {
            apply(subject, event, now, policy, provider)
        })
    }

    /// Applies an outcome to what its attempt names.
    pub(super) fn outcome(&mut self, outcome: &AttemptOutcome) -> Result<Applied, FoldError> {
        let attempt = &outcome.attempt;
        let provider = &attempt.provider;
        self.change(
            provider,
            Some(&attempt.connection),
            |subject, now, policy| apply_outcome(subject, outcome, now, policy, provider),
        )
    }

    fn change(
        &mut self,
        provider: &ProviderId,
        connection: Option<&ConnectionId>,
        apply: impl FnOnce(Subject<'_>, Timestamp, &ProviderPolicy) -> Applied,
    ) -> Result<Applied, FoldError> {
        let Some(entry) = self.config.provider(provider) else {
            self.unknown = self.unknown.saturating_add(1);
            return Ok(Applied::default());
        };
        let policy = &entry.policy;
        self.load_provider(provider)?;
        let connection = connection
            .and_then(|connection| self.config.connection(connection))
            .filter(|connection| connection.provider == *provider);
        let key = match connection {
            Some(connection) => Some(self.load_connection(connection)?),
            None => None,
        };
        let Some(work) = self.providers.get_mut(provider) else {
            return Ok(Applied::default());
        };
        let connection_state = key.and_then(|key| self.connections.get_mut(&key));
        let subject = Subject {
            provider: &mut work.now,
            connection: connection
                .zip(connection_state)
                .map(|(config, work)| (&**config, &mut work.now)),
        };
        let applied = apply(subject, self.now, policy);
        self.transitions.extend(applied.transitions.iter().cloned());
        Ok(applied)
    }

    /// What differs from what was, ready to be written.
    pub(super) fn writes(&self) -> Result<Vec<WriteValue>, FoldError> {
        let mut writes = Vec::new();
        for (provider, work) in &self.providers {
            if work.changed() {
                let value = StateValue::Provider(work.now.clone());
                let key = StateKey::Provider(provider.clone());
                writes.push(self.write(&key, value, work.expected, work.ancestor)?);
            }
        }
        for ((provider, connection), work) in &self.connections {
            if work.changed() {
                let value = StateValue::Connection(work.now.clone());
                let key = StateKey::Connection(provider.clone(), connection.clone());
                writes.push(self.write(&key, value, work.expected, work.ancestor)?);
            }
        }
        Ok(writes)
    }

    fn write(
        &self,
        key: &StateKey,
        value: StateValue,
        expected: Option<Version>,
        ancestor: Version,
    ) -> Result<WriteValue, FoldError> {
        let forget_at = self
            .config
            .provider(key.provider())
            .map_or(self.now, |entry| forget_at(&value, self.now, &entry.policy));
        let stored = StoredValue::from_live(value, ancestor, forget_at);
        Ok(codec::encode(key, expected, &stored)?)
    }

    fn load_provider(&mut self, provider: &ProviderId) -> Result<(), FoldError> {
        if self.providers.contains_key(provider) {
            return Ok(());
        }
        let key = StateKey::Provider(provider.clone());
        let work = match self.shown.values.get(&key) {
            Some(Some(HeldValue::Provider(_, held))) => Work::of(Some(held), self.incarnation)?,
            Some(_) => Work::of(None, self.incarnation)?,
            None => Work::of(
                self.view.held_provider(provider).as_deref(),
                self.incarnation,
            )?,
        };
        self.providers.insert(provider.clone(), work);
        Ok(())
    }

    fn load_connection(
        &mut self,
        connection: &Connection,
    ) -> Result<(ProviderId, ConnectionId), FoldError> {
        let named = (connection.provider.clone(), connection.id.clone());
        if self.connections.contains_key(&named) {
            return Ok(named);
        }
        let key = StateKey::Connection(named.0.clone(), named.1.clone());
        let work = match self.shown.values.get(&key) {
            Some(Some(HeldValue::Connection(_, _, held))) => {
                Work::of(Some(held), self.incarnation)?
            }
            Some(_) => Work::of(None, self.incarnation)?,
            None => {
                let held = self.view.held_connection(&named.0, &named.1);
                Work::of(held.as_deref(), self.incarnation)?
            }
        };
        self.connections.insert(named.clone(), work);
        Ok(named)
    }
}

/// Values of a write as they stand after it.
pub(super) fn entries(values: &[WriteValue], version: Version) -> Vec<Entry> {
    values
        .iter()
        .map(|value| Entry {
            key: value.key.clone(),
            version,
            schema: value.schema,
            payload: value.payload.clone(),
            expires_at: value.expires_at,
        })
        .collect()
}

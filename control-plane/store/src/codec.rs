//! How keys and values of the hot state are written down. Part of the stored format: [`VALUE_SCHEMA`]
//! changes with it.
//!
//! Values are JSON: an operator can read them with the store's own client.

use tidegate_core::ids::{ConnectionId, NameError, ProviderId};
use tidegate_core::state::{StateKey, StoredValue, VALUE_SCHEMA};
use tidegate_core::time::Timestamp;

use crate::hot::{Entry, WriteValue};
use tidegate_core::version::Version;

/// Why a stored key or value cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The value is of a schema this build does not know: read-only to it.
    #[error("the value {key} has schema {schema}, this build knows up to {VALUE_SCHEMA}")]
    HigherSchema {
        /// Its key.
        key: String,
        /// Its schema.
        schema: u32,
    },
    /// The key is not one of ours.
    #[error("the key {0} is not one of the hot state")]
    Key(String),
    /// A name in the key is not valid.
    #[error("the key {key} holds an invalid name: {source}")]
    Name {
        /// The key.
        key: String,
        /// What is wrong.
        source: NameError,
    },
    /// The payload is not what its schema says.
    #[error("the value {key} cannot be decoded: {source}")]
    Payload {
        /// Its key.
        key: String,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// The name of a value within its shard: `p:<provider>` or `c:<provider>/<connection>`.
#[must_use]
pub fn key_text(key: &StateKey) -> String {
    match key {
        StateKey::Provider(provider) => format!("p:{provider}"),
        StateKey::Connection(provider, connection) => format!("c:{provider}/{connection}"),
    }
}

/// Reads a key back.
///
/// # Errors
/// [`CodecError`] when it is not one that [`key_text`] makes.
pub fn parse_key(text: &str) -> Result<StateKey, CodecError> {
    let name = |source| CodecError::Name {
        key: text.to_owned(),
        source,
    };
    if let Some(provider) = text.strip_prefix("p:") {
        return Ok(StateKey::Provider(ProviderId::new(provider).map_err(name)?));
    }
    let (provider, connection) = text
        .strip_prefix("c:")
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(|| CodecError::Key(text.to_owned()))?;
    Ok(StateKey::Connection(
        ProviderId::new(provider).map_err(name)?,
        ConnectionId::new(connection).map_err(name)?,
    ))
}

/// Prepares a value for writing. Its expiry is its `forget_at`.
///
/// # Errors
/// [`CodecError::Payload`] when it cannot be encoded.
pub fn encode(
    key: &StateKey,
    expected: Option<Version>,
    value: &StoredValue,
) -> Result<WriteValue, CodecError> {
    let key = key_text(key);
    match serde_json::to_vec(value) {
        Ok(payload) => Ok(WriteValue {
            key,
            expected,
            schema: VALUE_SCHEMA,
            payload,
            expires_at: value.forget_at,
        }),
        Err(source) => Err(CodecError::Payload { key, source }),
    }
}

/// Reads an entry back. The caller resolves marks with the entry's version.
///
/// # Errors
/// [`CodecError`] for a foreign key, a higher schema or a payload that does not decode.
pub fn decode(entry: &Entry) -> Result<(StateKey, StoredValue), CodecError> {
    let key = parse_key(&entry.key)?;
    if entry.schema > VALUE_SCHEMA {
        return Err(CodecError::HigherSchema {
            key: entry.key.clone(),
            schema: entry.schema,
        });
    }
    let value = serde_json::from_slice(&entry.payload).map_err(|source| CodecError::Payload {
        key: entry.key.clone(),
        source,
    })?;
    Ok((key, value))
}

/// A moment that is never reached, for calls that are not to be refused for lateness.
pub const NEVER_LATE: Timestamp = Timestamp(u64::MAX);

//! How keys and values of the hot state are written down. Part of the stored format and of the contract
//! between the planes: [`VALUE_SCHEMA`] changes with it.
//!
//! Values are JSON: an operator can read them with the store's own client.

use super::{StateKey, StoredValue, VALUE_SCHEMA};
use crate::ids::{ConnectionId, NameError, ProviderId};

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

/// A value's payload in [`VALUE_SCHEMA`].
///
/// # Errors
/// [`CodecError::Payload`] when it cannot be encoded.
pub fn encode_payload(key: &str, value: &StoredValue) -> Result<Vec<u8>, CodecError> {
    serde_json::to_vec(value).map_err(|source| CodecError::Payload {
        key: key.to_owned(),
        source,
    })
}

/// Reads a key and its payload back. The caller resolves marks with the version the value was stored under.
///
/// # Errors
/// [`CodecError`] for a foreign key, a higher schema or a payload that does not decode.
pub fn decode_payload(
    key: &str,
    schema: u32,
    payload: &[u8],
) -> Result<(StateKey, StoredValue), CodecError> {
    let parsed = parse_key(key)?;
    if schema > VALUE_SCHEMA {
        return Err(CodecError::HigherSchema {
            key: key.to_owned(),
            schema,
        });
    }
    let value = serde_json::from_slice(payload).map_err(|source| CodecError::Payload {
        key: key.to_owned(),
        source,
    })?;
    Ok((parsed, value))
}

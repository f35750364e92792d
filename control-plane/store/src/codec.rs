//! Entries of the hot store as keys and values of the rules. How both are written down is
//! [`tidegate_core::state::codec`], which data planes share.

use tidegate_core::state::codec::{decode_payload, encode_payload};
use tidegate_core::state::{StateKey, StoredValue, VALUE_SCHEMA};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;

pub use tidegate_core::state::codec::{CodecError, key_text, parse_key};

use crate::hot::{Entry, WriteValue};

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
    let payload = encode_payload(&key, value)?;
    Ok(WriteValue {
        key,
        expected,
        schema: VALUE_SCHEMA,
        payload,
        expires_at: value.forget_at,
    })
}

/// Reads an entry back. The caller resolves marks with the entry's version.
///
/// # Errors
/// [`CodecError`] for a foreign key, a higher schema or a payload that does not decode.
pub fn decode(entry: &Entry) -> Result<(StateKey, StoredValue), CodecError> {
    decode_payload(&entry.key, entry.schema, &entry.payload)
}

/// A moment that is never reached, for calls that are not to be refused for lateness.
pub const NEVER_LATE: Timestamp = Timestamp(u64::MAX);

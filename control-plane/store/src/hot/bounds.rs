//! Bounds of the contract. Every adapter checks them before it sends anything, so that no adapter accepts
//! what another one cannot keep.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::version::Incarnation;

use super::{Announcement, HotStoreError, MAX_WRITE_MARKS, MAX_WRITE_VALUES, ShardWrite, Swap};

/// Longest name of a value within its shard, in bytes: two names of the domain and what joins them.
pub const MAX_KEY_BYTES: usize = 512;
/// Largest encoded value, in bytes. A connection with all its locks is far below it.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024;
/// Longest name of a replica in an announcement, in bytes.
pub const MAX_REPLICA_BYTES: usize = 128;
/// Largest blob of a replica, in bytes.
pub const MAX_BLOB_BYTES: usize = 2 * 1024 * 1024;
/// Bytes of payloads after which a reading of blobs adds no other one. A piece is below this and a blob together, so that
/// it passes within the limit of a call also where the link is slow, and keeps nobody else waiting.
pub const BLOB_PIECE_BYTES: usize = 1024 * 1024;
/// Most blobs that are kept.
pub const MAX_BLOBS: usize = 64;
/// Largest number that travels as a number of the store's scripts, which count in doubles.
pub const MAX_EXACT_NUMBER: u64 = (1 << 53) - 1;

impl ShardWrite {
    /// Whether the write keeps to the contract.
    ///
    /// # Errors
    /// [`HotStoreError::Bounds`] with the bound that it breaks.
    pub fn check_bounds(&self) -> Result<(), HotStoreError> {
        let bound = |holds: bool, text| {
            if holds {
                Ok(())
            } else {
                Err(HotStoreError::Bounds(text))
            }
        };
        bound(
            !self.values.is_empty() || !self.marks.is_empty(),
            "a write without values and marks",
        )?;
        bound(
            self.values.len() <= MAX_WRITE_VALUES,
            "more than 65 values in a write",
        )?;
        bound(
            self.marks.len() <= MAX_WRITE_MARKS,
            "more than 256 marks in a write",
        )?;
        let mut keys = BTreeSet::new();
        for value in &self.values {
            bound(
                !value.key.is_empty() && value.key.len() <= MAX_KEY_BYTES,
                "a key that is empty or longer than 512 bytes",
            )?;
            bound(
                value.payload.len() <= MAX_PAYLOAD_BYTES,
                "a value larger than 256 KiB",
            )?;
            bound(keys.insert(&value.key), "a key twice in a write")?;
        }
        let mut planes = BTreeSet::new();
        for mark in &self.marks {
            bound(
                1 <= mark.first && mark.first <= mark.last && mark.last <= MAX_EXACT_NUMBER,
                "a run of reports that is empty, backward or beyond 2^53",
            )?;
            bound(planes.insert(mark.plane), "a data plane twice in a write")?;
        }
        Ok(())
    }
}

impl Swap {
    /// Whether the swap keeps to the contract.
    ///
    /// # Errors
    /// [`HotStoreError::Bounds`] with the bound that it breaks.
    pub fn check_bounds(&self) -> Result<(), HotStoreError> {
        check_key(&self.key)?;
        if self.payload.len() > MAX_PAYLOAD_BYTES {
            return Err(HotStoreError::Bounds("a value larger than 256 KiB"));
        }
        Ok(())
    }
}

/// Whether a name within a shard keeps to the contract.
///
/// # Errors
/// [`HotStoreError::Bounds`] when it is empty or too long.
pub fn check_key(key: &str) -> Result<(), HotStoreError> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(HotStoreError::Bounds(
            "a key that is empty or longer than 512 bytes",
        ));
    }
    Ok(())
}

impl Announcement {
    /// Whether the announcement keeps to the contract.
    ///
    /// # Errors
    /// [`HotStoreError::Bounds`] with the bound that it breaks.
    pub fn check_bounds(&self) -> Result<(), HotStoreError> {
        check_replica(&self.replica)
    }
}

fn check_replica(replica: &str) -> Result<(), HotStoreError> {
    if replica.is_empty() || replica.len() > MAX_REPLICA_BYTES {
        return Err(HotStoreError::Bounds(
            "a replica's name that is empty or longer than 128 bytes",
        ));
    }
    Ok(())
}

/// Whether a blob may be published.
///
/// # Errors
/// [`HotStoreError::Bounds`] with the bound that it breaks.
pub fn check_blob(replica: &str, payload: &[u8]) -> Result<(), HotStoreError> {
    check_replica(replica)?;
    if payload.len() > MAX_BLOB_BYTES {
        return Err(HotStoreError::Bounds("a blob larger than 2 MiB"));
    }
    Ok(())
}

/// Whether this many blobs may be said to be known.
///
/// # Errors
/// [`HotStoreError::Bounds`] when they are more than there can be.
pub fn check_known(known: &BTreeMap<String, u64>) -> Result<(), HotStoreError> {
    if known.len() > MAX_BLOBS {
        return Err(HotStoreError::Bounds("more than 64 known blobs"));
    }
    Ok(())
}

/// Whether a successor of these incarnations can be counted.
///
/// # Errors
/// [`HotStoreError::Bounds`] when one is beyond what the scripts count exactly.
pub fn check_incarnations(
    found: Option<Incarnation>,
    known: Incarnation,
) -> Result<(), HotStoreError> {
    if found.unwrap_or_default().max(known).0 >= MAX_EXACT_NUMBER {
        return Err(HotStoreError::Bounds("an incarnation beyond 2^53"));
    }
    Ok(())
}

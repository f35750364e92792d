//! The blobs of replicas.

use std::collections::BTreeMap;

use tidegate_core::time::Timestamp;

use crate::hot::Blob;
use crate::hot::bounds::{BLOB_PIECE_BYTES, MAX_BLOBS};

/// All blobs, and the version that was handed out last.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    held: Held,
    version: u64,
}

/// Blobs by replica.
pub(super) type Held = BTreeMap<String, Kept>;

#[derive(Clone, Debug)]
pub(super) struct Kept {
    version: u64,
    payload: Vec<u8>,
    end: Timestamp,
}

impl Blobs {
    pub(super) fn put(
        &mut self,
        replica: &str,
        payload: Vec<u8>,
        now: Timestamp,
        end: Timestamp,
    ) -> u64 {
        self.forget(now);
        self.version = self.version.wrapping_add(1);
        let held = Kept {
            version: self.version,
            payload,
            end,
        };
        self.held.insert(replica.to_owned(), held);
        while self.held.len() > MAX_BLOBS {
            let first = self.held.iter().min_by_key(|(_, held)| held.end);
            let Some(replica) = first.map(|(replica, _)| replica.clone()) else {
                break;
            };
            self.held.remove(&replica);
        }
        self.version
    }

    pub(super) fn list(&mut self, known: &BTreeMap<String, u64>, now: Timestamp) -> Vec<Blob> {
        self.forget(now);
        let mut left = BLOB_PIECE_BYTES;
        let told = |(replica, held): (&String, &Kept)| {
            let wanted = known.get(replica) != Some(&held.version) && left > 0;
            if wanted {
                left = left.saturating_sub(held.payload.len());
            }
            Blob {
                replica: replica.clone(),
                version: held.version,
                payload: wanted.then(|| held.payload.clone()),
            }
        };
        self.held.iter().map(told).collect()
    }

    /// A copy of what is remembered.
    pub(super) fn image(&self) -> Held {
        self.held.clone()
    }

    /// Something else is remembered. Versions go on, so that no reader takes a new blob for one it knows.
    pub(super) fn restore(&mut self, held: Held) {
        self.held = held;
    }

    fn forget(&mut self, now: Timestamp) {
        self.held.retain(|_, held| now <= held.end);
    }
}

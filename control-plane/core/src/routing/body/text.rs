//! Texts of which only a beginning is looked at.

use sha2::{Digest as _, Sha256};

use super::HASHED_BYTES;

/// A hash of the first [`HASHED_BYTES`] of what is fed to it.
#[derive(Clone, Default)]
pub(super) struct BoundedHash {
    hash: Sha256,
    fed: usize,
}

impl BoundedHash {
    /// Takes in more. Texts are kept apart from each other.
    pub(super) fn feed(&mut self, text: &str) {
        if self.fed > 0 {
            self.take(b"\n");
        }
        self.take(text.as_bytes());
    }

    /// The hash; `None` of nothing.
    pub(super) fn finish(self) -> Option<[u8; 32]> {
        (self.fed > 0).then(|| self.hash.finalize().into())
    }

    fn take(&mut self, bytes: &[u8]) {
        let room = HASHED_BYTES.saturating_sub(self.fed);
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.hash.update(taken);
        self.fed = self.fed.saturating_add(taken.len());
    }
}

/// Adds as much of a text as fits into `limit` bytes.
pub(super) fn append(kept: &mut String, text: &str, limit: usize) {
    if !kept.is_empty() && kept.len() < limit {
        kept.push('\n');
    }
    let room = limit.saturating_sub(kept.len());
    let end = text.floor_char_boundary(room);
    kept.push_str(text.get(..end).unwrap_or_default());
}

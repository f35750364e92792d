//! How many data planes live, as control planes tell each other: what a cap, or a floor, is divided by while nobody counts
//! for all of them (decisions 49 and 62).
//!
//! A data plane is known to the replica that it watches. All replicas keep one shared value, changed by compare-and-set,
//! in which each says how many watch it. A data plane that moves may count twice until the word of the replica that it
//! left is renewed or over: then parts are smaller than they need be, never larger.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::state::codec::CodecError;
use crate::time::Timestamp;

/// Name of the value.
pub const KEY: &str = "w:planes";
/// Schema of the stored value.
pub const SCHEMA: u32 = 1;
/// How often a replica says it, in ms.
pub const TELL_EVERY_MS: u64 = 2_000;
/// How long a replica's word lasts, in ms.
pub const WORD_TTL_MS: u64 = 7_000;
// A word outlasts three times of telling it.
const _: () = assert!(WORD_TTL_MS > 3 * TELL_EVERY_MS);
/// Most replicas that are kept.
pub const MAX_REPLICAS: usize = 64;

/// Data planes by the replica that they watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivePlanes {
    #[serde(default)]
    replicas: BTreeMap<String, Word>,
}

/// What one replica says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Word {
    planes: u32,
    /// Not true any more from then on.
    until: Timestamp,
}

impl LivePlanes {
    /// So many data planes watch this replica. What has ended is forgotten; one replica too many is not kept.
    pub fn tell(&mut self, replica: &str, planes: u32, now: Timestamp) {
        self.replicas.retain(|_, word| word.until > now);
        if self.replicas.len() < MAX_REPLICAS || self.replicas.contains_key(replica) {
            let until = now.plus_ms(WORD_TTL_MS);
            self.replicas
                .insert(replica.to_owned(), Word { planes, until });
        }
    }

    /// How many watch other replicas.
    #[must_use]
    pub fn elsewhere(&self, replica: &str, now: Timestamp) -> u32 {
        let others = self.replicas.iter();
        others
            .filter(|(name, word)| *name != replica && word.until > now)
            .fold(0, |sum, (_, word)| sum.saturating_add(word.planes))
    }

    /// When nothing of it is true any more.
    #[must_use]
    pub fn ends_at(&self) -> Timestamp {
        let ends = self.replicas.values().map(|word| word.until);
        ends.max().unwrap_or_default()
    }
}

/// As it is stored.
///
/// # Errors
/// [`CodecError::Payload`] when it cannot be encoded.
pub fn encode(planes: &LivePlanes) -> Result<Vec<u8>, CodecError> {
    serde_json::to_vec(planes).map_err(payload)
}

/// Reads a stored value back.
///
/// # Errors
/// [`CodecError`] for a higher schema or a payload that does not decode.
pub fn decode(schema: u32, bytes: &[u8]) -> Result<LivePlanes, CodecError> {
    if schema > SCHEMA {
        return Err(CodecError::HigherSchema {
            key: KEY.to_owned(),
            schema,
        });
    }
    serde_json::from_slice(bytes).map_err(payload)
}

fn payload(source: serde_json::Error) -> CodecError {
    CodecError::Payload {
        key: KEY.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    #[test]
    fn the_fleet_is_what_all_replicas_say_as_long_as_it_is_true() {
        let mut planes = LivePlanes::default();
        assert_eq!(planes.elsewhere("a", NOW), 0);
        planes.tell("a", 2, NOW);
        planes.tell("b", 3, NOW.plus_ms(1_000));
        planes.tell("c", 4, NOW.plus_ms(1_000));
        planes.tell("a", 1, NOW.plus_ms(1_000));
        assert_eq!(planes.elsewhere("a", NOW.plus_ms(1_000)), 7);
        assert_eq!(planes.elsewhere("b", NOW.plus_ms(1_000)), 5);
        let over = NOW.plus_ms(1_000 + WORD_TTL_MS);
        assert_eq!(planes.ends_at(), over);
        assert_eq!(planes.elsewhere("a", over), 0);
        planes.tell("a", 1, over);
        assert_eq!(planes.replicas.len(), 1, "what has ended is forgotten");
    }

    #[test]
    fn only_so_many_replicas_are_kept() {
        let mut planes = LivePlanes::default();
        for replica in 0..=MAX_REPLICAS {
            planes.tell(&format!("r{replica}"), 1, NOW);
        }
        assert_eq!(planes.elsewhere("nobody", NOW), 64);
        planes.tell("r0", 5, NOW);
        assert_eq!(planes.elsewhere("nobody", NOW), 68);
        let bytes = encode(&planes).unwrap();
        assert!(bytes.len() < 256 * 1_024);
        assert_eq!(decode(SCHEMA, &bytes).unwrap(), planes);
        assert!(decode(SCHEMA + 1, &bytes).is_err());
        assert!(decode(SCHEMA, b"[1]").is_err());
    }
}

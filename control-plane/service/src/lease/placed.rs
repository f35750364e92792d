//! Where requests under leases were placed last, for the time that the durable store is away (decision 42).
//!
//! A data plane that was granted a horizon on a connection may go on starting requests there until its end, whoever
//! answers. It must be told which connection that is. What is remembered here may be wrong by then, and harms nothing: a
//! data plane sends only where it has a grant, and nobody else is given a connection while one runs.

use std::collections::BTreeMap;
use std::time::Instant;

use parking_lot::Mutex;
use tidegate_core::ids::{ConnectionId, KeyId};
use tidegate_core::lease::LeaseName;

/// Most leases that are remembered; each has at most one connection, and a fleet has fewer.
const MAX_REMEMBERED: usize = 16_384;

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Placed {
    leases: Mutex<BTreeMap<LeaseName, Place>>,
}

#[derive(Debug)]
struct Place {
    key: KeyId,
    connection: ConnectionId,
    /// It ends then that nobody extends.
    until: Instant,
}

impl Placed {
    /// Remembers where a lease is, as long as it lasts. Without room even for one more, those that are over are forgotten; if
    /// there are none, this one is not remembered.
    pub(super) fn remember(
        &self,
        name: LeaseName,
        key: &KeyId,
        connection: &ConnectionId,
        until: Instant,
        now: Instant,
    ) {
        let mut leases = self.leases.lock();
        if leases.len() >= MAX_REMEMBERED && !leases.contains_key(&name) {
            leases.retain(|_, place| place.until > now);
            if leases.len() >= MAX_REMEMBERED {
                return;
            }
        }
        let place = Place {
            key: key.clone(),
            connection: connection.clone(),
            until,
        };
        leases.insert(name, place);
    }

    /// The lease is over, or somebody said that there is none of this name.
    pub(super) fn forget(&self, name: LeaseName) {
        self.leases.lock().remove(&name);
    }

    /// Where the lease was, if it may last still.
    pub(super) fn recall(
        &self,
        name: LeaseName,
        key: &KeyId,
        now: Instant,
    ) -> Option<ConnectionId> {
        let leases = self.leases.lock();
        let place = leases.get(&name)?;
        (place.key == *key && place.until > now).then(|| place.connection.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_core::lease::{Generation, OwnerHash};

    use super::*;

    fn name(number: usize) -> LeaseName {
        let mut owner = [0; 32];
        owner[..8].copy_from_slice(&number.to_be_bytes());
        LeaseName {
            owner: OwnerHash::from_bytes(owner),
            generation: Generation::try_from(1).unwrap(),
        }
    }

    #[test]
    fn a_place_is_told_to_its_key_until_its_end() {
        let (placed, now) = (Placed::default(), Instant::now());
        let until = now + Duration::from_secs(1);
        let (key, other) = (KeyId::new("k1").unwrap(), KeyId::new("k2").unwrap());
        let connection = ConnectionId::new("c1").unwrap();
        placed.remember(name(1), &key, &connection, until, now);
        assert_eq!(placed.recall(name(1), &key, now), Some(connection));
        assert_eq!(placed.recall(name(1), &other, now), None);
        assert_eq!(placed.recall(name(2), &key, now), None);
        assert_eq!(placed.recall(name(1), &key, until), None);
        placed.forget(name(1));
        assert_eq!(placed.recall(name(1), &key, now), None);
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let (placed, now) = (Placed::default(), Instant::now());
        let end = |seconds| now + Duration::from_secs(seconds);
        let key = KeyId::new("k1").unwrap();
        let connection = ConnectionId::new("c1").unwrap();
        for number in 0..MAX_REMEMBERED {
            placed.remember(name(number), &key, &connection, end(1), now);
        }
        let one_more = name(MAX_REMEMBERED);
        placed.remember(one_more, &key, &connection, end(9), now);
        assert_eq!(placed.recall(one_more, &key, now), None);
        assert!(placed.recall(name(0), &key, now).is_some());
        placed.remember(one_more, &key, &connection, end(9), end(1));
        assert!(placed.recall(one_more, &key, end(1)).is_some());
        assert_eq!(placed.leases.lock().len(), 1);
    }
}

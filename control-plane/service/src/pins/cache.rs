//! What is known of pins for a moment.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tidegate_core::affinity::PinKey;

use super::Standing;

/// How long a pin counts as it was read (decision 43).
const KEPT_FOR: Duration = Duration::from_secs(1);
/// Most pins of each of the two generations.
pub(super) const MAX_KEPT: usize = 8_192;

/// Two generations: when the younger one is full or a second old, it becomes the older one, and that is forgotten. So
/// nothing is searched for what has ended, and there never is more than twice [`MAX_KEPT`].
#[derive(Debug, Default)]
pub(super) struct Cache {
    young: HashMap<PinKey, (Instant, Standing)>,
    old: HashMap<PinKey, (Instant, Standing)>,
    /// When the younger generation began.
    began: Option<Instant>,
}

impl Cache {
    /// What was read of a pin a moment ago.
    pub(super) fn get(&self, key: &PinKey, now: Instant) -> Option<Standing> {
        let (read, standing) = self.young.get(key).or_else(|| self.old.get(key))?;
        (now.saturating_duration_since(*read) < KEPT_FOR).then(|| standing.clone())
    }

    /// This stands there now.
    pub(super) fn put(&mut self, key: PinKey, standing: Standing, now: Instant) {
        let is_over = self
            .began
            .is_none_or(|began| now.saturating_duration_since(began) >= KEPT_FOR);
        if is_over || self.young.len() >= MAX_KEPT {
            self.old = std::mem::take(&mut self.young);
            self.began = Some(now);
        }
        self.young.insert(key, (now, standing));
    }

    /// It has to be read again.
    pub(super) fn forget(&mut self, key: &PinKey) {
        self.young.remove(key);
        self.old.remove(key);
    }

    pub(super) fn len(&self) -> usize {
        self.young.len().saturating_add(self.old.len())
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::ids::ProviderId;
    use tidegate_core::session_key::SessionKey;

    use super::*;
    use crate::clock::local_now;

    fn key(number: usize) -> PinKey {
        let session = SessionKey::parse(&format!("header:{number}")).unwrap();
        PinKey::new(&ProviderId::new("alpha").unwrap(), None, &session)
    }

    #[test]
    fn a_pin_counts_for_a_second_and_absence_too() {
        let now = local_now();
        let mut cache = Cache::default();
        cache.put(key(1), Standing::absent(), now);
        let just_before = now + KEPT_FOR - Duration::from_millis(1);
        assert_eq!(cache.get(&key(1), just_before), Some(Standing::absent()));
        assert_eq!(cache.get(&key(1), now + KEPT_FOR), None);
        assert_eq!(cache.get(&key(2), now), None);
        cache.forget(&key(1));
        assert_eq!(cache.get(&key(1), now), None);
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        let now = local_now();
        let mut cache = Cache::default();
        for number in 0..MAX_KEPT * 3 {
            cache.put(key(number), Standing::absent(), now);
            assert!(cache.len() <= MAX_KEPT * 2);
        }
        assert_eq!(cache.len(), MAX_KEPT * 2);
        assert_eq!(cache.get(&key(0), now), None);
        assert!(cache.get(&key(MAX_KEPT * 3 - 1), now).is_some());
    }
}

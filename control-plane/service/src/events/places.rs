//! Who may watch: so many together, and of these so many for one caller, so that nobody keeps all others away.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Watchers of one replica.
pub(super) const MAX_WATCHERS: usize = 256;
/// Of these, those of one caller: a token given at start, or an API key.
pub(super) const MAX_OF_CALLER: usize = 64;

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// All are taken.
    Full,
    /// This caller has its share.
    OfCaller,
}

/// Places of watchers.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Callers with at least one.
    of: BTreeMap<String, usize>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    caller: String,
}

impl Places {
    pub(super) fn take(self: &Arc<Self>, caller: &str) -> Result<Place, NoPlace> {
        let mut taken = self.taken.lock();
        let own = taken.of.get(caller).copied().unwrap_or(0);
        if own >= MAX_OF_CALLER {
            return Err(NoPlace::OfCaller);
        }
        if taken.all >= MAX_WATCHERS {
            return Err(NoPlace::Full);
        }
        taken.all = taken.all.saturating_add(1);
        taken.of.insert(caller.to_owned(), own.saturating_add(1));
        Ok(Place {
            places: Arc::clone(self),
            caller: caller.to_owned(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all = taken.all.saturating_sub(1);
        match taken.of.get_mut(&self.caller) {
            Some(own) if *own > 1 => *own = own.saturating_sub(1),
            _ => {
                taken.of.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_its_share_and_all_together_have_the_whole() {
        let places = Arc::new(Places::default());
        let mut held = Vec::new();
        for _ in 0..MAX_OF_CALLER {
            held.push(places.take("key a").unwrap());
        }
        assert_eq!(places.take("key a").unwrap_err(), NoPlace::OfCaller);
        // Others are not kept away.
        let callers = MAX_WATCHERS / MAX_OF_CALLER;
        for caller in 1..callers {
            for _ in 0..MAX_OF_CALLER {
                held.push(places.take(&format!("key {caller}")).unwrap());
            }
        }
        assert_eq!(held.len(), MAX_WATCHERS);
        assert_eq!(places.take("key z").unwrap_err(), NoPlace::Full);
        // A place that is given back is there again, for whoever comes.
        held.swap_remove(0);
        drop(places.take("key a").unwrap());
        held.push(places.take("key z").unwrap());
        assert_eq!(places.take("key z").unwrap_err(), NoPlace::Full);
        held.clear();
        let taken = places.taken.lock();
        assert_eq!((taken.all, taken.of.len()), (0, 0));
    }
}

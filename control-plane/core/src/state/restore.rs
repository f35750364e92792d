//! How state comes back after a store lost its memory or was swapped (`architecture.md` §3, Incarnation and
//! restore).
//!
//! Every replica *offers* what its old view and the checkpoint hold. A stored value keeps two things apart:
//! what happened in this incarnation (`live`) and what the newest offer brought (`restored`). A newer offer
//! replaces the older one whole, since it is a later state of the same value and may have cleared what the
//! older one held; what is true now is both joined ([`StoredValue::effective`]). So offers may come in any
//! order and any number of times.
//!
//! The first event after an offer is applied to the joined value, which becomes `live`.

mod join;

use crate::time::Timestamp;
use crate::version::{Incarnation, Version};

use super::{Restored, StateValue, StoredValue};

impl StoredValue {
    /// A value to be written by an event: everything in it is of this incarnation. `ancestor` is what
    /// [`StoredValue::descends_from`] said of the value it was made of, the default if there was none.
    #[must_use]
    pub fn from_live(value: StateValue, ancestor: Version, forget_at: Timestamp) -> Self {
        Self {
            live: value,
            restored: None,
            ancestor,
            forget_at,
        }
    }

    /// What is true now: what happened joined with what was restored.
    #[must_use]
    pub fn effective(&self) -> StateValue {
        self.clone().into_live()
    }

    /// What an event is to be applied to. Marks must have been resolved ([`StoredValue::resolve_marks`]).
    #[must_use]
    pub fn into_live(self) -> StateValue {
        match &self.restored {
            None => self.live,
            Some(restored) => join::join(&self.live, &restored.value),
        }
    }

    /// Gives every mark of the write that stored the value its version.
    pub fn resolve_marks(&mut self, stored_under: Version) {
        self.live.resolve_marks(stored_under);
        if let Some(restored) = &mut self.restored {
            restored.value.resolve_marks(stored_under);
        }
    }

    /// The newest version of an earlier incarnation that a value found under `stored_under` descends from: its
    /// own if it was written before `incarnation`.
    #[must_use]
    pub fn descends_from(&self, stored_under: Version, incarnation: Incarnation) -> Version {
        if stored_under.incarnation < incarnation {
            stored_under.max(self.ancestor)
        } else {
            self.ancestor
        }
    }

    /// Opens a value that was read for writing: the value to apply events to, and the ancestor to give to
    /// [`StoredValue::from_live`] afterwards. Resolves marks, joins what was restored and keeps the descent.
    #[must_use]
    pub fn open(
        mut self,
        stored_under: Version,
        incarnation: Incarnation,
    ) -> (StateValue, Version) {
        let ancestor = self.descends_from(stored_under, incarnation);
        self.resolve_marks(stored_under);
        (self.into_live(), ancestor)
    }
}

/// Applies an offer of an earlier incarnation's value to the current one. `None` = nothing changes.
///
/// An offer that nothing can read any more, that is not of an earlier incarnation, or that is not newer than
/// what the current value descends from changes nothing. Commutative and idempotent.
#[must_use]
pub fn restore(
    current: Option<(&StoredValue, Version)>,
    offer: (&StoredValue, Version),
    incarnation: Incarnation,
    now: Timestamp,
) -> Option<StoredValue> {
    let (offered, offered_version) = offer;
    if offered.forget_at <= now || offered_version.incarnation >= incarnation {
        return None;
    }
    let mut offered_resolved = offered.clone();
    offered_resolved.resolve_marks(offered_version);
    let value = offered_resolved.into_live();
    let of_this_incarnation = match current {
        None => None,
        Some((stored, version)) => {
            if stored.descends_from(version, incarnation) >= offered_version {
                return None;
            }
            (version.incarnation >= incarnation).then_some((stored, version))
        }
    };
    let Some((stored, version)) = of_this_incarnation else {
        // Nothing happened in this incarnation yet: the offer stands alone.
        return Some(StoredValue {
            live: value.clean_of_same_kind(),
            restored: Some(Restored {
                value,
                live_forget_at: Timestamp::default(),
            }),
            ancestor: offered_version,
            forget_at: offered.forget_at,
        });
    };
    let mut live = stored.live.clone();
    live.resolve_marks(version);
    let live_forget_at = stored
        .restored
        .as_ref()
        .map_or(stored.forget_at, |restored| restored.live_forget_at);
    Some(StoredValue {
        live,
        restored: Some(Restored {
            value,
            live_forget_at,
        }),
        ancestor: offered_version,
        forget_at: live_forget_at.max(offered.forget_at),
    })
}

//! Members that had another name in earlier releases of the contract. They are read under the name of now.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Earlier name and name of now (`sessions-and-streams.md` §2.2).
const RENAMED: [(&str, &str); 1] = [("codexSessionAffinityTtlMs", "sessionAffinityTtlMs")];

/// The members under their names of now. Where both names stand, that of now counts.
pub(super) fn current(members: &Map<String, Value>) -> Cow<'_, Map<String, Value>> {
    let mut current = Cow::Borrowed(members);
    for (before, now) in RENAMED {
        if members.contains_key(before) {
            let renamed = current.to_mut();
            if let Some(value) = renamed.remove(before) {
                renamed.entry(now).or_insert(value);
            }
        }
    }
    current
}

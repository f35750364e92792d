//! Settings as people wrote them. The store keeps these, not what they are resolved to: what nobody wrote stays
//! open to the environment and to the defaults of a later release, and members of a newer release survive an
//! older one.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::Violation;

use super::{Settings, StoredReading, patch, renamed, stored, strict};

/// Largest settings as JSON, in bytes, that are taken from people.
pub const MAX_SETTINGS_BYTES: usize = 1024 * 1024;

/// Members as written. Two readings give [`Settings`]: [`Self::strict`] of what people send, [`Self::stored`] of
/// what the store holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WrittenSettings(Map<String, Value>);

impl WrittenSettings {
    /// The members.
    #[must_use]
    pub fn members(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Exact types, known members, within bounds.
    ///
    /// # Errors
    /// Everything that is wrong, with its path.
    pub fn strict(&self) -> Result<Settings, Vec<Violation>> {
        let size = serde_json::to_vec(&self.0).map_or(usize::MAX, |text| text.len());
        if size > MAX_SETTINGS_BYTES {
            let message = format!("must not have more than {MAX_SETTINGS_BYTES} bytes");
            return Err(vec![Violation::new("", message)]);
        }
        strict::read(&renamed::current(&self.0))
    }

    /// Whatever stands here, settings that can be run, and what had to be mended.
    #[must_use]
    pub fn stored(&self) -> StoredReading {
        stored::read(&renamed::current(&self.0))
    }

    /// These settings with a JSON merge patch (RFC 7386) of one or more sections. A null unsets a member or a
    /// section. Sections that the patch does not name stay as they are, whatever they hold.
    ///
    /// # Errors
    /// Everything that is wrong with the patch, or with what it would make of the sections it names.
    pub fn patched(&self, patch: &Map<String, Value>) -> Result<Self, Vec<Violation>> {
        patch::apply(self, patch)
    }
}

impl From<Map<String, Value>> for WrittenSettings {
    fn from(members: Map<String, Value>) -> Self {
        Self(members)
    }
}

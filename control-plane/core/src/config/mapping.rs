//! Models that stand for combos (`routing.md` §1.4).

use serde::{Deserialize, Serialize};

use crate::glob;
use crate::ids::ComboName;

/// Longest pattern of a mapping, in bytes.
pub(super) const MAX_PATTERN_BYTES: usize = 128;

/// Whoever asks for a model that fits the pattern gets the combo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelMapping {
    /// The name as clients send it, 1..=128 bytes; `*` stands for any text, `?` for any one character.
    pub pattern: String,
    /// The combo.
    pub combo: ComboName,
}

impl ModelMapping {
    /// Whether it is meant by this name.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        glob::matches(&self.pattern, name)
    }
}

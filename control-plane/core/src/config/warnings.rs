//! What may be meant, but is worth a word to who applies it.

use crate::ids::ModelId;

use super::{Config, split_model};

/// Most warnings that are told.
const MAX_WARNINGS: usize = 100;

/// One thing about a good document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Stable machine code.
    pub code: &'static str,
    /// Where, as a path such as `combos[2].name`.
    pub field: String,
    /// What it leads to.
    pub message: String,
}

impl Config {
    /// What should be told to who applies this document, at most 100.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let combos = self.document.combos.iter().enumerate();
        combos
            .filter(|(_, combo)| self.is_model(combo.name.as_str()))
            .take(MAX_WARNINGS)
            .map(|(index, combo)| Warning {
                code: "COMBO_NAME_SHADOWS_MODEL",
                field: format!("combos[{index}].name"),
                message: format!(
                    "requests for the model {} get this combo: combos come before models",
                    combo.name
                ),
            })
            .collect()
    }

    /// Whether the name would mean a model if no combo had it.
    fn is_model(&self, name: &str) -> bool {
        if self.bare_models.contains_key(name) {
            return true;
        }
        let Some((provider, model)) = split_model(name) else {
            return false;
        };
        let serves = |models: &std::collections::BTreeSet<ModelId>| {
            models.is_empty() || models.contains(&model)
        };
        self.provider(&provider)
            .is_some_and(|entry| serves(&entry.models))
    }
}

//! What may be meant, but is worth a word to who applies it.

use crate::ids::ModelId;

use crate::routing::relay;

use super::{ComboConfig, Config, split_model};

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
        let shadowing = self.shadowing_names();
        let warnings = shadowing.chain(self.members_without_effect());
        warnings.take(MAX_WARNINGS).collect()
    }

    fn shadowing_names(&self) -> impl Iterator<Item = Warning> {
        let combos = self.document.combos.iter().enumerate();
        combos
            .filter(|(_, combo)| self.is_model(combo.name.as_str()))
            .map(|(index, combo)| Warning {
                code: "COMBO_NAME_SHADOWS_MODEL",
                field: format!("combos[{index}].name"),
                message: format!(
                    "requests for the model {} get this combo: combos come before models",
                    combo.name
                ),
            })
    }

    fn members_without_effect(&self) -> impl Iterator<Item = Warning> {
        let defaults = (
            "settings.comboDefaults".to_owned(),
            &self.settings.combo_defaults,
        );
        let of_providers = self.settings.combo_provider_overrides.iter();
        let of_providers = of_providers.map(|(provider, config)| {
            let path = format!("settings.comboProviderOverrides.{provider}");
            (path, config)
        });
        let combos = self.document.combos.iter().enumerate();
        let combos =
            combos.map(|(index, combo)| (format!("combos[{index}].config"), &combo.config));
        let configs = [defaults].into_iter().chain(of_providers).chain(combos);
        configs.flat_map(|(path, config)| {
            without_effect(config).map(move |(member, reason)| Warning {
                code: "NO_EFFECT",
                field: format!("{path}.{member}"),
                message: format!("it is kept and has no effect: {reason}"),
            })
        })
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

/// Members that are set and have no effect, and why.
fn without_effect(config: &ComboConfig) -> impl Iterator<Item = (&'static str, &'static str)> {
    let per_model = config.concurrency_per_model.is_some();
    let acts_on = |provider: &String| provider == relay::PROVIDER;
    let providers = config.handoff_providers.as_ref();
    let others = providers.is_some_and(|providers| !providers.iter().all(acts_on));
    let rows = [
        (
            per_model,
            "concurrencyPerModel",
            "the cap on requests at once is `maxConcurrent` of a connection",
        ),
        (
            others,
            "handoffProviders",
            "of those named, conversations are summed up for `codex` alone",
        ),
    ];
    let set = rows.into_iter().filter(|(is_set, ..)| *is_set);
    set.map(|(_, member, reason)| (member, reason))
}

//! What models cost and can do (decision 38): a table in the configuration over a small one that ships.
//!
//! A model that nobody describes is *unknown*: no price (last for `cost-optimized`), no context window (never ruled
//! out for its size), and every capability assumed.

mod row;
mod shipped;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{ModelId, ProviderId};
use crate::number::Finite;

pub use row::ModelRow;

/// Most entries of the table in the configuration.
pub const MAX_MODELS: usize = 10_000;

/// One row: what is known of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelInfo {
    /// USD per million input tokens, 0..=1 000 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_price: Option<Finite>,
    /// USD per million output tokens, 0..=1 000 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_price: Option<Finite>,
    /// Context window in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// Whether it takes tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<bool>,
    /// Whether it takes images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vision: Option<bool>,
    /// Whether it answers in a given JSON schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<bool>,
    /// Most tools of a request, 1..=10 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_limit: Option<u32>,
    /// Class of the account or model, for `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Counts as premium for `manifestRouting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub premium: Option<bool>,
    /// Fitness for writing code, 0..=1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coding: Option<Finite>,
    /// Fitness for reasoning, 0..=1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<Finite>,
    /// Fitness for anything else, 0..=1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub general: Option<Finite>,
}

impl ModelInfo {
    /// This, and of what is not said here, the other.
    fn over(&self, other: &Self) -> Self {
        Self {
            input_price: self.input_price.or(other.input_price),
            output_price: self.output_price.or(other.output_price),
            context_window: self.context_window.or(other.context_window),
            tools: self.tools.or(other.tools),
            vision: self.vision.or(other.vision),
            structured_output: self.structured_output.or(other.structured_output),
            tool_limit: self.tool_limit.or(other.tool_limit),
            tier: self.tier.or(other.tier),
            premium: self.premium.or(other.premium),
            coding: self.coding.or(other.coding),
            analysis: self.analysis.or(other.analysis),
            general: self.general.or(other.general),
        }
    }
}

/// Class of a model (`routing.md` §9.2, tierPriority).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Tier {
    /// Free of charge.
    Free,
    /// The usual one; also what is not known.
    Standard,
    /// Paid.
    Pro,
    /// The most expensive.
    Ultra,
}

/// The table, looked up by provider and model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    rows: BTreeMap<ProviderId, BTreeMap<ModelId, ModelInfo>>,
    unknown: ModelInfo,
}

impl Catalogue {
    /// A table of these rows; of two for one model the later one counts.
    #[must_use]
    pub fn new(rows: impl IntoIterator<Item = (ProviderId, ModelId, ModelInfo)>) -> Self {
        let mut catalogue = Self::default();
        for (provider, model, info) in rows {
            catalogue
                .rows
                .entry(provider)
                .or_default()
                .insert(model, info);
        }
        catalogue
    }

    /// The table that ships under these rows: what a row does not say is as shipped. A row that names no model is passed
    /// over.
    #[must_use]
    pub fn of(rows: &[ModelRow]) -> Self {
        let mut catalogue = Self::new(shipped::rows());
        for row in rows {
            let Some((provider, model)) = row.subject() else {
                continue;
            };
            let known = catalogue.rows.entry(provider).or_default();
            let known = known.entry(model).or_default();
            *known = row.info.over(known);
        }
        catalogue
    }

    /// What is known of a model; nothing of one that has no row.
    #[must_use]
    pub fn get(&self, provider: &ProviderId, model: &ModelId) -> &ModelInfo {
        self.rows
            .get(provider)
            .and_then(|models| models.get(model))
            .unwrap_or(&self.unknown)
    }

    /// The models of a provider that have a row, by name.
    pub fn models(&self, provider: &ProviderId) -> impl Iterator<Item = &ModelId> {
        self.rows.get(provider).into_iter().flat_map(BTreeMap::keys)
    }
}

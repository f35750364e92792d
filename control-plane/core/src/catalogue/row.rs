//! Rows of the catalogue as people write them.

use std::ops::RangeInclusive;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::config::{Violations, split_model};
use crate::ids::{ModelId, ProviderId};
use crate::number::Finite;

use super::ModelInfo;

/// Largest price, in USD per million tokens.
const MAX_PRICE: u32 = 1_000_000;
const CONTEXT_WINDOW: RangeInclusive<u64> = 1..=1_000_000_000;
const TOOL_LIMIT: RangeInclusive<u32> = 1..=10_000;

/// What is known of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelRow {
    /// `provider/model`.
    pub model: String,
    /// What is known of it.
    #[serde(flatten)]
    pub info: ModelInfo,
}

// By hand, since a derived reading of flattened members lets unknown ones pass.
impl<'de> Deserialize<'de> for ModelRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut members = Map::deserialize(deserializer)?;
        let model = match members.remove("model") {
            Some(Value::String(model)) => model,
            Some(_) | None => return Err(D::Error::missing_field("model")),
        };
        let info = serde_json::from_value(Value::Object(members)).map_err(D::Error::custom)?;
        Ok(Self { model, info })
    }
}

impl ModelRow {
    /// The provider and model it is about; `None` when it names none.
    #[must_use]
    pub fn subject(&self) -> Option<(ProviderId, ModelId)> {
        split_model(&self.model)
    }

    /// Says which numbers are out of bounds; `path` is where the row stands.
    pub(crate) fn check(&self, path: &str, found: &mut Violations) {
        let info = &self.info;
        let shares = [
            ("inputPrice", info.input_price, MAX_PRICE),
            ("outputPrice", info.output_price, MAX_PRICE),
            ("coding", info.coding, 1),
            ("analysis", info.analysis, 1),
            ("general", info.general, 1),
        ];
        for (member, value, most) in shares {
            if let Some(value) = value {
                let bounds = Finite::ZERO..=Finite::from(most);
                found.within(format!("{path}.{member}"), value, &bounds);
            }
        }
        if let Some(window) = info.context_window {
            found.within(format!("{path}.contextWindow"), window, &CONTEXT_WINDOW);
        }
        if let Some(limit) = info.tool_limit {
            found.within(format!("{path}.toolLimit"), limit, &TOOL_LIMIT);
        }
    }
}

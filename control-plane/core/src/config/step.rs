//! Steps of combos as people write them: a plain text, or an object that names a model or another combo.
//!
//! Reading is written by hand because the error of a derived untagged enum names neither the unknown member nor what
//! was expected.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::ids::{ComboName, ConnectionId};
use crate::number::Finite;

/// One step of a combo (`routing.md` §1.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Step {
    /// The name of a combo, where it is one and its beginning names no provider; else `provider/model`.
    Text(String),
    /// A model, with members.
    Model(Box<ModelStep>),
    /// Another combo.
    Combo(ComboStep),
}

/// A step that names a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelStep {
    /// `provider/model`; with `*` in the model, all models of the provider that fit.
    pub model: String,
    /// Pins the step to one connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionId>,
    /// Only these connections; empty = all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_connections: Vec<ConnectionId>,
    /// `weighted`: share of the step, 0..=100.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub weight: Finite,
    /// Name of the step, unique in its combo: 1 to 200 letters, digits, `-`, `_`, `.` and `:`; unset = made from the
    /// names of combo and model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// For people, at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Tags that requests may ask for, at most 16 of at most 128 bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// `pipeline`: goes ahead of the conversation as a system turn, at most 32 768 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// `priority`: the walk goes on from here only when its quota is used up (`routing.md` §5.7).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fallback_only_on_quota_exhaustion: bool,
}

/// A step that names another combo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComboStep {
    /// Its name.
    pub combo: ComboName,
    /// `weighted`: share of all that it stands for, 0..=100.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub weight: Finite,
    /// As of a step that names a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// For people, at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl ModelStep {
    /// A step with nothing but its model.
    #[must_use]
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            connection: None,
            allowed_connections: Vec::new(),
            weight: Finite::ZERO,
            id: None,
            label: None,
            tags: Vec::new(),
            prompt: None,
            fallback_only_on_quota_exhaustion: false,
        }
    }
}

impl Step {
    /// Its members, where it names a model with members.
    #[must_use]
    pub fn model_step(&self) -> Option<&ModelStep> {
        match self {
            Self::Model(step) => Some(step),
            Self::Text(_) | Self::Combo(_) => None,
        }
    }

    /// The connection it is pinned to, if any.
    #[must_use]
    pub fn connection(&self) -> Option<&ConnectionId> {
        self.model_step()?.connection.as_ref()
    }

    /// What it says ahead of the conversation (`pipeline`).
    #[must_use]
    pub fn prompt(&self) -> Option<&str> {
        self.model_step()?.prompt.as_deref()
    }

    /// Its weight as written.
    #[must_use]
    pub fn weight(&self) -> Finite {
        match self {
            Self::Text(_) => Finite::ZERO,
            Self::Model(step) => step.weight,
            Self::Combo(step) => step.weight,
        }
    }

    /// Its id as written.
    #[must_use]
    pub fn written_id(&self) -> Option<&str> {
        match self {
            Self::Text(_) => None,
            Self::Model(step) => step.id.as_deref(),
            Self::Combo(step) => step.id.as_deref(),
        }
    }

    /// Its label.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        match self {
            Self::Text(_) => None,
            Self::Model(step) => step.label.as_deref(),
            Self::Combo(step) => step.label.as_deref(),
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature serde asks for"
)]
fn is_zero(weight: &Finite) -> bool {
    *weight == Finite::ZERO
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StepVisitor)
    }
}

struct StepVisitor;

impl<'de> Visitor<'de> for StepVisitor {
    type Value = Step;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(
            "a text `provider/model`, the name of a combo, or an object with the member `model` or `combo`",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Step, E> {
        Ok(Step::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Step, A::Error> {
        let members = Map::deserialize(MapAccessDeserializer::new(map))?;
        // What is no number, infinite or absent arrives here as null.
        if members.get("weight").is_some_and(Value::is_null) {
            return Err(Error::custom("weight must be a number between 0 and 100"));
        }
        // YAML reads `y`, `no` and `12` as something else than a text.
        for name in ["model", "combo"] {
            let value = members.get(name);
            if value.is_some_and(|value| !matches!(value, Value::String(_) | Value::Null)) {
                return Err(Error::custom(format!(
                    "{name} must be a text; write it in quotes"
                )));
            }
        }
        match (members.contains_key("model"), members.contains_key("combo")) {
            (true, true) => Err(Error::custom(
                "a step has either the member `model` or the member `combo`",
            )),
            (_, true) => read(members).map(Step::Combo),
            (_, false) => read(members).map(|step| Step::Model(Box::new(step))),
        }
    }
}

fn read<T: DeserializeOwned, E: Error>(members: Map<String, Value>) -> Result<T, E> {
    serde_json::from_value(Value::Object(members)).map_err(E::custom)
}

//! Reading a step: a plain `provider/model`, or an object with members.
//!
//! Written by hand because the error of a derived untagged enum names neither the unknown member nor what
//! was expected.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::ids::{ModelId, ProviderId};

use super::{DetailedStep, Step};

impl Step {
    /// Its `provider/model`.
    #[must_use]
    pub fn model(&self) -> &str {
        match self {
            Self::Model(model) => model,
            Self::Detailed(step) => &step.model,
        }
    }

    /// The connection it is pinned to, if any.
    #[must_use]
    pub fn connection(&self) -> Option<&crate::ids::ConnectionId> {
        match self {
            Self::Model(_) => None,
            Self::Detailed(step) => step.connection.as_ref(),
        }
    }
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
        formatter.write_str("a text `provider/model` or an object with the member `model`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Step, E> {
        Ok(Step::Model(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Step, A::Error> {
        DetailedStep::deserialize(MapAccessDeserializer::new(map)).map(Step::Detailed)
    }
}

/// Takes `provider/model` apart at the first slash; the model may hold more. `None` when either half is no
/// valid name.
pub(crate) fn split_model(text: &str) -> Option<(ProviderId, ModelId)> {
    let (provider, model) = text.split_once('/')?;
    Some((ProviderId::new(provider).ok()?, ModelId::new(model).ok()?))
}

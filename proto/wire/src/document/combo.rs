//! Combos, their steps, and the models that stand for them.

use tidegate_core::config::{Combo, ComboConfig, ComboStep, ModelMapping, ModelStep, Step};
use tidegate_core::ids::{ComboName, ConnectionId};
use tidegate_core::number::Finite;
use tidegate_proto::config::v1 as proto;

use crate::routing::serde_word;
use crate::{WireError, name};

use super::{optional_word, unless_empty};

pub(super) fn to_proto(combo: &Combo) -> proto::Combo {
    proto::Combo {
        name: combo.name.to_string(),
        strategy: serde_word(&combo.strategy),
        steps: combo.steps.iter().map(step_to_proto).collect(),
        config_json: if combo.config.is_empty() {
            String::new()
        } else {
            serde_json::to_string(&combo.config).unwrap_or_default()
        },
    }
}

pub(super) fn from_proto(index: usize, message: proto::Combo) -> Result<Combo, WireError> {
    let field = |member: &str| format!("combos[{index}].{member}");
    let steps = message
        .steps
        .into_iter()
        .enumerate()
        .map(|(step, message)| step_from_proto(&field(&format!("steps[{step}]")), message))
        .collect::<Result<Vec<_>, WireError>>()?;
    let config = if message.config_json.is_empty() {
        ComboConfig::default()
    } else {
        serde_json::from_str(&message.config_json)
            .map_err(|error| WireError::invalid(field("config"), error.to_string()))?
    };
    Ok(Combo {
        name: name(field("name"), ComboName::new(&message.name))?,
        strategy: optional_word(field("strategy"), &message.strategy)?.unwrap_or_default(),
        steps,
        config,
    })
}

fn step_to_proto(step: &Step) -> proto::Step {
    match step {
        Step::Text(text) => proto::Step {
            model: text.clone(),
            text: true,
            ..proto::Step::default()
        },
        Step::Model(step) => proto::Step {
            model: step.model.clone(),
            connection: step
                .connection
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            id: step.id.clone().unwrap_or_default(),
            weight: step.weight.get(),
            label: step.label.clone().unwrap_or_default(),
            allowed_connections: step
                .allowed_connections
                .iter()
                .map(ToString::to_string)
                .collect(),
            tags: step.tags.clone(),
            prompt: step.prompt.clone().unwrap_or_default(),
            fallback_only_on_quota_exhaustion: step.fallback_only_on_quota_exhaustion,
            ..proto::Step::default()
        },
        Step::Combo(step) => proto::Step {
            combo: step.combo.to_string(),
            id: step.id.clone().unwrap_or_default(),
            weight: step.weight.get(),
            label: step.label.clone().unwrap_or_default(),
            ..proto::Step::default()
        },
    }
}

fn step_from_proto(path: &str, message: proto::Step) -> Result<Step, WireError> {
    if message.text {
        return Ok(Step::Text(message.model));
    }
    let field = |member: &str| format!("{path}.{member}");
    let weight = Finite::new(message.weight)
        .map_err(|error| WireError::invalid(field("weight"), error.to_string()))?;
    let connection = |member: &str, id: &str| name(field(member), ConnectionId::new(id));
    if message.combo.is_empty() {
        return Ok(Step::Model(Box::new(ModelStep {
            connection: unless_empty(message.connection)
                .map(|id| connection("connection", &id))
                .transpose()?,
            allowed_connections: message
                .allowed_connections
                .iter()
                .enumerate()
                .map(|(index, id)| connection(&format!("allowedConnections[{index}]"), id))
                .collect::<Result<Vec<_>, WireError>>()?,
            weight,
            id: unless_empty(message.id),
            label: unless_empty(message.label),
            tags: message.tags,
            prompt: unless_empty(message.prompt),
            fallback_only_on_quota_exhaustion: message.fallback_only_on_quota_exhaustion,
            ..ModelStep::new(message.model)
        })));
    }
    if !message.model.is_empty() {
        let what = "must name either a model or a combo";
        return Err(WireError::invalid(path, what));
    }
    Ok(Step::Combo(ComboStep {
        combo: name(field("combo"), ComboName::new(&message.combo))?,
        weight,
        id: unless_empty(message.id),
        label: unless_empty(message.label),
    }))
}

pub(super) fn mapping_to_proto(mapping: &ModelMapping) -> proto::ModelMapping {
    proto::ModelMapping {
        pattern: mapping.pattern.clone(),
        combo: mapping.combo.to_string(),
    }
}

pub(super) fn mapping_from_proto(
    index: usize,
    message: proto::ModelMapping,
) -> Result<ModelMapping, WireError> {
    let field = format!("modelMappings[{index}].combo");
    Ok(ModelMapping {
        pattern: message.pattern,
        combo: name(field, ComboName::new(&message.combo))?,
    })
}

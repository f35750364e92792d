//! What is wrong with each combo by itself. What its references lead to is found when they are followed
//! (`index/combos.rs`).

use std::collections::BTreeSet;

use crate::ids::ProviderId;
use crate::number::Finite;

use super::super::meaning::{self, MAX_STEP_ID, Meaning};
use super::super::names::Names;
use super::super::{
    Combo, Document, MAX_LIMITED_TO, MAX_PLAN_STEPS, MAX_STEPS, ModelStep, Step, Strategy,
    Violations, tiers,
};
use super::{Unique, combo_config};

/// Largest weight of a step.
const MAX_WEIGHT: u32 = 100;
/// Longest label or tag of a step, in bytes.
const MAX_LABEL_BYTES: usize = 128;
/// Most tags of a step.
const MAX_TAGS: usize = 16;
/// Longest prompt of a step, in bytes.
const MAX_PROMPT_BYTES: usize = 32_768;

/// What is wrong with one combo.
#[derive(Debug, Default)]
pub(in super::super) struct Faults {
    /// It cannot be used as it is.
    pub(in super::super) of_combo: Violations,
    /// Steps that lead nowhere; it can be used without them.
    pub(in super::super) of_steps: Violations,
}

impl Faults {
    /// All of them.
    pub(in super::super) fn all(self) -> Violations {
        let mut all = self.of_combo;
        all.extend(self.of_steps);
        all
    }
}

/// What is wrong with each combo, in order.
pub(in super::super) fn combos(document: &Document) -> Vec<Faults> {
    let names = Names::of(document);
    let mut taken = Unique::new();
    let combos = document.combos.iter().enumerate();
    combos
        .map(|(index, combo)| {
            let mut faults = Faults::default();
            let path = format!("combos[{index}]");
            taken.check(&combo.name, || format!("{path}.name"), &mut faults.of_combo);
            check(&path, combo, &names, &mut faults);
            faults
        })
        .collect()
}

fn check(path: &str, combo: &Combo, names: &Names<'_>, faults: &mut Faults) {
    let found = &mut faults.of_combo;
    let reserved = ["auto/", "qtSd/"];
    if reserved
        .iter()
        .any(|prefix| combo.name.as_str().starts_with(prefix))
    {
        found.push(
            format!("{path}.name"),
            "names that begin with auto/ or qtSd/ are reserved",
        );
    }
    combo_config::check(&format!("{path}.config"), &combo.config, Some(names), found);
    let steps = format!("{path}.steps");
    if combo.steps.is_empty() {
        found.push(&steps, "must have at least one step");
    }
    let most = match combo.strategy {
        Strategy::Fusion | Strategy::Pipeline => MAX_PLAN_STEPS,
        _ => MAX_STEPS,
    };
    if !found.at_most(&steps, combo.steps.len(), most) {
        return;
    }
    let mut ids = Vec::with_capacity(combo.steps.len());
    let mut taken = BTreeSet::new();
    for (index, step) in combo.steps.iter().enumerate() {
        let path = format!("{steps}[{index}]");
        let meaning = meaning::of(step, names);
        let id = meaning::step_id(combo, index, step, &meaning);
        members(&path, step, &mut faults.of_combo);
        if !taken.insert(id.clone()) {
            let message = "another step of the combo has this id";
            faults.of_combo.push(format!("{path}.id"), message);
        }
        ids.push(id);
        leads_somewhere(&path, step, &meaning, names, &mut faults.of_steps);
    }
    if let Some(written) = &combo.config.composite_tiers {
        let path = format!("{path}.config.compositeTiers");
        tiers::check(&path, written, &ids, &mut faults.of_combo);
    }
}

/// Members that are wrong whatever they refer to.
fn members(path: &str, step: &Step, found: &mut Violations) {
    let weight = step.weight();
    if weight < Finite::ZERO || weight > Finite::from(MAX_WEIGHT) {
        let message = format!("must be between 0 and {MAX_WEIGHT}, is {weight}");
        found.push(format!("{path}.weight"), message);
    }
    if step.written_id().is_some_and(|id| !meaning::is_step_id(id)) {
        let message =
            format!("must have 1 to {MAX_STEP_ID} letters, digits and characters of -_.:");
        found.push(format!("{path}.id"), message);
    }
    if let Some(label) = step.label() {
        length(format!("{path}.label"), label, MAX_LABEL_BYTES, found);
    }
    let Some(step) = step.model_step() else {
        return;
    };
    if let Some(prompt) = &step.prompt {
        length(format!("{path}.prompt"), prompt, MAX_PROMPT_BYTES, found);
    }
    if found.at_most(format!("{path}.tags"), step.tags.len(), MAX_TAGS) {
        for (index, tag) in step.tags.iter().enumerate() {
            length(format!("{path}.tags[{index}]"), tag, MAX_LABEL_BYTES, found);
        }
    }
    let allowed = &step.allowed_connections;
    if found.at_most(
        format!("{path}.allowedConnections"),
        allowed.len(),
        MAX_LIMITED_TO,
    ) && let Some(pin) = &step.connection
        && !allowed.is_empty()
        && !allowed.contains(pin)
    {
        let message = format!("{pin} is not in allowedConnections");
        found.push(format!("{path}.connection"), message);
    }
}

fn length(field: String, text: &str, most: usize, found: &mut Violations) {
    if text.is_empty() || text.len() > most {
        let message = format!("must have 1 to {most} bytes, has {}", text.len());
        found.push(field, message);
    }
}

/// Whether what it refers to is there.
fn leads_somewhere(
    path: &str,
    step: &Step,
    meaning: &Meaning<'_>,
    names: &Names<'_>,
    found: &mut Violations,
) {
    let member = |name: &str| match step {
        Step::Text(_) => path.to_owned(),
        Step::Model(_) | Step::Combo(_) => format!("{path}.{name}"),
    };
    let provider = match meaning {
        Meaning::Model(provider, _) | Meaning::Pattern(provider, _) => provider,
        Meaning::Combo(name) => {
            if !names.combos.contains_key(name) {
                found.push(member("combo"), format!("there is no combo {name}"));
            }
            return;
        }
        Meaning::Nothing => {
            let message = match step {
                Step::Text(_) => "must be provider/model, or the name of a combo",
                Step::Model(_) | Step::Combo(_) => "must be provider/model",
            };
            found.push(member("model"), message);
            return;
        }
    };
    if !names.providers.contains_key(provider.as_str()) {
        found.push(member("model"), format!("there is no provider {provider}"));
    }
    if let Some(step) = step.model_step() {
        connections(path, step, provider, names, found);
    }
}

fn connections(
    path: &str,
    step: &ModelStep,
    provider: &ProviderId,
    names: &Names<'_>,
    found: &mut Violations,
) {
    let pin = step.connection.iter().map(|pin| (None, pin));
    let allowed = step
        .allowed_connections
        .iter()
        .take(MAX_LIMITED_TO)
        .enumerate()
        .map(|(index, connection)| (Some(index), connection));
    for (index, connection) in pin.chain(allowed) {
        let field = match index {
            None => format!("{path}.connection"),
            Some(index) => format!("{path}.allowedConnections[{index}]"),
        };
        match names.connections.get(connection) {
            None => found.push(field, format!("there is no connection {connection}")),
            Some(owner) if *owner != provider => found.push(
                field,
                format!("connection {connection} is at {owner}, not at {provider}"),
            ),
            Some(_) => {}
        }
    }
}

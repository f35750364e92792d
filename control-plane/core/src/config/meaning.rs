//! What a step means, and what it is called (`routing.md` §1.2).

use crate::ids::{ModelId, ProviderId};

use super::names::Names;
use super::{Combo, Step};

/// Longest id of a step, in characters.
pub(super) const MAX_STEP_ID: usize = 200;

/// What a step stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning<'a> {
    /// One model.
    Model(ProviderId, ModelId),
    /// All models of a provider that fit.
    Pattern(ProviderId, &'a str),
    /// Another combo, which need not exist.
    Combo(&'a str),
    /// Nothing: it is neither `provider/model` nor the name of a combo.
    Nothing,
}

/// What the step stands for.
pub(super) fn of<'a>(step: &'a Step, names: &Names<'_>) -> Meaning<'a> {
    match step {
        Step::Combo(step) => Meaning::Combo(step.combo.as_str()),
        Step::Model(step) => of_model(&step.model),
        Step::Text(text) => {
            let is_provider = |provider: &str| names.providers.contains_key(provider);
            let is_combo = |combo: &str| names.combos.contains_key(combo);
            if names_combo(text, is_provider, is_combo) {
                Meaning::Combo(text)
            } else {
                of_model(text)
            }
        }
    }
}

/// Whether a plain text is the name of a combo: its beginning names no provider.
pub(super) fn names_combo(
    text: &str,
    is_provider: impl Fn(&str) -> bool,
    is_combo: impl Fn(&str) -> bool,
) -> bool {
    let names_provider = text
        .split_once('/')
        .is_some_and(|(provider, _)| is_provider(provider));
    !names_provider && is_combo(text)
}

fn of_model(text: &str) -> Meaning<'_> {
    let Some((provider, model)) = split_model(text) else {
        return Meaning::Nothing;
    };
    match text.split_once('/') {
        Some((_, pattern)) if pattern.contains('*') => Meaning::Pattern(provider, pattern),
        _ => Meaning::Model(provider, model),
    }
}

/// Takes `provider/model` apart at the first slash; the model may hold more. `None` when either half is no
/// valid name.
pub(crate) fn split_model(text: &str) -> Option<(ProviderId, ModelId)> {
    let (provider, model) = text.split_once('/')?;
    Some((ProviderId::new(provider).ok()?, ModelId::new(model).ok()?))
}

/// The id of a step: as written, else `<combo>-model-<number>-<model>` or `<combo>-ref-<number>-<combo>`, cut off at
/// [`MAX_STEP_ID`]. The number makes it unique in the combo, since the names of combos are shorter than that.
pub(super) fn step_id(combo: &Combo, index: usize, step: &Step, meaning: &Meaning<'_>) -> String {
    if let Some(id) = step.written_id() {
        return id.to_owned();
    }
    let (kind, what) = match (meaning, step) {
        (Meaning::Combo(name), _) => ("ref", slug(name)),
        (_, Step::Text(model)) => ("model", slug(model)),
        (_, Step::Model(step)) => match &step.connection {
            Some(connection) => ("model", slug(&format!("{}:{connection}", step.model))),
            None => ("model", slug(&step.model)),
        },
        (_, Step::Combo(step)) => ("ref", slug(step.combo.as_str())),
    };
    let number = index.saturating_add(1);
    let mut id = format!("{}-{kind}-{number}-{what}", slug(combo.name.as_str()));
    id.truncate(MAX_STEP_ID);
    id
}

/// Lower-case letters and digits of ASCII; what is between them becomes one `-`.
fn slug(text: &str) -> String {
    let mut slug = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii_alphanumeric() {
            slug.push(character.to_ascii_lowercase());
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    if slug.ends_with('-') {
        slug.pop();
    }
    slug
}

/// Whether people may give a step this id. What separates ids in longer keys is not in it.
pub(super) fn is_step_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (1..=MAX_STEP_ID).contains(&id.len()) && id.bytes().all(allowed)
}

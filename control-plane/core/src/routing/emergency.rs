//! The last resort of a request that fails because money or quota is used up (`routing.md` §13.4, decisions 34 and 50):
//! once, to one model that the settings name, never with tools.
//!
//! It comes after everything else: other targets, repeats of the list, waits for cooldowns. So a 429 gets here only when
//! waiting was refused. Failures that are about something else too do not lead here: a retry may mend those.

use crate::config::ComboTarget;
use crate::ids::ModelId;
use crate::number::Finite;

use super::exclusion::Exclusions;
use super::progress::results;
use super::resolve::Route;
use super::{Input, PriorAttempt};

/// What stands for the position of the emergency target, which is in no list.
pub const EMERGENCY_TARGET: u32 = u32::MAX;

/// This attempt was the last resort.
pub(super) fn is_emergency(attempt: &PriorAttempt) -> bool {
    attempt.target == EMERGENCY_TARGET
}

/// Attempts before the last resort.
pub(super) fn before_emergency(attempts: &[PriorAttempt]) -> &[PriorAttempt] {
    let end = attempts.iter().position(is_emergency);
    attempts
        .get(..end.unwrap_or(attempts.len()))
        .unwrap_or_default()
}

/// Where the request may go as the last resort; `None` when it may not.
pub(super) fn target(
    input: &Input<'_>,
    route: &Route<'_>,
    attempts: &[PriorAttempt],
    excluded: &Exclusions,
) -> Option<ComboTarget> {
    let (facts, settings) = (input.facts, &input.config.settings.emergency_fallback);
    let wanted = settings.enabled == Some(true)
        && facts.tools == 0
        && facts.member.is_none()
        && !facts.embedding
        && is_out_of_budget(attempts, excluded);
    if !wanted {
        return None;
    }
    let (provider, _) = input
        .config
        .providers
        .get_key_value(settings.provider.as_str())?;
    let model = ModelId::new(&settings.model).ok()?;
    let name = format!("{provider}/{model}");
    let allowed = facts.key.as_ref().is_none_or(|key| {
        route.allowed_by(key)
            && (key.allowed_models.is_empty() || key.allowed_models.contains(&name))
    });
    // What just failed is not asked again.
    let tried = attempts
        .iter()
        .any(|attempt| attempt.attempt.provider == *provider && attempt.attempt.model == model);
    (allowed && !tried).then(|| ComboTarget {
        key: name.into(),
        provider: provider.clone(),
        model,
        connection: None,
        expanded: false,
        group: 0,
        weight: Finite::ZERO,
        allowed_connections: std::collections::BTreeSet::new(),
        tags: Vec::new(),
        fallback_only_on_quota_exhaustion: false,
    })
}

/// Every failure speaks of a budget; where nothing was sent, everything excluded is.
fn is_out_of_budget(attempts: &[PriorAttempt], excluded: &Exclusions) -> bool {
    if attempts.is_empty() {
        return excluded.is_out_of_budget();
    }
    results(attempts).all(|result| result.classification.over_budget)
}

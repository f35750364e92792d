//! What may move targets after the strategy ordered them (`routing.md` §10). Off unless a combo switches it on
//! (decision 26).
//!
//! Session stickiness puts the account first that served the last turn of the conversation. Prompt-cache affinity
//! orders by the rendezvous hash of `cache-optimized`; where the order of the models matters it only chooses among the
//! accounts of each. Neither moves what the strategy put behind on purpose, such as what is over the budget of `auto`
//! ([`Ordered::movable`]).

use crate::config::{ComboConfig, Strategy};

use super::strategy::rendezvous::Rendezvous;
use super::strategy::score::ROUNDING;
use super::strategy::{Ordered, Question, auto, headroom, place};

/// Share of quota that an account must have left for a conversation to stay with it.
const LEAST_HEADROOM: f64 = 0.15;

/// What prompt-cache affinity may do to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheScope {
    /// Nothing.
    Off,
    /// Choose among the targets of a model, wherever they stand.
    WithinModels,
    /// Order all.
    Global,
}

/// Whether the combo has any of them on.
pub(super) fn any(config: &ComboConfig) -> bool {
    config.session_stickiness == Some(true) || config.prompt_cache_affinity == Some(true)
}

/// Applies the layers that the combo has on to the order that its strategy made.
pub(super) fn apply(ordered: &mut Ordered, question: &Question<'_>, strategy: Strategy) {
    if matches!(strategy, Strategy::Fusion | Strategy::Pipeline) {
        // They send to every target, and where it stands matters.
        return;
    }
    let movable = ordered.movable.min(ordered.order.len());
    let order = ordered.order.get_mut(..movable).unwrap_or_default();
    let stuck = stick(order, question, strategy);
    let scope = cache_scope(question, strategy);
    if scope == CacheScope::Off {
        return;
    }
    let Some(key) = &question.facts.cache_key else {
        return;
    };
    let keeps_head = stuck || (strategy == Strategy::Auto && auto::names_router(question.config));
    let movable = order.get_mut(usize::from(keeps_head)..).unwrap_or_default();
    let rendezvous = Rendezvous::new(key);
    match scope {
        CacheScope::Off => {}
        CacheScope::Global => movable.sort_by_cached_key(|index| {
            question
                .candidates
                .get(*index)
                .map(|candidate| rendezvous.rank(&candidate))
        }),
        CacheScope::WithinModels => sort_within_models(movable, question, &rendezvous),
    }
}

/// Puts the account of the conversation first, if it may be used. Whether it did.
fn stick(order: &mut [usize], question: &Question<'_>, strategy: Strategy) -> bool {
    if question.config.session_stickiness != Some(true) || by_cache_already(question, strategy) {
        return false;
    }
    let Some(bound) = question
        .facts
        .session
        .as_deref()
        .and_then(|session| question.telemetry.session_connection(session))
    else {
        return false;
    };
    let position = order.iter().position(|index| {
        let candidate = question.candidates.get(*index);
        candidate.and_then(|candidate| candidate.connection) == Some(&bound)
            && question.conditions.is_eligible(*index)
    });
    let Some(position) = position else {
        return false;
    };
    let quota = question.telemetry.quota(&bound);
    if headroom::left(quota.as_deref(), question.now) <= LEAST_HEADROOM + ROUNDING {
        return false;
    }
    if strategy == Strategy::RoundRobin {
        // The rotation starts there and goes on cyclically.
        order.rotate_left(position);
    } else {
        place::to_front(order, position);
    }
    true
}

/// The strategy ordered by the prompt's key itself, which goes before stickiness.
fn by_cache_already(question: &Question<'_>, strategy: Strategy) -> bool {
    strategy == Strategy::CacheOptimized
        && question.facts.cache_key.is_some()
        && question.candidates.len() > 1
}

fn cache_scope(question: &Question<'_>, strategy: Strategy) -> CacheScope {
    if question.config.prompt_cache_affinity != Some(true) {
        return CacheScope::Off;
    }
    match strategy {
        Strategy::CacheOptimized | Strategy::Fusion | Strategy::Pipeline => CacheScope::Off,
        Strategy::Auto if auto::weighs_cache(question) => CacheScope::Off,
        Strategy::Priority | Strategy::Weighted | Strategy::FillFirst | Strategy::QuotaShare => {
            CacheScope::WithinModels
        }
        Strategy::RoundRobin
        | Strategy::ContextRelay
        | Strategy::P2c
        | Strategy::Random
        | Strategy::LeastUsed
        | Strategy::CostOptimized
        | Strategy::ResetAware
        | Strategy::ResetWindow
        | Strategy::Headroom
        | Strategy::StrictRandom
        | Strategy::Auto
        | Strategy::Lkgp
        | Strategy::ContextOptimized => CacheScope::Global,
    }
}

/// Sorts the targets of each model over the places that they have together, so that the order of the models stays.
fn sort_within_models(order: &mut [usize], question: &Question<'_>, rendezvous: &Rendezvous) {
    let model = |index: usize| {
        let candidate = question.candidates.get(index);
        candidate.map(|candidate| (candidate.provider, candidate.model))
    };
    let mut places: Vec<(usize, usize)> = order.iter().copied().enumerate().collect();
    places.sort_by_key(|(place, index)| (model(*index), *place));
    for of_model in places.chunk_by(|(_, one), (_, next)| model(*one) == model(*next)) {
        let mut members: Vec<usize> = of_model.iter().map(|(_, index)| *index).collect();
        members.sort_by_cached_key(|index| {
            question
                .candidates
                .get(*index)
                .map(|candidate| rendezvous.rank(&candidate))
        });
        for ((place, _), member) in of_model.iter().zip(members) {
            if let Some(slot) = order.get_mut(*place) {
                *slot = member;
            }
        }
    }
}

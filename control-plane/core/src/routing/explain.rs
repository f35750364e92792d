//! The same decision laid open: every account of every target with everything that excludes it.

use std::collections::BTreeSet;

use crate::ids::{ConnectionId, ModelId, ProviderId};

use super::accounts::{Past, Scene, exclusion, no_account};
use super::availability::ModelAvailability;
use super::driver::{Driver, decide};
use super::exhaustion::Exhaustion;
use super::order::Sequence;
use super::pinned;
use super::private_view::PrivateView;
use super::reordered::found_again;
use super::resolve::resolve_request;
use super::{Decision, Exclusion, Input};

/// Most accounts that are told; what follows is counted.
pub const MAX_EXPLAINED: usize = 1_000;

/// Why a request would go where it would go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Accounts in the order in which they would be tried; of a target without any, the target alone.
    pub targets: Vec<ExplainedTarget>,
    /// Accounts beyond [`MAX_EXPLAINED`].
    pub omitted: usize,
    /// What would be done now.
    pub decision: Decision,
}

/// One account of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedTarget {
    /// Provider.
    pub provider: ProviderId,
    /// The account; absent when the target has none.
    pub connection: Option<ConnectionId>,
    /// Model.
    pub model: ModelId,
    /// The decision is to send the next attempt here.
    pub chosen: bool,
    /// The session of the request is pinned to it.
    pub pinned: bool,
    /// Everything that excludes it, in the order of the gates; empty when it may be used.
    pub exclusions: Vec<Exclusion>,
}

/// Explains the next step of a request.
#[must_use]
pub fn explain(input: &Input<'_>) -> Explanation {
    let Some(route) = resolve_request(input.config, input.facts) else {
        return Explanation {
            targets: Vec::new(),
            omitted: 0,
            decision: decide(input),
        };
    };
    let so_far = found_again(input, &route);
    let input = &Input {
        so_far: &so_far,
        ..*input
    };
    let view = PrivateView::new(input, &route);
    let scene = Scene::new(input, &route, &view);
    let decision = Driver::decide(scene);
    let order = order(&scene);
    let exhaustion = Exhaustion::default();
    let past = Past::of_fresh_target(&exhaustion);
    let mut explained = Vec::new();
    let mut omitted = 0_usize;
    let mut tell = |entry: &dyn Fn() -> ExplainedTarget| {
        if explained.len() < MAX_EXPLAINED {
            explained.push(entry());
        } else {
            omitted = omitted.saturating_add(1);
        }
    };
    let targets = order
        .into_iter()
        .filter_map(|index| Some((index, route.targets.get(index)?)));
    for (index, target) in targets {
        let mut accounts = 0_usize;
        let session = pinned::session(&scene, &target.provider).ok().flatten();
        let pinned = session.as_ref().and_then(|it| it.connection(&scene));
        scene.for_each_account(target, past, input.now, |connection, hits| {
            accounts = accounts.saturating_add(1);
            tell(&|| ExplainedTarget {
                provider: target.provider.clone(),
                connection: Some(connection.id.clone()),
                model: target.model.clone(),
                chosen: is_chosen(&decision, index, &connection.id),
                pinned: pinned == Some(&connection.id),
                exclusions: hits
                    .iter()
                    .map(|hit| exclusion(target, &connection.id, hit))
                    .collect(),
            });
        });
        if accounts == 0 {
            tell(&|| ExplainedTarget {
                provider: target.provider.clone(),
                connection: None,
                model: target.model.clone(),
                chosen: false,
                pinned: false,
                exclusions: vec![no_account(target)],
            });
        }
    }
    Explanation {
        targets: explained,
        omitted,
        decision,
    }
}

/// Whether the model that a request names can be had now: every account counts, however many there are.
#[must_use]
pub fn availability(input: &Input<'_>) -> ModelAvailability {
    let mut told = ModelAvailability::unknown();
    let Some(route) = resolve_request(input.config, input.facts) else {
        return told;
    };
    let so_far = found_again(input, &route);
    let input = &Input {
        so_far: &so_far,
        ..*input
    };
    let view = PrivateView::new(input, &route);
    let scene = Scene::new(input, &route, &view);
    let exhaustion = Exhaustion::default();
    let past = Past::of_fresh_target(&exhaustion);
    let targets = order(&scene);
    for target in targets.into_iter().filter_map(|it| route.targets.get(it)) {
        told.add_target(&target.provider, &target.model, |told| {
            let mut is_empty = true;
            scene.for_each_account(target, past, input.now, |_, hits| {
                is_empty = false;
                let exclusions = hits.iter().map(|hit| (hit.reason, hit.until));
                told.add_account(exclusions, input.now);
            });
            if is_empty {
                told.exclude(no_account(target).reason);
            }
        });
    }
    told
}

/// All targets: those that would be tried in their order, then those that the strategy ruled out.
fn order(scene: &Scene<'_>) -> Vec<usize> {
    let all = 0..scene.route.targets.len();
    let Ok(sequence) = Sequence::of(scene) else {
        return all.collect();
    };
    let mut order: Vec<usize> = sequence.after(None).collect();
    let tried: BTreeSet<usize> = order.iter().copied().collect();
    order.extend(all.filter(|index| !tried.contains(index)));
    order
}

fn is_chosen(decision: &Decision, target: usize, connection: &ConnectionId) -> bool {
    match decision {
        Decision::Dispatch(dispatch) => {
            usize::try_from(dispatch.target) == Ok(target) && dispatch.connection == *connection
        }
        Decision::Wait(_)
        | Decision::Reject(_)
        | Decision::TakeTurn(_)
        | Decision::ReadPin(_)
        | Decision::Plan(_) => false,
    }
}

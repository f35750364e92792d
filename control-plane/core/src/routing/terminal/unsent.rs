//! Final answers of requests of which nothing was sent.

use crate::ids::ConnectionId;
use crate::lease::{Capacity, LeaseError};
use crate::routing::accounts::{Scene, no_account};
use crate::routing::exclusion::Exclusions;
use crate::routing::filters::is_context_a_fault;
use crate::routing::permits::ALL_FULL;
use crate::routing::resolve::Route;
use crate::routing::wording::{named, printable};
use crate::routing::{Exclusion, ExclusionReason, Input, Rejection};

use super::attempted;
use super::status::{error_type, whole_seconds};

/// When a client may come back for an account whose permits are all out: the least that can be said.
const FULL_RETRY_AFTER_SECS: u64 = 1;

/// The name is neither a combo, nor `provider/model`, nor a listed model.
pub(in crate::routing) fn unknown_model(name: &str) -> Rejection {
    Rejection {
        status: 404,
        code: "model_not_found".to_owned(),
        error_type: "invalid_request_error".to_owned(),
        message: format!("the model `{}` does not exist", printable(name)),
        retry_after_secs: None,
        pass_through: false,
        terminal_reason: "model_not_found".to_owned(),
        pool_size: 0,
        attempted: 0,
        excluded: Vec::new(),
        lease: None,
    }
}

/// The request names a connection that there is not (`X-OmniRoute-Connection`).
fn unknown_connection(name: &ConnectionId, route: &Route<'_>) -> Rejection {
    Rejection {
        status: 404,
        code: "connection_not_found".to_owned(),
        error_type: "invalid_request_error".to_owned(),
        message: format!(
            "the connection `{}` does not exist",
            printable(name.as_str())
        ),
        retry_after_secs: None,
        pass_through: false,
        terminal_reason: "connection_not_found".to_owned(),
        pool_size: route.pool_size(),
        attempted: 0,
        excluded: Vec::new(),
        lease: None,
    }
}

/// A combo that asks several steps has none (`routing.md` §8.18, §8.19).
pub(in crate::routing) fn no_steps(route: &Route<'_>) -> Rejection {
    Rejection {
        status: 400,
        code: "no_steps".to_owned(),
        error_type: "invalid_request_error".to_owned(),
        message: format!(
            "a combo with the strategy {} needs a step that can be asked",
            route.strategy.as_str()
        ),
        retry_after_secs: None,
        pass_through: false,
        terminal_reason: "no_steps".to_owned(),
        pool_size: 0,
        attempted: 0,
        excluded: Vec::new(),
        lease: None,
    }
}

/// Every target was excluded before anything was sent (decision 27).
pub(in crate::routing) fn nothing_dispatched(
    input: &Input<'_>,
    route: &Route<'_>,
    excluded: Exclusions,
) -> Rejection {
    if let Some(name) = &input.facts.forced_connection
        && input.config.connection(name).is_none()
    {
        return unknown_connection(name, route);
    }
    if let Some(eligible) = excluded.only_leased() {
        return all_leased(input, route, eligible, excluded);
    }
    let list = || excluded.list().iter();
    // Nobody knows when a request ends that runs. Where most accounts are full, one of them is likely to be free before
    // any of the others.
    let soon = excluded.are_mostly_full().then_some(FULL_RETRY_AFTER_SECS);
    let (status, code, error_type, message, retry_after_secs) = if excluded.any_timer() {
        let remaining_ms = excluded
            .soonest_end()
            .map_or(0, |end| end.remaining_ms(input.now));
        let waited_for = |exclusion: &Exclusion| {
            exclusion.reason.is_timer() || exclusion.reason == ExclusionReason::ConcurrencyCap
        };
        (
            503,
            "all_targets_cooling_down",
            "service_unavailable",
            format!(
                "all targets are cooling down: {}",
                named(list(), waited_for)
            ),
            soon.or_else(|| Some(whole_seconds(remaining_ms))),
        )
    } else if excluded.any_full() {
        (
            429,
            ALL_FULL,
            error_type(429),
            format!(
                "every account that could be used runs as many requests as it may: {}",
                named(list(), |_| true)
            ),
            Some(FULL_RETRY_AFTER_SECS),
        )
    } else {
        (
            404,
            "no_executable_targets",
            "invalid_request_error",
            format!("no target can be used: {}", named(list(), |_| true)),
            None,
        )
    };
    Rejection {
        status,
        code: code.to_owned(),
        error_type: error_type.to_owned(),
        message,
        retry_after_secs,
        pass_through: false,
        terminal_reason: code.to_owned(),
        pool_size: route.pool_size(),
        attempted: attempted(input),
        excluded: excluded.into_list(),
        lease: None,
    }
}

/// Sessions of others have everything to themselves that could be used: the answer that one without a lease gets as well
/// (`sessions-and-streams.md` §1.9). Leases are extended, so their ends are not waited for.
fn all_leased(
    input: &Input<'_>,
    route: &Route<'_>,
    eligible: usize,
    excluded: Exclusions,
) -> Rejection {
    let capacity = Capacity::new(eligible, excluded.soonest_end(), input.now);
    Rejection {
        pool_size: route.pool_size(),
        attempted: attempted(input),
        excluded: excluded.into_list(),
        ..LeaseError::Capacity(capacity).into()
    }
}

/// No target of the combo can take the request (`routing.md` §2, 4h and 4i).
pub(in crate::routing) fn filtered_out(scene: &Scene<'_>, reason: ExclusionReason) -> Rejection {
    let Scene { input, route, .. } = *scene;
    let mut excluded = Exclusions::default();
    for target in route.targets.iter() {
        let dropped = scene
            .filters
            .drops(input.facts, &input.config.catalogue, target);
        if let Some(reason) = dropped {
            excluded.push(Exclusion {
                reason,
                ..no_account(target)
            });
        }
    }
    let of_context = reason == ExclusionReason::ContextWindow;
    let (status, code, terminal_reason) = match (of_context, is_context_a_fault(route.strategy)) {
        (false, _) => (400, "capability_mismatch", "capability_mismatch"),
        (true, true) => (400, "context_length_exceeded", "context_length_exceeded"),
        (true, false) => (
            404,
            "no_executable_targets",
            "context_requirements_exhausted",
        ),
    };
    Rejection {
        status,
        code: code.to_owned(),
        error_type: "invalid_request_error".to_owned(),
        message: format!(
            "no target can take the request: {}",
            named(excluded.list().iter(), |_| true)
        ),
        retry_after_secs: None,
        pass_through: false,
        terminal_reason: terminal_reason.to_owned(),
        pool_size: route.pool_size(),
        attempted: attempted(input),
        excluded: excluded.into_list(),
        lease: None,
    }
}

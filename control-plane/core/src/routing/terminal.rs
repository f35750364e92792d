//! The final answer when nothing (more) can be sent (`routing.md` §6, §7, decision 27).
//!
//! | what happened | status | code |
//! |---|---|---|
//! | the name means nothing | 404 | `model_not_found` |
//! | a `fusion` or `pipeline` has no step | 400 | `no_steps` |
//! | nothing was sent, something ends by itself | 503 with Retry-After | `all_targets_cooling_down` |
//! | nothing was sent, nothing does | 404 | `no_executable_targets` |
//! | attempts failed | from their outcomes | `all_models_failed` or `quota_exhausted` |
//! | no target takes what the request holds | 400 | `capability_mismatch` |
//! | no target's window is large enough | 404, `auto` 400 | `no_executable_targets`, `context_length_exceeded` |
//! | too many attempts | 503 | `max_attempts_exceeded` |
//! | the retry budget is spent | as the last failure | `retry_budget_spent`, body passed through |
//! | the time of the request is up | 504 | `COMBO_TIMEOUT` |
//! | a fault of the client's own | as the upstream said | `client_error`, body passed through |

use crate::classify::{Classification, Reason};

use super::accounts::{Scene, no_account};
use super::emergency::before_emergency;
use super::exclusion::Exclusions;
use super::filters::is_context_a_fault;
use super::progress::results;
use super::resolve::Route;
use super::wording::{failures, named, printable};
use super::{Exclusion, ExclusionReason, Input, PriorAttempt, Rejection};

/// Final statuses that may carry a Retry-After (`routing.md` §6).
const RETRY_AFTER_ELIGIBLE_STATUSES: [u16; 2] = [429, 503];

/// What an outcome was, for the final status (`routing.md` §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutcomeKind {
    /// A 200 without usable content.
    Quality,
    /// The credential was refused.
    Auth,
    /// 429.
    RateLimit,
    /// 408 or 499.
    Timeout,
    /// 500 and above.
    Provider,
    /// Anything else.
    Model,
}

impl OutcomeKind {
    /// The kind of a failure.
    pub(super) fn of(classification: &Classification) -> Self {
        let Classification {
            status,
            reason,
            request_scoped,
            ..
        } = *classification;
        match status {
            502 if request_scoped => Self::Quality,
            // Our own limit on an execution (`routing.md` §5.3, 2a).
            504 if reason == Reason::Local => Self::Timeout,
            401 | 403 => Self::Auth,
            429 => Self::RateLimit,
            408 | 499 => Self::Timeout,
            500.. => Self::Provider,
            _ if reason == Reason::AuthError => Self::Auth,
            _ => Self::Model,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Quality => "quality",
            Self::Auth => "auth",
            Self::RateLimit => "rate_limit",
            Self::Timeout => "timeout",
            Self::Provider => "provider",
            Self::Model => "model",
        }
    }
}

/// The status of several outcomes: the last one's when all are of one kind, else 504 if any timed out, else
/// 502. `None` without outcomes.
pub(super) fn final_status(outcomes: impl IntoIterator<Item = (OutcomeKind, u16)>) -> Option<u16> {
    let mut first_kind = None;
    let mut last_status = None;
    let mut mixed = false;
    let mut timeout = false;
    for (kind, status) in outcomes {
        mixed |= *first_kind.get_or_insert(kind) != kind;
        timeout |= kind == OutcomeKind::Timeout;
        last_status = Some(status);
    }
    match (mixed, timeout) {
        (false, _) => last_status,
        (true, true) => Some(504),
        (true, false) => Some(502),
    }
}

/// The name is neither a combo, nor `provider/model`, nor a listed model.
pub(super) fn unknown_model(name: &str) -> Rejection {
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
    }
}

/// A combo that asks several steps has none (`routing.md` §8.18, §8.19).
pub(super) fn no_steps(route: &Route<'_>) -> Rejection {
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
    }
}

/// Every target was excluded before anything was sent (decision 27).
pub(super) fn nothing_dispatched(
    input: &Input<'_>,
    route: &Route<'_>,
    excluded: Exclusions,
) -> Rejection {
    if !excluded.any_timer() {
        return Rejection {
            status: 404,
            code: "no_executable_targets".to_owned(),
            error_type: "invalid_request_error".to_owned(),
            message: format!(
                "no target can be used: {}",
                named(excluded.list().iter(), |_| true)
            ),
            retry_after_secs: None,
            pass_through: false,
            terminal_reason: "no_executable_targets".to_owned(),
            pool_size: pool_size(route),
            attempted: 0,
            excluded: excluded.into_list(),
        };
    }
    let remaining_ms = excluded
        .soonest_end()
        .map_or(0, |end| end.remaining_ms(input.now));
    Rejection {
        status: 503,
        code: "all_targets_cooling_down".to_owned(),
        error_type: "service_unavailable".to_owned(),
        message: format!(
            "all targets are cooling down: {}",
            named(excluded.list().iter(), |exclusion| exclusion
                .reason
                .is_timer())
        ),
        retry_after_secs: Some(whole_seconds(remaining_ms)),
        pass_through: false,
        terminal_reason: "all_targets_cooling_down".to_owned(),
        pool_size: pool_size(route),
        attempted: 0,
        excluded: excluded.into_list(),
    }
}

/// Attempts were made and none succeeded. `attempts` are those of the last pass that had any.
pub(super) fn all_failed(
    input: &Input<'_>,
    route: &Route<'_>,
    attempts: &[PriorAttempt],
    excluded: Exclusions,
) -> Rejection {
    let outcomes = results(attempts)
        .map(|result| &result.classification)
        .map(|classification| (OutcomeKind::of(classification), classification.status));
    let status = error_status(final_status(outcomes).unwrap_or(502));
    let quota =
        results(attempts).all(|result| result.classification.reason == Reason::QuotaExhausted);
    let terminal_reason = if quota {
        "quota_exhausted"
    } else {
        "all_models_failed"
    };
    Rejection {
        status,
        code: terminal_reason.to_owned(),
        error_type: error_type(status).to_owned(),
        message: failures(attempts),
        retry_after_secs: retry_after(input, attempts, status),
        // What no model takes is the client's to mend, in the upstream's own words.
        pass_through: results(attempts).all(|result| is_fault_of_request(&result.classification)),
        terminal_reason: terminal_reason.to_owned(),
        pool_size: pool_size(route),
        attempted: count(input.so_far.attempts.len()),
        excluded: excluded.into_list(),
    }
}

/// A target that the walk may not go on from failed (`routing.md` §5.7). `attempts` are those at it.
pub(super) fn protected(
    input: &Input<'_>,
    route: &Route<'_>,
    attempts: &[PriorAttempt],
) -> Rejection {
    Rejection {
        pass_through: true,
        ..all_failed(input, route, attempts, Exclusions::default())
    }
}

/// The emergency target failed too: the answer is that of the failures before it.
pub(super) fn after_emergency(input: &Input<'_>, route: &Route<'_>) -> Rejection {
    let before = before_emergency(&input.so_far.attempts);
    let pass = before.last().map_or(0, |attempt| attempt.pass);
    let begun = before
        .iter()
        .rev()
        .take_while(|attempt| attempt.pass == pass)
        .count();
    let last_pass = before.get(before.len().saturating_sub(begun)..);
    let attempts = match last_pass.filter(|attempts| !attempts.is_empty()) {
        Some(attempts) => attempts,
        None => &input.so_far.attempts,
    };
    Rejection {
        pass_through: false,
        ..all_failed(input, route, attempts, Exclusions::default())
    }
}

/// A failure would be followed by a retry, of which there are too many already (decision 49).
pub(super) fn retry_budget_spent(
    input: &Input<'_>,
    route: &Route<'_>,
    last: &PriorAttempt,
) -> Rejection {
    let status = error_status(last.classification.status);
    let last_alone = std::slice::from_ref(last);
    Rejection {
        status,
        code: "retry_budget_spent".to_owned(),
        error_type: error_type(status).to_owned(),
        retry_after_secs: retry_after(input, last_alone, status),
        pass_through: true,
        terminal_reason: "retry_budget_spent".to_owned(),
        ..all_failed(input, route, last_alone, Exclusions::default())
    }
}

/// No target of the combo can take the request (`routing.md` §2, 4h and 4i).
pub(super) fn filtered_out(scene: &Scene<'_>, reason: ExclusionReason) -> Rejection {
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
        pool_size: pool_size(route),
        attempted: 0,
        excluded: excluded.into_list(),
    }
}

/// The request took longer than it may (`routing.md` §5.5).
pub(super) fn timed_out(input: &Input<'_>, route: &Route<'_>) -> Rejection {
    let attempts = &input.so_far.attempts;
    let so_far = if attempts.is_empty() {
        "nothing was sent".to_owned()
    } else {
        failures(attempts)
    };
    Rejection {
        status: 504,
        code: "COMBO_TIMEOUT".to_owned(),
        error_type: error_type(504).to_owned(),
        message: format!("gave up after {} ms; {so_far}", input.so_far.elapsed_ms),
        retry_after_secs: None,
        pass_through: false,
        terminal_reason: "combo_timeout".to_owned(),
        pool_size: pool_size(route),
        attempted: count(attempts.len()),
        excluded: Vec::new(),
    }
}

/// One more attempt would be one too many.
pub(super) fn too_many_attempts(input: &Input<'_>, route: &Route<'_>) -> Rejection {
    let attempts = &input.so_far.attempts;
    Rejection {
        status: 503,
        code: "max_attempts_exceeded".to_owned(),
        error_type: error_type(503).to_owned(),
        message: format!(
            "gave up after {} attempts; {}",
            input.so_far.spent(),
            failures(attempts)
        ),
        retry_after_secs: retry_after(input, attempts, 503),
        pass_through: false,
        terminal_reason: "max_attempts_exceeded".to_owned(),
        pool_size: pool_size(route),
        attempted: count(attempts.len()),
        excluded: Vec::new(),
    }
}

/// The request ends with this failure: the client's own fault, or a client that left.
pub(super) fn of_client(last: &PriorAttempt, attempted: usize, route: &Route<'_>) -> Rejection {
    let (code, pass_through) = match last.classification.status {
        499 => ("client_closed_request", false),
        _ => ("client_error", true),
    };
    let status = error_status(last.classification.status);
    Rejection {
        status,
        code: code.to_owned(),
        error_type: error_type(status).to_owned(),
        message: failures(std::slice::from_ref(last)),
        retry_after_secs: None,
        pass_through,
        terminal_reason: code.to_owned(),
        pool_size: pool_size(route),
        attempted: count(attempted),
        excluded: Vec::new(),
    }
}

/// An upstream found fault with what the request holds, not with who sent it.
fn is_fault_of_request(classification: &Classification) -> bool {
    classification.status == 400
        && (classification.request_scoped || !classification.account_fallback)
}

/// The earliest wait that any attempt's upstream asked for or a restatement advertises, where the final status may
/// carry one.
fn retry_after(input: &Input<'_>, attempts: &[PriorAttempt], status: u16) -> Option<u64> {
    if !RETRY_AFTER_ELIGIBLE_STATUSES.contains(&status) {
        return None;
    }
    attempts
        .iter()
        .filter_map(|attempt| {
            let wait_ms = attempt.classification.client_wait_ms()?;
            Some(attempt.failed_at.plus_ms(wait_ms).remaining_ms(input.now))
        })
        .min()
        .map(whole_seconds)
}

/// Rounded up, at least 1.
fn whole_seconds(ms: u64) -> u64 {
    ms.div_ceil(1_000).max(1)
}

/// A success or something that is no HTTP error status never becomes the status of a failure.
fn error_status(status: u16) -> u16 {
    if (400..=599).contains(&status) {
        status
    } else {
        502
    }
}

/// `OpenAI`'s types (`sessions-and-streams.md` §5.2).
pub(super) fn error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

fn pool_size(route: &Route<'_>) -> u32 {
    count(route.targets.len())
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::OutcomeKind::{Auth, Model, Provider, Quality, RateLimit, Timeout};
    use super::*;

    #[rstest]
    #[case::one(&[(RateLimit, 429), (RateLimit, 429)], 429)]
    #[case::mixed(&[(RateLimit, 429), (Provider, 503)], 502)]
    #[case::last_of_one_kind(&[(Provider, 503), (Provider, 500)], 500)]
    #[case::timeout_among_others(&[(Timeout, 408), (Provider, 503)], 504)]
    #[case::quality_and_auth(&[(Quality, 502), (Auth, 401)], 502)]
    #[case::model(&[(Model, 400), (Model, 422)], 422)]
    fn final_status_follows_the_kinds(
        #[case] outcomes: &[(OutcomeKind, u16)],
        #[case] expected: u16,
    ) {
        assert_eq!(final_status(outcomes.iter().copied()), Some(expected));
    }

    #[test]
    fn without_outcomes_there_is_no_final_status() {
        assert_eq!(final_status([]), None);
    }
}

//! Final answers of requests whose attempts failed.

use crate::admission;
use crate::classify::{Classification, Reason};
use crate::routing::emergency::before_emergency;
use crate::routing::exclusion::Exclusions;
use crate::routing::progress::results;
use crate::routing::resolve::Route;
use crate::routing::wording::failures;
use crate::routing::{Input, PriorAttempt, Rejection};

use super::attempted;
use super::status::{OutcomeKind, error_status, error_type, final_status, is_expired, retry_after};

/// The code, and the terminal reason, when attempts failed and none of the more telling ones holds.
pub const ALL_MODELS_FAILED: &str = "all_models_failed";

/// Attempts were made and none succeeded. `attempts` are those of the last pass that had any.
pub(in crate::routing) fn all_failed(
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
        ALL_MODELS_FAILED
    };
    let expired = results(attempts).all(|result| is_expired(&result.classification));
    let code = if expired {
        admission::EXECUTION_TIMEOUT
    } else {
        terminal_reason
    };
    Rejection {
        status,
        code: code.to_owned(),
        error_type: error_type(status).to_owned(),
        message: failures(attempts),
        retry_after_secs: retry_after(input, attempts, status),
        // What no model takes is the client's to mend, in the upstream's own words.
        pass_through: results(attempts).all(|result| is_fault_of_request(&result.classification)),
        terminal_reason: terminal_reason.to_owned(),
        pool_size: route.pool_size(),
        attempted: attempted(input),
        excluded: excluded.into_list(),
        lease: None,
    }
}

/// A target that the walk may not go on from failed (`routing.md` §5.7). `attempts` are those at it.
pub(in crate::routing) fn protected(
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
pub(in crate::routing) fn after_emergency(input: &Input<'_>, route: &Route<'_>) -> Rejection {
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
pub(in crate::routing) fn retry_budget_spent(
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

/// The request took longer than it may (`routing.md` §5.5).
pub(in crate::routing) fn timed_out(input: &Input<'_>, route: &Route<'_>) -> Rejection {
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
        pool_size: route.pool_size(),
        attempted: attempted(input),
        excluded: Vec::new(),
        lease: None,
    }
}

/// One more attempt would be one too many.
pub(in crate::routing) fn too_many_attempts(input: &Input<'_>, route: &Route<'_>) -> Rejection {
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
        pool_size: route.pool_size(),
        attempted: attempted(input),
        excluded: Vec::new(),
        lease: None,
    }
}

/// The request ends with this failure: the client's own fault, or a client that left.
pub(in crate::routing) fn of_client(
    input: &Input<'_>,
    route: &Route<'_>,
    last: &PriorAttempt,
) -> Rejection {
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
        pool_size: route.pool_size(),
        attempted: attempted(input),
        excluded: Vec::new(),
        lease: None,
    }
}

/// An upstream found fault with what the request holds, not with who sent it.
fn is_fault_of_request(classification: &Classification) -> bool {
    classification.status == 400
        && (classification.request_scoped || !classification.account_fallback)
}

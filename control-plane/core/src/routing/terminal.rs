//! The final answer when nothing (more) can be sent (`routing.md` §6, §7, decision 27).
//!
//! | what happened | status | code |
//! |---|---|---|
//! | the name means nothing | 404 | `model_not_found` |
//! | a `fusion` or `pipeline` has no step | 400 | `no_steps` |
//! | nothing was sent, something ends by itself | 503 with Retry-After | `all_targets_cooling_down` |
//! | nothing was sent, nothing does | 404 | `no_executable_targets` |
//! | attempts failed | from their outcomes | `all_models_failed` or `quota_exhausted` |
//! | too many attempts | 503 | `max_attempts_exceeded` |
//! | a fault of the client's own | as the upstream said | `client_error`, body passed through |

use std::fmt::Write as _;

use crate::classify::{Classification, Reason};

use super::exclusion::Exclusions;
use super::exhaustion::is_input_bound;
use super::progress::results;
use super::resolve::Route;
use super::{Exclusion, Input, PriorAttempt, Rejection};

/// Final statuses that may carry a Retry-After (`routing.md` §6).
const RETRY_AFTER_ELIGIBLE_STATUSES: [u16; 2] = [429, 503];
/// Most outcomes or exclusions that a message names.
const MAX_NAMED: usize = 5;
/// Longest piece of a client's text in a message, in characters.
const MAX_ECHOED: usize = 128;

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

    fn as_str(self) -> &'static str {
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
        // What does not fit the model is the client's to mend, in the upstream's own words.
        pass_through: results(attempts).all(|result| is_input_bound(&result.classification)),
        terminal_reason: terminal_reason.to_owned(),
        pool_size: pool_size(route),
        attempted: count(input.so_far.attempts.len()),
        excluded: excluded.into_list(),
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

/// Up to [`MAX_NAMED`] outcomes with model, kind, reason and status.
fn failures(attempts: &[PriorAttempt]) -> String {
    let all = results(attempts).count();
    let mut text = String::from("every attempt failed");
    for (index, result) in results(attempts).take(MAX_NAMED).enumerate() {
        let Classification { status, reason, .. } = result.classification;
        let kind = OutcomeKind::of(&result.classification).as_str();
        let separator = if index == 0 { ":" } else { ";" };
        let provider = &result.attempt.provider;
        let model = redacted(result.attempt.model.as_str());
        let reason = reason_word(reason);
        // Writing to a text cannot fail.
        _ = write!(
            text,
            "{separator} {provider}/{model} {kind} {reason} {status}"
        );
    }
    append_rest(&mut text, all);
    text
}

/// Up to [`MAX_NAMED`] exclusions with provider, model and reason.
fn named<'a>(
    exclusions: impl Iterator<Item = &'a Exclusion> + Clone,
    wanted: impl Fn(&Exclusion) -> bool,
) -> String {
    let wanted = exclusions.filter(|exclusion| wanted(exclusion));
    let mut text = String::new();
    let mut all = 0_usize;
    for exclusion in wanted {
        if all < MAX_NAMED {
            let separator = if all == 0 { "" } else { "; " };
            let model = redacted(exclusion.model.as_str());
            _ = write!(
                text,
                "{separator}{}/{model} {}",
                exclusion.provider,
                exclusion.reason.as_str()
            );
        }
        all = all.saturating_add(1);
    }
    append_rest(&mut text, all);
    text
}

fn append_rest(text: &mut String, all: usize) {
    let rest = all.saturating_sub(MAX_NAMED);
    if rest > 0 {
        _ = write!(text, "; {rest} more");
    }
}

/// A client's text without control characters, cut short.
fn printable(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(MAX_ECHOED)
        .collect()
}

/// Runs of 32 and more hexadecimal digits, dashes between them not counted, are ids of somebody's resources.
pub(super) fn redacted(text: &str) -> String {
    const LEAST_DIGITS: usize = 32;
    let is_id = |character: char| character.is_ascii_hexdigit() || character == '-';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = if is_id(first) {
            rest.find(|character| !is_id(character))
        } else {
            rest.find(is_id)
        }
        .unwrap_or(rest.len());
        let (run, tail) = rest.split_at(end);
        let digits = run.chars().filter(char::is_ascii_hexdigit).count();
        out.push_str(if digits >= LEAST_DIGITS {
            "[redacted]"
        } else {
            run
        });
        rest = tail;
    }
    out
}

fn reason_word(reason: Reason) -> &'static str {
    match reason {
        Reason::QuotaExhausted => "quota_exhausted",
        Reason::RateLimitExceeded => "rate_limit_exceeded",
        Reason::ModelCapacity => "model_capacity",
        Reason::ServerError => "server_error",
        Reason::AuthError => "auth_error",
        Reason::NotFound => "not_found",
        Reason::Credits => "credits",
        Reason::Forbidden => "forbidden",
        Reason::RequestRejected => "request_rejected",
        Reason::ClientFault => "client_fault",
        Reason::Local => "local",
        Reason::Unknown => "unknown",
    }
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

    #[rstest]
    #[case::uuid("ft:0190b1c2-3d4e-7f60-8a9b-0c1d2e3f4a5b:x", "ft:[redacted]:x")]
    #[case::long_hex("m/00112233445566778899aabbccddeeff", "m/[redacted]")]
    #[case::ordinary("claude-3-5-sonnet-20241022", "claude-3-5-sonnet-20241022")]
    #[case::not_ascii("modèle-é", "modèle-é")]
    fn long_ids_do_not_reach_messages(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(redacted(text), expected);
    }

    #[test]
    fn echoed_names_are_short_and_printable() {
        let name = format!("a\u{1b}[31m\n{}", "x".repeat(1_000));
        let echoed = printable(&name);
        assert_eq!(echoed.chars().count(), MAX_ECHOED);
        assert!(echoed.starts_with("a[31mx"), "{echoed}");
    }
}

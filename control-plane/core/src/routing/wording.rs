//! What final answers say to people: short, without ids of somebody's resources, and never a client's text unchanged.

use std::fmt::Write as _;

use crate::classify::{Classification, Reason};

use super::progress::results;
use super::terminal::OutcomeKind;
use super::{Exclusion, PriorAttempt};

/// Most outcomes or exclusions that a message names.
const MAX_NAMED: usize = 5;
/// Longest piece of a client's text in a message, in characters.
const MAX_ECHOED: usize = 128;

/// Up to [`MAX_NAMED`] outcomes with model, kind, reason and status.
pub(super) fn failures(attempts: &[PriorAttempt]) -> String {
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
pub(super) fn named<'a>(
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
pub(super) fn printable(text: &str) -> String {
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

    use super::*;

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

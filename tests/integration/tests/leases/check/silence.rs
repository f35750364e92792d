//! When a data plane may be without an answer from the authority. Until it has one it goes on by what it was granted, and
//! cuts what it cannot have confirmed.

use std::time::Duration;

use super::super::history::{Asked, History, Operation, Span};
use super::Rules;

/// Whether the data plane that a request went through may have been without an answer during a part of a time: it stood
/// still itself, or a part of the authority did or was away, then or so shortly before that it had not recovered.
pub(super) fn is_hurt(history: &History, rules: &Rules, request: &Operation, during: Span) -> bool {
    let Asked::Send { plane, .. } = request.asked else {
        return false;
    };
    history.faults.iter().any(|(fault, span)| {
        let recovered = span.until.saturating_add(rules.recovery);
        fault.silences(plane) && during.from < recovered && span.from < during.until
    })
}

/// The same, or nothing on this machine got to run, so that whoever was asked had no time.
pub(super) fn is_silenced(
    history: &History,
    rules: &Rules,
    request: &Operation,
    during: Span,
) -> bool {
    is_hurt(history, rules, request, during) || history.asleep_in(during) > Duration::ZERO
}

/// Requests that were never without an answer, by their places among the operations.
pub(super) fn undisturbed(history: &History, rules: &Rules) -> Vec<usize> {
    let operations = history.operations.iter().enumerate();
    operations
        .filter(|(_, operation)| matches!(operation.asked, Asked::Send { .. }))
        .filter(|(_, operation)| !is_silenced(history, rules, operation, operation.span))
        .map(|(index, _)| index)
        .collect()
}

//! Where candidates stand that telemetry has no room for ([`Telemetry::leaves_out_connection`]).
//!
//! Nothing is known of them, and nothing ever will be. Taken for unused, the first of them would get every request, for
//! ever. So chance places them: each is as likely to be the first as any other candidate, and the rest share the
//! requests by what is known of them.
//!
//! [`Telemetry::leaves_out_connection`]: crate::telemetry::Telemetry::leaves_out_connection

use super::{Candidate, Question, Scope};

/// The order with those that telemetry leaves out placed by chance.
pub(super) fn by_chance(
    question: &Question<'_>,
    order: Vec<usize>,
    is_left_out: impl Fn(&Candidate<'_>) -> bool,
) -> Vec<usize> {
    let is_left_out = |index: &usize| {
        question
            .candidates
            .get(*index)
            .is_some_and(|candidate| is_left_out(&candidate))
    };
    if !order.iter().any(is_left_out) {
        return order;
    }
    let (mut left_out, mut known): (Vec<usize>, Vec<usize>) =
        order.into_iter().partition(is_left_out);
    let mut random = question.random();
    random.shuffle(&mut left_out);
    let count = known.len().saturating_add(left_out.len());
    if random.below(count) < left_out.len() {
        left_out.append(&mut known);
        left_out
    } else {
        known.append(&mut left_out);
        known
    }
}

/// Telemetry has no room to count the candidate's requests.
pub(super) fn is_uncounted(question: &Question<'_>, candidate: &Candidate<'_>) -> bool {
    match question.scope {
        Scope::Combo(combo) => question.telemetry.leaves_out_target(combo, candidate.key),
        Scope::Accounts(_) => has_no_past(question, candidate),
    }
}

/// Telemetry has no room for anything of the candidate's account.
pub(super) fn has_no_past(question: &Question<'_>, candidate: &Candidate<'_>) -> bool {
    candidate
        .connection
        .is_some_and(|connection| question.telemetry.leaves_out_connection(connection))
}

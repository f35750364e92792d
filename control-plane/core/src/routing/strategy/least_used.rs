//! `least-used`: the fewest requests so far first (`routing.md` §8.8).
//!
//! It counts what ended, ever, not what is under way. Targets are counted per combo and execution key, accounts over
//! all combos; what was never counted has 0, and what there is no room to count is placed by chance.

use super::left_out::{by_chance, is_uncounted};
use super::{Candidate, Halt, Order, Ordered, Question, Scope};

/// Ascending by requests.
#[derive(Debug)]
pub(super) struct LeastUsed;

impl Order for LeastUsed {
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let order = question.sorted_by(|candidate| requests(question, candidate));
        let is_uncounted = |candidate: &Candidate<'_>| is_uncounted(question, candidate);
        Ok(by_chance(question, order, is_uncounted).into())
    }
}

fn requests(question: &Question<'_>, candidate: &Candidate<'_>) -> u64 {
    match question.scope {
        Scope::Combo(combo) => question
            .telemetry
            .target_requests(combo, candidate.key)
            .unwrap_or(0),
        Scope::Accounts(_) => candidate.connection.map_or(0, |connection| {
            question.telemetry.connection_requests(connection)
        }),
    }
}

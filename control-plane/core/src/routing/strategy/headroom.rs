//! `headroom`: the most quota left first (`routing.md` §8.12).
//!
//! Of the session and the weekly window the fuller one counts. What nothing is known of counts as untouched, unless there
//! is no room to know anything of it: that is placed by chance.

use std::cmp::Reverse;

use crate::telemetry::QuotaSnapshot;
use crate::time::Timestamp;

use super::left_out::{by_chance, has_no_past};
use super::score::Score;
use super::{Candidate, Halt, Order, Ordered, Question, quota};

/// Descending by the share of quota that is left.
#[derive(Debug)]
pub(super) struct Headroom;

impl Order for Headroom {
    fn expands_accounts(&self) -> bool {
        true
    }

    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let order = question.sorted_by(|candidate| {
            let quota = quota::of(question, &candidate);
            Reverse(Score::new(left(quota.as_deref(), question.now)))
        });
        let has_no_past = |candidate: &Candidate<'_>| has_no_past(question, candidate);
        Ok(by_chance(question, order, has_no_past).into())
    }
}

/// Share of quota that is left, 0..=1; 1 where nothing is known.
pub(in crate::routing) fn left(quota: Option<&QuotaSnapshot>, now: Timestamp) -> f64 {
    let Some(quota) = quota else {
        return 1.0;
    };
    if quota::limit_stands(quota, now) {
        return 0.0;
    }
    let named = [quota::session(quota), quota::weekly(quota)]
        .into_iter()
        .flatten()
        .map(|window| window.used_now(now))
        .reduce(f64::max);
    let used = named.or_else(|| Some(quota::everything(quota)?.used_now(now)));
    1.0 - used.unwrap_or(0.0)
}

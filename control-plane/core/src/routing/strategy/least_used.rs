//! `least-used`: the fewest requests so far first (`routing.md` §8.8).
//!
//! It counts what ended, ever, not what is under way. Targets are counted per combo and execution key, accounts over
//! all combos; what was never counted has 0, and what there is no room to count is placed by chance.
//!
//! **Smoothing.** Telemetry is about a second old, and within that second the same one would be first for every request.
//! So what this process sent just now is added to what telemetry tells (decision 37).
//!
//! **Many accounts.** They are ranked by telemetry when that is renewed ([`Ranking`]), not in each decision. Then only
//! those are out of their place to which something was sent just now, and who is first is found by looking at these and
//! one more.

use super::left_out::{by_chance, is_uncounted};
use super::{Candidate, Halt, Order, Ordered, Question, Scope, Walk};
use crate::ids::ConnectionId;
use crate::telemetry::Telemetry;
use crate::time::Timestamp;

/// Ascending by requests.
#[derive(Debug)]
pub(super) struct LeastUsed;

/// The accounts of a provider by what telemetry tells of them.
#[derive(Debug, Default)]
pub struct Ranking {
    /// The moment of the telemetry.
    pub as_of: Timestamp,
    /// Requests and position of each account that is counted, ascending.
    pub accounts: Vec<(u64, usize)>,
    /// Positions of those that there is no room to count.
    pub left_out: Vec<usize>,
}

impl Ranking {
    /// Ranks the accounts of a provider, in this order, by what telemetry tells of them.
    pub(in crate::routing) fn of<'a>(
        accounts: impl Iterator<Item = Option<&'a ConnectionId>>,
        telemetry: &dyn Telemetry,
    ) -> Self {
        let mut ranking = Self {
            as_of: telemetry.as_of(),
            ..Self::default()
        };
        for (position, account) in accounts.enumerate() {
            let requests = account.map_or(0, |account| telemetry.connection_requests(account));
            let is_left_out = |account| telemetry.leaves_out_connection(account);
            if requests == 0 && account.is_some_and(is_left_out) {
                ranking.left_out.push(position);
            } else {
                ranking.accounts.push((requests, position));
            }
        }
        ranking.accounts.sort_unstable();
        ranking
    }
}

impl Order for LeastUsed {
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let mut counted: Vec<(u64, usize)> = (0..question.candidates.len())
            .map(|position| {
                let sent = sent(question, position);
                (told(question, position).saturating_add(sent), position)
            })
            .collect();
        counted.sort_unstable();
        let order: Vec<usize> = counted.into_iter().map(|(_, position)| position).collect();
        let is_uncounted = |candidate: &Candidate<'_>| is_uncounted(question, candidate);
        Ok(by_chance(question, order, is_uncounted).into())
    }

    fn walk(&self, question: &Question<'_>) -> Result<Walk, Halt> {
        let Scope::Accounts(provider) = question.scope else {
            return Ok(self.order(question)?.order.into());
        };
        let as_of = question.telemetry.as_of();
        let ranking = question.turns.ranking(provider, as_of, &|| {
            Ranking::of(accounts(question), question.telemetry)
        });
        let left_out = ranking.left_out.len();
        let mut random = question.random();
        // As many are first by chance as their share of all.
        let by_chance = random.below(question.candidates.len()) < left_out;
        let drawn = || {
            random
                .draws(left_out)
                .filter_map(|place| ranking.left_out.get(place).copied())
                .find(|position| question.conditions.is_eligible(*position))
        };
        let counted = || first_eligible(question, &ranking);
        let first = if by_chance {
            drawn().or_else(counted)
        } else {
            counted().or_else(drawn)
        };
        Ok(Walk::preferring(
            first.unwrap_or(0),
            question.candidates.len(),
        ))
    }
}

fn accounts<'a>(question: &Question<'a>) -> impl Iterator<Item = Option<&'a ConnectionId>> {
    let candidates = question.candidates;
    (0..candidates.len()).map(move |position| candidates.get(position)?.connection)
}

/// The account with the fewest requests that may be used. What was sent just now only adds to the rank of an account,
/// so none behind can be before one that is not behind its own rank.
fn first_eligible(question: &Question<'_>, ranking: &Ranking) -> Option<usize> {
    let mut first: Option<(u64, usize)> = None;
    for ranked in &ranking.accounts {
        if first.is_some_and(|first| first < *ranked) {
            break;
        }
        let (told, position) = *ranked;
        let counted = (told.saturating_add(sent(question, position)), position);
        if first.is_none_or(|first| counted < first) && question.conditions.is_eligible(position) {
            first = Some(counted);
        }
    }
    first.map(|(_, position)| position)
}

fn told(question: &Question<'_>, position: usize) -> u64 {
    let (telemetry, candidate) = (question.telemetry, question.candidates.get(position));
    let requests = candidate.and_then(|candidate| match question.scope {
        Scope::Combo(combo) => telemetry.target_requests(combo, candidate.key),
        Scope::Accounts(_) => Some(telemetry.connection_requests(candidate.connection?)),
    });
    requests.unwrap_or(0)
}

/// What was sent just now.
fn sent(question: &Question<'_>, position: usize) -> u64 {
    let (turns, now) = (question.turns, question.now);
    let candidate = question.candidates.get(position);
    let sent = candidate.and_then(|candidate| match question.scope {
        Scope::Combo(combo) => Some(turns.sent_to_target(combo, candidate.key, now)),
        Scope::Accounts(_) => Some(turns.sent_just_now(candidate.connection?, now)),
    });
    sent.map_or(0, u64::from)
}

//! `p2c`: the better of two drawn ones is first (`routing.md` §8.6).
//!
//! The better one has the higher sum of success rate and speed; the second wins only if it is better. The loser stays
//! where it is. What is not known of is taken for mediocre, so that it is tried now and then.
//!
//! Accounts are drawn among those that no gate excludes (`routing.md` §5.0). If excluded ones were drawn too, the requests
//! that they win would all fall to the first account of the list.

use crate::breaker::Phase;
use crate::random::Random;
use crate::telemetry::Performance;

use super::score::Score;
use super::{Candidate, Halt, Order, Ordered, Question, Scope, Walk};

/// Share of successes of what nothing is known of.
const UNKNOWN_SUCCESS: f64 = 0.5;
/// Speed of what no latency is known of.
const UNKNOWN_SPEED: f64 = 0.25;
/// What a half-open breaker takes off.
const HALF_OPEN_PENALTY: f64 = 0.25;

/// The better of two first.
#[derive(Debug)]
pub(super) struct PowerOfTwoChoices;

impl Order for PowerOfTwoChoices {
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        Ok(self.walk(question)?.collect::<Vec<_>>().into())
    }

    fn walk(&self, question: &Question<'_>) -> Result<Walk, Halt> {
        let count = question.candidates.len();
        let winner = match question.scope {
            _ if count < 2 => None,
            Scope::Combo(_) => {
                let (first, second) = two_of(&mut question.random(), count);
                Some(better(question, first, second))
            }
            Scope::Accounts(_) => {
                let mut eligible = question
                    .random()
                    .draws(count)
                    .filter(|position| question.conditions.is_eligible(*position));
                let first = eligible.next();
                match (first, eligible.next()) {
                    (Some(first), Some(second)) => Some(better(question, first, second)),
                    (first, _) => first,
                }
            }
        };
        Ok(Walk::preferring(winner.unwrap_or(0), count))
    }
}

fn better(question: &Question<'_>, first: usize, second: usize) -> usize {
    if score(question, second) > score(question, first) {
        second
    } else {
        first
    }
}

/// Two different positions of at least two, each pair as likely.
pub(super) fn two_of(random: &mut Random, count: usize) -> (usize, usize) {
    let first = random.below(count);
    let second = random.below(count.saturating_sub(1));
    if second < first {
        (first, second)
    } else {
        (first, second.saturating_add(1))
    }
}

fn score(question: &Question<'_>, index: usize) -> Score {
    let penalty = match question.conditions.phase(index) {
        Phase::Open { .. } => return Score::WORST,
        Phase::HalfOpen { .. } => HALF_OPEN_PENALTY,
        Phase::Closed | Phase::Degraded => 0.0,
    };
    let performance = question
        .candidates
        .get(index)
        .and_then(|candidate| performance(question, &candidate));
    Score::new(success(performance) + speed(performance) - penalty)
}

fn performance(question: &Question<'_>, candidate: &Candidate<'_>) -> Option<Performance> {
    let Candidate {
        provider, model, ..
    } = candidate;
    match question.scope {
        Scope::Combo(combo) => question.telemetry.of_combo(combo, provider, model),
        Scope::Accounts(_) => question
            .telemetry
            .of_connection(candidate.connection?, model),
    }
}

fn success(performance: Option<Performance>) -> f64 {
    performance
        .filter(|known| known.requests > 0)
        .and_then(|known| known.success_rate)
        .filter(|rate| rate.is_finite())
        .map_or(UNKNOWN_SUCCESS, |rate| rate.clamp(0.0, 1.0))
}

/// Where nothing succeeded yet there is no latency, which reads as 0.
fn speed(performance: Option<Performance>) -> f64 {
    performance
        .map(|known| known.mean_latency_ms)
        .filter(|mean_ms| mean_ms.is_finite() && *mean_ms > 0.0)
        .map_or(UNKNOWN_SPEED, |mean_ms| 1.0 / (mean_ms + 10.0).log10())
}

//! What is known of a candidate, each thing looked up once, with what is assumed where nothing is known
//! (`routing.md` §9.2).
//!
//! Latencies are those of the connection with the model over 24 hours from [`ENOUGH_REQUESTS`] on, else those of the
//! model within the combo, else the median of the other candidates, else [`UNKNOWN_P95_MS`].

use crate::breaker::Phase;
use crate::catalogue::{ModelInfo, Tier};
use crate::ids::{ComboName, ConnectionId};
use crate::number::Finite;
use crate::routing::{Intent, RequestFacts};
use crate::telemetry::Performance;
use crate::time::Timestamp;

use super::super::rendezvous::Rendezvous;
use super::super::{Candidate, Question, Scope, quota, reset_aware};
use super::allowance::Allowance;

/// Attempts from which on a connection's own history counts.
const ENOUGH_REQUESTS: u64 = 10;
/// p95 latency where nobody has any, in ms.
const UNKNOWN_P95_MS: f64 = 1_500.0;
/// The least standard deviation, in ms: below it, differences are noise.
const LEAST_STD_DEV_MS: f64 = 10.0;
/// Standard deviation where none is known, as a share of p95.
const UNKNOWN_STD_DEV: f64 = 0.1;
/// Cost where no price is known, in USD per million tokens.
const UNKNOWN_COST: f64 = 1.0;
/// Share of the input's price in the cost; the rest is the output's.
const INPUT_SHARE: f64 = 0.6;
/// What stands for a number from 0 to 1 that is not known.
const UNKNOWN: f64 = 0.5;

/// What was read of one candidate.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// No gate excludes it.
    pub(super) eligible: bool,
    pub(super) phase: Phase,
    /// Accounts of its provider.
    pub(super) accounts: u32,
    /// Until when it is left alone after failures.
    pub(super) rests_until: Option<Timestamp>,
    pub(super) allowance: Allowance,
    pub(super) reset_window_affinity: f64,
    /// In USD per million tokens, at least 0.
    pub(super) cost: f64,
    pub(super) p95_ms: f64,
    pub(super) std_dev_ms: f64,
    /// Share of attempts that failed, 0..=1.
    pub(super) failure_rate: Option<f64>,
    pub(super) tier: Tier,
    pub(super) tier_affinity: f64,
    pub(super) task_fit: f64,
    pub(super) specificity_match: f64,
    pub(super) context_affinity: f64,
    pub(super) cache_affinity: f64,
}

/// Reads all candidates. `caches_count`: it matters who has the prompt in its cache.
pub(super) fn read(question: &Question<'_>, caches_count: bool) -> Vec<Reading> {
    let reader = Reader {
        question,
        combo: match question.scope {
            Scope::Combo(combo) => Some(combo),
            Scope::Accounts(_) => None,
        },
        session: question
            .facts
            .session
            .as_deref()
            .and_then(|session| question.telemetry.session_connection(session)),
        tier: wanted_tier(question.facts),
        caching: caches_count.then(|| caching(question)).flatten(),
        cutoff: super::quota_cutoff(question.config.auto.as_ref()),
    };
    let measured: Vec<Measured> = question
        .candidates
        .iter()
        .map(|candidate| reader.measured(&candidate))
        .collect();
    let median_ms = median(measured.iter().filter_map(|measured| measured.p95_ms));
    let unknown_p95_ms = median_ms.unwrap_or(UNKNOWN_P95_MS);
    question
        .candidates
        .iter()
        .zip(measured)
        .enumerate()
        .map(|(index, (candidate, measured))| {
            reader.reading(index, &candidate, measured, unknown_p95_ms)
        })
        .collect()
}

struct Reader<'a> {
    question: &'a Question<'a>,
    combo: Option<&'a ComboName>,
    /// The connection that served the conversation last.
    session: Option<ConnectionId>,
    /// The class of model that the request names.
    tier: Option<Tier>,
    /// The candidate that keeps the prompt's prefix in its cache.
    caching: Option<usize>,
    /// Share of a quota below which an account is not used, 0..=1.
    cutoff: f64,
}

impl Reader<'_> {
    fn measured(&self, candidate: &Candidate<'_>) -> Measured {
        let telemetry = self.question.telemetry;
        let own = candidate
            .connection
            .and_then(|connection| telemetry.of_connection(connection, candidate.model))
            .filter(|own| own.requests >= ENOUGH_REQUESTS);
        let performance = own.or_else(|| {
            telemetry
                .of_combo(self.combo?, candidate.provider, candidate.model)
                .filter(|shared| shared.requests > 0)
        });
        performance.map_or_else(Measured::default, |performance| Measured::of(&performance))
    }

    fn reading(
        &self,
        index: usize,
        candidate: &Candidate<'_>,
        measured: Measured,
        unknown_p95_ms: f64,
    ) -> Reading {
        let Question {
            conditions,
            telemetry,
            facts,
            now,
            ..
        } = *self.question;
        let info = self
            .question
            .catalogue
            .get(candidate.provider, candidate.model);
        let quota = quota::of(self.question, candidate);
        let p95_ms = measured.p95_ms.unwrap_or(unknown_p95_ms);
        let std_dev_ms = measured.std_dev_ms.unwrap_or(p95_ms * UNKNOWN_STD_DEV);
        let tier = info.tier.unwrap_or(Tier::Standard);
        Reading {
            eligible: conditions.is_eligible(index),
            phase: conditions.phase(index),
            accounts: u32::try_from(conditions.accounts(index)).unwrap_or(u32::MAX),
            rests_until: self
                .combo
                .and_then(|combo| telemetry.adaptation_until(combo, candidate.key)),
            allowance: Allowance::of(quota.as_deref(), candidate.model, self.cutoff, now),
            reset_window_affinity: reset_aware::windows_urgency(
                self.question.config,
                quota.as_deref(),
                now,
            ),
            cost: cost(info),
            p95_ms,
            std_dev_ms: std_dev_ms.max(LEAST_STD_DEV_MS),
            failure_rate: measured.failure_rate,
            tier,
            tier_affinity: self.tier.map_or(UNKNOWN, |wanted| affinity(wanted, tier)),
            task_fit: task_fit(info, facts.intent),
            specificity_match: specificity_match(info, facts.intent),
            context_affinity: match (&self.session, candidate.connection) {
                (Some(bound), Some(connection)) if bound == connection => 1.0,
                (Some(_), Some(_)) => 0.1,
                _ => UNKNOWN,
            },
            cache_affinity: if self.caching == Some(index) {
                1.0
            } else {
                0.0
            },
        }
    }
}

/// What telemetry says, as far as it is a number that can be true.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    p95_ms: Option<f64>,
    std_dev_ms: Option<f64>,
    failure_rate: Option<f64>,
}

impl Measured {
    fn of(performance: &Performance) -> Self {
        // Where nothing succeeded yet, latencies are 0.
        let p95_ms = Some(performance.p95_latency_ms).filter(|ms| ms.is_finite() && *ms > 0.0);
        let std_dev_ms = performance.latency_std_dev_ms;
        Self {
            p95_ms,
            std_dev_ms: p95_ms
                .and(Some(std_dev_ms))
                .filter(|ms| ms.is_finite() && *ms >= 0.0),
            failure_rate: performance
                .success_rate
                .filter(|rate| rate.is_finite())
                .map(|rate| 1.0 - rate.clamp(0.0, 1.0)),
        }
    }
}

/// The lower of the two in the middle where there are two.
fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    let middle = numbers.len().checked_sub(1)? / 2;
    let (_, median, _) = numbers.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*median)
}

/// A mix of both prices; where one is not known, the other stands for both.
fn cost(info: &ModelInfo) -> f64 {
    let (input, output) = match (info.input_price, info.output_price) {
        (Some(input), Some(output)) => (input, output),
        (Some(price), None) | (None, Some(price)) => (price, price),
        (None, None) => return UNKNOWN_COST,
    };
    (INPUT_SHARE * input.get() + (1.0 - INPUT_SHARE) * output.get()).max(0.0)
}

/// The class that a tag of the request names.
fn wanted_tier(facts: &RequestFacts) -> Option<Tier> {
    facts.tags.iter().find_map(|tag| match tag.as_str() {
        "free" => Some(Tier::Free),
        "standard" => Some(Tier::Standard),
        "pro" | "premium" => Some(Tier::Pro),
        "ultra" => Some(Tier::Ultra),
        _ => None,
    })
}

fn affinity(wanted: Tier, tier: Tier) -> f64 {
    let rank = |tier: Tier| match tier {
        Tier::Free => 0_u8,
        Tier::Standard => 1,
        Tier::Pro => 2,
        Tier::Ultra => 3,
    };
    match rank(wanted).abs_diff(rank(tier)) {
        0 => 1.0,
        1 => 0.7,
        _ => 0.3,
    }
}

/// Fitness as the catalogue states it.
fn fitness(info: &ModelInfo, intent: Intent) -> Option<f64> {
    let stated = match intent {
        Intent::General => info.general,
        Intent::Coding => info.coding,
        Intent::Analysis => info.analysis,
    };
    stated.map(Finite::get)
}

/// Fitness for what the request is about, else for anything, else in the middle.
fn task_fit(info: &ModelInfo, intent: Intent) -> f64 {
    fitness(info, intent)
        .or_else(|| fitness(info, Intent::General))
        .unwrap_or(UNKNOWN)
}

/// A model is made for what it is stated to be at least as fit for as for anything else.
fn specificity_match(info: &ModelInfo, intent: Intent) -> f64 {
    if intent == Intent::General {
        return UNKNOWN;
    }
    let best_else = [Intent::General, Intent::Coding, Intent::Analysis]
        .into_iter()
        .filter(|other| *other != intent)
        .filter_map(|other| fitness(info, other))
        .fold(UNKNOWN, f64::max);
    match fitness(info, intent) {
        Some(fit) if fit >= best_else => 0.9,
        fit => 0.2 + 0.2 * fit.unwrap_or(UNKNOWN).clamp(0.0, 1.0),
    }
}

/// The candidate that equal prompts go to (`routing.md` §8.17).
fn caching(question: &Question<'_>) -> Option<usize> {
    let rendezvous = Rendezvous::new(question.facts.cache_key.as_deref()?);
    let ranked = question.candidates.iter().enumerate();
    ranked
        .min_by_key(|(_, candidate)| rendezvous.rank(candidate))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests;

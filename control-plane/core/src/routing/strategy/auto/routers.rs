//! Who of the pool is picked (`routing.md` §9.5).
//!
//! | router | picks |
//! |---|---|
//! | `rules` | by tiers, see `tiers` |
//! | `score` | the best score |
//! | `cost`, `eco` | the lowest cost |
//! | `latency`, `fast` | the lowest p95, a second more for each failure in every attempt |
//! | `sla-aware`, `sla` | who keeps what was agreed on, see `sla` |
//! | `lkgp` | the first one of the provider that served last, else as `rules` |
//!
//! `nadir` asks a service elsewhere and falls open to `rules`; there is no such service here, so it is `rules`, as is
//! every name that is not known.

use std::cmp::Reverse;

use crate::config::AutoConfig;
use crate::random::Random;

use super::super::score::Score;
use super::super::{Halt, Scope};
use super::sla::{Agreement, UNKNOWN_ERROR_RATE};
use super::{Contest, healing, tiers};

/// Share of requests that try any candidate.
const EXPLORATION: f64 = 0.05;
/// The same for the combo that learns.
const EXPLORATION_OF_SMART: f64 = 0.10;
const SMART: &str = "auto/smart";
/// What failing always is worth, in ms of latency.
const FAILURE_MS: f64 = 1_000.0;

/// Whether there is a router of this name.
pub(crate) fn is_router(name: &str) -> bool {
    Router::named(name, &AutoConfig::default()).is_some()
}

/// A way to pick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Router {
    Rules,
    Score,
    Cost,
    Latency,
    SlaAware(Agreement),
    LastKnownGood,
}

impl Router {
    pub(super) fn of(config: &AutoConfig) -> Self {
        let name = config.router.as_deref().unwrap_or_default();
        Self::named(name, config).unwrap_or(Self::Rules)
    }

    fn named(name: &str, config: &AutoConfig) -> Option<Self> {
        match name {
            "rules" | "nadir" => Some(Self::Rules),
            "score" => Some(Self::Score),
            "cost" | "eco" => Some(Self::Cost),
            "latency" | "fast" => Some(Self::Latency),
            "sla-aware" | "sla" => Some(Self::SlaAware(Agreement::of(config))),
            "lkgp" => Some(Self::LastKnownGood),
            _ => None,
        }
    }

    /// Picks one of the pool, or where it explores, `score` any of the candidates. `None` from an empty pool.
    pub(super) fn pick(
        self,
        contest: &Contest<'_>,
        pool: &[usize],
        candidates: &[usize],
    ) -> Result<Option<usize>, Halt> {
        let mut random = contest.question.random();
        match self {
            Self::Rules => rules(contest, pool, &mut random),
            Self::Score => {
                let explored = explored(contest, candidates, &mut random);
                Ok(explored.or_else(|| lowest(pool, |index| Reverse(self.rank(contest, index)))))
            }
            Self::Cost => Ok(lowest(pool, |index| cost(contest, index))),
            Self::Latency => Ok(lowest(pool, |index| latency(contest, index))),
            Self::SlaAware(_) => Ok(lowest(pool, |index| Reverse(self.rank(contest, index)))),
            Self::LastKnownGood => match last_known_good(contest, pool) {
                Some(index) => Ok(Some(index)),
                None => rules(contest, pool, &mut random),
            },
        }
    }

    /// What those that were not picked are ordered by, the highest first: the score, for `sla-aware` its own.
    pub(super) fn rank(self, contest: &Contest<'_>, index: usize) -> (Reverse<Score>, Score) {
        let Some(assessment) = contest.assessments.get(index) else {
            return (Reverse(Score::WORST), Score::WORST);
        };
        match self {
            Self::SlaAware(agreement) => (
                Reverse(Score::new(agreement.violation(assessment))),
                Score::new(agreement.score(assessment)),
            ),
            Self::Rules | Self::Score | Self::Cost | Self::Latency | Self::LastKnownGood => {
                (Reverse(Score::new(0.0)), Score::new(assessment.score))
            }
        }
    }
}

/// The first of those for whom the key is lowest.
fn lowest<K: Ord>(pool: &[usize], key: impl Fn(usize) -> K) -> Option<usize> {
    pool.iter().copied().min_by_key(|index| key(*index))
}

/// The cheapest of the pool.
pub(super) fn cheapest(contest: &Contest<'_>, pool: &[usize]) -> Option<usize> {
    lowest(pool, |index| cost(contest, index))
}

fn cost(contest: &Contest<'_>, index: usize) -> Score {
    let assessment = contest.assessments.get(index);
    Score::new(assessment.map_or(f64::INFINITY, |assessment| assessment.reading.cost))
}

fn latency(contest: &Contest<'_>, index: usize) -> Score {
    let assessment = contest.assessments.get(index);
    Score::new(assessment.map_or(f64::INFINITY, |assessment| {
        let reading = &assessment.reading;
        let error_rate = reading.failure_rate.unwrap_or(UNKNOWN_ERROR_RATE);
        reading.p95_ms + FAILURE_MS * error_rate
    }))
}

fn rules(
    contest: &Contest<'_>,
    pool: &[usize],
    random: &mut Random,
) -> Result<Option<usize>, Halt> {
    match explored(contest, pool, random) {
        Some(index) => Ok(Some(index)),
        None => tiers::pick(contest, pool, random),
    }
}

/// Any of these, now and then, so that what is known of those that are not picked does not grow old. Not while much
/// is broken already.
fn explored(contest: &Contest<'_>, among: &[usize], random: &mut Random) -> Option<usize> {
    let default = if contest.combo_name() == SMART {
        EXPLORATION_OF_SMART
    } else {
        EXPLORATION
    };
    let rate = contest.config.exploration_rate.map_or(default, f64::from);
    let explores = random.unit() < rate && !healing::is_incident(&contest.assessments);
    if explores {
        among.get(random.below(among.len())).copied()
    } else {
        None
    }
}

fn last_known_good(contest: &Contest<'_>, pool: &[usize]) -> Option<usize> {
    let Scope::Combo(combo) = contest.question.scope else {
        return None;
    };
    let record = contest.question.telemetry.last_known_good(combo)?;
    let is_of_provider = |index: &usize| {
        let candidate = contest.question.candidates.get(*index);
        candidate.is_some_and(|candidate| *candidate.provider == record.provider)
    };
    pool.iter().copied().find(is_of_provider)
}

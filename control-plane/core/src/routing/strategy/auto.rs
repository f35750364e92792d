//! `auto`: the target that sixteen factors speak for (`routing.md` §9).
//!
//! | room | what it holds |
//! |---|---|
//! | `reading`, `allowance` | what is known of a candidate, each thing looked up once |
//! | `factors`, `weights` | sixteen numbers from 0 to 1, and how much each counts |
//! | `healing`, [`Adaptation`] | who is not picked for a while |
//! | `budget` | what a request may cost |
//! | `routers`, `tiers`, `sla` | who is picked |
//!
//! First goes who was picked, then the others of the pool by score, then the rest by score; within each what the budget
//! affords goes first. What is below the quota cut-off, and what a strict budget does not afford, is behind all of it and
//! may not be used ([`Ordered::usable`]). When that is true of all that no gate excludes (of all, when gates exclude all),
//! the request ends with 429 or 402: what cannot be used anyway is no reason to answer that there is nothing to use. Only
//! what a strict budget affords and cools down is waited for, as decision 27 has it.
//! Layers may change places only within the pool ([`Ordered::movable`]).
//!
//! Telemetry may be seconds old: all of it only weighs, and what must not be used is excluded by gates. Whose turn it is
//! and what is explored are each replica's own.

mod adaptation;
mod allowance;
mod budget;
mod factors;
mod healing;
#[cfg(test)]
mod properties;
mod reading;
mod refusal;
mod routers;
mod sla;
#[cfg(test)]
mod tests;
mod tiers;
mod weights;

use std::cmp::Reverse;

use crate::config::{AutoConfig, ComboConfig};

use super::{Halt, Order, Ordered, Question, Scope, quota};

pub use adaptation::Adaptation;
pub use factors::Factors;
pub(crate) use routers::is_router;
pub(crate) use weights::{is_factor, is_pack, modes};

use budget::Budget;
use factors::Largest;
use reading::Reading;
use routers::Router;
use weights::Weights;

/// What was made of one candidate.
#[derive(Clone, Debug)]
pub struct Assessment {
    /// What speaks for it.
    pub factors: Factors,
    /// The factors by their weights, less for what is in a bad way; 0..=1.
    pub score: f64,
    reading: Reading,
}

/// Whether it matters for the score who has the prompt in its cache.
pub(in crate::routing) fn weighs_cache(question: &Question<'_>) -> bool {
    weights(question).cache_affinity()
}

/// Whether the router that the combo names picks on purpose, by something else than the shares of `rules`.
pub(in crate::routing) fn names_router(config: &ComboConfig) -> bool {
    let config = config.auto.as_ref();
    config.is_some_and(|config| Router::of(config) != Router::Rules)
}

fn weights(question: &Question<'_>) -> Weights {
    let config = question.config.auto.as_ref();
    Weights::of(question.facts.mode.as_deref(), config)
}

/// Assesses all candidates, in their order.
#[must_use]
pub fn assess(question: &Question<'_>) -> Vec<Assessment> {
    let weights = weights(question);
    let readings = reading::read(question, weights.cache_affinity());
    let largest = Largest::of(readings.iter());
    readings
        .into_iter()
        .map(|reading| {
            let factors = largest.factors(&reading);
            Assessment {
                score: weights.score(&factors) * factors::multiplier(&reading),
                factors,
                reading,
            }
        })
        .collect()
}

/// Share of a quota below which an account is not used, 0..=1.
fn quota_cutoff(config: Option<&AutoConfig>) -> f64 {
    let percent = config.and_then(|config| config.quota_cutoff_percent);
    percent.map_or(0.0, f64::from) / 100.0
}

/// Everything a pick depends on.
struct Contest<'a> {
    question: &'a Question<'a>,
    config: &'a AutoConfig,
    assessments: Vec<Assessment>,
}

impl Contest<'_> {
    fn score(&self, index: usize) -> f64 {
        self.assessments
            .get(index)
            .map_or(0.0, |assessment| assessment.score)
    }

    fn combo_name(&self) -> &str {
        match self.question.scope {
            Scope::Combo(combo) => combo.as_str(),
            Scope::Accounts(_) => "",
        }
    }

    fn affords(&self, budget: Budget, index: usize) -> bool {
        let assessment = self.assessments.get(index);
        assessment.is_some_and(|assessment| budget.affords(&assessment.reading))
    }

    /// Those whose account has at least the share of quota left that the combo asks for.
    fn within_quota(&self) -> Vec<usize> {
        let cutoff = quota_cutoff(Some(self.config));
        self.select(0..self.assessments.len(), |assessment| {
            quota::is_enough(assessment.reading.allowance.left, cutoff)
        })
    }

    /// Those that no gate excludes; where gates exclude all, all.
    fn candidates(&self) -> Vec<usize> {
        let all = || 0..self.assessments.len();
        let eligible = self.select(all(), |assessment| assessment.reading.eligible);
        if eligible.is_empty() {
            all().collect()
        } else {
            eligible
        }
    }

    fn select(
        &self,
        among: impl IntoIterator<Item = usize>,
        holds: impl Fn(&Assessment) -> bool,
    ) -> Vec<usize> {
        among
            .into_iter()
            .filter(|index| self.assessments.get(*index).is_some_and(&holds))
            .collect()
    }
}

/// Orders by score.
#[derive(Debug)]
pub(super) struct Auto;

impl Order for Auto {
    fn expands_accounts(&self) -> bool {
        true
    }

    fn rules_out(&self) -> bool {
        true
    }

    fn follows_last_served(&self, config: &ComboConfig) -> bool {
        let router = config.auto.as_ref().map(Router::of);
        router == Some(Router::LastKnownGood)
    }

    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        if question.candidates.is_empty() {
            return Ok(Vec::new().into());
        }
        let nothing_set = AutoConfig::default();
        let contest = Contest {
            question,
            config: question.config.auto.as_ref().unwrap_or(&nothing_set),
            assessments: assess(question),
        };
        let kept = contest.within_quota();
        let mut candidates = contest.candidates();
        let is_kept = |index: &usize| kept.binary_search(index).is_ok();
        if !candidates.iter().any(is_kept) {
            return Err(refusal::below_quota(&contest, &candidates));
        }
        candidates.retain(is_kept);
        let pool = healing::pool(&contest, &candidates);
        let budget = Budget::of(question.facts, contest.config);
        let router = Router::of(contest.config);
        let picked = pick(&contest, router, budget, &pool, &candidates, &kept)?;
        let mut places = vec![Place::Barred; contest.assessments.len()];
        for (list, within, beyond) in [
            (&kept, Place::Rest, Place::DearRest),
            (&pool, Place::Pool, Place::DearPool),
        ] {
            for index in list {
                let place = match budget {
                    Some(budget) if !contest.affords(budget, *index) => {
                        if budget.is_strict() {
                            Place::Barred
                        } else {
                            beyond
                        }
                    }
                    Some(_) | None => within,
                };
                set(&mut places, *index, place);
            }
        }
        if let Some(picked) = picked {
            set(&mut places, picked, Place::Picked);
        }
        let up_to = |last: Place| places.iter().filter(|place| **place <= last).count();
        let (movable, usable) = (up_to(Place::Pool), up_to(Place::DearRest));
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_cached_key(|index| {
            let rank = router.rank(&contest, *index);
            (places.get(*index).copied(), Reverse(rank))
        });
        Ok(Ordered {
            usable,
            movable,
            ..order.into()
        })
    }
}

/// Where a candidate stands, before its score is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Picked,
    Pool,
    Rest,
    /// Of the pool, but over the cap.
    DearPool,
    DearRest,
    /// May not be used.
    Barred,
}

fn set(places: &mut [Place], index: usize, place: Place) {
    if let Some(of) = places.get_mut(index) {
        *of = place;
    }
}

/// Picks what the budget affords as long as anything is: of the pool, else of all candidates. If nothing is, the
/// cheapest; of a strict budget nobody, where something affordable of those within their quotas (`kept`) cools down, so
/// that the request waits for it or is told when it ends.
fn pick(
    contest: &Contest<'_>,
    router: Router,
    budget: Option<Budget>,
    pool: &[usize],
    candidates: &[usize],
    kept: &[usize],
) -> Result<Option<usize>, Halt> {
    let Some(budget) = budget else {
        return router.pick(contest, pool, candidates);
    };
    let affordable = |list: &[usize]| -> Vec<usize> {
        let affords = |index: &usize| contest.affords(budget, *index);
        list.iter().copied().filter(affords).collect()
    };
    let dear = candidates;
    let candidates = affordable(candidates);
    if candidates.is_empty() {
        if !budget.is_strict() {
            return Ok(routers::cheapest(contest, pool));
        }
        let conditions = contest.question.conditions;
        let cools = |index: &usize| conditions.cools(*index);
        return if affordable(kept).iter().any(cools) {
            Ok(None)
        } else {
            Err(refusal::over_budget(contest, dear))
        };
    }
    let of_pool = affordable(pool);
    let pool = if of_pool.is_empty() {
        &candidates
    } else {
        &of_pool
    };
    router.pick(contest, pool, &candidates)
}

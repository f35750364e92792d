//! What a request may cost (`routing.md` §9.4, §9.6).

use crate::config::{AutoConfig, BudgetFallback};
use crate::routing::RequestFacts;

use super::super::score::ROUNDING;
use super::reading::Reading;

/// Tokens of a request of which nothing is known.
const UNKNOWN_TOKENS: u64 = 1_000;
/// Costs are per this many tokens.
const TOKENS_PER_COST: f64 = 1_000_000.0;

/// A cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Budget {
    /// In USD, above 0.
    cap: f64,
    tokens: f64,
    fallback: BudgetFallback,
}

impl Budget {
    /// The request's cap, else the combo's.
    pub(super) fn of(facts: &RequestFacts, config: &AutoConfig) -> Option<Self> {
        let positive = |cap: &f64| *cap > 0.0;
        let asked = facts.budget.map(f64::from).filter(positive);
        let cap = asked.or_else(|| config.budget_cap.map(f64::from).filter(positive))?;
        let tokens = facts.estimated_tokens.unwrap_or(UNKNOWN_TOKENS);
        Some(Self {
            cap,
            tokens: f64::from(u32::try_from(tokens).unwrap_or(u32::MAX)),
            fallback: facts
                .budget_fallback
                .or(config.budget_fallback)
                .unwrap_or_default(),
        })
    }

    /// The request is estimated to cost no more than the cap there.
    pub(super) fn affords(self, reading: &Reading) -> bool {
        reading.cost * self.tokens / TOKENS_PER_COST <= self.cap * (1.0 + ROUNDING)
    }

    /// What is over the cap is not used at all.
    pub(super) fn is_strict(self) -> bool {
        self.fallback == BudgetFallback::Strict
    }
}

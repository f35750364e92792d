//! `cost-optimized`: the cheapest input first (`routing.md` §8.9).
//!
//! The price of the output does not count. What has no known price comes last.

use super::{Halt, Order, Ordered, Question};

/// Tag of a request that wants a premium model.
const PREMIUM: &str = "premium";

/// Ascending by the price of the input.
#[derive(Debug)]
pub(super) struct CostOptimized;

impl Order for CostOptimized {
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let premium_first = question.config.manifest_routing == Some(true)
            && question.facts.tags.iter().any(|tag| tag == PREMIUM);
        Ok(question
            .sorted_by(|candidate| {
                let info = question.catalogue.get(candidate.provider, candidate.model);
                // The others are left for when no premium one can be used any more.
                let demoted = premium_first && info.premium != Some(true);
                (demoted, info.input_price.is_none(), info.input_price)
            })
            .into())
    }
}

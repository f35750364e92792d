//! `cost-optimized`: the cheapest input first (`routing.md` §8.9).
//!
//! The price of the output does not count. What has no known price comes last. With `manifestRouting`, a request that
//! wants a premium model is kept from the others while a premium one can be used.

use super::{Candidate, Halt, Order, Ordered, Question};

/// Tag of a request that wants a premium model.
const PREMIUM: &str = "premium";

/// Ascending by the price of the input.
#[derive(Debug)]
pub(super) struct CostOptimized;

impl Order for CostOptimized {
    fn rules_out(&self) -> bool {
        true
    }

    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let info =
            |candidate: &Candidate<'_>| question.catalogue.get(candidate.provider, candidate.model);
        let is_premium = |candidate: &Candidate<'_>| info(candidate).premium == Some(true);
        let premium_only = wants_premium(question)
            && question
                .candidates
                .iter()
                .enumerate()
                .any(|(index, one)| is_premium(&one) && question.conditions.is_eligible(index));
        let may_be_used = |candidate: &Candidate<'_>| !premium_only || is_premium(candidate);
        let order = question.sorted_by(|candidate| {
            let price = info(&candidate).input_price;
            (!may_be_used(&candidate), price.is_none(), price)
        });
        let usable = question
            .candidates
            .iter()
            .filter(|candidate| may_be_used(candidate))
            .count();
        Ok(Ordered {
            usable,
            movable: usable,
            ..order.into()
        })
    }
}

fn wants_premium(question: &Question<'_>) -> bool {
    question.config.manifest_routing == Some(true)
        && question.facts.tags.iter().any(|tag| tag == PREMIUM)
}

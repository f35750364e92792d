//! `context-optimized`: the largest known context window first (`routing.md` §8.16). Unknown ones come last.

use std::cmp::Reverse;

use super::{Halt, Order, Ordered, Question};

/// Descending by context window.
#[derive(Debug)]
pub(super) struct ContextOptimized;

impl Order for ContextOptimized {
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        Ok(question
            .sorted_by(|candidate| {
                let info = question.catalogue.get(candidate.provider, candidate.model);
                Reverse(info.context_window.unwrap_or(0))
            })
            .into())
    }
}

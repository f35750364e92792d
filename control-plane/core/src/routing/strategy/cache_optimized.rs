//! `cache-optimized`: the same account for the same prompt prefix (`routing.md` §8.17).
//!
//! Nothing is remembered: every replica comes to the same order. A request without a key keeps the order of the combo.

use super::rendezvous::Rendezvous;
use super::{Halt, Order, Ordered, Question};

/// By rendezvous hash of the prompt's key.
#[derive(Debug)]
pub(super) struct CacheOptimized;

impl Order for CacheOptimized {
    fn expands_accounts(&self) -> bool {
        true
    }

    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let Some(key) = &question.facts.cache_key else {
            return Ok((0..question.candidates.len()).collect::<Vec<_>>().into());
        };
        let rendezvous = Rendezvous::new(key);
        Ok(question
            .sorted_by(|candidate| rendezvous.rank(&candidate))
            .into())
    }
}

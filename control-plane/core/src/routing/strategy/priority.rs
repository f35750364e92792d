//! `priority`, `fill-first` and `context-relay`: the order of the combo (`routing.md` §8.1, §8.4, §8.5).
//!
//! "Filling" emerges because a target is left only when a gate excludes it; what `context-relay` adds happens after a
//! success.

use super::{Halt, Order, Ordered, Question};

/// The order of the combo.
#[derive(Debug)]
pub(super) struct Priority;

impl Order for Priority {
    fn keeps_order(&self) -> bool {
        true
    }

    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        Ok((0..question.candidates.len()).collect::<Vec<_>>().into())
    }
}

//! `random`: every order is as likely (`routing.md` §8.7).

use super::{Halt, Order, Ordered, Question, Walk};

/// Shuffled for each request.
#[derive(Debug)]
pub(super) struct Shuffled;

impl Order for Shuffled {
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let mut order: Vec<usize> = (0..question.candidates.len()).collect();
        question.random().shuffle(&mut order);
        Ok(order.into())
    }

    fn walk(&self, question: &Question<'_>) -> Result<Walk, Halt> {
        let count = question.candidates.len();
        Ok(Walk::drawn(question.random().draws(count)))
    }
}

//! `strict-random`: each target once per round, in a random order that all replicas share (`routing.md` §8.13,
//! decision 51).
//!
//! A counter that all replicas share numbers the requests of a combo. With n targets, request i is dealt card i mod n
//! of deck i div n. The order of a deck follows from the combo, the deck's number and the set of the targets' keys, so
//! replicas deal from the same deck without telling each other of it. When the targets change, so does the deck.
//!
//! Behind the dealt target the others are shuffled anew for each request.

use crate::random::Random;

use super::seed::Seed;
use super::{Halt, Order, Ordered, Question, TurnPurpose, first_of, place};

/// Dealt from a deck.
#[derive(Debug)]
pub(super) struct StrictRandom;

impl Order for StrictRandom {
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let count = question.candidates.len();
        if count < 2 {
            return Ok((0..count).collect::<Vec<_>>().into());
        }
        let turn = question.take(TurnPurpose::StrictRandom)?;
        let mut order = first_of(count, dealt(question, turn));
        if let Some(rest) = order.get_mut(1..) {
            question.random().shuffle(rest);
        }
        Ok(order.into())
    }
}

/// The candidate that request number `turn` is dealt.
fn dealt(question: &Question<'_>, turn: u64) -> usize {
    let count = question.candidates.len();
    let deck = u64::try_from(count)
        .ok()
        .and_then(|count| turn.checked_div(count))
        .unwrap_or(0);
    let keys = question.candidates.iter().map(|candidate| candidate.key);
    // Sorting by a number drawn for each key shuffles, and does not depend on the order of the candidates.
    let seed = Seed::of(question.scope).with_set(keys).with_number(deck);
    let order = question.sorted_by(|candidate| {
        let mut random: Random = seed.with(candidate.key).random();
        (random.next_u64(), candidate.key)
    });
    let card = place::of_turn(turn, count);
    order.get(card).copied().unwrap_or(0)
}

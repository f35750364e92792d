//! Equals take turns at the head (`routing.md` §8.10, §8.11).

use super::{Candidate, Halt, Question, TurnPurpose, place};

/// All positions, ascending by `key`, equals in the order of the candidates. Those that `is_tied` to the first of them
/// rotate by whose turn it is; with fewer than two there is no turn to take.
///
/// What a gate excludes comes last. Among the equals it would give its turns to the one behind it.
pub(super) fn sorted_with_turns<'a, K: Ord>(
    question: &Question<'a>,
    key: impl Fn(Candidate<'a>) -> K,
    is_tied: impl Fn(&K, &K) -> bool,
) -> Result<Vec<usize>, Halt> {
    let mut keyed: Vec<(bool, K, usize)> = question
        .candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| {
            let excluded = !question.conditions.is_eligible(index);
            (excluded, key(candidate), index)
        })
        .collect();
    keyed.sort();
    let band = match keyed.first() {
        Some((false, first, _)) => keyed
            .iter()
            .take_while(|(excluded, key, _)| !excluded && is_tied(first, key))
            .count(),
        Some((true, ..)) | None => 0,
    };
    let mut order: Vec<usize> = keyed.into_iter().map(|(.., index)| index).collect();
    if let Some(equals) = order.get_mut(..band).filter(|equals| equals.len() > 1) {
        let turn = question.take(TurnPurpose::Tie)?;
        equals.rotate_left(place::of_turn(turn, band));
    }
    Ok(order)
}

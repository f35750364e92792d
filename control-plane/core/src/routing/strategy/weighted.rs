//! `weighted`: one step is drawn by weight, the rest follow by weight (`routing.md` §8.2, decision 36).
//!
//! Only steps with a target that no gate excludes are drawn. The comparison is strict, so a step of weight 0 is drawn
//! only when all of them weigh 0, and then each is as likely.
//!
//! With `stickyWeightedLimit` n above 1 a draw is in force for n requests: its chance comes from the combo and the
//! number of the draw. It is a draw among all steps, so that it stands whoever else is excluded meanwhile. While the drawn
//! step itself is excluded, a second draw among the others stands in for it. When another step serves than the drawn one,
//! requests stay with that one from then on: [`served_turn`].

use std::cmp::Reverse;
use std::ops::Range;

use super::score::Score;
use super::seed::Seed;
use crate::number::Finite;
use crate::random::Random;

use super::{Candidate, Halt, Order, Ordered, Question, Scope, TurnPurpose, place};

/// How many draws ahead a step is looked for. A step of a thousandth of the weight is found in two of three cases;
/// otherwise the draw in force stays.
const MAX_DRAWS_AHEAD: u64 = 1_000;

/// One step drawn by weight.
#[derive(Debug)]
pub(super) struct Weighted;

impl Order for Weighted {
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let mut groups = groups(question);
        if let Some(drawn) = drawn(question, &groups)? {
            place::to_front(&mut groups, drawn);
        }
        let rest = groups.get_mut(1..).unwrap_or_default();
        if question.config.composite_tiers.is_none() {
            // The sort is stable, so equal weights stay in the order of the combo.
            rest.sort_by_key(|group| (!group.eligible, Reverse(group.rank())));
        }
        let mut order = Vec::with_capacity(question.candidates.len());
        for group in groups {
            order.extend(group.members);
        }
        Ok(order.into())
    }
}

/// A step and what it resolved to.
#[derive(Debug)]
struct Group {
    members: Range<usize>,
    weight: f64,
    eligible: bool,
}

impl Group {
    /// By what it follows after the drawn one; those that are excluded anyway stay in the order of the combo.
    fn rank(&self) -> Score {
        Score::new(if self.eligible { self.weight } else { 0.0 })
    }
}

fn groups(question: &Question<'_>) -> Vec<Group> {
    let mut groups = Vec::with_capacity(question.candidates.len());
    let mut start: usize = 0;
    let candidates: Vec<Candidate<'_>> = question.candidates.iter().collect();
    for members in candidates.chunk_by(|one, next| one.group == next.group) {
        let end = start.saturating_add(members.len());
        groups.push(Group {
            members: start..end,
            weight: members
                .first()
                .map_or(0.0, |member| member.weight.get().max(0.0)),
            eligible: (start..end).any(|index| question.conditions.is_eligible(index)),
        });
        start = end;
    }
    groups
}

/// Position of the group that is drawn; `None` where nothing is eligible.
fn drawn(question: &Question<'_>, groups: &[Group]) -> Result<Option<usize>, Halt> {
    let is_eligible = |group: &Group| group.eligible;
    let limit = u64::from(question.config.sticky_weighted_limit.unwrap_or(1));
    if limit <= 1 {
        return Ok(draw(groups, is_eligible, &mut question.random()));
    }
    let turn = question.take(TurnPurpose::Weighted)?;
    let number = turn.checked_div(limit).unwrap_or(turn);
    let mut random = chance(question.scope, number);
    let first = draw(groups, |_| true, &mut random);
    let stands = first.filter(|index| groups.get(*index).is_some_and(is_eligible));
    Ok(stands.or_else(|| draw(groups, is_eligible, &mut random)))
}

/// The chance of a draw.
fn chance(scope: &Scope, number: u64) -> Random {
    Seed::of(scope).with_number(number).random()
}

/// The next turn after the step at `served` served a request, where the draw in force is another: that of the next draw of
/// this step, of which one request is spent. `None`: the draw in force is this step, or it is not drawn soon.
///
/// `weights` are those of all steps, `limit` is `stickyWeightedLimit`, `next` the turn that would be taken next.
pub(in crate::routing) fn served_turn(
    scope: &Scope,
    weights: impl Iterator<Item = Finite>,
    limit: u32,
    next: u64,
    served: usize,
) -> Option<u64> {
    let groups: Vec<Group> = weights
        .map(|weight| Group {
            members: 0..0,
            weight: weight.get().max(0.0),
            eligible: true,
        })
        .collect();
    let limit = u64::from(limit.max(1));
    let in_force = next.saturating_sub(1).checked_div(limit)?;
    let is_drawn =
        |number: &u64| draw(&groups, |_| true, &mut chance(scope, *number)) == Some(served);
    let number = (in_force..in_force.saturating_add(MAX_DRAWS_AHEAD)).find(is_drawn)?;
    (number > in_force).then(|| number.saturating_mul(limit).saturating_add(1))
}

/// Draws one of the groups that take part. `None` where none does.
fn draw(
    groups: &[Group],
    takes_part: impl Fn(&Group) -> bool,
    random: &mut Random,
) -> Option<usize> {
    let drawn_from = || {
        groups
            .iter()
            .enumerate()
            .filter(|(_, group)| takes_part(group))
    };
    let total: f64 = drawn_from().map(|(_, group)| group.weight).sum();
    let all_zero = total <= 0.0;
    let weight = |group: &Group| if all_zero { 1.0 } else { group.weight };
    let total: f64 = drawn_from().map(|(_, group)| weight(group)).sum();
    let threshold = random.unit() * total;
    let mut passed = 0.0;
    drawn_from()
        .find(|(_, group)| {
            passed += weight(group);
            threshold < passed
        })
        // Should a sum be rounded down below the threshold, the last that has a weight was meant.
        .or_else(|| drawn_from().rfind(|(_, group)| weight(group) > 0.0))
        .map(|(index, _)| index)
}

//! `round-robin`: each target in turn, for some requests at a time (`routing.md` §8.3, decision 51).
//!
//! The state is one number per combo and replica: the position in the rotation. Position divided by the limit is the
//! block, the block modulo the targets is the head, and what is left of the division says how many of the block's
//! requests are given out. A request takes a position when it is ordered, so requests that run at once get different
//! ones.
//!
//! When another target served than the head, the rotation goes on from the one that served: [`served_position`].

use crate::config::ComboConfig;

use super::{Halt, Order, Ordered, Question, TurnPurpose, Walk, place};

/// `stickyRoundRobinLimit` where nothing is configured.
const DEFAULT_LIMIT: u32 = 3;

/// Each in turn.
#[derive(Debug)]
pub(super) struct RoundRobin;

impl Order for RoundRobin {
    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        Ok(self.walk(question)?.collect::<Vec<_>>().into())
    }

    fn walk(&self, question: &Question<'_>) -> Result<Walk, Halt> {
        let count = question.candidates.len();
        if count < 2 {
            return Ok(Walk::round(0, count));
        }
        let position = question.take(TurnPurpose::RoundRobin)?;
        let head = head(position, batch_limit(question.config), count);
        Ok(Walk::round(head, count))
    }
}

/// How many requests stay with a target, 1..=1 000.
#[must_use]
pub fn batch_limit(config: &ComboConfig) -> u32 {
    config
        .sticky_round_robin_limit
        .unwrap_or(DEFAULT_LIMIT)
        .max(1)
}

/// Which of `count` targets a request with this position starts at; below `count`, or 0.
fn head(position: u64, limit: u32, count: usize) -> usize {
    let block = position.checked_div(u64::from(limit)).unwrap_or(position);
    place::of_turn(block, count)
}

/// The next position after the target at `served` of `count` served a request that had started elsewhere: `next`
/// where nothing changes, else more than it.
///
/// It is the smallest one, in the current block or later, that counts this success as the first of a block of that
/// target. So with a limit of 1 the next request starts after the target that served, and with more it stays there.
#[must_use]
pub fn served_position(next: u64, limit: u32, count: usize, served: usize) -> u64 {
    if served >= count {
        return next;
    }
    let limit = u64::from(limit.max(1));
    let block = next.checked_div(limit).unwrap_or(next);
    let at = place::of_turn(block, count);
    let ahead = if served >= at {
        served.saturating_sub(at)
    } else {
        count.saturating_sub(at).saturating_add(served)
    };
    let ahead = u64::try_from(ahead).unwrap_or(u64::MAX);
    block
        .saturating_add(ahead)
        .saturating_mul(limit)
        .saturating_add(1)
        .max(next)
}

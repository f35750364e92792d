//! An order that is found as far as it is asked for.
//!
//! Of the accounts of a target only the first that no gate excludes is used. Who must know the whole order of them to
//! say who is first has it whole here; the others count or draw as they are asked.

use std::vec;

use crate::random::Draws;

/// Positions, each exactly once.
#[derive(Debug)]
pub struct Walk(Kind);

#[derive(Debug)]
enum Kind {
    Whole(vec::IntoIter<usize>),
    Round {
        next: usize,
        left: usize,
        count: usize,
    },
    Preferring {
        first: Option<usize>,
        preferred: usize,
        rest: std::ops::Range<usize>,
    },
    Drawn(Draws),
}

impl Walk {
    /// The positions below `count` from this one on, and round to it.
    pub(super) fn round(from: usize, count: usize) -> Self {
        Self(Kind::Round {
            next: if from < count { from } else { 0 },
            left: count,
            count,
        })
    }

    /// The positions below `count` as they are, but for this one, which is first.
    pub(super) fn preferring(preferred: usize, count: usize) -> Self {
        Self(Kind::Preferring {
            first: (preferred < count).then_some(preferred),
            preferred,
            rest: 0..count,
        })
    }

    /// In any order.
    pub(super) fn drawn(draws: Draws) -> Self {
        Self(Kind::Drawn(draws))
    }
}

impl From<Vec<usize>> for Walk {
    fn from(order: Vec<usize>) -> Self {
        Self(Kind::Whole(order.into_iter()))
    }
}

impl Iterator for Walk {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        match &mut self.0 {
            Kind::Whole(order) => order.next(),
            Kind::Round { next, left, count } => {
                *left = left.checked_sub(1)?;
                let position = *next;
                let following = position.saturating_add(1);
                *next = if following < *count { following } else { 0 };
                Some(position)
            }
            Kind::Preferring {
                first,
                preferred,
                rest,
            } => first
                .take()
                .or_else(|| rest.find(|position| position != preferred)),
            Kind::Drawn(draws) => draws.next(),
        }
    }

    /// Lists that are made of a walk are made with room for all at once.
    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Kind::Whole(order) => order.size_hint(),
            Kind::Round { left, .. } => (*left, Some(*left)),
            Kind::Preferring {
                first,
                preferred,
                rest,
            } => {
                let rest = rest.len().saturating_sub(rest.contains(preferred).into());
                let left = rest.saturating_add(first.is_some().into());
                (left, Some(left))
            }
            Kind::Drawn(_) => (0, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::random::Random;

    #[rstest]
    #[case::round(Walk::round(2, 4), &[2, 3, 0, 1])]
    #[case::round_from_nowhere(Walk::round(4, 4), &[0, 1, 2, 3])]
    #[case::round_nothing(Walk::round(0, 0), &[])]
    #[case::preferring(Walk::preferring(2, 4), &[2, 0, 1, 3])]
    #[case::preferring_nobody(Walk::preferring(4, 4), &[0, 1, 2, 3])]
    #[case::whole(Walk::from(vec![1, 0]), &[1, 0])]
    fn positions_come_in_this_order(#[case] walk: Walk, #[case] expected: &[usize]) {
        assert_eq!(walk.size_hint(), (expected.len(), Some(expected.len())));
        assert_eq!(walk.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_drawn_is_everything_once() {
        let mut drawn: Vec<usize> = Walk::drawn(Random::new(3).draws(50)).collect();
        assert_ne!(drawn, (0..50).collect::<Vec<_>>());
        drawn.sort_unstable();
        assert_eq!(drawn, (0..50).collect::<Vec<_>>());
    }
}

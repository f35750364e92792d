//! The router `rules`: near equals share the requests (`routing.md` §9.4).
//!
//! Who is best by a clear margin gets them all. With close scores a tier is drawn, and within it candidates take turns,
//! so that the second best is known too when the best fails.

use std::cmp::Reverse;

use crate::random::Random;

use super::super::score::{ROUNDING, Score};
use super::super::{Halt, TurnPurpose, place};
use super::Contest;

/// Scores this close to the best are as good.
const EQUAL: f64 = 0.000_1;
/// Share of the spread that reaches from the best to the end of the middle tier.
const MIDDLE: f64 = 0.3;
/// Spread from which on only the best tier is used.
const CLEAR: f64 = 0.1;
/// How often each tier is drawn where nothing else is said.
const PREFERENCES: [f64; 3] = [0.45, 0.35, 0.20];
/// How often each is drawn in combos whose name holds the word; of several words the first counts.
const PREFERENCES_BY_WORD: [(&str, [f64; 3]); 4] = [
    ("smart", [0.5, 0.3, 0.2]),
    ("fast", [0.3, 0.5, 0.2]),
    ("cheap", [0.2, 0.3, 0.5]),
    ("coding", [0.6, 0.25, 0.15]),
];

/// Picks one of the pool. `None` from an empty one.
pub(super) fn pick(
    contest: &Contest<'_>,
    pool: &[usize],
    random: &mut Random,
) -> Result<Option<usize>, Halt> {
    let mut ranked: Vec<(f64, usize)> = pool
        .iter()
        .map(|index| (contest.score(*index), *index))
        .collect();
    ranked.sort_by_key(|(score, _)| Reverse(Score::new(*score)));
    let (Some((best, _)), Some((worst, _))) = (ranked.first(), ranked.last()) else {
        return Ok(None);
    };
    let spread = best - worst;
    let tiers = split(&ranked);
    let tier = if spread + ROUNDING >= CLEAR {
        0
    } else {
        draw(&tiers, preferences(contest.combo_name()), random.unit())
    };
    in_turn(contest, tier, tiers.get(tier).copied().unwrap_or_default())
}

/// From the best to the worst: top, middle and rest. Only the middle and the rest may be empty.
fn split(ranked: &[(f64, usize)]) -> [&[(f64, usize)]; 3] {
    let (Some((best, _)), Some((worst, _))) = (ranked.first(), ranked.last()) else {
        return [&[]; 3];
    };
    let down_to = |least: f64| ranked.partition_point(|(score, _)| score + ROUNDING >= least);
    let top = down_to(best - EQUAL);
    let mut middle = down_to(best - MIDDLE * (best - worst)).max(top);
    if middle == top {
        let rest = ranked.len().saturating_sub(top);
        middle = top.saturating_add(rest.div_ceil(2));
    }
    let part = |from, to| ranked.get(from..to).unwrap_or_default();
    [part(0, top), part(top, middle), part(middle, ranked.len())]
}

fn preferences(combo: &str) -> [f64; 3] {
    PREFERENCES_BY_WORD
        .iter()
        .find(|(word, _)| combo.contains(word))
        .map_or(PREFERENCES, |(_, preferences)| *preferences)
}

/// A tier that is not empty, each as often as it is preferred to the others that are not.
fn draw(tiers: &[&[(f64, usize)]; 3], preferences: [f64; 3], unit: f64) -> usize {
    let filled = || {
        let tiers = tiers.iter().zip(preferences).enumerate();
        tiers.filter(|(_, (tier, _))| !tier.is_empty())
    };
    let total: f64 = filled().map(|(_, (_, preference))| preference).sum();
    let mut point = unit * total;
    let mut last = 0;
    for (tier, (_, preference)) in filled() {
        last = tier;
        if point < preference {
            break;
        }
        point -= preference;
    }
    last
}

fn in_turn(
    contest: &Contest<'_>,
    tier: usize,
    members: &[(f64, usize)],
) -> Result<Option<usize>, Halt> {
    let place = if members.len() > 1 {
        let purpose = TurnPurpose::Tier(u8::try_from(tier).unwrap_or(u8::MAX));
        let turn = contest.question.take(purpose)?;
        place::of_turn(turn, members.len())
    } else {
        0
    };
    Ok(members.get(place).map(|(_, index)| *index))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn tiers_of(scores: &[f64]) -> [usize; 3] {
        let ranked: Vec<(f64, usize)> = scores.iter().copied().zip(0..).collect();
        split(&ranked).map(<[_]>::len)
    }

    #[rstest]
    #[case::vector_routing_v_au8(&[0.66, 0.655, 0.62, 0.60], [1, 1, 2])]
    #[case::vector_routing_v_au9(&[0.66, 0.655, 0.62, 0.55], [1, 1, 2])]
    #[case::one(&[0.5], [1, 0, 0])]
    #[case::equals(&[0.5, 0.499_95, 0.499_9], [3, 0, 0])]
    #[case::half_of_the_rest_moves_up(&[0.5, 0.45, 0.44, 0.43], [1, 2, 1])]
    #[case::the_only_rest_moves_up(&[0.5, 0.4], [1, 1, 0])]
    #[case::none(&[], [0, 0, 0])]
    fn scores_are_split_by_the_spread(#[case] scores: &[f64], #[case] expected: [usize; 3]) {
        assert_eq!(tiers_of(scores), expected);
    }

    #[rstest]
    #[case::default("team", PREFERENCES)]
    #[case::smart("auto/smart", [0.5, 0.3, 0.2])]
    #[case::fast("fast-coding", [0.3, 0.5, 0.2])]
    #[case::cheap("my-cheap-one", [0.2, 0.3, 0.5])]
    #[case::coding("coding", [0.6, 0.25, 0.15])]
    fn the_name_says_what_is_preferred(#[case] name: &str, #[case] expected: [f64; 3]) {
        assert_eq!(preferences(name), expected);
        assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[rstest]
    #[case::first(&[1, 1, 1], 0.449, 0)]
    #[case::second(&[1, 1, 1], 0.451, 1)]
    #[case::third(&[1, 1, 1], 0.801, 2)]
    #[case::end(&[1, 1, 1], 0.999_999, 2)]
    #[case::an_empty_one_is_not_drawn(&[1, 0, 1], 0.65, 0)]
    #[case::its_share_goes_to_the_others(&[1, 0, 1], 0.75, 2)]
    #[case::only_one(&[1, 0, 0], 0.999, 0)]
    fn tiers_are_drawn_by_preference(
        #[case] sizes: &[usize; 3],
        #[case] unit: f64,
        #[case] expected: usize,
    ) {
        let members = [(0.5, 0)];
        let tiers = sizes.map(|size| members.get(..size).unwrap());
        assert_eq!(draw(&tiers, PREFERENCES, unit), expected);
    }
}

//! Random numbers as an argument: a small generator that is seeded once per decision.

use std::collections::BTreeMap;

/// `SplitMix64`: every seed gives a good sequence. Not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number in `[0, 1)`.
    #[expect(
        clippy::cast_precision_loss,
        reason = "53 bits are exact, and dividing by a power of two is too"
    )]
    pub fn unit(&mut self) -> f64 {
        const STEPS: f64 = (1_u64 << 53) as f64;
        (self.next_u64() >> 11) as f64 / STEPS
    }

    /// The next number below `bound`; 0 when `bound` is 0. The bias is below 2⁻³² for any list that fits in memory.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u128::try_from(bound).unwrap_or(u128::MAX >> 64);
        let scaled = u128::from(self.next_u64()).wrapping_mul(bound) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    /// Puts the items in any order, each as likely as every other.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last.saturating_add(1));
            items.swap(last, other);
        }
    }

    /// The numbers below `count` in any order, each as likely as every other, drawn as they are asked for.
    #[must_use]
    pub fn draws(self, count: usize) -> Draws {
        Draws {
            random: self,
            drawn: 0,
            count,
            moved: BTreeMap::new(),
        }
    }
}

/// Numbers drawn without putting them back: a shuffle that is done as far as it is looked at, and keeps only what it
/// moved.
#[derive(Clone, Debug)]
pub struct Draws {
    random: Random,
    drawn: usize,
    count: usize,
    /// Numbers that are not at their own place, by place.
    moved: BTreeMap<usize, usize>,
}

impl Iterator for Draws {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let left = self
            .count
            .checked_sub(self.drawn)
            .filter(|left| *left > 0)?;
        let place = self.drawn.saturating_add(self.random.below(left));
        let number = self.moved.get(&place).copied().unwrap_or(place);
        // What is at the next place fills the gap.
        let filling = self.moved.remove(&self.drawn).unwrap_or(self.drawn);
        if place != self.drawn {
            self.moved.insert(place, filling);
        }
        self.drawn = self.drawn.saturating_add(1);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random::new(1);
        for _ in 0..1_000 {
            let unit = random.unit();
            assert!((0.0..1.0).contains(&unit));
            assert!(random.below(3) < 3);
            assert_eq!(random.below(0), 0);
        }
    }

    #[test]
    fn what_is_drawn_comes_in_every_order_as_often() {
        let mut orders: BTreeMap<Vec<usize>, u32> = BTreeMap::new();
        for seed in 0..6_000 {
            let order = Random::new(seed).draws(3).collect();
            *orders.entry(order).or_default() += 1;
        }
        assert_eq!(orders.len(), 6);
        assert!(
            orders.values().all(|times| (880..=1_120).contains(times)),
            "{orders:?}"
        );
        assert_eq!(Random::new(1).draws(0).next(), None);
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(7).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<u32>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<u32>>());
    }
}

//! Outcomes and latencies over the recent past, in constant room.
//!
//! **Decay.** Everything but the count of ends is a weight that halves every [`HALF_LIFE_MS`], so that after the 24
//! hours of `routing.md` §9.2 about a sixty-fourth is left; what was silent for [`HISTORY_MS`] is dropped whole. Two
//! tracks are merged by ageing the older one and adding, in any order, which is how the numbers of replicas become
//! those of the fleet: each counts by its samples.
//!
//! **Percentiles** come from buckets whose bounds grow by the square root of two, so that a percentile is off by a
//! fifth at most.

use std::collections::BTreeMap;

use crate::time::Timestamp;

use super::Performance;

/// Time in which a sample loses half of its weight, in ms: 4 hours.
pub const HALF_LIFE_MS: u64 = 4 * 3_600_000;
/// Time after which nothing is left of what was silent, in ms: 24 hours.
pub const HISTORY_MS: u64 = 24 * 3_600_000;
/// Number of latency buckets; the last one begins at 17 minutes and takes everything beyond.
pub const BUCKETS: u8 = 41;
/// Largest weight or sum that is kept; far beyond anything real, and squares of it are finite.
pub const MAX_WEIGHT: f64 = 1e18;

/// Weighted outcomes and latencies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Track {
    /// Attempts that ended, ever. Does not decay.
    pub ended: u64,
    /// The moment the weights are of: the last end.
    pub at: Timestamp,
    /// Weight of the successes.
    pub succeeded: f64,
    /// Weight of the failures.
    pub failed: f64,
    /// Weighted sum of the latencies of the successes, in ms.
    pub latency_ms: f64,
    /// Weighted sum of their squares.
    pub latency_ms_squared: f64,
    /// Weight of the successes in each latency bucket; empty ones are left out.
    pub buckets: BTreeMap<u8, f64>,
}

impl Track {
    /// One success that was ready after `ready_ms`.
    #[must_use]
    pub fn success(ready_ms: u64, at: Timestamp) -> Self {
        let ms = in_ms(ready_ms);
        Self {
            ended: 1,
            at,
            succeeded: 1.0,
            failed: 0.0,
            latency_ms: ms,
            latency_ms_squared: ms * ms,
            buckets: BTreeMap::from([(bucket(ready_ms), 1.0)]),
        }
    }

    /// One failure.
    #[must_use]
    pub fn failure(at: Timestamp) -> Self {
        Self {
            failed: 1.0,
            ..Self::without_verdict(at)
        }
    }

    /// One end that says nothing about the target.
    #[must_use]
    pub fn without_verdict(at: Timestamp) -> Self {
        Self {
            ended: 1,
            at,
            ..Self::default()
        }
    }

    /// Adds what another one holds.
    pub fn absorb(&mut self, other: &Self) {
        let at = self.at.max(other.at);
        let (own, others) = (share_left(self.at, at), share_left(other.at, at));
        let sum = |one: f64, two: f64| weight(one * own + two * others);
        self.ended = self.ended.saturating_add(other.ended);
        self.at = at;
        self.succeeded = sum(self.succeeded, other.succeeded);
        self.failed = sum(self.failed, other.failed);
        self.latency_ms = sum(self.latency_ms, other.latency_ms);
        self.latency_ms_squared = sum(self.latency_ms_squared, other.latency_ms_squared);
        for held in self.buckets.values_mut() {
            *held = weight(*held * own);
        }
        for (bucket, added) in &other.buckets {
            let held = self.buckets.entry((*bucket).min(BUCKETS - 1)).or_default();
            *held = weight(*held + added * others);
        }
    }

    /// Nothing ended for so long that nothing of it counts.
    #[must_use]
    pub fn is_silent(&self, now: Timestamp) -> bool {
        now.ms_since(self.at) >= HISTORY_MS
    }

    /// Everything that ended, ever, with how it did of late. `None` when nothing ended.
    #[must_use]
    pub fn ever(&self) -> Option<Performance> {
        (self.ended > 0).then(|| self.performance(self.ended))
    }

    /// What of it is of the recent past at `now`, in whole samples. `None` when that is none.
    #[must_use]
    pub fn recent(&self, now: Timestamp) -> Option<Performance> {
        let left = (self.succeeded + self.failed) * share_left(self.at, now);
        let samples = whole(left);
        (samples > 0 && !self.is_silent(now)).then(|| self.performance(samples))
    }

    fn performance(&self, requests: u64) -> Performance {
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let judged = self.succeeded + self.failed;
        let mean = ratio(self.latency_ms, self.succeeded);
        let variance = ratio(self.latency_ms_squared, self.succeeded) - mean * mean;
        Performance {
            requests,
            success_rate: (judged > 0.0).then(|| (self.succeeded / judged).clamp(0.0, 1.0)),
            mean_latency_ms: mean,
            p95_latency_ms: self.percentile(0.95),
            latency_std_dev_ms: variance.max(0.0).sqrt(),
        }
    }

    /// The latency that this share of the successes did not exceed, in ms; 0 without any.
    fn percentile(&self, share: f64) -> f64 {
        let total: f64 = self.buckets.values().sum();
        let wanted = total * share;
        let mut passed = 0.0;
        let mut last = 0.0;
        for (bucket, held) in &self.buckets {
            if *held <= 0.0 {
                continue;
            }
            let (from, to) = (lower_bound(*bucket), lower_bound(bucket.saturating_add(1)));
            if passed + held >= wanted {
                return from + (to - from) * ((wanted - passed) / held).clamp(0.0, 1.0);
            }
            passed += held;
            last = to;
        }
        last
    }
}

/// What is left at `to` of a weight of 1 at `from`.
fn share_left(from: Timestamp, to: Timestamp) -> f64 {
    let halvings = in_ms(to.ms_since(from)) / in_ms(HALF_LIFE_MS);
    (-halvings).exp2()
}

/// A weight as it may be kept: what comes from elsewhere can be anything.
fn weight(number: f64) -> f64 {
    if number.is_finite() {
        number.clamp(0.0, MAX_WEIGHT)
    } else {
        0.0
    }
}

/// A length of time as a number with a fraction; exact up to 2^32 ms, which is 49 days, and cut there.
fn in_ms(ms: u64) -> f64 {
    f64::from(u32::try_from(ms).unwrap_or(u32::MAX))
}

/// The nearest whole number of samples.
fn whole(samples: f64) -> u64 {
    let samples = weight(samples).round().min(f64::from(u32::MAX));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "brought into the range of u32 above"
    )]
    let samples = samples as u64;
    samples
}

/// The bucket of a latency: two for each doubling.
fn bucket(ms: u64) -> u8 {
    let ms = ms.max(1);
    let doublings = ms.ilog2();
    // The upper half begins where the square is half a doubling further.
    let square = u128::from(ms) * u128::from(ms);
    let upper = square >> doublings.saturating_mul(2).saturating_add(1) != 0;
    let index = doublings.saturating_mul(2).saturating_add(upper.into());
    u8::try_from(index).unwrap_or(u8::MAX).min(BUCKETS - 1)
}

/// Where a bucket begins, in ms.
fn lower_bound(bucket: u8) -> f64 {
    (f64::from(bucket) / 2.0).exp2()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn track(latencies: &[u64], failures: u32) -> Track {
        let mut track = Track::default();
        for ms in latencies {
            track.absorb(&Track::success(*ms, NOW));
        }
        for _ in 0..failures {
            track.absorb(&Track::failure(NOW));
        }
        track
    }

    fn close(one: f64, two: f64) -> bool {
        (one - two).abs() <= 1e-6 * one.abs().max(two.abs()).max(1.0)
    }

    #[rstest]
    #[case(0, 0)]
    #[case(1, 0)]
    #[case(2, 2)]
    #[case(3, 3)]
    #[case(1_000, 19)]
    #[case(1_448, 20)]
    #[case(1_449, 21)]
    #[case(600_000, 38)]
    #[case(u64::MAX, 40)]
    fn buckets_are_two_for_each_doubling(#[case] ms: u64, #[case] expected: u8) {
        assert_eq!(bucket(ms), expected);
        if (1..1 << 40).contains(&ms) && expected < BUCKETS - 1 {
            assert!(lower_bound(expected) <= in_ms(ms));
            assert!(in_ms(ms) <= lower_bound(expected + 1));
        }
    }

    #[test]
    fn mean_deviation_and_rate_are_those_of_the_samples() {
        let performance = track(&[100, 200, 300], 1).ever().unwrap();
        assert_eq!(performance.requests, 4);
        assert!(close(performance.success_rate.unwrap(), 0.75));
        assert!(close(performance.mean_latency_ms, 200.0));
        assert!(close(
            performance.latency_std_dev_ms,
            (20_000.0_f64 / 3.0).sqrt()
        ));
    }

    #[test]
    fn the_95th_percentile_is_off_by_a_fifth_at_most() {
        let latencies: Vec<u64> = (1..=1_000).collect();
        let p95 = track(&latencies, 0).ever().unwrap().p95_latency_ms;
        assert!((760.0..=1_140.0).contains(&p95), "{p95}");
    }

    #[test]
    fn a_half_life_takes_half_of_the_weight_and_nothing_of_the_count() {
        let mut old = track(&[100; 20], 0);
        old.absorb(&Track {
            ended: 0,
            ..Track::failure(NOW.plus_ms(HALF_LIFE_MS))
        });
        assert!(close(old.succeeded, 10.0));
        assert_eq!(old.ever().unwrap().requests, 20);
        let recent = track(&[100; 20], 0).recent(NOW.plus_ms(HALF_LIFE_MS));
        assert_eq!(recent.unwrap().requests, 10);
        assert_eq!(track(&[100; 20], 0).recent(NOW.plus_ms(HISTORY_MS)), None);
    }

    #[test]
    fn what_says_nothing_counts_as_ended_only() {
        let performance = Track::without_verdict(NOW).ever().unwrap();
        let known = (performance.requests, performance.success_rate);
        assert_eq!(known, (1, None));
        assert_eq!(performance.mean_latency_ms, 0.0);
        let failed = Track::failure(NOW).ever().unwrap();
        assert_eq!(failed.success_rate, Some(0.0));
        assert_eq!(Track::without_verdict(NOW).recent(NOW), None);
        assert_eq!(Track::default().ever(), None);
    }

    #[test]
    fn nonsense_from_elsewhere_stays_finite() {
        let mut track = track(&[5], 0);
        track.absorb(&Track {
            succeeded: f64::NAN,
            failed: f64::INFINITY,
            latency_ms: -1.0,
            latency_ms_squared: f64::MAX,
            buckets: BTreeMap::from([(200, f64::INFINITY)]),
            ..Track::success(1, NOW)
        });
        let performance = track.ever().unwrap();
        for number in [
            performance.success_rate.unwrap_or_default(),
            performance.mean_latency_ms,
            performance.p95_latency_ms,
            performance.latency_std_dev_ms,
        ] {
            assert!(number.is_finite(), "{performance:?}");
        }
        assert!(track.buckets.keys().all(|bucket| *bucket < BUCKETS));
    }

    proptest! {
        #[test]
        fn merging_gives_the_same_in_any_order(
            samples in prop::collection::vec((0_u64..1_000_000, 0_u64..HISTORY_MS, any::<bool>()), 1..12),
            rotation in 0_usize..12,
        ) {
            let tracks: Vec<Track> = samples
                .iter()
                .map(|(ms, age, ok)| {
                    let at = NOW.minus_ms(*age);
                    if *ok { Track::success(*ms, at) } else { Track::failure(at) }
                })
                .collect();
            let merged = |tracks: &[Track]| {
                let mut sum = Track::default();
                for track in tracks {
                    sum.absorb(track);
                }
                sum.ever().unwrap()
            };
            let mut rotated = tracks.clone();
            rotated.rotate_left(rotation % tracks.len());
            let (one, two) = (merged(&tracks), merged(&rotated));
            prop_assert_eq!(one.requests, two.requests);
            prop_assert!(close(one.success_rate.unwrap(), two.success_rate.unwrap()));
            prop_assert!(close(one.mean_latency_ms, two.mean_latency_ms));
            prop_assert!(close(one.p95_latency_ms, two.p95_latency_ms));
        }
    }
}

//! The sixteen factors of a score, from what was read of a candidate and of those beside it (`routing.md` §9.2).

use crate::breaker::Phase;
use crate::catalogue::Tier;

use super::reading::Reading;

/// How many there are.
pub(super) const FACTORS: usize = 16;

/// The longest interval that [`Factors::tier_priority`] tells apart: 30 days, in seconds.
const LONGEST_INTERVAL_SECS: f64 = 2_592_000.0;
/// Share of the score that is left to who is in a bad way: excluded by a gate.
const EXCLUDED: f64 = 0.5;
/// Share that is left to who could not be asked for its quota.
const UNREADABLE_QUOTA: f64 = 0.5;

/// What speaks for a candidate, each from 0 (against it) to 1 (for it).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Factors {
    /// Share of the quota that is left.
    pub quota: f64,
    /// The breaker: closed 1, half-open 0.5, open 0.
    pub health: f64,
    /// 1 for free, 0 for the dearest of the candidates.
    pub cost_inv: f64,
    /// 0 for the slowest of the candidates, by p95 latency.
    pub latency_inv: f64,
    /// Fitness of the model for what the request is about; 0.5 unknown.
    pub task_fit: f64,
    /// 0 for the one whose latency varies most.
    pub stability: f64,
    /// The model's class, and a little for quotas that begin anew often.
    pub tier_priority: f64,
    /// How near the model's class is to the one that the request names; 0.5 when it names none.
    pub tier_affinity: f64,
    /// Whether the model is made for what the request is about; 0.5 when it is about anything.
    pub specificity_match: f64,
    /// Whether it served the last turn of the conversation; 0.5 unknown.
    pub context_affinity: f64,
    /// Whether the account can be logged in to. Those that cannot are excluded by a gate, so it is 1.
    pub session_availability: f64,
    /// More for providers with many accounts, 1 from eleven on.
    pub connection_density: f64,
    /// 1 for the one that keeps the prompt's prefix in its cache, else 0; 0 for all where it has no weight.
    pub cache_affinity: f64,
    /// How soon the quotas begin anew, so that what is left of them would be lost; 0.5 unknown.
    pub reset_window_affinity: f64,
    /// What users think of the answers. Nobody reports it, so it is 0.5, as for unknown.
    pub quality: f64,
    /// Share of attempts that succeeded; 1 unknown.
    pub reliability: f64,
}

impl Factors {
    /// In the order of the table of weights.
    pub(super) fn values(&self) -> [f64; FACTORS] {
        [
            self.quota,
            self.health,
            self.cost_inv,
            self.latency_inv,
            self.task_fit,
            self.stability,
            self.tier_priority,
            self.tier_affinity,
            self.specificity_match,
            self.context_affinity,
            self.session_availability,
            self.connection_density,
            self.cache_affinity,
            self.reset_window_affinity,
            self.quality,
            self.reliability,
        ]
    }
}

/// The largest of each measure among the candidates, which the others are held against.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Largest {
    pub(super) cost: f64,
    pub(super) p95_ms: f64,
    pub(super) std_dev_ms: f64,
}

impl Largest {
    pub(super) fn of<'a>(readings: impl Iterator<Item = &'a Reading>) -> Self {
        readings.fold(Self::default(), |largest, reading| Self {
            cost: largest.cost.max(reading.cost),
            p95_ms: largest.p95_ms.max(reading.p95_ms),
            std_dev_ms: largest.std_dev_ms.max(reading.std_dev_ms),
        })
    }

    /// The factors of one of the candidates.
    pub(super) fn factors(&self, reading: &Reading) -> Factors {
        Factors {
            quota: unit(reading.allowance.left),
            health: health(reading.phase),
            cost_inv: below(reading.cost, self.cost),
            latency_inv: below(reading.p95_ms, self.p95_ms),
            task_fit: unit(reading.task_fit),
            stability: below(reading.std_dev_ms, self.std_dev_ms),
            tier_priority: tier_priority(reading),
            tier_affinity: unit(reading.tier_affinity),
            specificity_match: unit(reading.specificity_match),
            context_affinity: unit(reading.context_affinity),
            session_availability: 1.0,
            connection_density: unit((f64::from(reading.accounts) - 1.0) / 10.0),
            cache_affinity: unit(reading.cache_affinity),
            reset_window_affinity: unit(reading.reset_window_affinity),
            quality: 0.5,
            reliability: unit(1.0 - reading.failure_rate.unwrap_or(0.0)),
        }
    }
}

/// What a score is multiplied by for what no factor tells.
pub(super) fn multiplier(reading: &Reading) -> f64 {
    let excluded = if reading.eligible { 1.0 } else { EXCLUDED };
    let unreadable = if reading.allowance.unreadable {
        UNREADABLE_QUOTA
    } else {
        1.0
    };
    excluded * unreadable
}

/// Brings a number into 0..=1; what is none is 0.
pub(super) fn unit(number: f64) -> f64 {
    if number.is_nan() {
        0.0
    } else {
        number.clamp(0.0, 1.0)
    }
}

/// How a breaker's state counts.
fn health(phase: Phase) -> f64 {
    match phase {
        Phase::Closed | Phase::Degraded => 1.0,
        Phase::HalfOpen { .. } => 0.5,
        Phase::Open { .. } => 0.0,
    }
}

/// How far below the largest a measure is; 1 where all are 0.
fn below(measure: f64, largest: f64) -> f64 {
    if largest > 0.0 {
        unit(1.0 - measure / largest)
    } else {
        1.0
    }
}

fn tier_priority(reading: &Reading) -> f64 {
    let base = match reading.tier {
        Tier::Ultra => 1.0,
        Tier::Pro => 0.67,
        Tier::Standard => 0.33,
        Tier::Free => 0.0,
    };
    unit(0.8 * base + 0.2 * unit(1.0 - reading.allowance.interval_secs / LONGEST_INTERVAL_SECS))
}

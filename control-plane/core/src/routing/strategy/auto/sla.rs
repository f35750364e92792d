//! The router `sla-aware`: who keeps what was agreed on (`routing.md` §9.5).

use crate::config::AutoConfig;

use super::Assessment;
use super::factors::unit;

const DEFAULT_LATENCY_MS: f64 = 2_000.0;
const DEFAULT_ERROR_RATE: f64 = 0.05;
/// Error rate of one of which none is known.
pub(super) const UNKNOWN_ERROR_RATE: f64 = 0.05;

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Agreement {
    /// p95, in ms.
    latency_ms: f64,
    /// 0..=1.
    error_rate: f64,
    /// In USD per million tokens.
    cost: Option<f64>,
    /// Who violates least comes first, whatever the score.
    hard: bool,
}

impl Agreement {
    pub(super) fn of(config: &AutoConfig) -> Self {
        Self {
            latency_ms: config.sla_latency_ms.map_or(DEFAULT_LATENCY_MS, f64::from),
            error_rate: config.sla_error_rate.map_or(DEFAULT_ERROR_RATE, f64::from),
            cost: config.sla_cost.map(f64::from),
            hard: config.hard_constraints.unwrap_or(false),
        }
    }

    /// How well it is kept, 0..=1.
    pub(super) fn score(&self, assessment: &Assessment) -> f64 {
        let reading = &assessment.reading;
        let factors = &assessment.factors;
        0.35 * kept(self.latency_ms, reading.p95_ms)
            + 0.35 * kept(self.error_rate, error_rate(assessment))
            + 0.15 * factors.health
            + 0.10 * self.cost.map_or(1.0, |cost| kept(cost, reading.cost))
            + 0.05 * factors.stability
    }

    /// By how much it is violated in all, relative to what was agreed on; 0 where that is not looked at.
    pub(super) fn violation(&self, assessment: &Assessment) -> f64 {
        if !self.hard {
            return 0.0;
        }
        let reading = &assessment.reading;
        violated(self.latency_ms, reading.p95_ms)
            + violated(self.error_rate, error_rate(assessment))
            + self.cost.map_or(0.0, |cost| violated(cost, reading.cost))
    }
}

fn error_rate(assessment: &Assessment) -> f64 {
    assessment
        .reading
        .failure_rate
        .unwrap_or(UNKNOWN_ERROR_RATE)
}

/// 1 up to the limit, less above it.
fn kept(limit: f64, value: f64) -> f64 {
    if value > limit {
        unit(limit / value)
    } else {
        1.0
    }
}

/// How far above the limit, as a multiple of it; infinite above a limit of 0.
fn violated(limit: f64, value: f64) -> f64 {
    if value > limit {
        (value - limit) / limit.max(0.0)
    } else {
        0.0
    }
}

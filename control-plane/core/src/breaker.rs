//! The provider's circuit breaker (`failure-state.md` §1).
//!
//! It keeps requests away from a provider that fails as a whole. Failures count up, successes count down, and
//! nothing else does: there is no window and no decay (§1.4). At the failure threshold it opens; the reset
//! timeout after the last failure it admits one probe at a time, whose verdict closes it or opens it again for
//! longer (§1.5). Half-open by time is seen by every reader ([`Breaker::phase`]) and written by an admission
//! only. A probe is a lease: it has an owner and an expiry, and comes back whichever way it ends (decision 8).
//!
//! Each opening, each closing by a probe and each reset begins a new *epoch*. Outcomes of attempts decided in
//! an earlier one change nothing, the probe's own verdict excepted (decision 9).
//!
//! Which outcomes count, and which of them are duplicates, is decided before ([`crate::state::apply`]).

use serde::{Deserialize, Serialize};

use crate::ids::{AttemptId, PlaneIncarnation};
use crate::time::Timestamp;
use crate::version::Mark;

/// Numbers of a breaker (`failure-state.md` §1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerPolicy {
    /// Count at which the breaker shows itself degraded.
    pub degradation_threshold: u32,
    /// Count at which it opens.
    pub failure_threshold: u32,
    /// How long it stays open after the last failure before a probe is admitted, in ms.
    pub reset_timeout_ms: u64,
    /// Failed probes in a row before the wait grows.
    pub escalate_after_cycles: u32,
    /// Cap of the growth, as a multiple of the reset timeout.
    pub max_backoff_multiplier: u32,
    /// How long a probe may be out before its permit returns by itself, in ms (decision 8).
    pub probe_ttl_ms: u64,
    /// Failures of one connection closer together than this count once, in ms; 0 = off (decision 10).
    pub dedup_connection_ms: u64,
    /// Network faults of one provider closer together than this count once, in ms; 0 = off.
    pub dedup_provider_ms: u64,
}

/// A probe that is out: the one request admitted while half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Which attempt carries it.
    pub attempt: AttemptId,
    /// When the permit returns by itself.
    pub expires_at: Timestamp,
}

/// Where the breaker stands. `Open` becomes `HalfOpen` by time alone, but only an admission writes it
/// (`failure-state.md` §11.22); readers see it through [`Breaker::phase`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerStatus {
    /// Admits.
    #[default]
    Closed,
    /// Admits; informational.
    Degraded,
    /// Rejects until the effective reset timeout after the last failure.
    Open,
    /// Admits one probe at a time.
    HalfOpen {
        /// The probe that is out, if any.
        probe: Option<Probe>,
    },
}

/// State of one provider's breaker (`failure-state.md` §1.2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// Where it stands, as written.
    pub status: BreakerStatus,
    /// Failures less successes, never below 0.
    pub failure_count: u32,
    /// When the last counted failure happened.
    pub last_failure_at: Option<Timestamp>,
    /// Failed probes in a row.
    pub open_cycles: u32,
    /// When the last counted network fault happened (decision 10).
    pub last_network_failure_at: Option<Timestamp>,
    /// Outcomes of attempts decided before this change nothing (decision 9).
    pub epoch: Mark,
}

/// Where a breaker stands at a moment, lazy moves included. This, never [`Breaker::status`], is what routing
/// looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Admits.
    Closed,
    /// Admits; informational.
    Degraded,
    /// Rejects.
    Open {
        /// Until a probe is admitted, in ms, at least 1.
        retry_after_ms: u64,
    },
    /// Admits one probe at a time.
    HalfOpen {
        /// A probe is out and has not expired, so nothing is admitted.
        probe_out: bool,
    },
}

/// What a client is told to wait while a probe is out, in ms (`failure-state.md` §1.8).
pub const PROBE_OUT_RETRY_MS: u64 = 1_000;

const CLOSED: &str = "CLOSED";
const DEGRADED: &str = "DEGRADED";
const OPEN: &str = "OPEN";
const HALF_OPEN: &str = "HALF_OPEN";

impl BreakerStatus {
    /// The name on the wire (decision 59).
    #[must_use]
    pub fn wire_name(self) -> &'static str {
        match self {
            Self::Closed => CLOSED,
            Self::Degraded => DEGRADED,
            Self::Open => OPEN,
            Self::HalfOpen { .. } => HALF_OPEN,
        }
    }
}

impl Phase {
    /// The name on the wire (decision 59).
    #[must_use]
    pub fn wire_name(self) -> &'static str {
        match self {
            Self::Closed => CLOSED,
            Self::Degraded => DEGRADED,
            Self::Open { .. } => OPEN,
            Self::HalfOpen { .. } => HALF_OPEN,
        }
    }

    /// Whether an attempt may be sent; while half-open, only with the probe.
    #[must_use]
    pub fn admits(self) -> bool {
        match self {
            Self::Closed | Self::Degraded => true,
            Self::HalfOpen { probe_out } => !probe_out,
            Self::Open { .. } => false,
        }
    }

    /// Whether an attempt needs the probe to be sent.
    #[must_use]
    pub fn needs_probe(self) -> bool {
        matches!(self, Self::HalfOpen { .. })
    }

    /// How long a rejected request should wait, in ms; 0 when the breaker admits.
    #[must_use]
    pub fn retry_after_ms(self) -> u64 {
        match self {
            Self::Open { retry_after_ms } => retry_after_ms,
            Self::HalfOpen { probe_out: true } => PROBE_OUT_RETRY_MS,
            Self::Closed | Self::Degraded | Self::HalfOpen { probe_out: false } => 0,
        }
    }
}

impl Breaker {
    /// Where the breaker stands at `now`: an open one becomes half-open by time, an expired probe is back.
    #[must_use]
    pub fn phase(&self, now: Timestamp, policy: &BreakerPolicy) -> Phase {
        match self.status {
            BreakerStatus::Closed => Phase::Closed,
            BreakerStatus::Degraded => Phase::Degraded,
            BreakerStatus::Open => {
                let timeout_ms = self.effective_reset_timeout_ms(policy);
                let elapsed_ms = self.last_failure_at.map_or(u64::MAX, |at| now.ms_since(at));
                if elapsed_ms >= timeout_ms {
                    Phase::HalfOpen { probe_out: false }
                } else {
                    Phase::Open {
                        retry_after_ms: timeout_ms.saturating_sub(elapsed_ms),
                    }
                }
            }
            BreakerStatus::HalfOpen { probe } => Phase::HalfOpen {
                probe_out: probe.is_some_and(|probe| probe.expires_at > now),
            },
        }
    }

    /// How long the breaker stays open after its last failure, in ms: it grows with failed probes in a row
    /// (`failure-state.md` §1.5).
    #[must_use]
    pub fn effective_reset_timeout_ms(&self, policy: &BreakerPolicy) -> u64 {
        let base_ms = policy.reset_timeout_ms;
        let growth = self
            .open_cycles
            .saturating_sub(policy.escalate_after_cycles);
        let factor = 1_u64.checked_shl(growth).unwrap_or(u64::MAX);
        let cap = u64::from(policy.max_backoff_multiplier.max(1));
        base_ms.saturating_mul(factor.min(cap))
    }

    /// The attempt that holds the probe, also after the permit expired, as long as no other took it.
    #[must_use]
    pub fn probe_holder(&self) -> Option<AttemptId> {
        match self.status {
            BreakerStatus::HalfOpen { probe } => probe.map(|probe| probe.attempt),
            BreakerStatus::Closed | BreakerStatus::Degraded | BreakerStatus::Open => None,
        }
    }

    /// Counts a failure that happened at `at`, unless the breaker does not admit: then it changes nothing
    /// (`failure-state.md` §1.3).
    pub fn record_failure(&mut self, at: Timestamp, policy: &BreakerPolicy) {
        match self.status {
            BreakerStatus::Open | BreakerStatus::HalfOpen { .. } => return,
            BreakerStatus::Closed | BreakerStatus::Degraded => {}
        }
        self.count_failure(at);
        if self.failure_count >= policy.failure_threshold {
            self.open();
        } else if self.failure_count >= policy.degradation_threshold {
            self.status = BreakerStatus::Degraded;
        }
    }

    /// Counts `count` successes, unless the breaker does not admit: a late success never closes an open one.
    pub fn record_success(&mut self, count: u32, policy: &BreakerPolicy) {
        match self.status {
            BreakerStatus::Open | BreakerStatus::HalfOpen { .. } => return,
            BreakerStatus::Closed | BreakerStatus::Degraded => {}
        }
        self.failure_count = self.failure_count.saturating_sub(count);
        if count > 0 && self.failure_count <= policy.degradation_threshold {
            self.status = BreakerStatus::Closed;
        }
    }

    /// The probe succeeded: closes, and everything is forgotten. The caller has checked who holds it.
    pub fn probe_succeeded(&mut self) {
        *self = Self {
            epoch: Mark::ThisWrite,
            ..Self::default()
        };
    }

    /// The probe failed at `at`: opens for another, possibly longer, time. The caller has checked who holds it.
    pub fn probe_failed(&mut self, at: Timestamp) {
        self.count_failure(at);
        self.open_cycles = self.open_cycles.saturating_add(1);
        self.open();
    }

    /// Gives the probe to `attempt` if the breaker is half-open at `now` and no unexpired probe is out. Asking
    /// twice is answered twice with yes. Says whether the attempt holds the probe.
    pub fn take_probe(
        &mut self,
        attempt: AttemptId,
        now: Timestamp,
        policy: &BreakerPolicy,
    ) -> bool {
        match self.phase(now, policy) {
            Phase::HalfOpen { probe_out: false } => {
                self.status = BreakerStatus::HalfOpen {
                    probe: Some(Probe {
                        attempt,
                        expires_at: now.plus_ms(policy.probe_ttl_ms),
                    }),
                };
                true
            }
            Phase::HalfOpen { probe_out: true } => self.probe_holder() == Some(attempt),
            Phase::Closed | Phase::Degraded | Phase::Open { .. } => false,
        }
    }

    /// Lets the probe of `attempt` last from now on as long as a new one, as long as no other took it (decision 44).
    pub fn renew_probe(&mut self, attempt: AttemptId, now: Timestamp, policy: &BreakerPolicy) {
        if let BreakerStatus::HalfOpen { probe: Some(probe) } = &mut self.status
            && probe.attempt == attempt
        {
            let expires_at = now.plus_ms(policy.probe_ttl_ms);
            probe.expires_at = probe.expires_at.max(expires_at);
        }
    }

    /// Makes it as whoever does not get the probe must see it: a probe that could be had is out, with nobody in particular.
    pub fn withhold_probe(&mut self, now: Timestamp, policy: &BreakerPolicy) {
        let nobody = AttemptId {
            plane: PlaneIncarnation(0),
            number: 0,
        };
        self.take_probe(nobody, now, policy);
    }

    /// Takes the probe back from `attempt` without a verdict, if it holds it.
    pub fn return_probe(&mut self, attempt: AttemptId) {
        if self.probe_holder() == Some(attempt) {
            self.status = BreakerStatus::HalfOpen { probe: None };
        }
    }

    /// An operator's reset: everything is forgotten and a new epoch begins, so that outcomes of attempts
    /// already sent change nothing.
    pub fn reset(&mut self) {
        *self = Self {
            epoch: Mark::ThisWrite,
            ..Self::default()
        };
    }

    /// Whether nothing of the breaker influences a decision.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.status == BreakerStatus::Closed && self.failure_count == 0 && self.open_cycles == 0
    }

    fn count_failure(&mut self, at: Timestamp) {
        self.failure_count = self.failure_count.saturating_add(1);
        // Reports arrive out of order; an older failure must not bring the probe forward.
        self.last_failure_at = Some(self.last_failure_at.map_or(at, |last| last.max(at)));
    }

    fn open(&mut self) {
        self.status = BreakerStatus::Open;
        self.epoch = Mark::ThisWrite;
    }
}

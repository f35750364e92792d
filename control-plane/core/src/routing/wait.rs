//! Waiting for a cooldown instead of failing: one rule, two settings (`routing.md` §12.2, §5.0, decision 28).
//!
//! After all targets failed or were excluded, the request may wait for whatever can be used again soonest and
//! then walk the whole list again. Some timers are never waited for: a quota that is used up, a refused
//! credential and a model that is not there will not get better in a minute. They are left out *before* the
//! soonest is chosen, so that they do not hide one worth waiting for.
//!
//! Many requests wait for the same end. Each adds up to a tenth of its wait as jitter, so that they do not
//! return at one instant; the stored end stays exact (decision 3).

use crate::classify::Reason;
use crate::settings::{ComboCooldownWaitSettings, MAX_COOLDOWN_WAIT_MS, WaitForCooldownSettings};

/// Added to every wait, so that the timer has certainly ended, in ms.
const MARGIN_MS: u64 = 50;
/// Jitter is at most the wait divided by this.
const JITTER_DIVISOR: u64 = 10;

/// How long and how often a request may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// Longest single wait, in ms; 0 = never wait.
    pub max_wait_ms: u64,
    /// Most waits of a request.
    pub max_waits: u32,
    /// Longest total of a request, in ms.
    pub budget_ms: u64,
}

/// Something that a request could wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoolingTimer {
    /// How long it still runs, in ms; 0 when only the hint is known.
    pub remaining_ms: u64,
    /// What the upstream asked to wait, from now, in ms.
    pub hint_ms: Option<u64>,
    /// Why it runs; `None` when nobody knows, which is never waited for.
    pub reason: Option<Reason>,
}

impl WaitPolicy {
    /// No wait at all.
    pub const NEVER: Self = Self {
        max_wait_ms: 0,
        max_waits: 0,
        budget_ms: 0,
    };

    /// `comboCooldownWait`, brought into its bounds.
    #[must_use]
    pub fn for_combos(settings: &ComboCooldownWaitSettings) -> Self {
        Self::bounded(
            settings.enabled,
            settings.max_wait_ms,
            settings.max_attempts,
            settings.budget_ms,
        )
    }

    /// `waitForCooldown`, brought into its bounds.
    #[must_use]
    pub fn for_others(settings: &WaitForCooldownSettings) -> Self {
        Self::bounded(
            settings.enabled,
            settings.max_retry_wait_sec.saturating_mul(1_000),
            settings.max_retries,
            settings.budget_ms,
        )
    }

    /// The budget covers one wait at least; either limit at 0 switches waiting off.
    fn bounded(enabled: bool, max_wait_ms: u64, max_waits: u32, budget_ms: u64) -> Self {
        let max_wait_ms = max_wait_ms.min(MAX_COOLDOWN_WAIT_MS);
        let off = !enabled || max_wait_ms == 0 || max_waits == 0;
        Self {
            max_wait_ms: if off { 0 } else { max_wait_ms },
            max_waits: if off { 0 } else { max_waits },
            budget_ms: budget_ms.clamp(max_wait_ms, MAX_COOLDOWN_WAIT_MS),
        }
    }
}

impl CoolingTimer {
    /// Whether a request would rather wait for this than for the other: what is not worth it comes last.
    pub(super) fn is_sooner_than(self, other: Self) -> bool {
        let rank = |timer: Self| match timer.reason {
            Some(reason) if is_worth_waiting(reason) => timer.wait_ms().unwrap_or(u64::MAX),
            Some(_) | None => u64::MAX,
        };
        rank(self) < rank(other)
    }

    /// How long to wait for it, without jitter, in ms. `None` when there is nothing to wait for.
    fn wait_ms(&self) -> Option<u64> {
        let longest = self.remaining_ms.max(self.hint_ms.unwrap_or(0));
        (longest > 0).then(|| longest.saturating_add(MARGIN_MS))
    }
}

/// Whether waiting can help against this.
#[must_use]
pub(super) fn is_worth_waiting(reason: Reason) -> bool {
    match reason {
        Reason::RateLimitExceeded | Reason::ModelCapacity | Reason::ServerError => true,
        Reason::QuotaExhausted
        | Reason::AuthError
        | Reason::NotFound
        | Reason::Credits
        | Reason::Forbidden
        | Reason::RequestRejected
        | Reason::ClientFault
        | Reason::Local
        | Reason::Unknown => false,
    }
}

/// How long to wait now, in ms, for the soonest timer that is worth it, or `None` when the request should fail.
/// `waits` and `waited_ms` are what the request waited before; `random` decides the jitter.
#[must_use]
pub fn cooldown_wait(
    policy: &WaitPolicy,
    waits: u32,
    waited_ms: u64,
    timers: impl IntoIterator<Item = CoolingTimer>,
    random: u64,
) -> Option<u64> {
    if waits >= policy.max_waits {
        return None;
    }
    let soonest = timers
        .into_iter()
        .filter(|timer| timer.reason.is_some_and(is_worth_waiting))
        .filter_map(|timer| timer.wait_ms())
        .min()?;
    let longest = policy
        .max_wait_ms
        .min(policy.budget_ms.saturating_sub(waited_ms));
    if soonest > longest {
        return None;
    }
    let most_jitter = soonest.checked_div(JITTER_DIVISOR).unwrap_or(0);
    let jitter = random
        .checked_rem(most_jitter.saturating_add(1))
        .unwrap_or(0);
    Some(soonest.saturating_add(jitter).min(longest))
}

//! Cooldown and terminal states of a connection (`failure-state.md` §3).
//!
//! A failing credential is left alone for a while, longer with each failure (§3.2). Precedence: terminal, then
//! a running cooldown, then a new one. While a cooldown runs, or for an attempt that was decided before it
//! began, a further failure is the same episode: it does not raise the level, and only an authoritative length
//! may move the end later (decisions 9 and 11). The end passes by itself; the level stays until a success.
//!
//! Terminal states never lapse. What [`crate::state::apply`] does with several of these parts at once, such
//! as a success, is written there.

use serde::{Deserialize, Serialize};

use crate::classify::{CooldownLength, Origin, Reason, TerminalKind};
use crate::time::Timestamp;
use crate::version::{Mark, Version};

/// Numbers of the connection cooldown (`failure-state.md` §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CooldownPolicy {
    /// First step of the ladder, in ms.
    pub base_ms: u64,
    /// Highest level of the ladder.
    pub max_backoff_steps: u32,
    /// Longest step, in ms.
    pub cap_ms: u64,
    /// Retry hints of the upstream are used.
    pub trust_hints: bool,
}

/// A connection's cooldown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cooldown {
    /// Not selectable before this. It stays after it has passed, until a success.
    pub until: Option<Timestamp>,
    /// Exponent of the ladder.
    pub backoff_level: u32,
    /// Why it cools.
    pub reason: Option<Reason>,
    /// Which rule said so, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The last escalation that still stands (episode rule, decision 9).
    pub escalated: Mark,
    /// The last change of the cooldown, the last error or the refusal streak; a success clears them only if
    /// its attempt was decided after it (decision 9).
    pub changed: Mark,
}

/// A terminal state: ended by an operator or new credentials only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Which.
    pub kind: TerminalKind,
    /// Since when.
    pub since: Timestamp,
    /// The credential it was observed with; another credential is not affected.
    pub credential_version: u64,
    /// The ban also switched the connection off (`banDetection.autoDisable`); it ends with the state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub switched_off: bool,
}

/// The last error seen on a connection, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// HTTP status after restatement.
    pub status: u16,
    /// What it meant.
    pub reason: Reason,
    /// When it was seen.
    pub at: Timestamp,
    /// Which rule judged it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// Refusals in a row of an account as such (`failure-state.md` §3.9, request_rejected streak).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalStreak {
    /// Counted refusals.
    pub count: u32,
    /// When the last one was counted.
    pub last_at: Timestamp,
    /// The escalation that still stands (episode rule).
    pub escalated: Mark,
}

/// Cooldown after the first refusal of a streak, in ms (`failure-state.md` §3.9).
pub const FIRST_REFUSAL_MS: u64 = 300_000;
/// Cooldown after the second refusal; the third bans.
pub const SECOND_REFUSAL_MS: u64 = 900_000;
/// A refusal this long after the previous one begins a new streak, in ms.
pub const REFUSAL_MEMORY_MS: u64 = 86_400_000;

/// A recoverable failure that cools a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoolingFailure {
    /// How long it cools.
    pub length: CooldownLength,
    /// Why.
    pub reason: Reason,
    /// Which rule said so, if one did.
    pub origin: Option<Origin>,
    /// When it happened; the end is counted from here.
    pub at: Timestamp,
    /// The version the failed attempt was decided on.
    pub decided_on: Version,
}

/// What a failure did to a cooldown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CooldownChange {
    /// Nothing: it belongs to an episode that is already accounted for.
    SameEpisode,
    /// The end moved later, the level stayed.
    Extended,
    /// A new episode: level and end were set.
    Started,
}

/// What a refusal did to a streak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing: it belongs to the refusal that is already counted.
    SameEpisode,
    /// It was counted and the connection cools for so many ms.
    Cool(u64),
    /// It was the third: the connection is banned and the streak forgotten.
    Ban,
}

/// `base · 2^min(level, steps)`, at most `cap`, in ms. Saturates.
#[must_use]
pub fn ladder_ms(base_ms: u64, level: u32, steps: u32, cap_ms: u64) -> u64 {
    let factor = 1_u64.checked_shl(level.min(steps)).unwrap_or(u64::MAX);
    base_ms.saturating_mul(factor).min(cap_ms)
}

impl Cooldown {
    /// Whether the connection is skipped at `now`.
    #[must_use]
    pub fn is_running(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until > now)
    }

    /// How long it still runs, in ms; 0 when it does not.
    #[must_use]
    pub fn remaining_ms(&self, now: Timestamp) -> u64 {
        self.until.map_or(0, |until| until.remaining_ms(now))
    }

    /// Whether there is nothing to clear.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.until.is_none() && self.backoff_level == 0 && self.reason.is_none()
    }

    /// Takes a failure in. With `disable_cooling` only the level moves (`failure-state.md` §3.10).
    pub fn fail(
        &mut self,
        failure: &CoolingFailure,
        policy: &CooldownPolicy,
        disable_cooling: bool,
    ) -> CooldownChange {
        if self.is_running(failure.at) || !self.escalated.seen_by(failure.decided_on) {
            return self.extend(failure, disable_cooling);
        }
        let level = self.backoff_level;
        let steps = policy.max_backoff_steps;
        let (length_ms, new_level) = match failure.length {
            CooldownLength::Ladder => (
                ladder_ms(policy.base_ms, level, steps, policy.cap_ms),
                level.saturating_add(1).min(steps),
            ),
            CooldownLength::Hint(ms) => (ms, 0),
            CooldownLength::Flat(ms) => (ms, level),
            CooldownLength::Base => (policy.base_ms, level),
        };
        self.backoff_level = new_level;
        if length_ms > 0 && !disable_cooling {
            self.move_end(failure.at.plus_ms(length_ms), failure);
        }
        self.escalated = Mark::ThisWrite;
        self.changed = Mark::ThisWrite;
        CooldownChange::Started
    }

    /// A failure of a running episode: only a length that somebody stated, not one that we grow, moves the end, and
    /// only where there is one: an operator may have ended the episode.
    fn extend(&mut self, failure: &CoolingFailure, disable_cooling: bool) -> CooldownChange {
        let stated_ms = match failure.length {
            CooldownLength::Hint(ms) | CooldownLength::Flat(ms) => ms,
            CooldownLength::Ladder | CooldownLength::Base => 0,
        };
        let end = failure.at.plus_ms(stated_ms);
        if stated_ms == 0 || disable_cooling || self.until.is_none_or(|until| until >= end) {
            return CooldownChange::SameEpisode;
        }
        self.move_end(end, failure);
        self.changed = Mark::ThisWrite;
        CooldownChange::Extended
    }

    fn move_end(&mut self, end: Timestamp, failure: &CoolingFailure) {
        self.until = Some(self.until.map_or(end, |until| until.max(end)));
        self.reason = Some(failure.reason);
        self.origin.clone_from(&failure.origin);
    }
}

impl RefusalStreak {
    /// Takes a refusal in that happened at `at` to an attempt decided on `decided_on`
    /// (`failure-state.md` §3.9).
    pub fn refuse(&mut self, at: Timestamp, decided_on: Version) -> Refusal {
        let since_ms = at.ms_since(self.last_at);
        if self.count > 0 {
            let own_cooldown_ms = if self.count == 1 {
                FIRST_REFUSAL_MS
            } else {
                SECOND_REFUSAL_MS
            };
            if since_ms < own_cooldown_ms || !self.escalated.seen_by(decided_on) {
                return Refusal::SameEpisode;
            }
        }
        if since_ms >= REFUSAL_MEMORY_MS {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.last_at = at;
        self.escalated = Mark::ThisWrite;
        match self.count {
            1 => Refusal::Cool(FIRST_REFUSAL_MS),
            2 => Refusal::Cool(SECOND_REFUSAL_MS),
            _ => {
                *self = Self::default();
                Refusal::Ban
            }
        }
    }
}

//! Model lockout: one model, or a quota family of models, is left alone on one connection
//! (`failure-state.md` §4).
//!
//! The failing status decides how much is locked ([`key_for`]); a look-up asks for every shape that could cover
//! a model ([`covering`]). Locks escalate while failures come within a window after the last lock, and decay by
//! successes. A lock never becomes shorter by a failure, and the count in it outlives the lock, since otherwise
//! escalation would begin anew each time. A connection keeps at most [`MAX_LOCKS`].

use serde::{Deserialize, Serialize};

use crate::classify::{LockLength, Origin, Reason};
use crate::cooldown::ladder_ms;
use crate::daily_reset::DailyReset;
use crate::ids::{ModelId, ProviderId};
use crate::time::Timestamp;
use crate::version::{Mark, Version};

/// Most locks one connection keeps; the one that ends first makes room (`architecture.md` §3, Shards).
pub const MAX_LOCKS: usize = 64;

/// Settings of the model lockout (`failure-state.md` §4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockoutPolicy {
    /// Failures of combo targets lock models. Other writers act regardless (decision 20).
    pub enabled: bool,
    /// Statuses that lock when enabled.
    pub error_codes: Vec<u16>,
    /// First step of the ladder, in ms.
    pub base_ms: u64,
    /// Longest lock that is not authoritative, in ms.
    pub max_ms: u64,
    /// Highest exponent of the ladder.
    pub max_backoff_steps: u32,
    /// Locks grow; otherwise each lasts the base.
    pub exponential: bool,
    /// Failures closer together than this plus the last lock's length escalate, in ms.
    pub window_ms: u64,
    /// When the provider's quotas of a day begin anew; a lock for a used-up quota lasts until then.
    pub daily_reset: DailyReset,
}

/// What a lock covers (`failure-state.md` §4.2).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockKey {
    /// A quota family of the provider, for example `codex` or `family:gemini`.
    Family(String),
    /// The bare model.
    Model(ModelId),
    /// Exactly this model; names are compared trimmed and in lower case.
    Exact(String),
}

/// One model or family that is locked on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelLock {
    /// What is locked.
    pub key: LockKey,
    /// Locked while now is not later than this.
    pub until: Timestamp,
    /// Failures in the escalation window.
    pub failure_count: u32,
    /// When the last failure happened.
    pub last_failure_at: Timestamp,
    /// Length of the last lock, in ms; widens the escalation window.
    pub last_cooldown_ms: u64,
    /// Why.
    pub reason: Reason,
    /// Which rule said so, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// When the lock was first set.
    pub locked_at: Timestamp,
    /// The last escalation that still stands (episode rule).
    pub escalated: Mark,
    /// The last change other than decay; only a success decided after it lowers the count (decision 9).
    pub changed: Mark,
}

/// A failure that locks a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockingFailure {
    /// What to lock.
    pub key: LockKey,
    /// For how long.
    pub length: LockLength,
    /// Why.
    pub reason: Reason,
    /// Which rule said so, if one did.
    pub origin: Option<Origin>,
    /// When it happened; the end is counted from here.
    pub at: Timestamp,
    /// The version the failed attempt was decided on.
    pub decided_on: Version,
}

/// What a provider's models share a quota by.
struct FamilyRule {
    /// Provider ids it holds for.
    providers: &'static [&'static str],
    /// Parts of a lower-case model name and the family each stands for, first match first; an empty part
    /// matches every model.
    families: &'static [(&'static str, &'static str)],
}

/// Quota families (`failure-state.md` §4.2). What no row names has a quota of its own.
const FAMILIES: &[FamilyRule] = &[
    FamilyRule {
        providers: &["codex"],
        families: &[("spark", "spark"), ("", "codex")],
    },
    // Its plans count the tokens of three tiers apart; a model's line names its tier, and what names none is of
    // the ordinary one.
    FamilyRule {
        providers: &["factory"],
        families: &[
            ("opus", "tier:premium"),
            ("glm", "tier:core"),
            ("kimi", "tier:core"),
            ("minimax", "tier:core"),
            ("deepseek", "tier:core"),
            ("droid-core", "tier:core"),
            ("", "tier:standard"),
        ],
    },
    FamilyRule {
        providers: &["antigravity", "agy"],
        families: &[
            ("gemini", "family:gemini"),
            ("claude-", "family:claude"),
            ("cloud-", "family:claude"),
            ("anthropic", "family:claude"),
        ],
    },
];

/// The quota family a model belongs to at a provider, if models share quotas there.
#[must_use]
pub fn quota_family(provider: &ProviderId, model: &ModelId) -> Option<LockKey> {
    let rule = FAMILIES
        .iter()
        .find(|rule| rule.providers.contains(&provider.as_str()))?;
    let name = model.as_str().to_lowercase();
    rule.families
        .iter()
        .find(|(part, _)| name.contains(part))
        .map(|(_, family)| LockKey::Family((*family).to_owned()))
}

/// What a failure with this status locks (`failure-state.md` §4.2).
#[must_use]
pub fn key_for(status: u16, provider: &ProviderId, model: &ModelId) -> LockKey {
    match status {
        402 | 403 | 429 => {
            quota_family(provider, model).unwrap_or_else(|| LockKey::Model(model.clone()))
        }
        404 => LockKey::Model(model.clone()),
        _ => exact_key(model),
    }
}

fn exact_key(model: &ModelId) -> LockKey {
    LockKey::Exact(model.as_str().trim().to_lowercase())
}

/// Every shape of key that covers a model.
struct Shapes {
    family: Option<LockKey>,
    bare: LockKey,
    exact: LockKey,
}

impl Shapes {
    fn of(provider: &ProviderId, model: &ModelId) -> Self {
        Self {
            family: quota_family(provider, model),
            bare: LockKey::Model(model.clone()),
            exact: exact_key(model),
        }
    }

    fn contain(&self, key: &LockKey) -> bool {
        *key == self.bare || *key == self.exact || self.family.as_ref() == Some(key)
    }
}

impl LockoutPolicy {
    /// The length of a lock after `failure_count` failures, in ms (`failure-state.md` §4.3).
    #[must_use]
    pub fn ladder_ms(&self, base_ms: u64, failure_count: u32) -> u64 {
        let level = if self.exponential {
            failure_count.saturating_sub(1)
        } else {
            0
        };
        ladder_ms(base_ms, level, self.max_backoff_steps, self.max_ms)
    }
}

impl ModelLock {
    /// Whether the lock blocks at `now`; at its very end it still does (`failure-state.md` §4.3).
    #[must_use]
    pub fn is_active(&self, now: Timestamp) -> bool {
        now <= self.until
    }

    /// Until when a further failure still escalates.
    fn escalates_until(&self, policy: &LockoutPolicy) -> Timestamp {
        self.last_failure_at
            .plus_ms(policy.window_ms.saturating_add(self.last_cooldown_ms))
    }

    /// The last moment at which the lock blocks or escalates.
    #[must_use]
    pub fn matters_until(&self, policy: &LockoutPolicy) -> Timestamp {
        self.until.max(self.escalates_until(policy))
    }
}

/// The active lock that covers a model and ends last, over all shapes of keys.
#[must_use]
pub fn covering<'a>(
    locks: &'a [ModelLock],
    provider: &ProviderId,
    model: &ModelId,
    now: Timestamp,
) -> Option<&'a ModelLock> {
    if locks.is_empty() {
        return None;
    }
    let shapes = Shapes::of(provider, model);
    locks
        .iter()
        .filter(|lock| lock.is_active(now) && shapes.contain(&lock.key))
        .max_by_key(|lock| lock.until)
}

/// Takes a failure in. Returns the new end if it set a lock or moved one's end later.
pub fn lock(
    locks: &mut Vec<ModelLock>,
    failure: &LockingFailure,
    policy: &LockoutPolicy,
) -> Option<Timestamp> {
    let index = locks.iter().position(|lock| lock.key == failure.key);
    match index.and_then(|index| locks.get_mut(index)) {
        Some(lock) => lock.fail(failure, policy),
        None => {
            locks.retain(|lock| lock.matters_until(policy) >= failure.at);
            make_room(locks);
            let length_ms = length_ms(failure, 1, policy);
            let until = failure.at.plus_ms(length_ms);
            locks.push(ModelLock {
                key: failure.key.clone(),
                until,
                failure_count: 1,
                last_failure_at: failure.at,
                last_cooldown_ms: length_ms,
                reason: failure.reason,
                origin: failure.origin.clone(),
                locked_at: failure.at,
                escalated: Mark::ThisWrite,
                changed: Mark::ThisWrite,
            });
            Some(until)
        }
    }
}

/// `count` successes of a model: each halves the failure counts of the locks that cover it, and a lock whose
/// count reaches 0 is gone (`failure-state.md` §4.5). Locks changed after the attempt was decided stay.
pub fn decay(
    locks: &mut Vec<ModelLock>,
    provider: &ProviderId,
    model: &ModelId,
    decided_on: Version,
    count: u32,
) {
    if locks.is_empty() || count == 0 {
        return;
    }
    let shapes = Shapes::of(provider, model);
    for lock in locks.iter_mut() {
        if shapes.contain(&lock.key) && lock.changed.seen_by(decided_on) {
            lock.failure_count = lock.failure_count.checked_shr(count).unwrap_or(0);
        }
    }
    locks.retain(|lock| lock.failure_count > 0);
}

/// An operator's clear: the locks that cover the model, or all (`failure-state.md` §4.6).
pub fn clear(locks: &mut Vec<ModelLock>, provider: &ProviderId, model: Option<&ModelId>) {
    match model {
        None => locks.clear(),
        Some(model) => {
            let shapes = Shapes::of(provider, model);
            locks.retain(|lock| !shapes.contain(&lock.key));
        }
    }
}

impl ModelLock {
    fn fail(&mut self, failure: &LockingFailure, policy: &LockoutPolicy) -> Option<Timestamp> {
        let within = failure.at <= self.escalates_until(policy);
        if within && !self.escalated.seen_by(failure.decided_on) {
            return self.extend(failure, policy);
        }
        if within {
            self.failure_count = self.failure_count.saturating_add(1);
        } else {
            self.failure_count = 1;
            self.locked_at = failure.at;
        }
        self.escalated = Mark::ThisWrite;
        self.changed = Mark::ThisWrite;
        let length_ms = length_ms(failure, self.failure_count, policy);
        self.last_failure_at = self.last_failure_at.max(failure.at);
        let end = failure.at.plus_ms(length_ms);
        // Never shorter: what ends later keeps its end, reason and length; only the count is taken over.
        if end <= self.until {
            return None;
        }
        self.until = end;
        self.reason = failure.reason;
        self.origin.clone_from(&failure.origin);
        self.last_cooldown_ms = length_ms;
        Some(end)
    }

    /// A failure of an episode that is accounted for: only an authoritative length moves the end (decision 9).
    fn extend(&mut self, failure: &LockingFailure, policy: &LockoutPolicy) -> Option<Timestamp> {
        let LockLength::Exact {
            authoritative: true,
            ..
        } = failure.length
        else {
            return None;
        };
        let length_ms = length_ms(failure, self.failure_count, policy);
        let end = failure.at.plus_ms(length_ms);
        if end <= self.until {
            return None;
        }
        self.until = end;
        self.reason = failure.reason;
        self.origin.clone_from(&failure.origin);
        self.last_cooldown_ms = self.last_cooldown_ms.max(length_ms);
        self.changed = Mark::ThisWrite;
        Some(end)
    }
}

/// The length a failure asks for, in ms: exact ones are capped unless authoritative, a used-up quota without a
/// number lasts until the day's reset within the cap, all else follows the ladder (`failure-state.md` §4.3 and §4.4).
fn length_ms(failure: &LockingFailure, failure_count: u32, policy: &LockoutPolicy) -> u64 {
    match failure.length {
        LockLength::Exact {
            ms,
            authoritative: true,
        } => ms,
        LockLength::Exact {
            ms,
            authoritative: false,
        } => ms.min(policy.max_ms),
        LockLength::Ladder { .. } if failure.reason == Reason::QuotaExhausted => {
            policy.daily_reset.ms_until(failure.at).min(policy.max_ms)
        }
        LockLength::Ladder { base_ms } => policy.ladder_ms(base_ms, failure_count),
    }
}

fn make_room(locks: &mut Vec<ModelLock>) {
    while locks.len() >= MAX_LOCKS {
        let first = locks
            .iter()
            .enumerate()
            .min_by_key(|(_, lock)| lock.until)
            .map(|(index, _)| index);
        match first {
            Some(index) => {
                locks.remove(index);
            }
            None => return,
        }
    }
}

//! Quotas that the headers of an answer tell, of a success as well as of a failure.
//!
//! | headers | what they are |
//! |---|---|
//! | `x-ratelimit-limit-<what>`, `-remaining-`, `-reset-` | short windows, of requests and of tokens |
//! | `anthropic-ratelimit-<what>-limit`, `-remaining`, `-reset` | the same |
//! | `anthropic-ratelimit-unified-5h-utilization`, `-7d-`, `-status`, `-reset` | the windows of a subscription |
//! | `x-codex-primary-used-percent`, `-window-minutes`, `-reset-after-seconds`, `-reset-at`, `x-codex-secondary-…` | the same, of Codex ([`codex`]) |
//!
//! A short window has no name in a [`QuotaSnapshot`], so the fullest of them becomes the share that is used where no
//! window is named. One whose headers do not say when it begins anew is taken for a minute's window, as such limits are;
//! otherwise one full minute would keep the account from requests, and so from being seen again, for a day.
//! `Retry-After` is a wait and no quota; it is not read here.

mod codex;

use std::collections::BTreeMap;

use crate::classify::reset_at;
use crate::number::Finite;
use crate::outcome::MAX_HEADER_BYTES;
use crate::telemetry::{QuotaSnapshot, QuotaWindow};
use crate::time::Timestamp;

use super::believed;

/// Most headers of an answer that are looked at.
const MAX_LOOKED_AT: usize = 64;
/// Length of a short window of which no end is told, in ms.
const SHORT_WINDOW_MS: u64 = 60_000;

const OPENAI: &str = "x-ratelimit-";
const ANTHROPIC: &str = "anthropic-ratelimit-";
const UNIFIED: &str = "unified-";

/// Whether a header, its name in lower case, may tell of a quota.
#[must_use]
pub fn is_quota_header(name: &str) -> bool {
    name.starts_with(OPENAI) || name.starts_with(ANTHROPIC) || codex::is_told_in(name)
}

/// What the headers tell, their names in lower case. `None` when that is nothing.
#[must_use]
pub fn read<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    now: Timestamp,
) -> Option<QuotaSnapshot> {
    found(headers, now).into_snapshot(now)
}

fn found<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>, now: Timestamp) -> Found<'a> {
    let mut found = Found::default();
    let told = headers
        .into_iter()
        .filter(|(name, value)| is_quota_header(name) && value.len() <= MAX_HEADER_BYTES)
        .take(MAX_LOOKED_AT);
    for (name, value) in told {
        found.take(name, value.trim(), now);
    }
    found
}

/// One short window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Short {
    pub(crate) limit: Option<u32>,
    pub(crate) remaining: Option<u32>,
    pub(crate) resets_at: Option<Timestamp>,
}

/// The short windows that the headers tell of, their names in lower case, by what they limit: `requests`, `tokens`,
/// `input-tokens` and the like, or nothing where the header names nothing.
pub(crate) fn short_windows<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    now: Timestamp,
) -> BTreeMap<&'a str, Short> {
    found(headers, now).short
}

#[derive(Default)]
struct Found<'a> {
    short: BTreeMap<&'a str, Short>,
    session: (Option<Finite>, Option<Timestamp>),
    weekly: (Option<Finite>, Option<Timestamp>),
    codex: codex::Slots,
    resets_at: Option<Timestamp>,
    rejected: bool,
}

impl<'a> Found<'a> {
    fn take(&mut self, name: &'a str, value: &str, now: Timestamp) {
        if let Some(rest) = name.strip_prefix(OPENAI) {
            let (member, what) = rest.split_once('-').unwrap_or((rest, ""));
            self.take_short(what, member, value, now);
        } else if let Some(rest) = name.strip_prefix(ANTHROPIC) {
            if let Some(member) = rest.strip_prefix(UNIFIED) {
                self.take_unified(member, value, now);
            } else if let Some((what, member)) = rest.rsplit_once('-') {
                self.take_short(what, member, value, now);
            }
        } else {
            self.codex.take(name, value, now);
        }
    }

    fn take_short(&mut self, what: &'a str, member: &str, value: &str, now: Timestamp) {
        let short = self.short.entry(what).or_default();
        match member {
            "limit" => short.limit = count(value),
            "remaining" => short.remaining = count(value),
            "reset" => short.resets_at = end(value, now),
            _ => {}
        }
    }

    fn take_unified(&mut self, member: &str, value: &str, now: Timestamp) {
        match member {
            "status" => self.rejected = value.eq_ignore_ascii_case("rejected"),
            "reset" => self.resets_at = end(value, now),
            "5h-utilization" => self.session.0 = value.parse().ok().and_then(share),
            "5h-reset" => self.session.1 = end(value, now),
            "7d-utilization" => self.weekly.0 = value.parse().ok().and_then(share),
            "7d-reset" => self.weekly.1 = end(value, now),
            _ => {}
        }
    }

    fn into_snapshot(self, now: Timestamp) -> Option<QuotaSnapshot> {
        let codex = self.codex.windows();
        let window = |(used, resets_at): (Option<Finite>, Option<Timestamp>)| {
            used.map(|used| QuotaWindow {
                used,
                resets_at,
                observed_at: None,
            })
        };
        let fullest = self
            .short
            .into_values()
            .filter_map(|short| Some((short.used()?, short.resets_at)))
            .chain(codex.short.map(|window| (window.used, window.resets_at)))
            .max();
        let (used, short_reset) = fullest.unzip();
        let snapshot = QuotaSnapshot {
            session: window(self.session).or(codex.session),
            weekly: window(self.weekly).or(codex.weekly),
            monthly: codex.monthly,
            used,
            resets_at: short_reset
                .flatten()
                .or(self.resets_at)
                .or_else(|| used.map(|_| now.plus_ms(SHORT_WINDOW_MS))),
            limit_reached: self.rejected,
            observed_at: now,
            ..QuotaSnapshot::default()
        };
        let tells =
            !snapshot.names_no_window() || snapshot.used.is_some() || snapshot.limit_reached;
        tells.then_some(snapshot)
    }
}

impl Short {
    /// Share that is used; nothing is known of a limit of 0.
    fn used(&self) -> Option<Finite> {
        let (limit, remaining) = (self.limit?, self.remaining?);
        if limit == 0 {
            return None;
        }
        let left = f64::from(remaining.min(limit)) / f64::from(limit);
        Finite::new(1.0 - left).ok()
    }
}

/// Digits and nothing else; saturates.
fn count(value: &str) -> Option<u32> {
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(value.parse().unwrap_or(u32::MAX))
}

fn share(share: f64) -> Option<Finite> {
    Finite::new(share.clamp(0.0, 1.0)).ok()
}

fn end(value: &str, now: Timestamp) -> Option<Timestamp> {
    believed(reset_at(value, now)?, now)
}

#[cfg(test)]
mod tests;

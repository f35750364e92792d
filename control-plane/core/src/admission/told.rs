//! What the headers of an answer tell of the upstream's limits on requests, as far as the pace may follow it
//! (decision 45). Headers are read as for quotas ([`crate::telemetry::quota`]); other things are asked of them here.
//!
//! | windows | what is learned |
//! |---|---|
//! | of requests: `x-ratelimit-…-requests`, `anthropic-ratelimit-requests-…`, `x-ratelimit-…` without a name | how many are left, and until when |
//! | of tokens, of input or of output as well | that none is left, and until when: nobody knows how many a request takes |
//!
//! A window that does not say when it begins anew, or that ends later than [`MAX_AHEAD_MS`], teaches nothing: long windows
//! are quotas. So does a limit of which no number is told, as of upstreams that say `-1` or leave the header out. A 429
//! that tells when a window of requests begins anew, and not what is left of it, means that nothing is.

use std::cmp::Reverse;

use crate::permit;
use crate::telemetry::quota::short_windows;
use crate::time::Timestamp;

/// Furthest end of a window that is followed, in ms: a minute, and what clocks and rounding make of it.
pub const MAX_AHEAD_MS: u64 = 65_000;
/// So much later than told a window is taken to begin anew, in ms: upstreams round, and clocks of replicas differ a little.
const ROUNDED_MS: u64 = 20;
/// A window is nearly spent when no more than one of so many parts is left.
const NEARLY_SPENT_PARTS: u64 = 10;
/// A window without a limit is nearly spent when no more than so many requests are left.
const NEARLY_SPENT: u32 = 1;

/// What one answer told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Of the window of requests that leaves least.
    pub requests: Option<ToldRequests>,
    /// Of windows of tokens.
    pub tokens: Option<ToldTokens>,
}

/// A window of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldRequests {
    /// Requests in a whole window, if told.
    pub limit: Option<u32>,
    /// Requests that are left.
    pub remaining: u32,
    /// When it begins anew.
    pub resets_at: Timestamp,
}

/// Windows of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToldTokens {
    /// There are some left in each.
    Left,
    /// There are none left before this.
    NoneUntil(Timestamp),
}

/// Whether a window is nearly spent.
pub(super) fn is_nearly_spent(limit: Option<u32>, left: u32) -> bool {
    match limit {
        Some(limit) => u64::from(left).saturating_mul(NEARLY_SPENT_PARTS) <= u64::from(limit),
        None => left <= NEARLY_SPENT,
    }
}

impl Told {
    /// Whether anything of it holds requests back: an account with plenty left costs nothing.
    #[must_use]
    pub fn holds_back(&self) -> bool {
        let nearly_spent = |told: ToldRequests| is_nearly_spent(told.limit, told.remaining);
        self.requests.is_some_and(nearly_spent)
            || matches!(self.tokens, Some(ToldTokens::NoneUntil(_)))
    }

    /// When the last of it has passed.
    #[must_use]
    pub fn ends_at(&self) -> Timestamp {
        let requests = self.requests.map(|told| told.resets_at);
        let tokens = match self.tokens {
            Some(ToldTokens::NoneUntil(then)) => Some(then),
            Some(ToldTokens::Left) | None => None,
        };
        requests.max(tokens).unwrap_or_default()
    }

    /// The part of it that each of `planes` data planes may use while nobody counts for all of them. Of what is left at
    /// least one request, so the parts may add up to more than the whole.
    #[must_use]
    pub fn share(self, planes: u32) -> Self {
        let part = |told: ToldRequests| ToldRequests {
            limit: told.limit.map(|limit| permit::share(limit, planes)),
            remaining: match told.remaining {
                0 => 0,
                left => permit::share(left, planes),
            },
            ..told
        };
        Self {
            requests: self.requests.map(part),
            tokens: self.tokens,
        }
    }
}

/// What an answer with this status and these headers tells, names in lower case; `None` when that is nothing.
#[must_use]
pub fn read<'a>(
    status: u16,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    now: Timestamp,
) -> Option<Told> {
    let mut requests: Vec<ToldRequests> = Vec::new();
    let mut tokens: Option<ToldTokens> = None;
    for (what, window) in short_windows(headers, now) {
        let resets_at = window.resets_at.filter(|then| is_followed(*then, now));
        let resets_at = resets_at.map(|then| then.plus_ms(ROUNDED_MS));
        if is_of_requests(what) {
            let none_left = (status == 429).then_some(0);
            if let (Some(resets_at), Some(remaining)) = (resets_at, window.remaining.or(none_left))
            {
                requests.push(ToldRequests {
                    limit: window.limit.filter(|limit| *limit > 0),
                    remaining,
                    resets_at,
                });
            }
        } else if is_of_tokens(what)
            && let Some(remaining) = window.remaining
        {
            let told = match resets_at {
                Some(then) if remaining == 0 => ToldTokens::NoneUntil(then),
                // Of a window that is not followed nothing is said.
                None if remaining == 0 => continue,
                Some(_) | None => ToldTokens::Left,
            };
            tokens = Some(tokens.map_or(told, |before| before.stricter(told)));
        }
    }
    let least = requests.into_iter().min_by_key(|told| {
        let has_plenty = !is_nearly_spent(told.limit, told.remaining);
        (has_plenty, told.remaining, Reverse(told.resets_at))
    });
    (least.is_some() || tokens.is_some()).then_some(Told {
        requests: least,
        tokens,
    })
}

impl ToldTokens {
    fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::NoneUntil(one), Self::NoneUntil(two)) => Self::NoneUntil(one.max(two)),
            (Self::NoneUntil(then), Self::Left) | (Self::Left, Self::NoneUntil(then)) => {
                Self::NoneUntil(then)
            }
            (Self::Left, Self::Left) => Self::Left,
        }
    }
}

fn is_followed(resets_at: Timestamp, now: Timestamp) -> bool {
    let longest_ms = MAX_AHEAD_MS.saturating_sub(ROUNDED_MS);
    resets_at > now && resets_at.remaining_ms(now) <= longest_ms
}

/// A header that names nothing counts requests, as one that names a period does: `req-minute`, `requests-day`.
fn is_of_requests(what: &str) -> bool {
    what.is_empty() || matches!(what.split('-').next(), Some("requests" | "req"))
}

fn is_of_tokens(what: &str) -> bool {
    let what = what.strip_prefix("input-").unwrap_or(what);
    let what = what.strip_prefix("output-").unwrap_or(what);
    matches!(what.split('-').next(), Some("tokens"))
}

#[cfg(test)]
mod tests;

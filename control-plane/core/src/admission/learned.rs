//! A pace that an upstream's headers taught ([`Told`], decision 45): the rest of a window that is nearly spent is a
//! reservoir for the whole fleet.
//!
//! **When it begins.** With an answer after which next to nothing is left of a window that ends soon. An account with
//! plenty left teaches nothing and costs nothing.
//!
//! **While it acts.** Every request that goes takes one from what is left, whoever asks. As long as the window is nearly
//! spent they go evenly spread over the rest of it, so that a bucket fills up meanwhile; when nothing is left nobody goes
//! before the window begins anew. Windows of tokens only say that nobody goes before then.
//!
//! **Newer answers.** Only the newest one counts, by the order in which requests went. What it leaves is less by all that
//! went after it, which it cannot know. It may be more than is counted here, as with a bucket that fills up; but then
//! those that went within the last seconds before it are taken off too, since they may have come to the upstream after it.
//! So in a window that is filled up all at once what is left never grows, in whatever order answers come.
//!
//! **How it ends.** When the window begins anew, all of it is there again, if its limit was told. Its requests are counted
//! for [`WATCH_MS`] more, through as many windows as pass, for an account that used one up is likely to use up the next.
//! A window is taken to last no less than the longest wait for its end that was told, until an answer tells better.
//! Without a limit nothing is known of the next window, and everything goes.
//!
//! **What it never does.** Exclude a target, shorten a cooldown, judge a failure. A 429 that comes in spite of it is one.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

use super::told::{MAX_AHEAD_MS, Told, ToldRequests, ToldTokens, is_nearly_spent};

/// How long the requests of a window that was nearly spent are counted after its end, in ms.
pub const WATCH_MS: u64 = 60_000;
/// Shortest window that is believed when no answer of it has come, in ms.
const SHORTEST_MS: u64 = 1_000;
/// Requests this far apart, in ms, come to the upstream in the order in which they went.
const IN_ORDER_MS: u64 = 1_000;

/// Which of the requests of a learned pace one was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Grows by one with each that goes.
    pub number: u64,
    /// Those up to this number came to the upstream before it.
    pub settled: u64,
}

/// How a request stands to a learned pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which one it is; `None` for one that was not counted just now.
    pub place: Option<Place>,
    /// Until then requests are counted, so all that go are to ask.
    pub until: Timestamp,
}

/// What is known of one model on one connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Learned {
    #[serde(default)]
    window: Option<Window>,
    /// Nobody goes before this, for want of tokens.
    #[serde(default)]
    tokens_back_at: Option<Timestamp>,
    /// Number of the last one that went. Begins with the time in ms, so that it is never one of an earlier pace.
    went: u64,
    /// Number of the one whose answer counts.
    newest: u64,
    /// When the last one went.
    #[serde(default)]
    last: Option<Timestamp>,
    recently: Recently,
    watched_until: Timestamp,
}

/// A window of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Window {
    #[serde(default)]
    limit: Option<u32>,
    /// May go until it begins anew.
    left: u32,
    resets_at: Timestamp,
    /// It lasts no less.
    lasts_ms: u64,
}

/// Number of the last one that went before the last seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Recently {
    since: Timestamp,
    before: u64,
    before_that: u64,
}

impl Learned {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            window: None,
            tokens_back_at: None,
            went: now.0,
            newest: now.0,
            last: None,
            recently: Recently {
                since: now,
                before: now.0,
                before_that: now.0,
            },
            watched_until: now,
        }
    }

    /// Takes what an answer told. `place` is the number of its request; without one it can only hold back more.
    pub(super) fn take(&mut self, told: Told, place: Option<Place>, now: Timestamp) {
        let place = place.filter(|it| it.settled < it.number && it.number <= self.went);
        if place.is_some_and(|it| it.number < self.newest) {
            return;
        }
        self.newest = place.map_or(self.newest, |it| it.number);
        let latest = now.plus_ms(MAX_AHEAD_MS);
        match told.tokens {
            Some(ToldTokens::NoneUntil(then)) if then > now => {
                self.tokens_back_at = self.tokens_back_at.max(Some(then.min(latest)));
            }
            Some(ToldTokens::Left) if place.is_some() => self.tokens_back_at = None,
            Some(ToldTokens::Left | ToldTokens::NoneUntil(_)) | None => {}
        }
        if let Some(told) = told.requests.filter(|told| told.resets_at > now) {
            let told = ToldRequests {
                resets_at: told.resets_at.min(latest),
                ..told
            };
            self.take_requests(told, place, now);
        }
    }

    fn take_requests(&mut self, told: ToldRequests, place: Option<Place>, now: Timestamp) {
        let less = |by: u64| {
            let by = u32::try_from(by).unwrap_or(u32::MAX);
            told.remaining.saturating_sub(by)
        };
        let at_least = place.map(|it| {
            let others = self.went.saturating_sub(it.settled).saturating_sub(1);
            less(others)
        });
        let at_most = less(place.map_or(0, |it| self.went.saturating_sub(it.number)));
        let lasts_ms = told.resets_at.remaining_ms(now);
        let window = match self.window {
            None => Window {
                limit: told.limit,
                left: at_most,
                resets_at: told.resets_at,
                lasts_ms,
            },
            // It may be older than what is known.
            Some(known) if place.is_none() && at_most >= known.left => known,
            Some(known) => Window {
                limit: told.limit.or(known.limit),
                left: known.left.max(at_least.unwrap_or(0)).min(at_most),
                resets_at: told.resets_at,
                lasts_ms: lasts_ms.max(known.lasts_ms),
            },
        };
        self.window = Some(window);
        self.watch();
    }

    /// A window that is nearly spent is watched for longer.
    fn watch(&mut self) {
        if let Some(window) = self.window.filter(|window| window.is_nearly_spent()) {
            let until = window.resets_at.plus_ms(WATCH_MS);
            self.watched_until = self.watched_until.max(until);
        }
    }

    /// Lets the time pass. `false` when nothing of it is true any more.
    pub(super) fn passes(&mut self, now: Timestamp) -> bool {
        self.tokens_back_at = self.tokens_back_at.filter(|then| *then > now);
        self.window = self.window.and_then(|window| window.at(now));
        if self.watched_until <= now {
            self.window = None;
        }
        self.window.is_some() || self.tokens_back_at.is_some()
    }

    /// When one may go that lets so many go first; `now` or earlier when at once. Nothing of it is older than `now`.
    pub(super) fn ready_at(&self, ahead: u32, now: Timestamp) -> Timestamp {
        let tokens = self.tokens_back_at.unwrap_or(now);
        let requests = self
            .window
            .map_or(now, |window| window.ready_at(self.last, ahead, now));
        tokens.max(requests)
    }

    /// One goes.
    pub(super) fn goes(&mut self, now: Timestamp) -> Place {
        self.recently.passes(self.went, now);
        let settled = self.recently.before_that.min(self.went);
        self.went = self.went.saturating_add(1);
        self.last = self.last.max(Some(now));
        if let Some(window) = &mut self.window {
            window.left = window.left.saturating_sub(1);
        }
        self.watch();
        Place {
            number: self.went,
            settled,
        }
    }

    /// Until when requests are counted.
    pub(super) fn ends_at(&self) -> Timestamp {
        let watched = self.window.map(|_| self.watched_until);
        watched.max(self.tokens_back_at).unwrap_or_default()
    }
}

impl Window {
    fn is_nearly_spent(self) -> bool {
        is_nearly_spent(self.limit, self.left)
    }

    /// What is known of it then, if anything.
    fn at(self, now: Timestamp) -> Option<Self> {
        if self.resets_at > now {
            return Some(self);
        }
        let limit = self.limit?;
        let lasts_ms = self.lasts_ms.max(SHORTEST_MS);
        let since_ms = now.ms_since(self.resets_at);
        let into_ms = since_ms.checked_rem(lasts_ms).unwrap_or(0);
        Some(Self {
            left: limit,
            resets_at: now.minus_ms(into_ms).plus_ms(lasts_ms),
            ..self
        })
    }

    fn ready_at(self, last: Option<Timestamp>, ahead: u32, now: Timestamp) -> Timestamp {
        if self.left <= ahead {
            return self.resets_at;
        }
        let Some(last) = last.filter(|_| self.is_nearly_spent()) else {
            return now;
        };
        // Of clocks that differ.
        let last = last.min(now);
        let rest_ms = self.resets_at.ms_since(last);
        let gaps = u64::from(self.left).saturating_add(1);
        let gap_ms = rest_ms.checked_div(gaps).unwrap_or(0);
        last.plus_ms(gap_ms.saturating_mul(u64::from(ahead).saturating_add(1)))
    }
}

impl Recently {
    fn passes(&mut self, went: u64, now: Timestamp) {
        let passed_ms = now.ms_since(self.since);
        if passed_ms < IN_ORDER_MS {
            return;
        }
        let is_long_ago = passed_ms >= IN_ORDER_MS.saturating_mul(2);
        self.before_that = if is_long_ago { went } else { self.before };
        self.before = went;
        self.since = now;
    }
}

#[cfg(test)]
mod tests;

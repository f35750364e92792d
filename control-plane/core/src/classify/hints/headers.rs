//! Waits that response headers state; of several the longest (decision 13).

use std::time::UNIX_EPOCH;

use crate::classify::{HintSource, RetryHint};
use crate::outcome::{MAX_HEADER_BYTES, MAX_HEADERS};
use crate::time::Timestamp;

use super::duration::{self, whole_number};
use super::{MAX_MS, hint, moment};

/// What is left of a window, and when it begins anew: header names that frame the window's name.
const WINDOWS: &[Window] = &[
    Window {
        reset: ("x-ratelimit-reset-", ""),
        remaining: ("x-ratelimit-remaining-", ""),
    },
    Window {
        reset: ("anthropic-ratelimit-", "-reset"),
        remaining: ("anthropic-ratelimit-", "-remaining"),
    },
];

struct Window {
    reset: (&'static str, &'static str),
    remaining: (&'static str, &'static str),
}

/// The longest wait that headers state.
pub(super) fn read(headers: &[(String, String)], now: Timestamp) -> Option<RetryHint> {
    let headers = headers.get(..MAX_HEADERS).unwrap_or(headers);
    let longest_ms = headers
        .iter()
        .filter(|(_, value)| value.len() <= MAX_HEADER_BYTES)
        .filter_map(|(name, value)| {
            let value = value.trim();
            match name.as_str() {
                "retry-after" => retry_after_ms(value, now),
                "retry-after-ms" => duration::whole(value, 1),
                "x-ratelimit-reset" => {
                    Some(moment::of_epoch(whole_number(value)?).remaining_ms(now))
                }
                name => window_ms(headers, name, value, now),
            }
        })
        .max()?;
    hint(longest_ms, MAX_MS, HintSource::Header)
}

/// How long `Retry-After` asks to wait, in ms: seconds, or an HTTP date (RFC 9110 §10.2.3). `None` for anything else.
#[must_use]
pub fn retry_after_ms(value: &str, now: Timestamp) -> Option<u64> {
    duration::whole(&value.to_ascii_lowercase(), 1_000).or_else(|| until_http_date_ms(value, now))
}

fn until_http_date_ms(value: &str, now: Timestamp) -> Option<u64> {
    let date = httpdate::parse_http_date(value).ok()?;
    let since_epoch = date.duration_since(UNIX_EPOCH).ok()?;
    let epoch_ms = u64::try_from(since_epoch.as_millis()).ok()?;
    Some(Timestamp(epoch_ms).remaining_ms(now))
}

/// The reset of one of several windows, such as `x-ratelimit-reset-tokens: 6m0s` or
/// `anthropic-ratelimit-requests-reset: 2025-08-29T15:29:00Z`. These stand in every answer, so a window that has
/// something left says nothing about the failure.
fn window_ms(headers: &[(String, String)], name: &str, value: &str, now: Timestamp) -> Option<u64> {
    let (window, kind) = WINDOWS.iter().find_map(|window| {
        let (before, after) = window.reset;
        let kind = name.strip_prefix(before)?.strip_suffix(after)?;
        Some((window, kind))
    })?;
    let (before, after) = window.remaining;
    let is_remaining = |name: &str| {
        name.strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            == Some(kind)
    };
    let left = headers
        .iter()
        .find(|(name, _)| is_remaining(name))
        .and_then(|(_, value)| whole_number(value.trim()));
    if left.is_some_and(|left| left > 0) {
        return None;
    }
    Some(reset_at(value, now)?.remaining_ms(now))
}

/// When a window begins anew, from a moment, an epoch or a length of time.
pub(crate) fn reset_at(value: &str, now: Timestamp) -> Option<Timestamp> {
    let value = value.to_ascii_lowercase();
    moment::leading(&value, now).or_else(|| Some(now.plus_ms(relative_or_epoch_ms(&value, now)?)))
}

/// A number so large that nobody waits that long is a moment.
fn relative_or_epoch_ms(value: &str, now: Timestamp) -> Option<u64> {
    const SMALLEST_EPOCH_SECONDS: u64 = 100_000_000;
    match whole_number(value) {
        Some(number) if number >= SMALLEST_EPOCH_SECONDS => {
            Some(moment::of_epoch(number).remaining_ms(now))
        }
        _ => duration::whole(value, 1_000),
    }
}

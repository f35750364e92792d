//! How long an upstream asks to wait (`failure-state.md` §3.5, decisions 4 and 13).
//!
//! Read from headers: `Retry-After` as seconds, with a fraction, with a unit or as an HTTP date,
//! `retry-after-ms`, and `x-ratelimit-reset` as an epoch; the longest of them. A past, zero or negative
//! wait is no hint, and a long one is cut.

use std::time::UNIX_EPOCH;

use crate::time::Timestamp;

use super::{HintSource, RetryHint};

/// Longest wait that is believed, in ms: 30 days.
pub(super) const MAX_HINT_MS: u64 = 30 * 86_400_000;

/// Above this, an epoch is in ms, not in seconds.
const LARGEST_EPOCH_SECONDS: u64 = 10_000_000_000;

type Reader = fn(&str, Timestamp) -> Option<u64>;

/// Headers that state a wait, and how each is read to ms.
const HEADERS: &[(&str, Reader)] = &[
    ("retry-after", retry_after_ms),
    ("retry-after-ms", plain_ms),
    ("x-ratelimit-reset", until_epoch_ms),
];

/// The longest wait that headers state.
pub(super) fn from_headers(headers: &[(String, String)], now: Timestamp) -> Option<RetryHint> {
    headers
        .iter()
        .filter_map(|(name, value)| {
            let (_, read) = HEADERS.iter().find(|(header, _)| header == name)?;
            read(value.trim(), now)
        })
        .filter(|wait_ms| *wait_ms > 0)
        .max()
        .map(|wait_ms| RetryHint {
            wait_ms: wait_ms.min(MAX_HINT_MS),
            source: HintSource::Header,
        })
}

fn retry_after_ms(value: &str, now: Timestamp) -> Option<u64> {
    duration_ms(value, 1_000).or_else(|| until_http_date_ms(value, now))
}

fn plain_ms(value: &str, _now: Timestamp) -> Option<u64> {
    duration_ms(value, 1)
}

fn until_epoch_ms(value: &str, now: Timestamp) -> Option<u64> {
    let epoch = whole_number(value)?;
    let epoch_ms = if epoch > LARGEST_EPOCH_SECONDS {
        epoch
    } else {
        epoch.saturating_mul(1_000)
    };
    Some(Timestamp(epoch_ms).remaining_ms(now))
}

fn until_http_date_ms(value: &str, now: Timestamp) -> Option<u64> {
    let date = httpdate::parse_http_date(value).ok()?;
    let since_epoch = date.duration_since(UNIX_EPOCH).ok()?;
    let epoch_ms = u64::try_from(since_epoch.as_millis()).ok()?;
    Some(Timestamp(epoch_ms).remaining_ms(now))
}

/// `120`, `1.5`, `60s`, `1500ms`, `2m`, `1h` in ms; a bare number counts in `bare_unit_ms`.
fn duration_ms(value: &str, bare_unit_ms: u64) -> Option<u64> {
    let number_end = value
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(value.len());
    let (number, unit) = value.split_at_checked(number_end)?;
    let unit_ms = match unit {
        "" => bare_unit_ms,
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole_ms = whole_number(whole)?.saturating_mul(unit_ms);
    Some(whole_ms.saturating_add(fraction_ms(fraction, unit_ms)?))
}

/// The fraction of a unit in ms, rounded down, to nine digits.
fn fraction_ms(digits: &str, unit_ms: u64) -> Option<u64> {
    whole_number(digits)?;
    let mut place_ms_e9 = unit_ms.saturating_mul(1_000_000_000);
    let mut sum: u64 = 0;
    for digit in digits.bytes().take(9) {
        place_ms_e9 /= 10;
        let digit = u64::from(digit.saturating_sub(b'0'));
        sum = sum.saturating_add(place_ms_e9.saturating_mul(digit));
    }
    Some(sum / 1_000_000_000)
}

/// Digits and nothing else; saturates.
fn whole_number(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(digits.bytes().fold(0_u64, |number, digit| {
        number
            .saturating_mul(10)
            .saturating_add(u64::from(digit.saturating_sub(b'0')))
    }))
}

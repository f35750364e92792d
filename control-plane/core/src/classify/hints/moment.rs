//! Moments: `2025-08-29T15:29:00Z`, `2025-08-29 15:29:00 +08:00`, `08-29 15:29 UTC`, and epochs.
//!
//! What names no zone is meant in UTC (`failure-state.md` §3.5).

use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;

use crate::time::Timestamp;

use super::duration::whole_number;

/// Above this, an epoch is in ms, not in seconds.
const LARGEST_EPOCH_SECONDS: u64 = 10_000_000_000;

/// A date without a year that lies further ahead than this was meant for the past, in ms. Taking it for next
/// year's would turn a clock that is a minute off into a wait of a year.
const FURTHEST_YEARLESS_MS: u64 = 31 * 86_400_000;

/// The moment of an epoch in seconds or ms.
pub(super) fn of_epoch(epoch: u64) -> Timestamp {
    Timestamp(if epoch > LARGEST_EPOCH_SECONDS {
        epoch
    } else {
        epoch.saturating_mul(1_000)
    })
}

/// Reads the moment that a text in lower case begins with.
pub(super) fn leading(text: &str, now: Timestamp) -> Option<Timestamp> {
    iso(text).or_else(|| yearless(text, now))
}

/// A date, a `t` or blank, a time of day and perhaps a zone.
fn iso(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_at_checked(10)?;
    let date: Date = date.parse().ok()?;
    let rest = rest.strip_prefix(['t', ' '])?;
    let (time, zone) = time_of_day(rest)?;
    epoch_ms(date, time, offset(zone)?)
}

/// A month and a day of this year or the next, and a time of day, in UTC.
fn yearless(text: &str, now: Timestamp) -> Option<Timestamp> {
    let (day, rest) = text.split_at_checked(5)?;
    let (month, day) = day.split_once('-')?;
    let number = |digits: &str| i8::try_from(whole_number(digits)?).ok();
    let (month, day) = (number(month)?, number(day)?);
    let (time, _) = time_of_day(rest.strip_prefix(' ')?)?;
    let now_ms = i64::try_from(now.0).ok()?;
    let this_year = Offset::UTC
        .to_datetime(jiff::Timestamp::from_millisecond(now_ms).ok()?)
        .year();
    [this_year, this_year.saturating_add(1)]
        .into_iter()
        .filter_map(|year| epoch_ms(Date::new(year, month, day).ok()?, time, Offset::UTC))
        .find(|moment| *moment > now)
        .filter(|moment| moment.remaining_ms(now) <= FURTHEST_YEARLESS_MS)
}

/// `15:29`, `15:29:00`, `15:29:00.123`; a point at the end belongs to the sentence.
fn time_of_day(text: &str) -> Option<(jiff::civil::Time, &str)> {
    let end = text
        .find(|part: char| !part.is_ascii_digit() && !matches!(part, ':' | '.'))
        .unwrap_or(text.len());
    let (time, rest) = text.split_at_checked(end)?;
    let time = time.trim_end_matches('.');
    if !time.contains(':') {
        return None;
    }
    Some((time.parse().ok()?, rest))
}

/// The zone that follows a time of day; `None` when it is there and makes no sense.
fn offset(text: &str) -> Option<Offset> {
    let text = text.strip_prefix(' ').unwrap_or(text);
    let sign = match text.as_bytes().first() {
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return Some(Offset::UTC),
    };
    let digits = text.get(1..)?;
    let end = digits
        .find(|part: char| !part.is_ascii_digit() && part != ':')
        .unwrap_or(digits.len());
    let digits = digits.get(..end)?.replace(':', "");
    let (hours, minutes) = match digits.len() {
        2 => (digits.as_str(), "0"),
        4 => digits.split_at_checked(2)?,
        _ => return None,
    };
    let minutes = whole_number(hours)?
        .saturating_mul(60)
        .saturating_add(whole_number(minutes)?);
    let seconds = i32::try_from(minutes.saturating_mul(60)).ok()?;
    Offset::from_seconds(seconds.saturating_mul(sign)).ok()
}

fn epoch_ms(date: Date, time: jiff::civil::Time, offset: Offset) -> Option<Timestamp> {
    let at = offset
        .to_timestamp(DateTime::from_parts(date, time))
        .ok()?
        .as_millisecond();
    u64::try_from(at).ok().map(Timestamp)
}

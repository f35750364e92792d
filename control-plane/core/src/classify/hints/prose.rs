//! Waits that a text states in words, after one of the markers (`failure-state.md` §3.5).

use crate::classify::phrases::Marker;
use crate::classify::words::Found;
use crate::classify::{HintSource, RetryHint};
use crate::time::Timestamp;

use super::{MAX_GOOGLE_MS, MAX_MS, duration, hint, moment};

/// How much of the text after a marker is looked at, in bytes.
const WINDOW: usize = 64;

/// The first wait that a text in lower case states.
pub(super) fn read(text: &str, found: &Found, now: Timestamp) -> Option<RetryHint> {
    found.markers.iter().find_map(|(marker, end)| {
        let cap_ms = match marker {
            Marker::RetryIn => MAX_GOOGLE_MS,
            Marker::AgainIn
            | Marker::AgainAt
            | Marker::RetryAfter
            | Marker::ResetIn
            | Marker::ResetAt => MAX_MS,
            Marker::QuotaForModel => return None,
        };
        hint(
            value_ms(*marker, after(text, *end), now)?,
            cap_ms,
            HintSource::Body,
        )
    })
}

/// How long until the quota begins anew, in ms, where a text in lower case says so (§7.1).
pub(in crate::classify) fn reset_ms(text: &str, found: &Found, now: Timestamp) -> Option<u64> {
    found
        .markers
        .iter()
        .filter(|(marker, _)| matches!(marker, Marker::ResetIn | Marker::ResetAt))
        .find_map(|(marker, end)| value_ms(*marker, after(text, *end), now))
        .filter(|ms| *ms > 0)
        .map(|ms| ms.min(MAX_MS))
}

fn value_ms(marker: Marker, value: &str, now: Timestamp) -> Option<u64> {
    let length = || duration::leading(value).map(|(ms, _)| ms);
    let until = || moment::leading(value, now).map(|moment| moment.remaining_ms(now));
    match marker {
        Marker::RetryIn | Marker::AgainIn | Marker::ResetIn => length(),
        Marker::AgainAt | Marker::ResetAt => until(),
        Marker::RetryAfter => until().or_else(length),
        Marker::QuotaForModel => None,
    }
}

/// The text after a marker, without what stands between a word and its value.
fn after(text: &str, end: usize) -> &str {
    let stop = text.floor_char_boundary(end.saturating_add(WINDOW));
    text.get(end..stop)
        .unwrap_or_default()
        .trim_start_matches([' ', ':', '"', '\'', '`', '(', '~'])
}

//! Waits that a structured error states (`failure-state.md` §3.5, decision 13).

use serde_json::Value;

use crate::classify::{HintSource, RetryHint};
use crate::time::Timestamp;

use super::duration;
use super::{MAX_GOOGLE_MS, MAX_MS, hint, moment};

/// Most details of an error that are looked at.
const MAX_DETAILS: usize = 32;
/// Longest text that can be a wait, in bytes.
const MAX_VALUE_BYTES: usize = 64;

/// How a member states a wait.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// A number of ms.
    Milliseconds,
    /// A number of seconds, a length as text, or a moment as text.
    Seconds,
    /// A moment: text, or an epoch.
    Moment,
}

/// Members of an error or of the body that state a wait, in the order of precedence.
const MEMBERS: &[(&str, Shape)] = &[
    ("retry_after_ms", Shape::Milliseconds),
    ("retryAfterMs", Shape::Milliseconds),
    ("retryAfter", Shape::Seconds),
    ("retry_after", Shape::Seconds),
    ("reset_seconds", Shape::Seconds),
    ("resets_in_seconds", Shape::Seconds),
    ("reset_at", Shape::Moment),
    ("resets_at", Shape::Moment),
];

/// The wait that a body, or the error in it, states.
pub(super) fn read((body, error): (&Value, &Value), now: Timestamp) -> Option<RetryHint> {
    retry_info(error).or_else(|| {
        MEMBERS.iter().find_map(|(name, shape)| {
            [error, body].into_iter().find_map(|holder| {
                let wait_ms = wait_ms(holder.get(*name)?, *shape, now)?;
                hint(wait_ms, MAX_MS, HintSource::Body)
            })
        })
    })
}

/// `error.details[]` with google's `RetryInfo`.
fn retry_info(error: &Value) -> Option<RetryHint> {
    let details = error.get("details")?.as_array()?;
    details.iter().take(MAX_DETAILS).find_map(|detail| {
        let kind = detail.get("@type").or_else(|| detail.get("type"))?;
        if !kind.as_str()?.contains("RetryInfo") {
            return None;
        }
        let wait_ms = wait_ms_of_length(detail.get("retryDelay")?, 1_000)?;
        hint(wait_ms, MAX_GOOGLE_MS, HintSource::GoogleRetryInfo)
    })
}

fn wait_ms(value: &Value, shape: Shape, now: Timestamp) -> Option<u64> {
    match shape {
        Shape::Milliseconds => wait_ms_of_length(value, 1),
        Shape::Seconds => wait_ms_of_length(value, 1_000).or_else(|| wait_ms_until(value, now)),
        Shape::Moment => wait_ms_until(value, now),
    }
}

/// A number of units, or a length as text.
fn wait_ms_of_length(value: &Value, unit_ms: u64) -> Option<u64> {
    match value {
        Value::Number(number) => number_ms(number, unit_ms),
        Value::String(text) => duration::whole(short(text)?.as_str(), unit_ms),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn wait_ms_until(value: &Value, now: Timestamp) -> Option<u64> {
    let moment = match value {
        Value::Number(number) => moment::of_epoch(number_ms(number, 1)?),
        Value::String(text) => moment::leading(short(text)?.as_str(), now)?,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    Some(moment.remaining_ms(now))
}

/// A number of units in ms, rounded down; negative ones are none and large ones saturate.
fn number_ms(number: &serde_json::Number, unit_ms: u64) -> Option<u64> {
    if let Some(whole) = number.as_u64() {
        return Some(whole.saturating_mul(unit_ms));
    }
    let duration = std::time::Duration::try_from_secs_f64(number.as_f64()?);
    let number_of_units = match duration {
        Ok(units) => units,
        Err(_) if number.as_f64()? > 0.0 => return Some(u64::MAX),
        Err(_) => return None,
    };
    let thousandths = u64::try_from(number_of_units.as_millis()).unwrap_or(u64::MAX);
    Some(thousandths.saturating_mul(unit_ms) / 1_000)
}

fn short(text: &str) -> Option<String> {
    let text = text.trim();
    (text.len() <= MAX_VALUE_BYTES).then(|| text.to_ascii_lowercase())
}

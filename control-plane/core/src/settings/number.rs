//! Numbers as people store them: as such or as text, with or without a fraction.

use serde_json::Value;

/// A finite number without its fraction, saturating; `None` for everything else, blank text included
/// (`sessions-and-streams.md` §3.3, value coercion).
pub(super) fn truncated(value: &Value) -> Option<i128> {
    match value {
        Value::Number(number) => match number.as_i128() {
            Some(whole) => Some(whole),
            None => number.as_f64().and_then(whole_part),
        },
        Value::String(text) => truncated_text(text),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A finite number with its fraction; `None` for everything else.
pub(super) fn fraction(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    number.is_finite().then_some(number)
}

/// A finite number of a text without its fraction; white space around it does not count.
pub(super) fn truncated_text(text: &str) -> Option<i128> {
    let text = text.trim();
    match text.parse::<i128>() {
        Ok(whole) => Some(whole),
        Err(_) => text.parse::<f64>().ok().and_then(whole_part),
    }
}

fn whole_part(number: f64) -> Option<i128> {
    if !number.is_finite() {
        return None;
    }
    let saturated = if number < 0.0 { i128::MIN } else { i128::MAX };
    Some(
        format!("{:.0}", number.trunc())
            .parse()
            .unwrap_or(saturated),
    )
}

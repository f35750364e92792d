//! Lengths of time: `120`, `1.5`, `60s`, `1500ms`, `6m0s`, `1h2m3s`, `26.66s`, `20 seconds`, `13 days`.

/// Most parts of one length, such as `1h` `2m` `3s`.
const MAX_PARTS: usize = 6;

/// Reads a text that is a length and nothing else, in ms. A bare number counts in `bare_unit_ms`.
pub(super) fn whole(text: &str, bare_unit_ms: u64) -> Option<u64> {
    let (number, rest) = number(text)?;
    if rest.is_empty() {
        return number_ms(number, bare_unit_ms);
    }
    let (ms, rest) = leading(text)?;
    rest.is_empty().then_some(ms)
}

/// Reads the length that a text in lower case begins with, in ms, and gives what follows it.
pub(super) fn leading(text: &str) -> Option<(u64, &str)> {
    let (mut sum_ms, mut rest) = part(text)?;
    for _ in 1..MAX_PARTS {
        let next = rest.trim_start_matches([' ', ',']);
        let next = next.strip_prefix("and ").unwrap_or(next);
        let Some((ms, after)) = part(next) else { break };
        sum_ms = sum_ms.saturating_add(ms);
        rest = after;
    }
    Some((sum_ms, rest))
}

/// A number with its unit.
fn part(text: &str) -> Option<(u64, &str)> {
    let (number, rest) = number(text)?;
    let rest = rest.strip_prefix(' ').unwrap_or(rest);
    let end = rest
        .find(|letter: char| !letter.is_ascii_alphabetic())
        .unwrap_or(rest.len());
    let (unit, rest) = rest.split_at_checked(end)?;
    Some((number_ms(number, unit_ms(unit)?)?, rest))
}

fn unit_ms(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" | "msec" | "millisecond" | "milliseconds" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        _ => return None,
    })
}

/// Splits off digits with at most one point. A text that begins otherwise, as with a sign, is no number.
fn number(text: &str) -> Option<(&str, &str)> {
    let end = text
        .find(|digit: char| !digit.is_ascii_digit() && digit != '.')
        .unwrap_or(text.len());
    let (number, rest) = text.split_at_checked(end)?;
    (!number.is_empty()).then_some((number, rest))
}

/// A number of units in ms, rounded down; saturates.
fn number_ms(number: &str, unit_ms: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole_ms = whole_number(whole)?.saturating_mul(unit_ms);
    Some(whole_ms.saturating_add(fraction_ms(fraction, unit_ms)?))
}

/// The fraction of a unit in ms, to nine digits.
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
pub(super) fn whole_number(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(digits.bytes().fold(0_u64, |number, digit| {
        number
            .saturating_mul(10)
            .saturating_add(u64::from(digit.saturating_sub(b'0')))
    }))
}

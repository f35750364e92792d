//! Quotas that the answer of a quota endpoint tells.
//!
//! What is not there, or is `null`, is not known. What is there and cannot be read makes the whole answer one that is
//! not understood: it is not what the configuration says it is. A moment too far away, or past, is not believed, as in headers.

use serde_json::Value;

use crate::config::{Measure, QuotaEndpoint, ResetFormat, WindowPlace};
use crate::number::Finite;
use crate::telemetry::{QuotaSnapshot, QuotaWindow};
use crate::time::Timestamp;

use super::believed;

/// Why an answer tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUnderstood {
    /// It is no JSON.
    #[error("it is no JSON")]
    NoJson,
    /// A member that should be a number is none.
    #[error("window {0}: a member is no number")]
    NoNumber(&'static str),
    /// A member that should say when a window begins anew does not.
    #[error("window {0}: resetsAt is not in the format that is configured")]
    NoMoment(&'static str),
    /// The member that should say whether the limit is reached does not.
    #[error("limitReached is neither true nor false")]
    NoFlag,
    /// Nothing that the configuration names is in it.
    #[error("nothing that is configured is in it")]
    Nothing,
}

/// What the body of an answer tells that came at `now`.
///
/// # Errors
/// [`NotUnderstood`]; it repeats nothing of the answer.
pub fn read(
    endpoint: &QuotaEndpoint,
    body: &[u8],
    now: Timestamp,
) -> Result<QuotaSnapshot, NotUnderstood> {
    let answer: Value = serde_json::from_slice(body).map_err(|_| NotUnderstood::NoJson)?;
    let reader = Reader {
        answer: &answer,
        format: endpoint.reset_format,
        now,
    };
    let places = &endpoint.windows;
    let window = |name, place: &Option<WindowPlace>| match place {
        Some(place) => reader.window(name, place),
        None => Ok(None),
    };
    let mut quota = QuotaSnapshot {
        session: window("session", &places.session)?,
        weekly: window("weekly", &places.weekly)?,
        monthly: window("monthly", &places.monthly)?,
        observed_at: now,
        ..QuotaSnapshot::default()
    };
    for (model, place) in &places.weekly_by_model {
        if let Some(window) = reader.window("weeklyByModel", place)? {
            quota.weekly_by_model.push((model.clone(), window));
        }
    }
    let flag = endpoint.limit_reached.as_deref();
    let flag = flag.and_then(|pointer| reader.value(pointer));
    if let Some(flag) = flag {
        quota.limit_reached = flag.as_bool().ok_or(NotUnderstood::NoFlag)?;
    }
    if quota.names_no_window() && flag.is_none() {
        return Err(NotUnderstood::Nothing);
    }
    Ok(quota)
}

struct Reader<'a> {
    answer: &'a Value,
    format: ResetFormat,
    now: Timestamp,
}

impl<'a> Reader<'a> {
    fn value(&self, pointer: &str) -> Option<&'a Value> {
        self.answer.pointer(pointer).filter(|it| !it.is_null())
    }

    fn window(
        &self,
        name: &'static str,
        place: &WindowPlace,
    ) -> Result<Option<QuotaWindow>, NotUnderstood> {
        let Some(used) = self.used(name, place)? else {
            return Ok(None);
        };
        let resets_at = match &place.resets_at {
            Some(pointer) => self.moment(name, pointer)?,
            None => None,
        };
        Ok(Some(QuotaWindow {
            used,
            resets_at,
            observed_at: None,
        }))
    }

    fn used(
        &self,
        name: &'static str,
        place: &WindowPlace,
    ) -> Result<Option<Finite>, NotUnderstood> {
        let Some(measure) = place.measure() else {
            return Ok(None);
        };
        let number = |pointer| self.number(name, pointer);
        let of_limit = |part, limit| {
            let (Some(part), Some(limit)) = (number(part)?, number(limit)?) else {
                return Ok(None);
            };
            // Nothing is known of a limit of 0; -1 stands for none.
            Ok((limit > 0.0).then(|| part / limit))
        };
        let used = match measure {
            Measure::UsedShare(pointer) => number(pointer)?,
            Measure::UsedPercent(pointer) => number(pointer)?.map(|percent| percent / 100.0),
            Measure::RemainingPercent(pointer) => {
                number(pointer)?.map(|percent| 1.0 - percent / 100.0)
            }
            Measure::Used { used, limit } => of_limit(used, limit)?,
            Measure::Remaining { remaining, limit } => {
                of_limit(remaining, limit)?.map(|left| 1.0 - left)
            }
        };
        let share = used.map(|used| Finite::new(used.clamp(0.0, 1.0)));
        share.transpose().map_err(|_| NotUnderstood::NoNumber(name))
    }

    /// A number, or a text that is one: some endpoints write large ones so.
    fn number(&self, name: &'static str, pointer: &str) -> Result<Option<f64>, NotUnderstood> {
        let Some(value) = self.value(pointer) else {
            return Ok(None);
        };
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        match number.filter(|number| number.is_finite()) {
            Some(number) => Ok(Some(number)),
            None => Err(NotUnderstood::NoNumber(name)),
        }
    }

    fn moment(
        &self,
        name: &'static str,
        pointer: &str,
    ) -> Result<Option<Timestamp>, NotUnderstood> {
        let Some(value) = self.value(pointer) else {
            return Ok(None);
        };
        let unreadable = NotUnderstood::NoMoment(name);
        let moment = if self.format == ResetFormat::Rfc3339 {
            let text = value.as_str().ok_or(unreadable)?.trim();
            let moment: jiff::Timestamp = text.parse().map_err(|_| unreadable)?;
            Timestamp(u64::try_from(moment.as_millisecond()).unwrap_or(0))
        } else {
            let number = self.number(name, pointer).map_err(|_| unreadable)?;
            let number = number.ok_or(unreadable)?;
            match self.format {
                ResetFormat::Rfc3339 => return Err(unreadable),
                ResetFormat::EpochSeconds => Timestamp(whole_ms(number * 1_000.0)),
                ResetFormat::EpochMilliseconds => Timestamp(whole_ms(number)),
                // Nothing begins anew at this very moment for long: it stands for "not known".
                ResetFormat::SecondsFromNow if number <= 0.0 => return Ok(None),
                ResetFormat::SecondsFromNow => self.now.plus_ms(whole_ms(number * 1_000.0)),
            }
        };
        Ok(believed(moment, self.now))
    }
}

/// In whole ms, at least 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, which is what is wanted of what no clock shows"
)]
fn whole_ms(ms: f64) -> u64 {
    ms as u64
}

#[cfg(test)]
mod tests;

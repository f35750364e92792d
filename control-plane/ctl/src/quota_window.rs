//! A window of a quota as people write it: `40%`, `0.4@2h30m`, `40%@2026-01-31T12:00:00Z`.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// What is used of a window, and when it begins anew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct QuotaWindow {
    /// Share that is used, 0..=1.
    pub(crate) used: f64,
    /// When it begins anew.
    pub(crate) reset: Option<Reset>,
}

/// When a window begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    /// At a moment.
    At(SystemTime),
    /// So long from now.
    After(Duration),
}

impl QuotaWindow {
    /// Reads `MODEL=USED[@RESET]`.
    pub(crate) fn of_model(text: &str) -> Result<(String, Self), String> {
        // A model may have a `=` in it, a window has none.
        let (model, window) = text.rsplit_once('=').ok_or("expected MODEL=USED[@RESET]")?;
        if model.is_empty() {
            return Err("the model is missing".to_owned());
        }
        Ok((model.to_owned(), window.parse()?))
    }
}

impl FromStr for QuotaWindow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (used, reset) = match text.split_once('@') {
            Some((used, reset)) => (used, Some(reset)),
            None => (text, None),
        };
        Ok(Self {
            used: share(used)?,
            reset: reset.map(Reset::from_str).transpose()?,
        })
    }
}

impl FromStr for Reset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = humantime::parse_rfc3339_weak(text).map(Self::At);
        at.or_else(|_| humantime::parse_duration(text).map(Self::After))
            .map_err(|_| format!("{text} is neither a moment nor a length of time"))
    }
}

impl Reset {
    /// In ms since the Unix epoch.
    pub(crate) fn unix_ms(self, now: SystemTime) -> Option<u64> {
        let at = match self {
            Self::At(at) => at,
            Self::After(length) => now.checked_add(length)?,
        };
        unix_ms(at)
    }
}

/// In ms since the Unix epoch; nothing before it.
pub(crate) fn unix_ms(moment: SystemTime) -> Option<u64> {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

fn share(text: &str) -> Result<f64, String> {
    let (number, whole) = match text.strip_suffix('%') {
        Some(percent) => (percent, 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().ok().map(|number| number / whole);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| format!("{text} is no share: expected 0 to 1, or 0% to 100%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_share_and_perhaps_an_end() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        for (text, used, unix_ms) in [
            ("0.4", 0.4, None),
            ("40%", 0.4, None),
            ("0", 0.0, None),
            ("100%@2h 30m", 1.0, Some(1_000_000 + 9_000_000)),
            ("1@1970-01-01T00:00:02Z", 1.0, Some(2_000)),
            ("0@1970-01-02 00:00:00", 0.0, Some(86_400_000)),
        ] {
            let window: QuotaWindow = text.parse().unwrap();
            assert!((window.used - used).abs() < 1e-9, "{text}: {window:?}");
            let reset = window.reset.and_then(|reset| reset.unix_ms(now));
            assert_eq!(reset, unix_ms, "{text}");
        }
        let (model, window) = QuotaWindow::of_model("a=b=50%").unwrap();
        assert_eq!((model.as_str(), window.used), ("a=b", 0.5));
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for text in [
            "", "40", "-1%", "101%", "NaN", "inf", "half", "0.4@", "0.4@soon", "@2h",
        ] {
            assert!(text.parse::<QuotaWindow>().is_err(), "{text}");
        }
        for text in ["", "50%", "=50%", "m=", "m=2"] {
            assert!(QuotaWindow::of_model(text).is_err(), "{text}");
        }
    }
}

//! Quotas of Codex accounts: two windows, `primary` and `secondary`.
//!
//! Which window is which depends on the plan: often the primary one is that of the session and the secondary one the
//! weekly one, but an account may have a weekly window alone, which then is the primary one. So its length decides,
//! where it is told. A length of 0 says that there is no such window. The headers of further limits, of single models
//! (`x-codex-<limit>-primary-…`), are not read: they do not say which model.

use crate::number::Finite;
use crate::telemetry::QuotaWindow;
use crate::time::Timestamp;

use super::{count, end, share};

const PREFIX: &str = "x-codex-";
/// Shorter windows have no name.
const SESSION_MINUTES: u32 = 60;
/// The session's window is at most a day long.
const LONGEST_SESSION_MINUTES: u32 = 24 * 60;
/// A week's at most eight.
const LONGEST_WEEK_MINUTES: u32 = 8 * 24 * 60;

/// What the headers told of the two windows.
#[derive(Default)]
pub(super) struct Slots {
    primary: Slot,
    secondary: Slot,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    used: Option<Finite>,
    minutes: Option<u32>,
    resets_after: Option<Timestamp>,
    resets_at: Option<Timestamp>,
}

/// The windows by their names.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Windows {
    pub(super) session: Option<QuotaWindow>,
    pub(super) weekly: Option<QuotaWindow>,
    pub(super) monthly: Option<QuotaWindow>,
    /// Too short for a name.
    pub(super) short: Option<QuotaWindow>,
}

/// Whether a header may tell of one of them.
pub(super) fn is_told_in(name: &str) -> bool {
    slot_and_member(name).is_some()
}

fn slot_and_member(name: &str) -> Option<(bool, &str)> {
    let rest = name.strip_prefix(PREFIX)?;
    let primary = rest.strip_prefix("primary-").map(|member| (true, member));
    primary.or_else(|| Some((false, rest.strip_prefix("secondary-")?)))
}

impl Slots {
    pub(super) fn take(&mut self, name: &str, value: &str, now: Timestamp) {
        let Some((is_primary, member)) = slot_and_member(name) else {
            return;
        };
        let slot = if is_primary {
            &mut self.primary
        } else {
            &mut self.secondary
        };
        match member {
            "used-percent" => slot.used = percent(value),
            "window-minutes" => slot.minutes = count(value),
            "reset-after-seconds" => slot.resets_after = moment(value, now),
            "reset-at" => slot.resets_at = moment(value, now),
            _ => {}
        }
    }

    /// Of two windows with one name the fuller one counts.
    pub(super) fn windows(self) -> Windows {
        let mut windows = Windows::default();
        let slots = [
            (self.primary, 5 * SESSION_MINUTES),
            (self.secondary, LONGEST_WEEK_MINUTES),
        ];
        for (slot, usual) in slots {
            let Some(used) = slot.used else { continue };
            let place = match slot.minutes.unwrap_or(usual) {
                0 => continue,
                minutes if minutes < SESSION_MINUTES => &mut windows.short,
                minutes if minutes <= LONGEST_SESSION_MINUTES => &mut windows.session,
                minutes if minutes <= LONGEST_WEEK_MINUTES => &mut windows.weekly,
                _ => &mut windows.monthly,
            };
            let window = QuotaWindow {
                used,
                // It does not depend on whose clock is right.
                resets_at: slot.resets_after.or(slot.resets_at),
                observed_at: None,
            };
            if place.is_none_or(|other| other.used < window.used) {
                *place = Some(window);
            }
        }
        windows
    }
}

/// A moment, or seconds from now. It is not known where 0 is told.
fn moment(value: &str, now: Timestamp) -> Option<Timestamp> {
    end(value, now).filter(|_| count(value) != Some(0))
}

fn percent(value: &str) -> Option<Finite> {
    let percent: f64 = value.parse().ok()?;
    share(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// 2025-08-29T15:00:00Z
    const NOW: Timestamp = Timestamp(1_756_479_600_000);

    fn told(headers: &[(&str, &str)]) -> Windows {
        let mut slots = Slots::default();
        for (name, value) in headers {
            slots.take(name, value, NOW);
        }
        slots.windows()
    }

    fn window(used: f64, resets_in_ms: Option<u64>) -> QuotaWindow {
        QuotaWindow {
            used: Finite::new(used).unwrap(),
            resets_at: resets_in_ms.map(|ms| NOW.plus_ms(ms)),
            observed_at: None,
        }
    }

    const PRIMARY: &str = "x-codex-primary-used-percent";
    const PRIMARY_MINUTES: &str = "x-codex-primary-window-minutes";
    const PRIMARY_AFTER: &str = "x-codex-primary-reset-after-seconds";
    const PRIMARY_AT: &str = "x-codex-primary-reset-at";
    const SECONDARY: &str = "x-codex-secondary-used-percent";
    const SECONDARY_MINUTES: &str = "x-codex-secondary-window-minutes";

    #[test]
    fn session_and_week_have_their_names() {
        let windows = told(&[
            (PRIMARY, "37.5"),
            (PRIMARY_MINUTES, "300"),
            (PRIMARY_AFTER, "3600"),
            (PRIMARY_AT, "1756483300"),
            (SECONDARY, "110"),
            (SECONDARY_MINUTES, "10080"),
            ("x-codex-secondary-reset-at", "1756566000"),
        ]);
        let expected = Windows {
            session: Some(window(0.375, Some(3_600_000))),
            weekly: Some(window(1.0, Some(86_400_000))),
            ..Windows::default()
        };
        assert_eq!(windows, expected);
    }

    #[rstest]
    #[case::not_told(None, "session")]
    #[case::half_an_hour(Some("59"), "short")]
    #[case::an_hour(Some("60"), "session")]
    #[case::five_hours_and_a_bit(Some("299"), "session")]
    #[case::a_day(Some("1440"), "session")]
    #[case::a_week(Some("10080"), "weekly")]
    #[case::a_month(Some("43200"), "monthly")]
    #[case::no_number(Some("long"), "session")]
    fn its_length_names_the_primary_window(#[case] minutes: Option<&str>, #[case] name: &str) {
        let mut headers = vec![(PRIMARY, "90")];
        headers.extend(minutes.map(|minutes| (PRIMARY_MINUTES, minutes)));
        let windows = told(&headers);
        let named = match name {
            "session" => windows.session,
            "weekly" => windows.weekly,
            "monthly" => windows.monthly,
            _ => windows.short,
        };
        assert_eq!(named, Some(window(0.9, None)), "{windows:?}");
    }

    #[test]
    fn a_weekly_window_alone_is_the_primary_one() {
        let windows = told(&[
            (PRIMARY, "100"),
            (PRIMARY_MINUTES, "10080"),
            (SECONDARY, "0"),
            (SECONDARY_MINUTES, "0"),
            ("x-codex-secondary-reset-at", ""),
        ]);
        let expected = Windows {
            weekly: Some(window(1.0, None)),
            ..Windows::default()
        };
        assert_eq!(windows, expected);
    }

    #[test]
    fn of_two_of_one_length_the_fuller_one_counts() {
        let (low, high) = ((PRIMARY, "10"), (SECONDARY, "20"));
        let headers = [low, high, (SECONDARY_MINUTES, "300")];
        assert_eq!(told(&headers).session, Some(window(0.2, None)));
        let headers = [(PRIMARY, "30"), high, (SECONDARY_MINUTES, "300")];
        assert_eq!(told(&headers).session, Some(window(0.3, None)));
    }

    #[rstest]
    #[case::now(PRIMARY_AFTER, "0")]
    #[case::negative(PRIMARY_AFTER, "-1")]
    #[case::too_far(PRIMARY_AFTER, "2678401")]
    #[case::never(PRIMARY_AT, "0")]
    #[case::empty(PRIMARY_AT, "")]
    fn an_end_that_is_none_is_not_known(#[case] name: &str, #[case] value: &str) {
        assert_eq!(
            told(&[(PRIMARY, "90"), (name, value)]).session,
            Some(window(0.9, None))
        );
    }

    #[rstest]
    #[case("x-codex-primary-used-percent", true)]
    #[case("x-codex-secondary-reset-at", true)]
    #[case("x-codex-credits-balance", false)]
    #[case("x-codex-bengalfox-primary-used-percent", false)]
    fn only_the_accounts_own_windows_are_read(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_told_in(name), expected);
    }
}

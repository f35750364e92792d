//! Quotas that the headers of an answer tell, of a success as well as of a failure.
//!
//! | headers | what they are |
//! |---|---|
//! | `x-ratelimit-limit-<what>`, `-remaining-`, `-reset-` | short windows, of requests and of tokens |
//! | `anthropic-ratelimit-<what>-limit`, `-remaining`, `-reset` | the same |
//! | `anthropic-ratelimit-unified-5h-utilization`, `-7d-`, `-status`, `-reset` | the windows of a subscription |
//!
//! A short window has no name in a [`QuotaSnapshot`], so the fullest of them becomes the share that is used where no
//! window is named. One whose headers do not say when it begins anew is taken for a minute's window, as such limits are;
//! otherwise one full minute would keep the account from requests, and so from being seen again, for a day.
//! `Retry-After` is a wait and no quota; it is not read here.

use std::collections::BTreeMap;

use crate::classify::reset_at;
use crate::number::Finite;
use crate::outcome::MAX_HEADER_BYTES;
use crate::telemetry::{QuotaSnapshot, QuotaWindow};
use crate::time::Timestamp;

use super::MAX_RESET_MS;

/// Most headers of an answer that are looked at.
const MAX_LOOKED_AT: usize = 64;
/// Length of a short window of which no end is told, in ms.
const SHORT_WINDOW_MS: u64 = 60_000;

const OPENAI: &str = "x-ratelimit-";
const ANTHROPIC: &str = "anthropic-ratelimit-";
const UNIFIED: &str = "unified-";

/// Whether a header, its name in lower case, may tell of a quota.
#[must_use]
pub fn is_quota_header(name: &str) -> bool {
    name.starts_with(OPENAI) || name.starts_with(ANTHROPIC)
}

/// What the headers tell, their names in lower case. `None` when that is nothing.
#[must_use]
pub fn read<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    now: Timestamp,
) -> Option<QuotaSnapshot> {
    let mut found = Found::default();
    let told = headers
        .into_iter()
        .filter(|(name, value)| is_quota_header(name) && value.len() <= MAX_HEADER_BYTES)
        .take(MAX_LOOKED_AT);
    for (name, value) in told {
        found.take(name, value.trim(), now);
    }
    found.into_snapshot(now)
}

/// One short window.
#[derive(Default)]
struct Short {
    limit: Option<u32>,
    remaining: Option<u32>,
    resets_at: Option<Timestamp>,
}

#[derive(Default)]
struct Found<'a> {
    short: BTreeMap<&'a str, Short>,
    session: (Option<Finite>, Option<Timestamp>),
    weekly: (Option<Finite>, Option<Timestamp>),
    resets_at: Option<Timestamp>,
    rejected: bool,
}

impl<'a> Found<'a> {
    fn take(&mut self, name: &'a str, value: &str, now: Timestamp) {
        if let Some(rest) = name.strip_prefix(OPENAI) {
            let (member, what) = rest.split_once('-').unwrap_or((rest, ""));
            self.take_short(what, member, value, now);
        } else if let Some(rest) = name.strip_prefix(ANTHROPIC) {
            if let Some(member) = rest.strip_prefix(UNIFIED) {
                self.take_unified(member, value, now);
            } else if let Some((what, member)) = rest.rsplit_once('-') {
                self.take_short(what, member, value, now);
            }
        }
    }

    fn take_short(&mut self, what: &'a str, member: &str, value: &str, now: Timestamp) {
        let short = self.short.entry(what).or_default();
        match member {
            "limit" => short.limit = count(value),
            "remaining" => short.remaining = count(value),
            "reset" => short.resets_at = end(value, now),
            _ => {}
        }
    }

    fn take_unified(&mut self, member: &str, value: &str, now: Timestamp) {
        match member {
            "status" => self.rejected = value.eq_ignore_ascii_case("rejected"),
            "reset" => self.resets_at = end(value, now),
            "5h-utilization" => self.session.0 = share(value),
            "5h-reset" => self.session.1 = end(value, now),
            "7d-utilization" => self.weekly.0 = share(value),
            "7d-reset" => self.weekly.1 = end(value, now),
            _ => {}
        }
    }

    fn into_snapshot(self, now: Timestamp) -> Option<QuotaSnapshot> {
        let window = |(used, resets_at): (Option<Finite>, Option<Timestamp>)| {
            used.map(|used| QuotaWindow {
                used,
                resets_at,
                observed_at: None,
            })
        };
        let fullest = self
            .short
            .into_values()
            .filter_map(|short| Some((short.used()?, short.resets_at)))
            .max();
        let (used, short_reset) = fullest.unzip();
        let snapshot = QuotaSnapshot {
            session: window(self.session),
            weekly: window(self.weekly),
            used,
            resets_at: short_reset
                .flatten()
                .or(self.resets_at)
                .or_else(|| used.map(|_| now.plus_ms(SHORT_WINDOW_MS))),
            limit_reached: self.rejected,
            observed_at: now,
            ..QuotaSnapshot::default()
        };
        let tells = snapshot.session.is_some()
            || snapshot.weekly.is_some()
            || snapshot.used.is_some()
            || snapshot.limit_reached;
        tells.then_some(snapshot)
    }
}

impl Short {
    /// Share that is used; nothing is known of a limit of 0.
    fn used(&self) -> Option<Finite> {
        let (limit, remaining) = (self.limit?, self.remaining?);
        if limit == 0 {
            return None;
        }
        let left = f64::from(remaining.min(limit)) / f64::from(limit);
        Finite::new(1.0 - left).ok()
    }
}

/// Digits and nothing else; saturates.
fn count(value: &str) -> Option<u32> {
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(value.parse().unwrap_or(u32::MAX))
}

fn share(value: &str) -> Option<Finite> {
    let share: f64 = value.parse().ok()?;
    Finite::new(share.clamp(0.0, 1.0)).ok()
}

fn end(value: &str, now: Timestamp) -> Option<Timestamp> {
    let end = reset_at(value, now)?;
    (end.remaining_ms(now) <= MAX_RESET_MS).then_some(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// 2025-08-29T15:00:00Z
    const NOW: Timestamp = Timestamp(1_756_479_600_000);

    fn of(headers: &[(&str, &str)]) -> Option<QuotaSnapshot> {
        read(headers.iter().copied(), NOW)
    }

    #[rstest]
    #[case::openai(
        &[("x-ratelimit-limit-requests", "60"), ("x-ratelimit-remaining-requests", "45"),
          ("x-ratelimit-reset-requests", "6m0s")],
        0.25, Some(360_000))]
    #[case::the_fullest_counts(
        &[("x-ratelimit-limit-requests", "60"), ("x-ratelimit-remaining-requests", "60"),
          ("x-ratelimit-limit-tokens", "1000"), ("x-ratelimit-remaining-tokens", "100"),
          ("x-ratelimit-reset-requests", "1s"), ("x-ratelimit-reset-tokens", "17ms")],
        0.9, Some(17))]
    #[case::bare(
        &[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")],
        1.0, Some(30_000))]
    #[case::epoch(
        &[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "5"), ("x-ratelimit-reset", "1756479660")],
        0.5, Some(60_000))]
    #[case::anthropic(
        &[("anthropic-ratelimit-requests-limit", "50"), ("anthropic-ratelimit-requests-remaining", "40"),
          ("anthropic-ratelimit-requests-reset", "2025-08-29T15:01:00Z"),
          ("anthropic-ratelimit-input-tokens-limit", "100"), ("anthropic-ratelimit-input-tokens-remaining", "90")],
        0.2, Some(60_000))]
    #[case::more_left_than_there_is(
        &[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "99999999999999999999")], 0.0, Some(60_000))]
    #[case::no_end_is_a_minute(
        &[("x-ratelimit-limit-tokens", "10"), ("x-ratelimit-remaining-tokens", "0")], 1.0, Some(60_000))]
    fn short_windows_are_the_share_that_is_used(
        #[case] headers: &[(&str, &str)],
        #[case] used: f64,
        #[case] resets_in_ms: Option<u64>,
    ) {
        let quota = of(headers).unwrap();
        assert!((quota.used.unwrap().get() - used).abs() < 1e-9);
        assert_eq!(quota.resets_at, resets_in_ms.map(|ms| NOW.plus_ms(ms)));
        assert_eq!(quota.observed_at, NOW);
        assert!(!quota.limit_reached);
    }

    #[test]
    fn a_subscription_has_named_windows() {
        let quota = of(&[
            ("anthropic-ratelimit-unified-status", "rejected"),
            ("anthropic-ratelimit-unified-reset", "1756483200"),
            ("anthropic-ratelimit-unified-5h-utilization", "1.02"),
            ("anthropic-ratelimit-unified-5h-reset", "1756483200"),
            ("anthropic-ratelimit-unified-7d-utilization", "0.27"),
        ])
        .unwrap();
        let hour = Some(NOW.plus_ms(3_600_000));
        assert_eq!(
            quota.session,
            Some(QuotaWindow {
                used: Finite::ONE,
                resets_at: hour,
                observed_at: None,
            })
        );
        assert_eq!(quota.weekly.unwrap().used, Finite::new(0.27).unwrap());
        assert_eq!((quota.limit_reached, quota.resets_at), (true, hour));
    }

    #[rstest]
    #[case::nothing(&[])]
    #[case::a_wait_is_no_quota(&[("retry-after", "20")])]
    #[case::a_limit_alone(&[("x-ratelimit-limit-requests", "60")])]
    #[case::a_limit_of_nothing(&[("x-ratelimit-limit", "0"), ("x-ratelimit-remaining", "0")])]
    #[case::no_number(&[("x-ratelimit-limit", "-1"), ("x-ratelimit-remaining", "many")])]
    #[case::no_share(&[("anthropic-ratelimit-unified-5h-utilization", "NaN")])]
    fn what_tells_nothing_is_nothing(#[case] headers: &[(&str, &str)]) {
        assert_eq!(of(headers), None);
    }

    #[test]
    fn an_end_too_far_away_is_not_believed() {
        let quota = of(&[
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "5"),
            ("x-ratelimit-reset", "9999999999"),
        ]);
        assert_eq!(quota.unwrap().resets_at, Some(NOW.plus_ms(60_000)));
    }

    const NAMES: [&str; 14] = [
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-",
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
        "anthropic-ratelimit-",
        "anthropic-ratelimit-unified-",
        "anthropic-ratelimit-unified-5h-utilization",
        "anthropic-ratelimit-unified-7d-utilization",
        "anthropic-ratelimit-unified-5h-reset",
    ];

    proptest! {
        #[test]
        fn any_headers_give_shares_between_0_and_1(
            headers in prop::collection::vec(
                (
                    prop::sample::select(NAMES.to_vec()),
                    prop_oneof![
                        any::<u32>().prop_map(|number| number.to_string()),
                        any::<f64>().prop_map(|number| number.to_string()),
                        any::<String>(),
                    ],
                ),
                0..80,
            ),
        ) {
            let pairs = headers.iter().map(|(name, value)| (*name, value.as_str()));
            if let Some(quota) = read(pairs, NOW) {
                let windows = [quota.session, quota.weekly].into_iter().flatten();
                for used in windows.map(|window| window.used).chain(quota.used) {
                    prop_assert!((0.0..=1.0).contains(&used.get()));
                }
            }
        }
    }
}

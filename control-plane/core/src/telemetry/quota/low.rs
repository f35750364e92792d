//! When people should look at a quota (`quotaPreflight.warnThresholdPercent`). Nothing is routed by it.

use crate::ids::ProviderId;
use crate::settings::QuotaPreflightSettings;
use crate::telemetry::QuotaSnapshot;
use crate::time::Timestamp;

use super::window::{Window, every, limit_stands};

/// Shares are sums of floating-point numbers.
const ROUNDING: f64 = 1e-9;

/// Whether the limit of a quota of a provider is reached, or little is left of one of its windows.
#[must_use]
pub fn is_low(
    quota: &QuotaSnapshot,
    provider: &ProviderId,
    settings: &QuotaPreflightSettings,
    now: Timestamp,
) -> bool {
    let is_low = |window: Window| {
        let low = f64::from(settings.warn_percent(provider, window.name)) / 100.0;
        1.0 - window.used_now(now) <= low + ROUNDING
    };
    limit_stands(quota, now) || every(quota).any(is_low)
}

/// How a quota stands, in a word. The worst comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// Its limit is reached, or nothing is left of one of its windows.
    Exhausted,
    /// It was asked for and could not be read.
    Error,
    /// Little is left ([`is_low`]).
    Warning,
    /// It is to be asked for, and nothing is known yet.
    Starting,
    /// There is enough.
    Healthy,
}

impl Standing {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Exhausted,
        Self::Error,
        Self::Warning,
        Self::Starting,
        Self::Healthy,
    ];

    /// The contract's word (`sessions-and-streams.md` §5.4).
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Starting => "starting",
            Self::Healthy => "healthy",
        }
    }
}

/// How what is known of a quota stands; `low` says whether [`is_low`]. `None` where nothing is known, and nobody asks.
#[must_use]
pub fn standing(
    known: Option<&QuotaSnapshot>,
    low: bool,
    polled: bool,
    now: Timestamp,
) -> Option<Standing> {
    let Some(quota) = known else {
        return polled.then_some(Standing::Starting);
    };
    let is_spent = |window: Window| window.used_now(now) >= 1.0 - ROUNDING;
    Some(if limit_stands(quota, now) || every(quota).any(is_spent) {
        Standing::Exhausted
    } else if quota.unreadable {
        Standing::Error
    } else if low {
        Standing::Warning
    } else {
        Standing::Healthy
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::ids::ModelId;
    use crate::number::Finite;
    use crate::telemetry::QuotaWindow;

    const NOW: Timestamp = Timestamp(1_000_000);

    /// A window that ends in a minute.
    fn window(used: f64) -> QuotaWindow {
        QuotaWindow {
            used: Finite::new(used).unwrap(),
            resets_at: Some(NOW.plus_ms(60_000)),
            observed_at: None,
        }
    }

    fn known() -> QuotaSnapshot {
        QuotaSnapshot {
            observed_at: NOW,
            ..QuotaSnapshot::default()
        }
    }

    #[rstest]
    #[case::nothing_known(known(), false)]
    #[case::enough(QuotaSnapshot { session: Some(window(0.79)), ..known() }, false)]
    #[case::a_fifth(QuotaSnapshot { session: Some(window(0.8)), ..known() }, true)]
    #[case::one_of_two(QuotaSnapshot { session: Some(window(0.1)), monthly: Some(window(0.9)), ..known() }, true)]
    #[case::of_a_model(QuotaSnapshot { weekly_by_model: vec![(ModelId::new("m").unwrap(), window(0.9))], ..known() }, true)]
    #[case::of_no_window(QuotaSnapshot { used: Some(Finite::ONE), resets_at: Some(NOW.plus_ms(1)), ..known() }, true)]
    #[case::the_provider_says_so(QuotaSnapshot { limit_reached: true, ..known() }, true)]
    fn a_quota_is_low(#[case] quota: QuotaSnapshot, #[case] low: bool) {
        let provider = ProviderId::new("p").unwrap();
        let settings = QuotaPreflightSettings::default();
        assert_eq!(is_low(&quota, &provider, &settings, NOW), low);
        // A window that began anew has everything left.
        let later = NOW.plus_ms(60_000);
        let stands = quota.limit_reached;
        assert_eq!(is_low(&quota, &provider, &settings, later), stands);
    }

    #[rstest]
    #[case::nobody_asks(None, false, None)]
    #[case::not_asked_yet(None, true, Some(Standing::Starting))]
    #[case::enough(Some(QuotaSnapshot { weekly: Some(window(0.5)), ..known() }), false, Some(Standing::Healthy))]
    #[case::little(Some(QuotaSnapshot { weekly: Some(window(0.9)), ..known() }), false, Some(Standing::Warning))]
    #[case::nothing(Some(QuotaSnapshot { session: Some(window(0.1)), weekly: Some(window(1.0)), ..known() }), true, Some(Standing::Exhausted))]
    #[case::the_provider_says_so(Some(QuotaSnapshot { limit_reached: true, unreadable: true, ..known() }), true, Some(Standing::Exhausted))]
    #[case::not_read(Some(QuotaSnapshot { weekly: Some(window(0.9)), unreadable: true, ..known() }), true, Some(Standing::Error))]
    fn a_quota_stands_as_its_worst_window(
        #[case] quota: Option<QuotaSnapshot>,
        #[case] polled: bool,
        #[case] expected: Option<Standing>,
    ) {
        let provider = ProviderId::new("p").unwrap();
        let settings = QuotaPreflightSettings::default();
        let low = quota
            .as_ref()
            .is_some_and(|quota| is_low(quota, &provider, &settings, NOW));
        assert_eq!(standing(quota.as_ref(), low, polled, NOW), expected);
    }

    #[test]
    fn what_began_anew_is_spent_no_more() {
        let spent = QuotaSnapshot {
            weekly: Some(window(1.0)),
            ..known()
        };
        let later = NOW.plus_ms(60_000);
        assert_eq!(
            standing(Some(&spent), false, false, later),
            Some(Standing::Healthy)
        );
    }
}

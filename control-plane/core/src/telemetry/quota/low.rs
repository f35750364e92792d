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
}

//! Members of a combo come from four places (`routing.md` §1.5): what is built in, `settings.comboDefaults`,
//! `settings.comboProviderOverrides` of a provider, and the combo. What names a member later counts.
//!
//! The provider of a combo is that of its first step as written; where that names another combo, the provider of that
//! one.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::settings::Settings;

use super::meaning::{self, Meaning};
use super::names::Names;
use super::{Combo, ComboConfig};

/// How many combos are followed to find a provider.
const MAX_FOLLOWED: usize = 10;

/// A member of an earlier release, whatever it holds. It has no effect and is not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Legacy;

impl<'de> Deserialize<'de> for Legacy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|IgnoredAny| Self)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Legacy {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Legacy".into()
    }

    fn json_schema(_generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({})
    }
}

/// Of two sets of members the first that names each; a new member must be added here.
macro_rules! first_of {
    ($first:expr, $second:expr; $($member:ident),+ $(,)?) => {
        ComboConfig {
            $($member: $first.$member.clone().or_else(|| $second.$member.clone()),)+
            timeout_ms: Legacy,
            health_check_enabled: Legacy,
            health_check_timeout_ms: Legacy,
        }
    };
}

impl ComboConfig {
    /// These members, and of those not named here, the others.
    fn over(&self, others: &Self) -> Self {
        first_of! { self, others;
            max_retries, retry_delay_ms, fallback_delay_ms, max_set_retries, set_retry_delay_ms,
            max_global_attempts, target_timeout_ms, combo_timeout_ms, max_combo_depth,
            nested_combo_mode, concurrency_per_model, queue_timeout_ms, queue_depth,
            failover_before_retry, sticky_weighted_limit, sticky_round_robin_limit,
            handoff_threshold, handoff_model, handoff_providers, max_messages_for_summary,
            reset_aware_session_weight, reset_aware_weekly_weight, reset_aware_tie_band_percent,
            reset_aware_exhaustion_guard_percent, reset_windows, reset_window_include_session,
            reset_window_tie_band_ms, manifest_routing, connection_aware_expansion,
            compat_filter_fail_open, session_stickiness, prompt_cache_affinity, composite_tiers,
            retry_budget_ratio, fusion, auto,
        }
    }
}

/// The members of a combo whose own are these, at this provider.
pub(super) fn of(settings: &Settings, provider: Option<&str>, own: &ComboConfig) -> ComboConfig {
    let of_provider = provider.and_then(|provider| settings.combo_provider_overrides.get(provider));
    match of_provider {
        Some(of_provider) => own.over(of_provider).over(&settings.combo_defaults),
        None => own.over(&settings.combo_defaults),
    }
}

/// The provider whose overrides a combo has.
pub(super) fn provider(combo: &Combo, names: &Names<'_>) -> Option<String> {
    let mut combo = combo;
    for _ in 0..MAX_FOLLOWED {
        match meaning::of(combo.steps.first()?, names) {
            Meaning::Model(provider, _) | Meaning::Pattern(provider, _) => {
                return Some(provider.to_string());
            }
            Meaning::Combo(name) => combo = names.combos.get(name)?.1,
            Meaning::Nothing => return None,
        }
    }
    None
}

//! From the model name of a request to its targets and the terms they are walked on (`routing.md` §1.4, §5.0).
//!
//! Combos are looked up first, so a combo named like a model shadows it on purpose. A name that is no combo is
//! a combo of one unpinned target without same-target retries.

use std::borrow::Cow;
use std::collections::BTreeSet;

use std::sync::LazyLock;

use crate::config::{ApiKey, ComboConfig, ComboEntry, ComboTarget, Config, Strategy, Unit};
use crate::ids::ModelId;
use crate::number::Finite;

use super::plan::{self, Plan, Way};
use super::pool::{self, Pool};
use super::wait::WaitPolicy;
use super::{RequestFacts, pipeline};

/// The members of what is no combo.
pub(super) static NOTHING_SET: LazyLock<ComboConfig> = LazyLock::new(ComboConfig::default);

/// Statuses after which the same target may be tried again (`routing.md` §5.2).
const RETRYABLE: &[u16] = &[408, 429, 500, 502, 503, 504];
const MAX_RETRIES: u32 = 1;
const RETRY_DELAY_MS: u64 = 2_000;
const MAX_GLOBAL_ATTEMPTS: u32 = 30;
const TARGET_TIMEOUT_MS: u64 = 120_000;
/// For a combo that sets no time limit (`routing.md` §1.5).
const SAFETY_TIMEOUT_MS: u64 = 600_000;

/// What a name stands for.
#[derive(Clone, Debug)]
pub struct Route<'a> {
    /// The combo, when the name is one.
    pub combo: Option<&'a ComboEntry>,
    /// Its targets, as the combo lists them.
    pub targets: Cow<'a, [ComboTarget]>,
    /// What the strategy orders, where that is not each target by itself.
    pub units: Cow<'a, [Unit]>,
    /// How they are ordered.
    pub strategy: Strategy,
    /// What the strategy is told.
    pub config: &'a ComboConfig,
    /// What is done instead of walking the targets.
    pub plan: Option<Box<Plan>>,
    /// How they are walked.
    pub(super) terms: Terms,
}

/// Limits of the walk over the targets (`routing.md` §1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Same-target retries.
    pub(super) max_retries: u32,
    /// Wait before one, in ms.
    pub(super) retry_delay_ms: u64,
    /// Repeats of the whole list.
    pub(super) max_set_retries: u32,
    /// Wait before one, in ms.
    pub(super) set_retry_delay_ms: u64,
    /// Wait before the next target after some failures, in ms.
    pub(super) fallback_delay_ms: u64,
    /// Time limit of one attempt until it is ready, in ms; `None`: only that of every attempt.
    pub(super) target_timeout_ms: Option<u64>,
    /// Time limit of the request until an attempt is ready, in ms.
    pub(super) timeout_ms: Option<u64>,
    /// Cap on all attempts of the request.
    pub(super) max_global_attempts: usize,
    /// Statuses after which the same target may be tried again.
    pub(super) retryable: &'static [u16],
    /// No same-target retry while another target follows.
    pub(super) failover_before_retry: bool,
    /// Waiting for cooldowns.
    pub(super) wait: WaitPolicy,
}

/// What the name means, or `None` when it is neither a combo, nor `provider/model` of a known provider, nor a
/// model that some provider lists.
#[must_use]
pub fn resolve<'a>(config: &'a Config, name: &str) -> Option<Route<'a>> {
    let settings = &config.settings;
    if let Some(combo) = config.combo_for(name) {
        let wait = WaitPolicy::for_combos(&settings.combo_cooldown_wait);
        let Pool { targets, units } = pool::of_combo(combo);
        return Some(Route {
            combo: Some(combo),
            targets,
            units,
            strategy: combo.combo.strategy,
            config: &combo.config,
            plan: None,
            terms: Terms {
                retryable: match combo.combo.strategy {
                    Strategy::Pipeline => pipeline::RETRYABLE,
                    _ => RETRYABLE,
                },
                ..Terms::of_combo(&combo.config, wait)
            },
        });
    }
    let wait = WaitPolicy::for_others(&settings.wait_for_cooldown);
    Some(Route {
        combo: None,
        targets: Cow::Owned(vec![single_target(config, name)?]),
        units: Cow::Borrowed(&[]),
        strategy: Strategy::Priority,
        config: &NOTHING_SET,
        plan: None,
        terms: Terms::of_single(wait),
    })
}

/// What the request means: [`resolve`], reduced to the one step that it is for, or with the plan that it needs.
#[must_use]
pub fn resolve_request<'a>(config: &'a Config, facts: &RequestFacts) -> Option<Route<'a>> {
    let mut route = resolve(config, &facts.model)?;
    let way = match facts.member {
        Some(step) => Way::Member(step),
        None => plan::way(&route, facts),
    };
    match way {
        Way::Walk => {}
        // Only combos have steps.
        Way::Member(_) if route.combo.is_none() => {}
        Way::Member(step) => {
            let Pool { targets, units } = plan::part_of(&route, step);
            route.targets = targets;
            route.units = units;
            if facts.member.is_some() {
                route.terms = plan::terms_of_part(&route, facts);
            }
        }
        Way::Plan(plan) => route.plan = Some(plan),
    }
    Some(route)
}

fn single_target(config: &Config, name: &str) -> Option<ComboTarget> {
    let named = name.split_once('/').and_then(|(provider, model)| {
        let (provider, _) = config.providers.get_key_value(provider)?;
        Some((provider.clone(), ModelId::new(model).ok()?))
    });
    let (provider, model) = named.or_else(|| {
        let (model, provider) = config.bare_models.get_key_value(name)?;
        Some((provider.clone(), model.clone()))
    })?;
    Some(ComboTarget {
        key: format!("{provider}/{model}").into(),
        provider,
        model,
        connection: None,
        expanded: false,
        group: 0,
        weight: Finite::ZERO,
        allowed_connections: BTreeSet::new(),
        tags: Vec::new(),
        fallback_only_on_quota_exhaustion: false,
    })
}

impl Route<'_> {
    /// Targets of what the client named, also where the request is for one step of it.
    pub(super) fn pool_size(&self) -> u32 {
        let targets = self.combo.map_or(&*self.targets, |entry| &*entry.targets);
        u32::try_from(targets.len()).unwrap_or(u32::MAX)
    }

    /// Whether the key may ask for this: its list is empty, or names the combo, or the provider and model.
    pub(super) fn allowed_by(&self, key: &ApiKey) -> bool {
        if key.allowed_models.is_empty() {
            return true;
        }
        match (self.combo, self.targets.first()) {
            (Some(combo), _) => {
                let name = combo.combo.name.as_str();
                key.allowed_models.iter().any(|allowed| allowed == name)
            }
            (None, Some(target)) => key.allowed_models.iter().any(|allowed| {
                allowed.split_once('/') == Some((target.provider.as_str(), target.model.as_str()))
            }),
            (None, None) => false,
        }
    }
}

impl Terms {
    fn of_combo(config: &ComboConfig, wait: WaitPolicy) -> Self {
        let attempts = config.max_global_attempts.unwrap_or(MAX_GLOBAL_ATTEMPTS);
        Self {
            max_retries: config.max_retries.unwrap_or(MAX_RETRIES),
            retry_delay_ms: config.retry_delay_ms.unwrap_or(RETRY_DELAY_MS),
            max_set_retries: config.max_set_retries.unwrap_or(0),
            set_retry_delay_ms: config.set_retry_delay_ms.unwrap_or(RETRY_DELAY_MS),
            fallback_delay_ms: config.fallback_delay_ms.unwrap_or(0),
            target_timeout_ms: Some(config.target_timeout_ms.unwrap_or(TARGET_TIMEOUT_MS)),
            timeout_ms: Some(
                config
                    .combo_timeout_ms
                    .filter(|limit| *limit > 0)
                    .unwrap_or(SAFETY_TIMEOUT_MS),
            ),
            max_global_attempts: usize::try_from(attempts).unwrap_or(usize::MAX),
            retryable: RETRYABLE,
            failover_before_retry: config.failover_before_retry == Some(true),
            wait,
        }
    }

    fn of_single(wait: WaitPolicy) -> Self {
        let config = ComboConfig {
            max_retries: Some(0),
            ..ComboConfig::default()
        };
        Self {
            target_timeout_ms: None,
            timeout_ms: None,
            ..Self::of_combo(&config, wait)
        }
    }
}

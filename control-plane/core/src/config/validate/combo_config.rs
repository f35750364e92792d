//! Bounds of the members of `combo.config` (`routing.md` §1.5). What a value of each means, and its default, stand at
//! the members of [`ComboConfig`].
//!
//! In settings, which stand without a document, names are not looked up: what is not there has no effect.

use std::ops::RangeInclusive;

use crate::number::Finite;
use crate::routing::strategy;

use super::super::names::Names;
use super::super::{AutoConfig, ComboConfig, FusionConfig, Violations, split_model};

const RETRIES: RangeInclusive<u32> = 0..=10;
const DELAY_MS: RangeInclusive<u64> = 0..=60_000;
const STICKY: RangeInclusive<u32> = 1..=1_000;
/// Longest time limit, in ms.
const MAX_LIMIT_MS: u64 = 600_000;
/// Most providers in a list.
const MAX_PROVIDERS: usize = 64;
/// Most weights by name; there are sixteen factors.
const MAX_WEIGHTS: usize = 64;
/// There are only three.
const MAX_WINDOWS: usize = 3;
/// Largest weight, time or price that makes sense of those that have no bound of their own.
const MAX_NUMBER: u32 = 1_000_000_000;

/// Says what is out of bounds of members that stand without a document.
pub(crate) fn check_alone(path: &str, config: &ComboConfig, found: &mut Violations) {
    check(path, config, None, found);
}

/// Says what is out of bounds; `path` is where the members stand.
pub(super) fn check(
    path: &str,
    config: &ComboConfig,
    names: Option<&Names<'_>>,
    found: &mut Violations,
) {
    counts(path, config, found);
    times(path, config, found);
    shares(path, config, found);
    if let Some(windows) = &config.reset_windows
        && found.at_most(format!("{path}.resetWindows"), windows.len(), MAX_WINDOWS)
        && windows.is_empty()
    {
        found.push(format!("{path}.resetWindows"), "must name a window");
    }
    if let Some(model) = &config.handoff_model {
        known_model(format!("{path}.handoffModel"), model, names, found);
    }
    if let Some(providers) = &config.handoff_providers {
        let field = format!("{path}.handoffProviders");
        found.at_most(field, providers.len(), MAX_PROVIDERS);
    }
    if let Some(fusion) = &config.fusion {
        fusion_members(&format!("{path}.fusion"), fusion, names, found);
    }
    if let Some(auto) = &config.auto {
        auto_members(&format!("{path}.auto"), auto, names, found);
    }
}

fn counts(path: &str, config: &ComboConfig, found: &mut Violations) {
    let members = [
        ("maxRetries", config.max_retries, RETRIES),
        ("maxSetRetries", config.max_set_retries, RETRIES),
        ("maxGlobalAttempts", config.max_global_attempts, 1..=200),
        ("maxComboDepth", config.max_combo_depth, 1..=10),
        ("concurrencyPerModel", config.concurrency_per_model, 1..=32),
        ("queueDepth", config.queue_depth, 0..=100),
        ("stickyWeightedLimit", config.sticky_weighted_limit, STICKY),
        (
            "stickyRoundRobinLimit",
            config.sticky_round_robin_limit,
            STICKY,
        ),
        (
            "maxMessagesForSummary",
            config.max_messages_for_summary,
            5..=100,
        ),
    ];
    for (member, value, bounds) in members {
        if let Some(value) = value {
            found.within(format!("{path}.{member}"), value, &bounds);
        }
    }
}

fn times(path: &str, config: &ComboConfig, found: &mut Violations) {
    let members = [
        ("retryDelayMs", config.retry_delay_ms, DELAY_MS),
        ("fallbackDelayMs", config.fallback_delay_ms, DELAY_MS),
        ("setRetryDelayMs", config.set_retry_delay_ms, DELAY_MS),
        (
            "targetTimeoutMs",
            config.target_timeout_ms,
            1_000..=MAX_LIMIT_MS,
        ),
        ("comboTimeoutMs", config.combo_timeout_ms, 0..=MAX_LIMIT_MS),
        ("queueTimeoutMs", config.queue_timeout_ms, 0..=MAX_LIMIT_MS),
        (
            "resetWindowTieBandMs",
            config.reset_window_tie_band_ms,
            0..=3_600_000,
        ),
    ];
    for (member, value, bounds) in members {
        if let Some(value) = value {
            found.within(format!("{path}.{member}"), value, &bounds);
        }
    }
}

fn shares(path: &str, config: &ComboConfig, found: &mut Violations) {
    let members = [
        ("handoffThreshold", config.handoff_threshold, 1),
        (
            "resetAwareSessionWeight",
            config.reset_aware_session_weight,
            MAX_NUMBER,
        ),
        (
            "resetAwareWeeklyWeight",
            config.reset_aware_weekly_weight,
            MAX_NUMBER,
        ),
        (
            "resetAwareTieBandPercent",
            config.reset_aware_tie_band_percent,
            100,
        ),
        (
            "resetAwareExhaustionGuardPercent",
            config.reset_aware_exhaustion_guard_percent,
            100,
        ),
        ("retryBudgetRatio", config.retry_budget_ratio, 1),
    ];
    at_most(path, &members, found);
}

fn at_most(path: &str, members: &[(&str, Option<Finite>, u32)], found: &mut Violations) {
    for (member, value, most) in members {
        if let Some(value) = value {
            let bounds = Finite::ZERO..=Finite::from(*most);
            found.within(format!("{path}.{member}"), *value, &bounds);
        }
    }
}

/// A model that some step could name.
fn known_model(field: String, model: &str, names: Option<&Names<'_>>, found: &mut Violations) {
    let is_there =
        |provider: &str| names.is_none_or(|names| names.providers.contains_key(provider));
    let is_known = split_model(model).is_some_and(|(provider, _)| is_there(provider.as_str()));
    if !is_known {
        found.push(field, "must be provider/model of a known provider");
    }
}

fn fusion_members(
    path: &str,
    fusion: &FusionConfig,
    names: Option<&Names<'_>>,
    found: &mut Violations,
) {
    if let Some(model) = &fusion.judge_model {
        known_model(format!("{path}.judgeModel"), model, names, found);
    }
    if let Some(count) = fusion.min_panel {
        found.within(format!("{path}.minPanel"), count, &(1..=1_000));
    }
    let times = [
        ("stragglerGraceMs", fusion.straggler_grace_ms, 0),
        ("panelHardTimeoutMs", fusion.panel_hard_timeout_ms, 1),
    ];
    for (member, value, least) in times {
        if let Some(value) = value {
            found.within(format!("{path}.{member}"), value, &(least..=MAX_LIMIT_MS));
        }
    }
}

fn auto_members(path: &str, auto: &AutoConfig, names: Option<&Names<'_>>, found: &mut Violations) {
    if let Some(weights) = &auto.weights
        && found.at_most(format!("{path}.weights"), weights.len(), MAX_WEIGHTS)
    {
        for (name, weight) in weights {
            if !strategy::auto::is_factor(name) {
                let message = "names what is no factor";
                found.push(format!("{path}.weights"), message);
                continue;
            }
            let bounds = Finite::ZERO..=Finite::from(MAX_NUMBER);
            found.within(format!("{path}.weights.{name}"), *weight, &bounds);
        }
    }
    if auto
        .mode_pack
        .as_deref()
        .is_some_and(|name| !strategy::auto::is_pack(name))
    {
        found.push(format!("{path}.modePack"), "there is no such pack");
    }
    if auto
        .router
        .as_deref()
        .is_some_and(|name| !strategy::auto::is_router(name))
    {
        found.push(format!("{path}.router"), "there is no such router");
    }
    let field = format!("{path}.candidatePool");
    if found.at_most(&field, auto.candidate_pool.len(), MAX_PROVIDERS) {
        for (index, provider) in auto.candidate_pool.iter().enumerate() {
            if names.is_some_and(|names| !names.providers.contains_key(provider.as_str())) {
                found.push(format!("{field}[{index}]"), "there is no such provider");
            }
        }
    }
    let members = [
        ("explorationRate", auto.exploration_rate, 1),
        ("budgetCap", auto.budget_cap, MAX_NUMBER),
        ("quotaCutoffPercent", auto.quota_cutoff_percent, 100),
        ("slaLatencyMs", auto.sla_latency_ms, MAX_NUMBER),
        ("slaErrorRate", auto.sla_error_rate, 1),
        ("slaCost", auto.sla_cost, MAX_NUMBER),
    ];
    at_most(path, &members, found);
    if auto.budget_cap == Some(Finite::ZERO) {
        found.push(format!("{path}.budgetCap"), "must be above 0");
    }
}

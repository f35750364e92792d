//! What an outcome does to the provider cooldown gate: what counts and what is a duplicate
//! (`failure-state.md` §2.1, §1.6).
//!
//! The gate has de-duplication marks of its own, since it counts other failures than the breaker does: a 429 that
//! it counted must not hide the 503 after it from the breaker, nor the other way round.

use crate::classify::{Consequence, Reason};
use crate::config::Connection;
use crate::gate::ProviderGate;
use crate::settings::ProviderPolicy;
use crate::state::{ConnectionState, TransitionKind};

use super::provider::is_duplicate;
use super::{Judged, Log};

/// Applies a judged outcome to the gate of its provider and to the entry of its connection. `heard` is whether the
/// breaker takes note of the attempt: where it does not, a success says nothing (`failure-state.md` §1.7). Says
/// whether the provider's gate changed.
pub(super) fn outcome(
    gate: &mut ProviderGate,
    connection: Option<(&Connection, &mut ConnectionState)>,
    judged: &Judged<'_>,
    heard: bool,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) -> bool {
    if !gate.reset.seen_by(judged.attempt.decided_on) {
        return false;
    }
    if judged.classification.success {
        return heard && success(gate, connection, judged);
    }
    let held = hold(gate, judged, policy, log);
    let counted = policy.gate.enabled && failure(gate, connection, judged, policy, log);
    held || counted
}

/// Holds the provider where a rule says so, also where counting is off (decision 18).
fn hold(
    gate: &mut ProviderGate,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) -> bool {
    let Consequence::HoldProvider(stated_ms) = judged.classification.consequence else {
        return false;
    };
    let reason = judged.classification.reason;
    let length_ms = stated_ms.unwrap_or(policy.gate.cooldown_ms);
    let until = judged.at.plus_ms(length_ms);
    let held = gate.hold(judged.at, length_ms, reason);
    if held {
        log.provider(TransitionKind::ProviderCooldown { until, reason });
    }
    held
}

fn failure(
    gate: &mut ProviderGate,
    connection: Option<(&Connection, &mut ConnectionState)>,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) -> bool {
    let config = connection.as_ref().map(|(config, _)| *config);
    if !counts(judged, policy.keeps_quota_per_model(config)) {
        return false;
    }
    let last_counted_at = connection
        .as_ref()
        .and_then(|(_, state)| state.gate.last_counted_at);
    if is_duplicate(
        last_counted_at,
        gate.last_network_failure_at,
        judged,
        &policy.breaker,
    ) {
        return false;
    }
    let counted = provider_failure(gate, judged, policy, log);
    if let Some((config, state)) = connection {
        let escalated = connection_failure(config, state, judged, policy, log);
        if counted || escalated {
            state.gate.last_counted_at = last_counted_at.max(Some(judged.at));
        }
    }
    counted
}

/// Whether the failure counts, duplicates aside: what the breaker would count, and a rate limit, which it would
/// not. Where quotas are per model, a 429 and a 500 say nothing about the provider.
fn counts(judged: &Judged<'_>, per_model_quota: bool) -> bool {
    let classification = judged.classification;
    if per_model_quota && matches!(classification.status, 429 | 500) {
        return false;
    }
    if classification.is_proxy_unreachable() && !judged.combo {
        return false;
    }
    // A 429 of a used-up account, of a banned one or of an overloaded model says nothing about the provider.
    let rate_limited = classification.status == 429
        && !matches!(
            classification.reason,
            Reason::QuotaExhausted | Reason::ModelCapacity
        )
        && !classification.request_scoped
        && !matches!(
            classification.consequence,
            Consequence::Nothing | Consequence::EndConnection(_)
        );
    classification.counts_for_breaker || rate_limited
}

fn success(
    gate: &mut ProviderGate,
    connection: Option<(&Connection, &mut ConnectionState)>,
    judged: &Judged<'_>,
) -> bool {
    if let Some((_, state)) = connection
        && judged.attempt.credential_version >= state.credential_version
    {
        state
            .gate
            .record_success(judged.at, judged.attempt.decided_on);
    }
    gate.record_success(judged.at)
}

fn provider_failure(
    gate: &mut ProviderGate,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) -> bool {
    let before = gate.cooled;
    if !gate.record_failure(judged.at, judged.classification.reason, &policy.gate) {
        return false;
    }
    if judged.classification.network {
        gate.last_network_failure_at = gate.last_network_failure_at.max(Some(judged.at));
    }
    if let Some(cooled) = gate.cooled
        && gate.cooled != before
    {
        log.provider(TransitionKind::ProviderCooldown {
            until: cooled.until,
            reason: cooled.reason,
        });
    }
    true
}

/// A terminal connection is never used, one that must not cool does not, and what an old credential did says
/// nothing about the new one. Says whether the failure counted.
fn connection_failure(
    config: &Connection,
    state: &mut ConnectionState,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) -> bool {
    let attempt = judged.attempt;
    if state.terminal.is_some()
        || config.disable_cooling
        || attempt.credential_version < state.credential_version
    {
        return false;
    }
    let reason = judged.classification.reason;
    let counted = state
        .gate
        .record_failure(judged.at, attempt.decided_on, reason, &policy.gate);
    if let Some(cooled) = state.gate.cooled.filter(|_| counted) {
        log.connection(
            &attempt.connection,
            TransitionKind::ConnectionGate {
                until: cooled.until,
                failures: state.gate.failures,
                reason,
            },
        );
    }
    counted
}

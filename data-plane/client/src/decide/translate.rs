//! A question and its answer as messages.

use std::time::Duration;

use tidegate_core::classify::Reason;
use tidegate_core::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use tidegate_core::routing::{Exclusion, ExclusionReason, Rejection, WaitKind};
use tidegate_core::time::Timestamp;
use tidegate_proto::common::v1 as common;
use tidegate_proto::routing::v1 as proto;
use tidegate_wire::attempt::{from_proto, id_to_proto, outcome_to_proto, to_proto};
use tidegate_wire::routing::{
    MAX_ORDER, classification_from_proto, facts_to_proto, origin_from_proto, so_far_to_proto,
};
use tidegate_wire::{WireError, lease, plan};

use crate::port::{Answer, Ask, Deadlines, Dispatch, PermitWait, Step};

/// The question. `now` is the store's time as known here, `configuration_version` that of the configuration, `released`
/// what was given back and may not have been heard of.
pub(super) fn question(
    ask: &Ask,
    now: Timestamp,
    configuration_version: u64,
    released: Vec<proto::HeldPermits>,
) -> proto::DecideRequest {
    proto::DecideRequest {
        attempt: Some(id_to_proto(ask.attempt)),
        facts: Some(facts_to_proto(&ask.facts, ask.stream)),
        so_far: Some(so_far_to_proto(&ask.so_far)),
        last_failure: ask.last_failure.as_ref().map(|failure| proto::LastFailure {
            attempt: Some(to_proto(&failure.attempt)),
            outcome: Some(outcome_to_proto(&failure.outcome)),
            age_ms: now.ms_since(failure.occurred_at),
            pass: failure.pass,
            target: failure.target,
        }),
        egress: ask
            .egress
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        configuration_version,
        replaces: ask.replaces.map_or(0, |attempt| attempt.number),
        granted: ask
            .waited
            .granted
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        waited_in_vain: ask.waited.in_vain.iter().map(ToString::to_string).collect(),
        queues_full: ask
            .waited
            .queues_full
            .iter()
            .map(ToString::to_string)
            .collect(),
        released,
    }
}

/// The answer to a question.
///
/// # Errors
/// When a member is missing or means nothing to this build.
pub(super) fn answer(ask: &Ask, response: proto::DecideResponse) -> Result<Answer, WireError> {
    let classification = match ask.last_failure {
        Some(_) => Some(classification_from_proto(response.classification.as_ref())?),
        None => None,
    };
    let step = response.step.ok_or(WireError::Missing("step"))?;
    let decision = match step {
        proto::decide_response::Step::Dispatch(message) => {
            Step::Dispatch(dispatch(ask, message, response.configuration_version)?)
        }
        proto::decide_response::Step::Reject(message) => Step::Reject(reject(message)?),
        proto::decide_response::Step::Plan(message) => {
            Step::Plan(Box::new(plan::from_proto(message)?))
        }
        proto::decide_response::Step::Wait(message) => {
            let wait = Duration::from_millis(message.wait_ms);
            match message.kind() {
                proto::WaitKind::Cooldown => Step::Wait {
                    kind: WaitKind::Cooldown,
                    wait,
                },
                proto::WaitKind::RetryDelay => Step::Wait {
                    kind: if message.elsewhere {
                        WaitKind::FallbackDelay
                    } else {
                        WaitKind::RetryDelay
                    },
                    wait,
                },
                proto::WaitKind::Permit => Step::AwaitPermit(Box::new(PermitWait {
                    provider: ProviderId::new(&message.provider)
                        .map_err(|error| invalid("wait.provider", &error.to_string()))?,
                    connection: ConnectionId::new(&message.connection)
                        .map_err(|error| invalid("wait.connection", &error.to_string()))?,
                    limit: wait,
                    ticket: message.ticket,
                    waited: Duration::ZERO,
                })),
                proto::WaitKind::Unspecified => return Err(invalid("wait.kind", "unknown kind")),
            }
        }
    };
    Ok(Answer {
        decision,
        classification,
        failed_at: Timestamp(response.failed_at_unix_ms),
        next_target_same_provider: response.next_target_same_provider,
        combo: response.combo,
        local: false,
    })
}

fn dispatch(
    ask: &Ask,
    message: proto::Dispatch,
    configuration_version: u64,
) -> Result<Box<Dispatch>, WireError> {
    let attempt = from_proto(message.attempt)?;
    if attempt.id != ask.attempt {
        return Err(invalid("dispatch.attempt.id", "is another attempt's"));
    }
    if message.order.len() > MAX_ORDER {
        return Err(invalid("dispatch.order", "too many"));
    }
    Ok(Box::new(Dispatch {
        target_key: message.target_key,
        combo: match message.combo.as_str() {
            "" => None,
            name => Some(ComboName::new(name).map_err(|source| WireError::Name {
                field: "dispatch.combo".to_owned(),
                source,
            })?),
        },
        order: message.order,
        order_version: configuration_version,
        attempt,
        pass: message.pass,
        target: message.target,
        permit: message.permit,
        report_at_readiness: message.report_at_readiness,
        excluded: exclusions(message.excluded),
        deadlines: deadlines(message.deadlines.unwrap_or_default()),
        max_tools: message.max_tools,
        emergency_max_tokens: message.emergency_max_tokens,
    }))
}

fn deadlines(message: proto::Deadlines) -> Deadlines {
    let limit = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
    Deadlines {
        connect: limit(message.connect_ms),
        headers: limit(message.headers_ms),
        readiness: limit(message.readiness_ms),
        idle: limit(message.idle_ms),
        body: limit(message.body_ms.unwrap_or(message.idle_ms)),
        attempt: limit(message.attempt_ms),
        target: limit(message.target_ms),
    }
}

fn reject(message: proto::Reject) -> Result<Box<Rejection>, WireError> {
    let status = u16::try_from(message.status)
        .ok()
        .filter(|status| (400..=599).contains(status))
        .ok_or_else(|| invalid("reject.status", "must be 400 to 599"))?;
    Ok(Box::new(Rejection {
        status,
        code: message.code,
        error_type: message.error_type,
        message: message.message,
        retry_after_secs: message.retry_after_seconds,
        pass_through: message.pass_through,
        terminal_reason: message.terminal_reason,
        pool_size: message.pool_size,
        attempted: message.attempted,
        excluded: exclusions(message.excluded),
        lease: message
            .lease
            .map(|refusal| lease::refusal_from_proto(&refusal)),
    }))
}

/// Exclusions explain; one that a newer control plane words in a way unknown here is left out.
fn exclusions(messages: Vec<common::Exclusion>) -> Vec<Exclusion> {
    messages.into_iter().filter_map(exclusion).collect()
}

fn exclusion(message: common::Exclusion) -> Option<Exclusion> {
    let connection = match message.connection.as_str() {
        "" => None,
        text => Some(ConnectionId::new(text).ok()?),
    };
    Some(Exclusion {
        provider: ProviderId::new(&message.provider).ok()?,
        connection,
        model: ModelId::new(&message.model).ok()?,
        reason: ExclusionReason::of_word(&message.reason)?,
        until: message.until_unix_ms.map(Timestamp),
        cause: cause(&message.cause),
        origin: origin_from_proto(&message.rule, message.original_status),
    })
}

fn cause(word: &str) -> Option<Reason> {
    serde_json::from_value(serde_json::Value::String(word.to_owned())).ok()
}

fn invalid(field: &str, message: &str) -> WireError {
    WireError::Invalid {
        field: field.to_owned(),
        message: message.to_owned(),
    }
}

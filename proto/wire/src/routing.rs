//! Requests, decisions and exclusions.

use tidegate_core::classify::{Classification, Origin};
use tidegate_core::config::{BudgetFallback, Protocol};
use tidegate_core::ids::{ConnectionId, NameError, ProviderId, RuleId};
use tidegate_core::number::Finite;
use tidegate_core::routing::{
    AttemptsSoFar, Exclusion, Intent, MAX_OCCUPIED, PriorAttempt, Rejection, RequestFacts,
};
use tidegate_core::session_key::SessionKey;
use tidegate_core::time::Timestamp;
use tidegate_proto::common::v1 as common;
use tidegate_proto::routing::v1 as routing;

use crate::{WireError, attempt, lease};

/// Most prior attempts in one request (`routing.md` §1.5, hard cap of `maxGlobalAttempts`).
pub const MAX_PRIOR_ATTEMPTS: usize = 200;

/// Most targets in the order of one request: the steps of a combo, or what they are expanded to.
pub const MAX_ORDER: usize = 10_000;
/// Longest cache key of a request, in bytes (`routing.md` §8.17).
pub const MAX_CACHE_KEY_BYTES: usize = 4_096;
/// Longest other text of a request's facts, in bytes.
pub const MAX_FACT_BYTES: usize = 128;
/// Most providers whose retry budget is told as spent.
pub const MAX_SPENT_PROVIDERS: usize = 64;
/// Most tags of a request.
pub const MAX_TAGS: usize = 16;

/// What routing needs to know of a request, as a message.
#[must_use]
pub fn facts_to_proto(facts: &RequestFacts, stream: bool) -> routing::RequestFacts {
    routing::RequestFacts {
        key_id: facts
            .key
            .as_ref()
            .map(|key| key.id.to_string())
            .unwrap_or_default(),
        model: facts.model.clone(),
        lease: facts.lease.as_ref().map(lease::name_to_proto),
        protocol: protocol_to_proto(facts.protocol).into(),
        forced_connection: facts
            .forced_connection
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        stream,
        member: facts.member,
        of_panel: facts.of_panel,
        tools: facts.tools,
        tools_forbidden: facts.tools_forbidden,
        vision: facts.vision,
        structured_output: facts.structured_output,
        estimated_tokens: facts.estimated_tokens,
        cache_key: facts.cache_key.clone().unwrap_or_default(),
        session: facts.session.clone().unwrap_or_default(),
        session_key: facts
            .session_key
            .as_ref()
            .map(|key| key.as_str().to_owned())
            .unwrap_or_default(),
        intent: match facts.intent {
            Intent::General => routing::Intent::Unspecified,
            Intent::Coding => routing::Intent::Coding,
            Intent::Analysis => routing::Intent::Analysis,
        }
        .into(),
        mode: facts.mode.clone().unwrap_or_default(),
        budget: facts.budget.map(Finite::get),
        budget_fallback: facts
            .budget_fallback
            .as_ref()
            .map(serde_word)
            .unwrap_or_default(),
        tags: facts.tags.clone(),
        embedding: facts.embedding,
    }
}

/// What routing needs to know of a request, from a message. Its key is not looked up here.
///
/// # Errors
/// When a member is too long or not understood.
pub fn facts_from_proto(facts: routing::RequestFacts) -> Result<RequestFacts, WireError> {
    let text = |field: &str, text: String, limit: usize| match text.len() {
        0 => Ok(None),
        bytes if bytes > limit => Err(WireError::invalid(format!("facts.{field}"), "too long")),
        _ => Ok(Some(text)),
    };
    let intent = facts.intent();
    let too_many_tags = facts.tags.len() > MAX_TAGS;
    if too_many_tags || facts.tags.iter().any(|tag| tag.len() > MAX_FACT_BYTES) {
        return Err(WireError::invalid("facts.tags", "too many or too long"));
    }
    let forced = facts.forced_connection;
    Ok(RequestFacts {
        forced_connection: if forced.is_empty() {
            None
        } else {
            let invalid =
                |error: NameError| WireError::invalid("facts.forced_connection", error.to_string());
            Some(ConnectionId::new(forced).map_err(invalid)?)
        },
        lease: facts
            .lease
            .map(|message| lease::name_from_proto("facts.lease", Some(message)))
            .transpose()?,
        member: facts.member,
        of_panel: facts.of_panel,
        tools: facts.tools,
        tools_forbidden: facts.tools_forbidden,
        vision: facts.vision,
        structured_output: facts.structured_output,
        estimated_tokens: facts.estimated_tokens,
        cache_key: text("cache_key", facts.cache_key, MAX_CACHE_KEY_BYTES)?,
        session: text("session", facts.session, MAX_FACT_BYTES)?,
        session_key: match facts.session_key.as_str() {
            "" => None,
            key => {
                Some(SessionKey::parse(key).ok_or_else(|| {
                    WireError::invalid("facts.session_key", "no key of a session")
                })?)
            }
        },
        // A newer build's word for what this one does not tell apart is anything.
        intent: match intent {
            routing::Intent::Unspecified => Intent::General,
            routing::Intent::Coding => Intent::Coding,
            routing::Intent::Analysis => Intent::Analysis,
        },
        mode: text("mode", facts.mode, MAX_FACT_BYTES)?,
        budget: facts
            .budget
            .map(Finite::new)
            .transpose()
            .map_err(|error| WireError::invalid("facts.budget", error.to_string()))?,
        budget_fallback: match facts.budget_fallback.as_str() {
            "" => None,
            "cheapest" => Some(BudgetFallback::Cheapest),
            "strict" => Some(BudgetFallback::Strict),
            _ => return Err(WireError::invalid("facts.budget_fallback", "unknown word")),
        },
        tags: facts.tags,
        embedding: facts.embedding,
        ..RequestFacts::new(facts.model, protocol_from_proto(facts.protocol)?)
    })
}

/// A protocol as its enum value.
#[must_use]
pub fn protocol_to_proto(protocol: Protocol) -> routing::Protocol {
    match protocol {
        Protocol::Openai => routing::Protocol::Openai,
        Protocol::Anthropic => routing::Protocol::Anthropic,
    }
}

/// A protocol from its enum value.
///
/// # Errors
/// When it is unset or unknown.
pub fn protocol_from_proto(protocol: i32) -> Result<Protocol, WireError> {
    match routing::Protocol::try_from(protocol) {
        Ok(routing::Protocol::Openai) => Ok(Protocol::Openai),
        Ok(routing::Protocol::Anthropic) => Ok(Protocol::Anthropic),
        Ok(routing::Protocol::Unspecified) | Err(_) => {
            Err(WireError::invalid("facts.protocol", "unknown protocol"))
        }
    }
}

/// A classification as a message.
#[must_use]
pub fn classification_to_proto(classification: &Classification) -> routing::Classification {
    routing::Classification {
        status: u32::from(classification.status),
        reason: serde_word(&classification.reason),
        account_fallback: classification.account_fallback,
        counts_for_breaker: classification.counts_for_breaker,
        hint_ms: classification.hint.map(|hint| hint.wait_ms),
        // Plain data without maps or floats always encodes; an empty text is refused when read back.
        encoded: serde_json::to_vec(classification).unwrap_or_default(),
    }
}

/// A classification from a message.
///
/// # Errors
/// When it is missing or was made by a build with another schema.
pub fn classification_from_proto(
    classification: Option<&routing::Classification>,
) -> Result<Classification, WireError> {
    let classification = classification.ok_or(WireError::Missing("classification"))?;
    serde_json::from_slice(&classification.encoded)
        .map_err(|error| WireError::invalid("classification.encoded", error.to_string()))
}

/// A value's word in the JSON vocabulary, for example a reason's `rate_limit_exceeded`.
#[must_use]
pub fn serde_word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(_) | Err(_) => String::new(),
    }
}

/// What happened so far as a message.
#[must_use]
pub fn so_far_to_proto(so_far: &AttemptsSoFar) -> routing::AttemptsSoFar {
    routing::AttemptsSoFar {
        attempts: so_far
            .attempts
            .iter()
            .map(|prior| routing::PriorAttempt {
                attempt: Some(attempt::to_proto(&prior.attempt)),
                classification: Some(classification_to_proto(&prior.classification)),
                failed_at_unix_ms: prior.failed_at.0,
                pass: prior.pass,
                target: prior.target,
            })
            .collect(),
        waits: so_far.waits,
        waited_ms: so_far.waited_ms,
        order: so_far.order.clone(),
        order_version: so_far.order_version,
        elsewhere: so_far.elsewhere,
        elapsed_ms: so_far.elapsed_ms,
        budget_spent: so_far.budget_spent,
        no_wait: so_far.no_wait,
        spent_providers: so_far
            .spent_providers
            .iter()
            .map(ToString::to_string)
            .collect(),
        occupied: so_far
            .occupied
            .iter()
            .map(|(connection, sessions)| routing::OccupiedConnection {
                connection: connection.to_string(),
                sessions: *sessions,
            })
            .collect(),
    }
}

/// What happened so far from a message; unset means nothing.
///
/// # Errors
/// When there are more than [`MAX_PRIOR_ATTEMPTS`] or one is not understood.
pub fn so_far_from_proto(
    so_far: Option<routing::AttemptsSoFar>,
) -> Result<AttemptsSoFar, WireError> {
    let Some(so_far) = so_far else {
        return Ok(AttemptsSoFar::default());
    };
    if so_far.attempts.len() > MAX_PRIOR_ATTEMPTS {
        return Err(WireError::invalid("so_far.attempts", "too many"));
    }
    if so_far.order.len() > MAX_ORDER {
        return Err(WireError::invalid("so_far.order", "too many"));
    }
    if so_far.spent_providers.len() > MAX_SPENT_PROVIDERS {
        return Err(WireError::invalid("so_far.spent_providers", "too many"));
    }
    if so_far.occupied.len() > MAX_OCCUPIED {
        return Err(WireError::invalid("so_far.occupied", "too many"));
    }
    let occupied = so_far.occupied.iter().map(|occupied| {
        let invalid = |error: NameError| WireError::invalid("so_far.occupied", error.to_string());
        let connection = ConnectionId::new(&occupied.connection).map_err(invalid)?;
        Ok((connection, occupied.sessions))
    });
    let occupied = occupied.collect::<Result<Vec<_>, WireError>>()?;
    let spent_providers = so_far.spent_providers.iter().map(|provider| {
        let invalid =
            |error: NameError| WireError::invalid("so_far.spent_providers", error.to_string());
        ProviderId::new(provider).map_err(invalid)
    });
    let spent_providers = spent_providers.collect::<Result<Vec<_>, WireError>>()?;
    let attempts = so_far
        .attempts
        .into_iter()
        .map(|prior| {
            Ok(PriorAttempt {
                classification: classification_from_proto(prior.classification.as_ref())?,
                attempt: attempt::from_proto(prior.attempt)?,
                failed_at: Timestamp(prior.failed_at_unix_ms),
                pass: prior.pass,
                target: prior.target,
            })
        })
        .collect::<Result<Vec<_>, WireError>>()?;
    Ok(AttemptsSoFar {
        attempts,
        // It has a message of its own.
        last_is_new: false,
        waits: so_far.waits,
        waited_ms: so_far.waited_ms,
        order: so_far.order,
        order_version: so_far.order_version,
        elsewhere: so_far.elsewhere,
        elapsed_ms: so_far.elapsed_ms,
        budget_spent: so_far.budget_spent,
        no_wait: so_far.no_wait,
        spent_providers,
        occupied,
    })
}

/// An exclusion as a message; `word` is its reason's word on the wire.
#[must_use]
pub fn exclusion_to_proto(exclusion: &Exclusion, word: &str, now: Timestamp) -> common::Exclusion {
    common::Exclusion {
        provider: exclusion.provider.to_string(),
        connection: exclusion
            .connection
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        model: exclusion.model.to_string(),
        reason: word.to_owned(),
        remaining_ms: exclusion.until.map(|until| until.remaining_ms(now)),
        until_unix_ms: exclusion.until.map(|until| until.0),
        cause: exclusion.cause.as_ref().map(serde_word).unwrap_or_default(),
        rule: rule_word(exclusion.origin.as_ref()),
        original_status: original_status(exclusion.origin.as_ref()),
    }
}

/// The id of the rule that spoke; empty when none did.
#[must_use]
pub fn rule_word(origin: Option<&Origin>) -> String {
    origin
        .map(|origin| origin.rule.to_string())
        .unwrap_or_default()
}

/// The status before a restatement, if there was one.
#[must_use]
pub fn original_status(origin: Option<&Origin>) -> Option<u32> {
    origin?.original_status.map(u32::from)
}

/// What the two members above say; `None` for a rule that this build could not have written.
#[must_use]
pub fn origin_from_proto(rule: &str, original_status: Option<u32>) -> Option<Origin> {
    Some(Origin {
        rule: RuleId::new(rule).ok()?,
        original_status: original_status.and_then(|status| u16::try_from(status).ok()),
    })
}

/// A final answer as a message.
#[must_use]
pub fn rejection_to_proto(
    rejection: &Rejection,
    excluded: Vec<common::Exclusion>,
) -> routing::Reject {
    routing::Reject {
        status: u32::from(rejection.status),
        code: rejection.code.clone(),
        error_type: rejection.error_type.clone(),
        message: rejection.message.clone(),
        retry_after_seconds: rejection.retry_after_secs,
        pass_through: rejection.pass_through,
        terminal_reason: rejection.terminal_reason.clone(),
        pool_size: rejection.pool_size,
        attempted: rejection.attempted,
        excluded,
        lease: rejection.lease.map(lease::refusal_to_proto),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_comes_back_as_it_was() {
        let facts = RequestFacts {
            session_key: SessionKey::parse("header:abc"),
            ..RequestFacts::new("m", Protocol::Openai)
        };
        let message = facts_to_proto(&facts, false);
        let read = facts_from_proto(message.clone()).unwrap();
        assert_eq!(read.session_key, facts.session_key);
        for wrong in ["abc", "header:a b", &format!("header:{}", "x".repeat(206))] {
            let message = routing::RequestFacts {
                session_key: wrong.to_owned(),
                ..message.clone()
            };
            assert!(facts_from_proto(message).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_happened_so_far_comes_back_as_it_was() {
        let so_far = AttemptsSoFar {
            attempts: Vec::new(),
            last_is_new: false,
            waits: 1,
            waited_ms: 2,
            order: vec![2, 0, 1],
            order_version: 7,
            elsewhere: 3,
            elapsed_ms: 4,
            budget_spent: true,
            no_wait: true,
            spent_providers: vec![ProviderId::new("acme").unwrap()],
            occupied: vec![(ConnectionId::new("c1").unwrap(), 2)],
        };
        let message = so_far_to_proto(&so_far);
        assert_eq!(so_far_from_proto(Some(message)), Ok(so_far));
        assert_eq!(so_far_from_proto(None), Ok(AttemptsSoFar::default()));
        let occupied = |count: usize| routing::AttemptsSoFar {
            occupied: (0..count)
                .map(|number| routing::OccupiedConnection {
                    connection: format!("c{number}"),
                    sessions: 1,
                })
                .collect(),
            ..routing::AttemptsSoFar::default()
        };
        assert!(so_far_from_proto(Some(occupied(MAX_OCCUPIED))).is_ok());
        assert!(so_far_from_proto(Some(occupied(MAX_OCCUPIED + 1))).is_err());
    }
}

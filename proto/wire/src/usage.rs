//! Tokens of attempts, and attempts whose answers are under way.

use tidegate_core::ids::{
    AttemptId, ConnectionId, KeyId, ModelId, NameError, PlaneIncarnation, ProviderId,
};
use tidegate_core::time::Timestamp;
use tidegate_core::usage::{OpenAttempt, TokenUsage, UsageRecord, UsageSource};
use tidegate_proto::report::v1 as report;

use crate::attempt::{id_from_proto, id_to_proto};
use crate::{WireError, name, optional_name};

/// A record as a message.
#[must_use]
pub fn to_proto(record: &UsageRecord) -> report::Usage {
    report::Usage {
        attempt: Some(id_to_proto(record.attempt)),
        at_unix_ms: record.at.0,
        provider: record.provider.to_string(),
        connection: record.connection.to_string(),
        model: record.model.to_string(),
        key_id: key_to_proto(record.key.as_ref()),
        input_tokens: record.tokens.input,
        output_tokens: record.tokens.output,
        source: source_to_proto(record.tokens.source).into(),
    }
}

/// A record from a message.
///
/// # Errors
/// When a member is missing that must be there, or is no valid name.
pub fn from_proto(usage: report::Usage) -> Result<UsageRecord, WireError> {
    let (input, output) = (usage.input_tokens, usage.output_tokens);
    // A source of a later release says no more than none.
    let source = report::UsageSource::try_from(usage.source).unwrap_or_default();
    let tokens = match source_from_proto(source) {
        Some(source) => TokenUsage {
            input,
            output,
            source,
        },
        None => TokenUsage::without_source(input, output),
    };
    Ok(UsageRecord {
        attempt: id_from_proto(usage.attempt)?,
        at: Timestamp(usage.at_unix_ms),
        provider: needed("provider", &usage.provider, ProviderId::new)?,
        connection: needed("connection", &usage.connection, ConnectionId::new)?,
        model: needed("model", &usage.model, ModelId::new)?,
        key: optional_name("key_id", &usage.key_id, KeyId::new)?,
        tokens,
    })
}

/// An attempt whose answer is under way as a message. The message of all of them names the data plane.
#[must_use]
pub fn open_to_proto(open: &OpenAttempt) -> report::OpenAttempt {
    report::OpenAttempt {
        number: open.attempt.number,
        since_unix_ms: open.since.0,
        provider: open.provider.to_string(),
        connection: open.connection.to_string(),
        model: open.model.to_string(),
        key_id: key_to_proto(open.key.as_ref()),
    }
}

/// An attempt of this data plane whose answer is under way, from a message.
///
/// # Errors
/// When a member is missing that must be there, or is no valid name.
pub fn open_from_proto(
    plane: PlaneIncarnation,
    open: report::OpenAttempt,
) -> Result<OpenAttempt, WireError> {
    if open.number == 0 {
        return Err(WireError::invalid("number", "must not be 0"));
    }
    Ok(OpenAttempt {
        attempt: AttemptId {
            plane,
            number: open.number,
        },
        since: Timestamp(open.since_unix_ms),
        provider: needed("provider", &open.provider, ProviderId::new)?,
        connection: needed("connection", &open.connection, ConnectionId::new)?,
        model: needed("model", &open.model, ModelId::new)?,
        key: optional_name("key_id", &open.key_id, KeyId::new)?,
    })
}

fn needed<'a, T>(
    field: &'static str,
    text: &'a str,
    make: impl FnOnce(&'a str) -> Result<T, NameError>,
) -> Result<T, WireError> {
    if text.is_empty() {
        return Err(WireError::Missing(field));
    }
    name(field, make(text))
}

fn key_to_proto(key: Option<&KeyId>) -> String {
    key.map(ToString::to_string).unwrap_or_default()
}

fn source_to_proto(source: UsageSource) -> report::UsageSource {
    match source {
        UsageSource::Provider => report::UsageSource::Provider,
        UsageSource::Estimated => report::UsageSource::Estimated,
        UsageSource::Unknown => report::UsageSource::Unknown,
    }
}

fn source_from_proto(source: report::UsageSource) -> Option<UsageSource> {
    match source {
        report::UsageSource::Unspecified => None,
        report::UsageSource::Provider => Some(UsageSource::Provider),
        report::UsageSource::Estimated => Some(UsageSource::Estimated),
        report::UsageSource::Unknown => Some(UsageSource::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(source: UsageSource) -> UsageRecord {
        UsageRecord {
            attempt: AttemptId {
                plane: PlaneIncarnation(7),
                number: 1,
            },
            at: Timestamp(9),
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new("c").unwrap(),
            model: ModelId::new("m/n:free").unwrap(),
            key: None,
            tokens: TokenUsage {
                input: Some(3),
                output: None,
                source,
            },
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        for source in UsageSource::ALL {
            for key in [None, Some(KeyId::new("k").unwrap())] {
                let record = UsageRecord {
                    key,
                    ..record(source)
                };
                assert_eq!(from_proto(to_proto(&record)), Ok(record));
            }
        }
    }

    #[test]
    fn who_tells_no_source_or_an_unknown_one_means_the_provider_or_nobody() {
        for told in [0, 4_711] {
            let mut message = to_proto(&record(UsageSource::Estimated));
            message.source = told;
            let read = from_proto(message.clone()).unwrap();
            assert_eq!(read.tokens.source, UsageSource::Provider);
            message.input_tokens = None;
            let read = from_proto(message).unwrap();
            assert_eq!(read.tokens, TokenUsage::UNKNOWN);
        }
    }

    #[test]
    fn what_is_missing_or_no_name_is_named() {
        let spoiled = |spoil: fn(&mut report::Usage)| {
            let mut message = to_proto(&record(UsageSource::Provider));
            spoil(&mut message);
            from_proto(message).unwrap_err().field().to_owned()
        };
        assert_eq!(spoiled(|usage| usage.attempt = None), "attempt.id");
        assert_eq!(spoiled(|usage| usage.provider.clear()), "provider");
        assert_eq!(
            spoiled(|usage| usage.connection = "a b".to_owned()),
            "connection"
        );
        assert_eq!(spoiled(|usage| usage.model.clear()), "model");
        assert_eq!(spoiled(|usage| usage.key_id = "a b".to_owned()), "key_id");
    }

    #[test]
    fn an_open_attempt_comes_back_as_it_was() {
        let UsageRecord {
            attempt,
            provider,
            connection,
            model,
            ..
        } = record(UsageSource::Unknown);
        let open = OpenAttempt {
            attempt,
            since: Timestamp(5),
            provider,
            connection,
            model,
            key: Some(KeyId::new("k").unwrap()),
        };
        let message = open_to_proto(&open);
        assert_eq!(open_from_proto(attempt.plane, message.clone()), Ok(open));
        let nameless = report::OpenAttempt {
            number: 0,
            ..message
        };
        assert!(open_from_proto(attempt.plane, nameless).is_err());
    }
}

//! Attempts, outcomes and reports.

use tidegate_core::ids::{
    AttemptId, ConnectionId, EgressId, ModelId, PlaneIncarnation, ProviderId,
};
use tidegate_core::outcome::{
    Attempt, AttemptOutcome, LocalFault, MAX_BODY_BYTES, MAX_HEADER_BYTES, MAX_HEADERS, Outcome,
    StreamFault, TransportFault, UpstreamError,
};
use tidegate_core::time::Timestamp;
use tidegate_proto::common::v1 as common;
use tidegate_proto::report::v1 as report;

use crate::{WireError, name, optional_name, version_from_proto, version_to_proto};

/// An attempt id as a message.
#[must_use]
pub fn id_to_proto(id: AttemptId) -> common::AttemptId {
    common::AttemptId {
        plane: id.plane.0,
        number: id.number,
    }
}

/// An attempt id from a message.
///
/// # Errors
/// When it is missing or one of its numbers is 0.
pub fn id_from_proto(id: Option<common::AttemptId>) -> Result<AttemptId, WireError> {
    let id = id.ok_or(WireError::Missing("attempt.id"))?;
    if id.plane == 0 || id.number == 0 {
        return Err(WireError::invalid("attempt.id", "must not be 0"));
    }
    Ok(AttemptId {
        plane: PlaneIncarnation(id.plane),
        number: id.number,
    })
}

/// An attempt as a message.
#[must_use]
pub fn to_proto(attempt: &Attempt) -> common::Attempt {
    common::Attempt {
        id: Some(id_to_proto(attempt.id)),
        provider: attempt.provider.to_string(),
        connection: attempt.connection.to_string(),
        model: attempt.model.to_string(),
        decided_on: Some(version_to_proto(attempt.decided_on)),
        epoch: Some(version_to_proto(attempt.epoch)),
        credential_version: attempt.credential_version,
        egress: attempt
            .egress
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        probe: attempt.probe,
        synthetic: attempt.synthetic,
    }
}

/// An attempt from a message.
///
/// # Errors
/// When it is missing, or a member is missing or no valid name.
pub fn from_proto(attempt: Option<common::Attempt>) -> Result<Attempt, WireError> {
    let attempt = attempt.ok_or(WireError::Missing("attempt"))?;
    Ok(Attempt {
        id: id_from_proto(attempt.id)?,
        provider: name("attempt.provider", ProviderId::new(&attempt.provider))?,
        connection: name("attempt.connection", ConnectionId::new(&attempt.connection))?,
        model: name("attempt.model", ModelId::new(&attempt.model))?,
        decided_on: version_from_proto(attempt.decided_on),
        epoch: version_from_proto(attempt.epoch),
        credential_version: credential_version(attempt.credential_version)?,
        egress: optional_name("attempt.egress", &attempt.egress, |text| {
            EgressId::new(text)
        })?,
        probe: attempt.probe,
        synthetic: attempt.synthetic,
    })
}

/// Versions of a credential are counted one by one. A number that no count reaches is refused: believed once, it
/// would outrank every later credential of the connection.
const MAX_CREDENTIAL_VERSION: u64 = u32::MAX as u64;

fn credential_version(version: u64) -> Result<u64, WireError> {
    if version > MAX_CREDENTIAL_VERSION {
        return Err(WireError::invalid(
            "attempt.credential_version",
            "no credential has been replaced that often",
        ));
    }
    Ok(version)
}

/// An outcome as a message.
#[must_use]
pub fn outcome_to_proto(outcome: &Outcome) -> common::Outcome {
    use common::outcome::Kind;
    let kind = match outcome {
        Outcome::Success => Kind::Success(common::Success {}),
        Outcome::ClientAbort => Kind::ClientAbort(common::ClientAbort {}),
        Outcome::Response(error) => Kind::Response(common::UpstreamError {
            status: u32::from(error.status),
            headers: error
                .headers
                .iter()
                .map(|(name, value)| common::Header {
                    name: name.clone(),
                    value: value.clone(),
                })
                .collect(),
            body: error.body.clone(),
            embedded: error.embedded,
        }),
        Outcome::Transport(fault) => Kind::Transport(transport_to_proto(*fault).into()),
        Outcome::Stream(fault) => Kind::Stream(stream_to_proto(*fault).into()),
        Outcome::Local(fault) => Kind::Local(local_to_proto(*fault).into()),
    };
    common::Outcome { kind: Some(kind) }
}

/// An outcome from a message. What exceeds the bounds of an upstream's error is cut, not refused.
///
/// # Errors
/// When it is missing or of a kind this build does not know.
pub fn outcome_from_proto(outcome: Option<common::Outcome>) -> Result<Outcome, WireError> {
    use common::outcome::Kind;
    let kind = outcome
        .and_then(|outcome| outcome.kind)
        .ok_or(WireError::Missing("outcome"))?;
    Ok(match kind {
        Kind::Success(common::Success {}) => Outcome::Success,
        Kind::ClientAbort(common::ClientAbort {}) => Outcome::ClientAbort,
        Kind::Response(error) => Outcome::Response(upstream_error_from_proto(error)?),
        Kind::Transport(fault) => Outcome::Transport(transport_from_proto(fault)?),
        Kind::Stream(fault) => Outcome::Stream(stream_from_proto(fault)?),
        Kind::Local(fault) => Outcome::Local(local_from_proto(fault)?),
    })
}

fn upstream_error_from_proto(error: common::UpstreamError) -> Result<UpstreamError, WireError> {
    let status = u16::try_from(error.status)
        .ok()
        .filter(|status| (100..=999).contains(status))
        .ok_or_else(|| WireError::invalid("outcome.response.status", "must be 100 to 999"))?;
    Ok(UpstreamError {
        status,
        headers: error
            .headers
            .into_iter()
            .take(MAX_HEADERS)
            .map(|header| {
                (
                    header.name.to_ascii_lowercase(),
                    cut(header.value, MAX_HEADER_BYTES),
                )
            })
            .collect(),
        body: cut(error.body, MAX_BODY_BYTES),
        embedded: error.embedded,
    })
}

/// Cuts a text to at most `limit` bytes at a character boundary.
fn cut(mut text: String, limit: usize) -> String {
    text.truncate(text.floor_char_boundary(limit));
    text
}

fn transport_to_proto(fault: TransportFault) -> common::TransportFault {
    match fault {
        TransportFault::Resolve => common::TransportFault::Resolve,
        TransportFault::Connect => common::TransportFault::Connect,
        TransportFault::Tls => common::TransportFault::Tls,
        TransportFault::Reset => common::TransportFault::Reset,
        TransportFault::HeadersTimeout => common::TransportFault::HeadersTimeout,
        TransportFault::Protocol => common::TransportFault::Protocol,
        TransportFault::ProxyUnreachable => common::TransportFault::ProxyUnreachable,
    }
}

fn transport_from_proto(fault: i32) -> Result<TransportFault, WireError> {
    match common::TransportFault::try_from(fault) {
        Ok(common::TransportFault::Resolve) => Ok(TransportFault::Resolve),
        Ok(common::TransportFault::Connect) => Ok(TransportFault::Connect),
        Ok(common::TransportFault::Tls) => Ok(TransportFault::Tls),
        Ok(common::TransportFault::Reset) => Ok(TransportFault::Reset),
        Ok(common::TransportFault::HeadersTimeout) => Ok(TransportFault::HeadersTimeout),
        Ok(common::TransportFault::Protocol) => Ok(TransportFault::Protocol),
        Ok(common::TransportFault::ProxyUnreachable) => Ok(TransportFault::ProxyUnreachable),
        Ok(common::TransportFault::Unspecified) | Err(_) => {
            Err(WireError::invalid("outcome.transport", "unknown fault"))
        }
    }
}

fn stream_to_proto(fault: StreamFault) -> common::StreamFault {
    match fault {
        StreamFault::ReadinessTimeout => common::StreamFault::ReadinessTimeout,
        StreamFault::EarlyEof => common::StreamFault::EarlyEof,
        StreamFault::Truncated => common::StreamFault::Truncated,
        StreamFault::IdleTimeout => common::StreamFault::IdleTimeout,
        StreamFault::DeadlineExceeded => common::StreamFault::DeadlineExceeded,
        StreamFault::ThroughputTooLow => common::StreamFault::ThroughputTooLow,
    }
}

fn stream_from_proto(fault: i32) -> Result<StreamFault, WireError> {
    match common::StreamFault::try_from(fault) {
        Ok(common::StreamFault::ReadinessTimeout) => Ok(StreamFault::ReadinessTimeout),
        Ok(common::StreamFault::EarlyEof) => Ok(StreamFault::EarlyEof),
        Ok(common::StreamFault::Truncated) => Ok(StreamFault::Truncated),
        Ok(common::StreamFault::IdleTimeout) => Ok(StreamFault::IdleTimeout),
        Ok(common::StreamFault::DeadlineExceeded) => Ok(StreamFault::DeadlineExceeded),
        Ok(common::StreamFault::ThroughputTooLow) => Ok(StreamFault::ThroughputTooLow),
        Ok(common::StreamFault::Unspecified) | Err(_) => {
            Err(WireError::invalid("outcome.stream", "unknown fault"))
        }
    }
}

fn local_to_proto(fault: LocalFault) -> common::LocalFault {
    match fault {
        LocalFault::QueueFull => common::LocalFault::QueueFull,
        LocalFault::ExecutionExpired => common::LocalFault::ExecutionExpired,
        LocalFault::TargetExpired => common::LocalFault::TargetExpired,
        LocalFault::PermitRefused => common::LocalFault::PermitRefused,
        LocalFault::LeaseConflict => common::LocalFault::LeaseConflict,
        LocalFault::ControlPlaneUnreachable => common::LocalFault::ControlPlaneUnreachable,
        LocalFault::Internal => common::LocalFault::Internal,
    }
}

fn local_from_proto(fault: i32) -> Result<LocalFault, WireError> {
    match common::LocalFault::try_from(fault) {
        Ok(common::LocalFault::QueueFull) => Ok(LocalFault::QueueFull),
        Ok(common::LocalFault::ExecutionExpired) => Ok(LocalFault::ExecutionExpired),
        Ok(common::LocalFault::TargetExpired) => Ok(LocalFault::TargetExpired),
        Ok(common::LocalFault::PermitRefused) => Ok(LocalFault::PermitRefused),
        Ok(common::LocalFault::LeaseConflict) => Ok(LocalFault::LeaseConflict),
        Ok(common::LocalFault::ControlPlaneUnreachable) => Ok(LocalFault::ControlPlaneUnreachable),
        Ok(common::LocalFault::Internal) => Ok(LocalFault::Internal),
        Ok(common::LocalFault::Unspecified) | Err(_) => {
            Err(WireError::invalid("outcome.local", "unknown fault"))
        }
    }
}

/// A report as a message.
#[must_use]
pub fn report_to_proto(outcome: &AttemptOutcome) -> report::AttemptReport {
    report::AttemptReport {
        attempt: Some(to_proto(&outcome.attempt)),
        outcome: Some(outcome_to_proto(&outcome.outcome)),
        occurred_at_unix_ms: outcome.occurred_at.0,
        next_target_same_provider: outcome.next_target_same_provider,
        combo: outcome.combo,
        count: outcome.count,
    }
}

/// A report from a message.
///
/// # Errors
/// As [`from_proto`] and [`outcome_from_proto`].
pub fn report_from_proto(
    report: Option<report::AttemptReport>,
) -> Result<AttemptOutcome, WireError> {
    let report = report.ok_or(WireError::Missing("report"))?;
    Ok(AttemptOutcome {
        attempt: from_proto(report.attempt)?,
        outcome: outcome_from_proto(report.outcome)?,
        occurred_at: Timestamp(report.occurred_at_unix_ms),
        next_target_same_provider: report.next_target_same_provider,
        combo: report.combo,
        count: report.count.max(1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::version::Version;

    fn attempt() -> Attempt {
        Attempt {
            id: AttemptId {
                plane: PlaneIncarnation(7),
                number: 3,
            },
            provider: ProviderId::new("openai").unwrap(),
            connection: ConnectionId::new("main").unwrap(),
            model: ModelId::new("gpt-4o").unwrap(),
            decided_on: Version::new(9, 4),
            epoch: Version::new(9, 1),
            credential_version: 2,
            egress: Some(EgressId::new("eu-1").unwrap()),
            probe: true,
            synthetic: false,
        }
    }

    #[test]
    fn every_outcome_survives_the_wire() {
        let outcomes = [
            Outcome::Success,
            Outcome::ClientAbort,
            Outcome::Response(UpstreamError {
                status: 429,
                headers: vec![("retry-after".to_owned(), "3".to_owned())],
                body: "slow down".to_owned(),
                embedded: true,
            }),
            Outcome::Transport(TransportFault::ProxyUnreachable),
            Outcome::Stream(StreamFault::Truncated),
            Outcome::Local(LocalFault::LeaseConflict),
        ];
        for outcome in outcomes {
            let report = AttemptOutcome {
                attempt: attempt(),
                outcome,
                occurred_at: Timestamp(1_000),
                next_target_same_provider: true,
                combo: true,
                count: 5,
            };
            assert_eq!(
                report_from_proto(Some(report_to_proto(&report))),
                Ok(report)
            );
        }
    }

    #[test]
    fn messages_out_of_contract_are_refused_by_member() {
        let refused = |change: fn(&mut common::Attempt)| {
            let mut message = to_proto(&attempt());
            change(&mut message);
            from_proto(Some(message)).unwrap_err().field().to_owned()
        };
        assert_eq!(refused(|message| message.id = None), "attempt.id");
        assert_eq!(
            refused(|message| message.id = Some(common::AttemptId::default())),
            "attempt.id"
        );
        assert_eq!(
            refused(|message| message.provider.clear()),
            "attempt.provider"
        );
        assert_eq!(
            refused(|message| message.credential_version = u64::MAX),
            "attempt.credential_version"
        );
        assert_eq!(
            refused(|message| message.connection = "a b".to_owned()),
            "attempt.connection"
        );
        for kind in [
            common::outcome::Kind::Transport(99),
            common::outcome::Kind::Stream(0),
            common::outcome::Kind::Local(-1),
            common::outcome::Kind::Response(common::UpstreamError::default()),
        ] {
            let outcome = common::Outcome { kind: Some(kind) };
            assert!(outcome_from_proto(Some(outcome)).is_err());
        }
    }

    #[test]
    fn an_oversized_error_is_cut_at_a_character() {
        let outcome = common::Outcome {
            kind: Some(common::outcome::Kind::Response(common::UpstreamError {
                status: 500,
                body: "ä".repeat(MAX_BODY_BYTES),
                ..common::UpstreamError::default()
            })),
        };
        let Ok(Outcome::Response(error)) = outcome_from_proto(Some(outcome)) else {
            panic!("an error response was sent");
        };
        assert_eq!(error.body.len(), MAX_BODY_BYTES);
    }
}

//! Exclusive leases.

use tidegate_core::ids::{ConnectionId, PlaneIncarnation};
use tidegate_core::lease::{
    ActivityName, Capacity, Generation, Grant, LeaseError, LeaseName, LeaseState, LeaseSummary,
    OwnerHash,
};
use tidegate_core::time::Timestamp;
use tidegate_proto::common::v1 as common;
use tidegate_proto::lease::v1 as proto;

use crate::{WireError, name};

/// The name of a lease as a message.
#[must_use]
pub fn name_to_proto(name: &LeaseName) -> common::LeaseName {
    common::LeaseName {
        owner_sha256: name.owner.as_bytes().to_vec(),
        generation: name.generation.number(),
    }
}

/// The name of a lease from a message; `field` is where it stands.
///
/// # Errors
/// When it is missing, the owner is not a hash, or the generation is out of bounds.
pub fn name_from_proto(
    field: &'static str,
    message: Option<common::LeaseName>,
) -> Result<LeaseName, WireError> {
    let message = message.ok_or(WireError::Missing(field))?;
    Ok(LeaseName {
        owner: owner_from_proto(&format!("{field}.owner_sha256"), &message.owner_sha256)?,
        generation: generation_from_proto(&format!("{field}.generation"), message.generation)?,
    })
}

/// The hash of an owner token from bytes.
///
/// # Errors
/// When it is not 32 bytes.
pub fn owner_from_proto(field: &str, bytes: &[u8]) -> Result<OwnerHash, WireError> {
    <[u8; 32]>::try_from(bytes)
        .map(OwnerHash::from_bytes)
        .map_err(|_| WireError::invalid(field, "must be 32 bytes"))
}

fn generation_from_proto(field: &str, number: u64) -> Result<Generation, WireError> {
    Generation::try_from(number).map_err(|error| WireError::invalid(field, error.to_string()))
}

/// A refusal as a message.
#[must_use]
pub fn refusal_to_proto(error: LeaseError) -> common::LeaseRefusal {
    let (retry_after_seconds, eligible) = match error {
        LeaseError::Capacity(capacity) => (capacity.retry_after_seconds, capacity.eligible),
        _ => (0, 0),
    };
    common::LeaseRefusal {
        code: error.code().to_owned(),
        retry_after_seconds,
        eligible,
    }
}

/// A refusal from a message. One that a newer control plane words in a way unknown here is [`LeaseError::ServiceUnavailable`]:
/// it stays a refusal, so that nothing is sent and nobody decides in its place.
#[must_use]
pub fn refusal_from_proto(message: &common::LeaseRefusal) -> LeaseError {
    let capacity = Capacity::bounded(message.retry_after_seconds, message.eligible);
    LeaseError::of_code(&message.code, capacity).unwrap_or(LeaseError::ServiceUnavailable)
}

/// A lease as a message. Neither its owner nor where it is is told.
#[must_use]
pub fn lease_to_proto(lease: &LeaseSummary) -> proto::Lease {
    proto::Lease {
        state: lease.state.as_str().to_owned(),
        generation: lease.generation.number(),
        acquired_at_unix_ms: lease.acquired_at.0,
        renewed_at_unix_ms: lease.renewed_at.0,
        expires_at_unix_ms: lease.expires_at.0,
    }
}

/// What an owner is told of a lease, from a message.
///
/// # Errors
/// When state or generation are not valid.
pub fn lease_from_proto(message: &proto::Lease) -> Result<LeaseSummary, WireError> {
    Ok(LeaseSummary {
        state: LeaseState::of_word(&message.state)
            .ok_or_else(|| WireError::invalid("lease.state", "unknown state"))?,
        generation: generation_from_proto("lease.generation", message.generation)?,
        acquired_at: Timestamp(message.acquired_at_unix_ms),
        renewed_at: Timestamp(message.renewed_at_unix_ms),
        expires_at: Timestamp(message.expires_at_unix_ms),
    })
}

/// A registration as a message.
#[must_use]
pub fn registration_to_proto(registration: &ActivityName) -> proto::Registration {
    proto::Registration {
        lease: Some(name_to_proto(&registration.lease)),
        connection: registration.connection.to_string(),
        plane: registration.plane.0,
        number: registration.number,
    }
}

/// A registration from a message.
///
/// # Errors
/// When a member is missing or not valid.
pub fn registration_from_proto(
    message: Option<proto::Registration>,
) -> Result<ActivityName, WireError> {
    let message = message.ok_or(WireError::Missing("registration"))?;
    if message.number == 0 {
        return Err(WireError::invalid("registration.number", "must be from 1"));
    }
    Ok(ActivityName {
        connection: name(
            "registration.connection",
            ConnectionId::new(message.connection),
        )?,
        lease: name_from_proto("registration.lease", message.lease)?,
        plane: PlaneIncarnation(message.plane),
        number: message.number,
    })
}

/// What a data plane may do, as a message.
#[must_use]
pub fn grant_to_proto(grant: Grant) -> proto::Grant {
    proto::Grant {
        lease_ms: grant.lease_ms,
        horizon_ms: grant.horizon_ms,
        guard_ms: grant.guard_ms,
    }
}

/// What a data plane may do, from a message.
#[must_use]
pub fn grant_from_proto(message: proto::Grant) -> Grant {
    Grant {
        lease_ms: message.lease_ms,
        horizon_ms: message.horizon_ms,
        guard_ms: message.guard_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> LeaseName {
        LeaseName {
            owner: OwnerHash::from_bytes([7; 32]),
            generation: Generation::try_from(3).unwrap(),
        }
    }

    #[test]
    fn what_is_sent_comes_back_as_it_was() {
        let back = name_from_proto("lease", Some(name_to_proto(&name())));
        assert_eq!(back, Ok(name()));
        let registration = ActivityName {
            connection: ConnectionId::new("c1").unwrap(),
            lease: name(),
            plane: PlaneIncarnation(5),
            number: 9,
        };
        let back = registration_from_proto(Some(registration_to_proto(&registration)));
        assert_eq!(back, Ok(registration));
        let capacity = LeaseError::Capacity(Capacity {
            retry_after_seconds: 4,
            eligible: 2,
        });
        for refused in [capacity, LeaseError::FenceStale, LeaseError::Required] {
            assert_eq!(refusal_from_proto(&refusal_to_proto(refused)), refused);
        }
    }

    #[test]
    fn an_unknown_refusal_stays_a_refusal() {
        let message = common::LeaseRefusal {
            code: "LEASE_OF_TOMORROW".to_owned(),
            retry_after_seconds: 0,
            eligible: 0,
        };
        assert_eq!(refusal_from_proto(&message), LeaseError::ServiceUnavailable);
    }

    #[test]
    fn what_a_capacity_refusal_tells_is_within_its_bounds() {
        let code = "lease-capacity-unavailable";
        for (told, read) in [((0, 0), (1, 1)), ((u64::MAX, u64::MAX), (3_600, u64::MAX))] {
            let message = common::LeaseRefusal {
                code: code.to_owned(),
                retry_after_seconds: told.0,
                eligible: told.1,
            };
            let capacity = Capacity {
                retry_after_seconds: read.0,
                eligible: read.1,
            };
            assert_eq!(refusal_from_proto(&message), LeaseError::Capacity(capacity));
        }
    }

    #[test]
    fn what_is_no_lease_is_refused_by_name() {
        let short = common::LeaseName {
            owner_sha256: vec![1; 31],
            generation: 1,
        };
        let refused = |message| name_from_proto("lease", Some(message)).unwrap_err();
        assert_eq!(refused(short).field(), "lease.owner_sha256");
        for generation in [0, 1 << 53] {
            let message = common::LeaseName {
                generation,
                ..name_to_proto(&name())
            };
            assert_eq!(refused(message).field(), "lease.generation");
        }
        let unnumbered = registration_from_proto(Some(proto::Registration {
            lease: Some(name_to_proto(&name())),
            connection: "c1".to_owned(),
            plane: 1,
            number: 0,
        }));
        assert!(unnumbered.is_err());
    }
}

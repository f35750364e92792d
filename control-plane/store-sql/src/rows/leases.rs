//! Leases as both databases give them back, and what a rule sees of them.

use std::collections::BTreeSet;

use tidegate_core::ids::{ConnectionId, KeyId, PlaneIncarnation, ProviderId};
use tidegate_core::lease::{
    Activity, Eligible, EndReason, Ended, Generation, InFlight, Lease, LeaseError, LeaseId,
    LeaseName, OwnerHash, Rows, Step, Stored,
};
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStoreError, LeaseReply};

use super::known;
use crate::number::{count, from_moment, from_ordered};

/// A row of `leases`.
#[derive(sqlx::FromRow)]
pub(crate) struct LeaseRow {
    id: Vec<u8>,
    owner: String,
    key_id: String,
    provider: String,
    connection: String,
    generation: i64,
    seq: i64,
    acquired_at: i64,
    renewed_at: i64,
    expires_at: i64,
    ended_at: Option<i64>,
    end_reason: Option<String>,
}

/// A row of `lease_activity`.
#[derive(sqlx::FromRow)]
pub(crate) struct ActivityRow {
    connection: String,
    owner: String,
    generation: i64,
    plane: i64,
    number: i64,
    until: i64,
}

/// A row of `lease_activity`, and the newest row of its lease on its connection.
#[derive(sqlx::FromRow)]
pub(crate) struct InFlightRow {
    #[sqlx(flatten)]
    lease: LeaseRow,
    plane: i64,
    number: i64,
    until: i64,
}

/// A row of `leases`, the present, and number and end of one registration under it.
#[derive(sqlx::FromRow)]
pub(crate) struct FencedRow {
    #[sqlx(flatten)]
    lease: LeaseRow,
    now: i64,
    number: Option<i64>,
    until: Option<i64>,
}

/// What may have changed of a row of `leases` that is known, and the rest of [`FencedRow`].
#[derive(sqlx::FromRow)]
pub(crate) struct KnownRow {
    renewed_at: i64,
    expires_at: i64,
    now: i64,
    number: Option<i64>,
    until: Option<i64>,
}

/// What a command is about.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) owner: OwnerHash,
    /// Connections that may be given away.
    pub(crate) eligible: &'a [Eligible],
    /// A generation of the owner that is looked up, over or not.
    pub(crate) generation: Option<Generation>,
}

impl<'a> Scope<'a> {
    /// The owner's row alone.
    pub(crate) fn of(owner: OwnerHash) -> Self {
        Self {
            owner,
            eligible: &[],
            generation: None,
        }
    }

    pub(crate) fn connections(&self) -> Vec<&'a str> {
        self.eligible
            .iter()
            .map(|eligible| eligible.connection.as_str())
            .collect()
    }
}

/// What a rule sees, and when.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) now: Timestamp,
    pub(crate) own: Option<Lease>,
    /// The newest row of the generation asked for, on whatever connection, over or not.
    pub(crate) newest: Option<Lease>,
    last_generation: Option<Generation>,
    held: Vec<Lease>,
    in_flight: Vec<InFlight>,
}

impl LeaseRow {
    pub(crate) fn read(self) -> Result<Lease, DurableStoreError> {
        let id: [u8; 16] = self
            .id
            .try_into()
            .map_err(|_| DurableStoreError::Corrupt("the id of a lease".to_owned()))?;
        let ended = match (self.ended_at, self.end_reason) {
            (Some(at), Some(word)) => Some(Ended {
                at: from_moment(at),
                reason: EndReason::of_word(&word).ok_or_else(|| {
                    DurableStoreError::Corrupt(format!("a lease ended for {word:?}"))
                })?,
            }),
            _ => None,
        };
        Ok(Lease {
            id: LeaseId(u128::from_be_bytes(id)),
            sequence: sequence(self.seq),
            owner: known("the owner of a lease", OwnerHash::from_hex(&self.owner))?,
            key: known("the key of a lease", KeyId::new(self.key_id))?,
            provider: known("the provider of a lease", ProviderId::new(self.provider))?,
            connection: known(
                "the connection of a lease",
                ConnectionId::new(self.connection),
            )?,
            generation: read_generation(self.generation)?,
            acquired_at: from_moment(self.acquired_at),
            renewed_at: from_moment(self.renewed_at),
            expires_at: from_moment(self.expires_at),
            ended,
        })
    }
}

impl ActivityRow {
    pub(crate) fn read(self) -> Result<Activity, DurableStoreError> {
        Ok(Activity {
            connection: known(
                "the connection of a registration",
                ConnectionId::new(self.connection),
            )?,
            lease: LeaseName {
                owner: known(
                    "the owner of a registration",
                    OwnerHash::from_hex(&self.owner),
                )?,
                generation: read_generation(self.generation)?,
            },
            plane: PlaneIncarnation(self.plane.cast_unsigned()),
            number: from_ordered(self.number),
            until: from_moment(self.until),
        })
    }
}

impl InFlightRow {
    pub(crate) fn read(self) -> Result<InFlight, DurableStoreError> {
        let lease = self.lease.read()?;
        let activity = Activity {
            connection: lease.connection.clone(),
            lease: lease.name(),
            plane: PlaneIncarnation(self.plane.cast_unsigned()),
            number: from_ordered(self.number),
            until: from_moment(self.until),
        };
        Ok(InFlight { activity, lease })
    }
}

impl FencedRow {
    /// Lease, present and the registration of this plane under this lease there.
    pub(crate) fn read(
        self,
        connection: &ConnectionId,
        lease: LeaseName,
        plane: PlaneIncarnation,
    ) -> Result<(Lease, Timestamp, Option<Activity>), DurableStoreError> {
        let stored = registration(connection, lease, plane, self.number.zip(self.until));
        Ok((self.lease.read()?, from_moment(self.now), stored))
    }
}

impl KnownRow {
    /// As [`FencedRow::read`].
    pub(crate) fn read(
        self,
        known: Lease,
        connection: &ConnectionId,
        lease: LeaseName,
        plane: PlaneIncarnation,
    ) -> (Lease, Timestamp, Option<Activity>) {
        let known = Lease {
            renewed_at: from_moment(self.renewed_at),
            expires_at: from_moment(self.expires_at),
            ..known
        };
        let stored = registration(connection, lease, plane, self.number.zip(self.until));
        (known, from_moment(self.now), stored)
    }
}

/// A registration of which number and end were read.
fn registration(
    connection: &ConnectionId,
    lease: LeaseName,
    plane: PlaneIncarnation,
    stored: Option<(i64, i64)>,
) -> Option<Activity> {
    stored.map(|(number, until)| Activity {
        connection: connection.clone(),
        lease,
        plane,
        number: from_ordered(number),
        until: from_moment(until),
    })
}

impl Found {
    /// Of the owner's row and those of eligible connections together, what is in flight there, the newest row of the
    /// generation asked for, and the present with the owner's last generation.
    pub(crate) fn new(
        scope: &Scope<'_>,
        leases: Vec<Lease>,
        in_flight: Vec<InFlight>,
        newest: Option<Lease>,
        (now, last_generation): (i64, Option<i64>),
    ) -> Result<Self, DurableStoreError> {
        let own = leases
            .iter()
            .find(|lease| lease.owner == scope.owner)
            .cloned();
        let eligible: BTreeSet<&str> = scope.connections().into_iter().collect();
        let held = leases
            .into_iter()
            .filter(|lease| eligible.contains(lease.connection.as_str()))
            .collect();
        Ok(Self {
            now: from_moment(now),
            own,
            newest,
            last_generation: last_generation.map(read_generation).transpose()?,
            held,
            in_flight,
        })
    }

    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows {
            last_generation: self.last_generation,
            own: self.own.as_ref(),
            held: &self.held,
            in_flight: &self.in_flight,
        }
    }

    pub(crate) fn reply<T>(&self, answer: Result<T, LeaseError>) -> LeaseReply<T> {
        LeaseReply {
            now: self.now,
            answer,
        }
    }

    /// The reply after these rows were made.
    pub(crate) fn reply_after<T: Stored>(
        &self,
        mut answer: Result<T, LeaseError>,
        opened: &[(LeaseId, u64)],
    ) -> LeaseReply<T> {
        if let Ok(answer) = &mut answer {
            for (lease, sequence) in opened.iter().copied() {
                answer.stored(lease, sequence);
            }
        }
        self.reply(answer)
    }
}

/// A place in the order of rows; databases begin with 1.
pub(crate) fn sequence(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

/// What a step answers when it writes nothing.
pub(crate) fn without_changes<T>(step: Step<T>) -> Option<Result<T, LeaseError>> {
    step.changes.is_empty().then_some(step.answer)
}

/// The bytes of an id.
pub(crate) fn id_bytes(id: LeaseId) -> Vec<u8> {
    id.0.to_be_bytes().to_vec()
}

/// A generation as stored.
pub(crate) fn generation(generation: Generation) -> i64 {
    count(generation.number())
}

fn read_generation(stored: i64) -> Result<Generation, DurableStoreError> {
    let number = u64::try_from(stored).unwrap_or(0);
    known("a generation", Generation::try_from(number))
}

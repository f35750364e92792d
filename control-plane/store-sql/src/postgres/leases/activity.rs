//! Registrations of data planes: one read, and one statement that writes while what was read still stands.
//!
//! That statement locks the lease's row before the registration's: whoever ends the lease comes before it, and then it
//! writes nothing, or waits for it; whoever gives the connection away after that sees the registration. The time is that
//! of the read. What follows from it is only shorter than from a later one, and counts from before the question.

use std::time::Instant;

use sqlx::PgConnection;
use tidegate_core::ids::{ConnectionId, PlaneIncarnation};
use tidegate_core::lease::{
    Activity, ActivityName, Fence, FenceError, Grant, Lease, LeaseName, fence as fence_rule,
    renew_activity,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_core::time::Timestamp;

use super::foreseen;
use super::recent::Recent;
use super::transaction::{Rounds, Stop};
use crate::call::{Failure, Progress};
use crate::number::{bits, moment, ordered, present};
use crate::rows::leases::{FencedRow, KnownRow, generation, id_bytes};

/// Reads, and writes only when what is registered does not cover the answer; or only writes, where that is foreseen.
pub(super) async fn fence(
    connection: &mut PgConnection,
    progress: &Progress,
    recent: &Recent,
    asked: &Fence<'_>,
    settings: &LeaseSettings,
) -> Result<Result<Grant, FenceError>, Failure> {
    let foreseen = foreseen::fence(connection, progress, recent, asked, settings).await?;
    if let Some(grant) = foreseen {
        recent.registered(asked);
        return Ok(Ok(grant));
    }
    let mut rounds = Rounds::default();
    loop {
        let round = fence_once(connection, progress, recent, asked, settings).await;
        if let Some(answer) = rounds.settle(round)? {
            if answer.is_ok() {
                recent.registered(asked);
            }
            return Ok(answer);
        }
    }
}

async fn fence_once(
    connection: &mut PgConnection,
    progress: &Progress,
    recent: &Recent,
    asked: &Fence<'_>,
    settings: &LeaseSettings,
) -> Result<Result<Grant, FenceError>, Stop> {
    let seen = match recent.lease(asked.lease.owner, Instant::now()) {
        Some((known, _)) => look_again(connection, known, asked).await?,
        None => None,
    };
    let seen = match seen {
        Some(seen) => Some(seen),
        None => look(connection, asked).await?,
    };
    let Some(seen) = seen else {
        recent.forget(asked.lease.owner);
        // Without a lease the time does not count.
        let refused = fence_rule(None, None, asked, settings, Timestamp(0));
        return Ok(refused.map(|granted| granted.grant));
    };
    recent.saw_lease(&seen.lease, seen.now, Instant::now());
    let (lease, stored) = (Some(&seen.lease), seen.stored.as_ref());
    let granted = match fence_rule(lease, stored, asked, settings, seen.now) {
        Ok(granted) => granted,
        Err(error) => return Ok(Err(error)),
    };
    if let Some(activity) = &granted.write {
        progress.decides();
        register(connection, &seen, activity).await?;
    }
    Ok(Ok(granted.grant))
}

/// Lets go on what is in flight.
pub(super) async fn renew(
    connection: &mut PgConnection,
    progress: &Progress,
    name: &ActivityName,
    settings: &LeaseSettings,
) -> Result<Option<Grant>, Failure> {
    let mut rounds = Rounds::default();
    loop {
        let round = renew_once(connection, progress, name, settings).await;
        if let Some(answer) = rounds.settle(round)? {
            return Ok(answer);
        }
    }
}

async fn renew_once(
    connection: &mut PgConnection,
    progress: &Progress,
    name: &ActivityName,
    settings: &LeaseSettings,
) -> Result<Option<Grant>, Stop> {
    let Some(seen) = look_at(connection, name).await? else {
        return Ok(None);
    };
    let stored = seen.stored.as_ref();
    let renewed = renew_activity(stored, &seen.lease, name.number, settings, seen.now);
    let (Some(granted), Some(stored)) = (renewed, stored) else {
        return Ok(None);
    };
    if let Some(activity) = &granted.write {
        progress.decides();
        prolong(connection, &seen.lease, stored, activity.until).await?;
    }
    Ok(Some(granted.grant))
}

pub(super) async fn delete(
    connection: &mut PgConnection,
    progress: &Progress,
    name: &ActivityName,
) -> Result<(), Failure> {
    progress.decides();
    sqlx::query(
        "DELETE FROM lease_activity
         WHERE connection = $1 AND owner = $2 AND generation = $3 AND plane = $4
             AND number <= $5",
    )
    .bind(name.connection.as_str())
    .bind(name.lease.owner.to_string())
    .bind(generation(name.lease.generation))
    .bind(bits(name.plane.0))
    .bind(ordered(name.number))
    .execute(connection)
    .await?;
    Ok(())
}

/// What stands, read without locks, and when.
struct Seen {
    lease: Lease,
    stored: Option<Activity>,
    now: Timestamp,
}

impl Seen {
    fn read(
        row: FencedRow,
        on: &ConnectionId,
        lease: LeaseName,
        plane: PlaneIncarnation,
    ) -> Result<Self, Stop> {
        let (lease, now, stored) = row.read(on, lease, plane)?;
        Ok(Self { lease, stored, now })
    }
}

/// The owner's row that has not ended, and what is registered.
async fn look(connection: &mut PgConnection, asked: &Fence<'_>) -> Result<Option<Seen>, Stop> {
    let row: Option<FencedRow> = sqlx::query_as(
        "SELECT id, lease.owner, key_id, provider, lease.connection, lease.generation,
                seq, acquired_at, renewed_at, expires_at, ended_at, end_reason,
                (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now, number, until
         FROM leases AS lease LEFT JOIN lease_activity AS activity
             ON activity.connection = $2 AND activity.owner = $1
                 AND activity.generation = $3 AND activity.plane = $4
         WHERE lease.owner = $1 AND ended_at IS NULL",
    )
    .bind(asked.lease.owner.to_string())
    .bind(asked.connection.as_str())
    .bind(generation(asked.lease.generation))
    .bind(bits(asked.plane.0))
    .fetch_optional(connection)
    .await?;
    row.map(|row| Seen::read(row, asked.connection, asked.lease, asked.plane))
        .transpose()
}

/// The same of a row that is known, while it has not ended: only its times may have changed.
async fn look_again(
    connection: &mut PgConnection,
    known: Lease,
    asked: &Fence<'_>,
) -> Result<Option<Seen>, Stop> {
    let row: Option<KnownRow> = sqlx::query_as(
        "SELECT renewed_at, expires_at,
                (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now, number, until
         FROM leases AS lease LEFT JOIN lease_activity AS activity
             ON activity.connection = $2 AND activity.owner = $3
                 AND activity.generation = $4 AND activity.plane = $5
         WHERE lease.id = $1 AND ended_at IS NULL",
    )
    .bind(id_bytes(known.id))
    .bind(asked.connection.as_str())
    .bind(asked.lease.owner.to_string())
    .bind(generation(asked.lease.generation))
    .bind(bits(asked.plane.0))
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|row| {
        let (lease, now, stored) = row.read(known, asked.connection, asked.lease, asked.plane);
        Seen { lease, stored, now }
    }))
}

/// The newest row of a lease on a connection, over or not, and what is registered.
async fn look_at(connection: &mut PgConnection, name: &ActivityName) -> Result<Option<Seen>, Stop> {
    let row: Option<FencedRow> = sqlx::query_as(
        "SELECT id, lease.owner, key_id, provider, lease.connection, lease.generation,
                seq, acquired_at, renewed_at, expires_at, ended_at, end_reason,
                (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now, number, until
         FROM (SELECT * FROM leases WHERE owner = $1 AND generation = $3 AND connection = $2
               ORDER BY seq DESC LIMIT 1) AS lease
         LEFT JOIN lease_activity AS activity
             ON activity.connection = $2 AND activity.owner = $1
                 AND activity.generation = $3 AND activity.plane = $4",
    )
    .bind(name.lease.owner.to_string())
    .bind(name.connection.as_str())
    .bind(generation(name.lease.generation))
    .bind(bits(name.plane.0))
    .fetch_optional(connection)
    .await?;
    row.map(|row| Seen::read(row, &name.connection, name.lease, name.plane))
        .transpose()
}

/// Registers what a fence grants, while the lease still stands as it was seen, or longer. A registration that came up
/// meanwhile and goes further is left. Otherwise the race is lost.
async fn register(
    connection: &mut PgConnection,
    seen: &Seen,
    activity: &Activity,
) -> Result<(), Stop> {
    let written = sqlx::query(
        "WITH lease AS MATERIALIZED (
             SELECT FROM leases WHERE id = $1 AND ended_at IS NULL AND expires_at >= $2 FOR SHARE)
         INSERT INTO lease_activity AS old (connection, owner, generation, plane, number, until)
         SELECT $3::text, $4::text, $5::bigint, $6::bigint, $7::bigint, $8::bigint FROM lease
         ON CONFLICT (connection, owner, generation, plane) DO UPDATE
             SET number = excluded.number, until = excluded.until
             WHERE (old.number <= excluded.number OR old.until <= $9)
                 AND old.until <= excluded.until",
    )
    .bind(id_bytes(seen.lease.id))
    .bind(moment(seen.lease.expires_at))
    .bind(activity.connection.as_str())
    .bind(activity.lease.owner.to_string())
    .bind(generation(activity.lease.generation))
    .bind(bits(activity.plane.0))
    .bind(ordered(activity.number))
    .bind(moment(activity.until))
    .bind(present(seen.now))
    .execute(connection)
    .await?;
    won(written.rows_affected())
}

/// Makes a registration last longer, while it and its lease still stand as they were seen; otherwise the race is lost.
async fn prolong(
    connection: &mut PgConnection,
    lease: &Lease,
    stored: &Activity,
    until: Timestamp,
) -> Result<(), Stop> {
    let written = sqlx::query(
        "WITH lease AS MATERIALIZED (
             SELECT FROM leases WHERE id = $1 AND ended_at IS NOT DISTINCT FROM $2
                 AND expires_at >= $3 FOR SHARE)
         UPDATE lease_activity SET until = $4
         WHERE connection = $5 AND owner = $6 AND generation = $7 AND plane = $8
             AND number = $9 AND until = $10 AND EXISTS (SELECT FROM lease)",
    )
    .bind(id_bytes(lease.id))
    .bind(lease.ended.map(|ended| moment(ended.at)))
    .bind(moment(lease.expires_at))
    .bind(moment(until))
    .bind(stored.connection.as_str())
    .bind(stored.lease.owner.to_string())
    .bind(generation(stored.lease.generation))
    .bind(bits(stored.plane.0))
    .bind(ordered(stored.number))
    .bind(moment(stored.until))
    .execute(connection)
    .await?;
    won(written.rows_affected())
}

fn won(rows: u64) -> Result<(), Stop> {
    if rows == 0 {
        return Err(Stop::Lost);
    }
    Ok(())
}

//! Registrations of data planes. The lease's row is locked before the registration's: whoever ends the lease waits for
//! the registration, and whoever gives the connection away after that sees it.

use sqlx::{Connection, PgConnection};
use tidegate_core::ids::{ConnectionId, PlaneIncarnation};
use tidegate_core::lease::{
    Activity, ActivityName, Fence, FenceError, Grant, Granted, Lease, LeaseName,
    fence as fence_rule, renew_activity,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_core::time::Timestamp;

use super::clock;
use super::transaction::{Rounds, Stop};
use crate::call::{Failure, Progress};
use crate::number::{bits, moment, ordered, present};
use crate::rows::leases::{ActivityRow, FencedRow, LeaseRow, generation};

/// Reads, and writes only when what is registered does not cover the answer.
pub(super) async fn fence(
    connection: &mut PgConnection,
    progress: &Progress,
    asked: &Fence<'_>,
    settings: &LeaseSettings,
) -> Result<Result<Grant, FenceError>, Failure> {
    let mut rounds = Rounds::default();
    loop {
        let round = fence_once(connection, progress, asked, settings).await;
        if let Some(answer) = rounds.settle(round)? {
            return Ok(answer);
        }
    }
}

async fn fence_once(
    connection: &mut PgConnection,
    progress: &Progress,
    asked: &Fence<'_>,
    settings: &LeaseSettings,
) -> Result<Result<Grant, FenceError>, Stop> {
    match look(connection, asked, settings).await? {
        Ok(Granted { grant, write: None }) => return Ok(Ok(grant)),
        Ok(Granted { write: Some(_), .. }) => {}
        Err(error) => return Ok(Err(error)),
    }
    let mut tx = connection.begin().await?;
    let lease = lock_own(&mut tx, asked).await?;
    let stored = lock(&mut tx, asked.connection, asked.lease, asked.plane).await?;
    let now = clock(&mut tx).await?;
    let granted = match fence_rule(lease.as_ref(), stored.as_ref(), asked, settings, now) {
        Ok(granted) => granted,
        // It ended while we waited for its row, and may have moved: look again.
        Err(_) if lease.is_none() => return Err(Stop::Lost),
        Err(error) => return Ok(Err(error)),
    };
    if let Some(activity) = &granted.write {
        write(&mut tx, activity, now).await?;
        progress.decides();
        tx.commit().await?;
    }
    Ok(Ok(granted.grant))
}

/// Lets go on what is in flight. This nearly always writes, so it does not look first.
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
    let mut tx = connection.begin().await?;
    let Some(lease) = lock_newest(&mut tx, name).await? else {
        return Ok(None);
    };
    let stored = lock(&mut tx, &name.connection, name.lease, name.plane).await?;
    let now = clock(&mut tx).await?;
    let renewed = renew_activity(stored.as_ref(), &lease, name.number, settings, now);
    let Some(granted) = renewed else {
        return Ok(None);
    };
    if let Some(activity) = &granted.write {
        write(&mut tx, activity, now).await?;
        progress.decides();
        tx.commit().await?;
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

/// What the rule says of what stands, without locks.
async fn look(
    connection: &mut PgConnection,
    asked: &Fence<'_>,
    settings: &LeaseSettings,
) -> Result<Result<Granted, FenceError>, Stop> {
    let row: Option<FencedRow> = sqlx::query_as(
        "SELECT id, lease.owner, key_id, provider, lease.connection, lease.generation,
                acquired_at, renewed_at, expires_at, ended_at, end_reason,
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
    let Some(row) = row else {
        // Without a lease the time does not count.
        return Ok(fence_rule(None, None, asked, settings, Timestamp(0)));
    };
    let (lease, now, stored) = row.read(asked.connection, asked.lease, asked.plane)?;
    Ok(fence_rule(
        Some(&lease),
        stored.as_ref(),
        asked,
        settings,
        now,
    ))
}

/// The owner's row that has not ended, which does not end before we do.
async fn lock_own(connection: &mut PgConnection, asked: &Fence<'_>) -> Result<Option<Lease>, Stop> {
    let row: Option<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases WHERE owner = $1 AND ended_at IS NULL FOR SHARE",
    )
    .bind(asked.lease.owner.to_string())
    .fetch_optional(connection)
    .await?;
    Ok(row.map(LeaseRow::read).transpose()?)
}

/// The newest row of a lease on a connection, over or not.
async fn lock_newest(
    connection: &mut PgConnection,
    name: &ActivityName,
) -> Result<Option<Lease>, Stop> {
    let row: Option<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases WHERE owner = $1 AND generation = $2 AND connection = $3
         ORDER BY seq DESC LIMIT 1 FOR SHARE",
    )
    .bind(name.lease.owner.to_string())
    .bind(generation(name.lease.generation))
    .bind(name.connection.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(row.map(LeaseRow::read).transpose()?)
}

async fn lock(
    connection: &mut PgConnection,
    on: &ConnectionId,
    lease: LeaseName,
    plane: PlaneIncarnation,
) -> Result<Option<Activity>, Stop> {
    let row: Option<ActivityRow> = sqlx::query_as(
        "SELECT connection, owner, generation, plane, number, until FROM lease_activity
         WHERE connection = $1 AND owner = $2 AND generation = $3 AND plane = $4 FOR UPDATE",
    )
    .bind(on.as_str())
    .bind(lease.owner.to_string())
    .bind(generation(lease.generation))
    .bind(bits(plane.0))
    .fetch_optional(connection)
    .await?;
    Ok(row.map(ActivityRow::read).transpose()?)
}

/// Writes a registration. One that came up meanwhile and goes further is left: then the race is lost.
async fn write(
    connection: &mut PgConnection,
    activity: &Activity,
    now: Timestamp,
) -> Result<(), Stop> {
    let written = sqlx::query(
        "INSERT INTO lease_activity AS old (connection, owner, generation, plane, number, until)
         VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (connection, owner, generation, plane) DO UPDATE
             SET number = excluded.number, until = excluded.until
             WHERE (old.number <= excluded.number OR old.until <= $7)
                 AND old.until <= excluded.until",
    )
    .bind(activity.connection.as_str())
    .bind(activity.lease.owner.to_string())
    .bind(generation(activity.lease.generation))
    .bind(bits(activity.plane.0))
    .bind(ordered(activity.number))
    .bind(moment(activity.until))
    .bind(present(now))
    .execute(connection)
    .await?;
    if written.rows_affected() == 0 {
        return Err(Stop::Lost);
    }
    Ok(())
}

//! Registrations of data planes.

use sqlx::SqliteConnection;
use tidegate_core::ids::{ConnectionId, PlaneIncarnation};
use tidegate_core::lease::{
    Activity, ActivityName, Fence, FenceError, Grant, Granted, LeaseName, fence as fence_rule,
    renew_activity,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_core::time::Timestamp;

use super::super::{Survives, begin};
use super::clock;
use super::transaction::newest_on;
use crate::call::{Failure, Progress};
use crate::number::{bits, moment, ordered};
use crate::rows::leases::{ActivityRow, FencedRow, generation};

/// Looks and writes what the answer needs.
pub(super) async fn fence(
    connection: &mut SqliteConnection,
    progress: &Progress,
    asked: &Fence<'_>,
    settings: &LeaseSettings,
) -> Result<Result<Grant, FenceError>, Failure> {
    let mut tx = begin(connection, Survives::Death).await?;
    let granted = match look(&mut tx, asked, settings).await? {
        Ok(granted) => granted,
        Err(error) => return Ok(Err(error)),
    };
    if let Some(activity) = &granted.write {
        write(&mut tx, activity).await?;
        progress.decides();
        tx.commit().await?;
    }
    Ok(Ok(granted.grant))
}

/// Lets go on what is in flight.
pub(super) async fn renew(
    connection: &mut SqliteConnection,
    progress: &Progress,
    name: &ActivityName,
    settings: &LeaseSettings,
) -> Result<Option<Grant>, Failure> {
    let mut tx = begin(connection, Survives::Death).await?;
    let Some(lease) = newest_on(&mut tx, name.lease, &name.connection).await? else {
        return Ok(None);
    };
    let stored = read(&mut tx, &name.connection, name.lease, name.plane).await?;
    let now = clock(&mut tx).await?;
    let renewed = renew_activity(stored.as_ref(), &lease, name.number, settings, now);
    let Some(granted) = renewed else {
        return Ok(None);
    };
    if let Some(activity) = &granted.write {
        write(&mut tx, activity).await?;
        progress.decides();
        tx.commit().await?;
    }
    Ok(Some(granted.grant))
}

pub(super) async fn delete(
    connection: &mut SqliteConnection,
    progress: &Progress,
    name: &ActivityName,
) -> Result<(), Failure> {
    progress.decides();
    sqlx::query(
        "DELETE FROM lease_activity
         WHERE connection = ?1 AND owner = ?2 AND generation = ?3 AND plane = ?4
             AND number <= ?5",
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

/// What the rule says of what stands.
pub(super) async fn look(
    connection: &mut SqliteConnection,
    asked: &Fence<'_>,
    settings: &LeaseSettings,
) -> Result<Result<Granted, FenceError>, Failure> {
    let row: Option<FencedRow> = sqlx::query_as(
        "SELECT id, lease.owner, key_id, provider, lease.connection, lease.generation,
                seq, acquired_at, renewed_at, expires_at, ended_at, end_reason,
                CAST(unixepoch('subsec') * 1000 AS INTEGER) AS now, number, until
         FROM leases AS lease LEFT JOIN lease_activity AS activity
             ON activity.connection = ?2 AND activity.owner = ?1
                 AND activity.generation = ?3 AND activity.plane = ?4
         WHERE lease.owner = ?1 AND ended_at IS NULL",
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

async fn read(
    connection: &mut SqliteConnection,
    on: &ConnectionId,
    lease: LeaseName,
    plane: PlaneIncarnation,
) -> Result<Option<Activity>, Failure> {
    let row: Option<ActivityRow> = sqlx::query_as(
        "SELECT connection, owner, generation, plane, number, until FROM lease_activity
         WHERE connection = ?1 AND owner = ?2 AND generation = ?3 AND plane = ?4",
    )
    .bind(on.as_str())
    .bind(lease.owner.to_string())
    .bind(generation(lease.generation))
    .bind(bits(plane.0))
    .fetch_optional(connection)
    .await?;
    Ok(row.map(ActivityRow::read).transpose()?)
}

async fn write(connection: &mut SqliteConnection, activity: &Activity) -> Result<(), Failure> {
    sqlx::query(
        "INSERT INTO lease_activity (connection, owner, generation, plane, number, until)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (connection, owner, generation, plane) DO UPDATE
             SET number = excluded.number, until = excluded.until",
    )
    .bind(activity.connection.as_str())
    .bind(activity.lease.owner.to_string())
    .bind(generation(activity.lease.generation))
    .bind(bits(activity.plane.0))
    .bind(ordered(activity.number))
    .bind(moment(activity.until))
    .execute(connection)
    .await?;
    Ok(())
}

//! All leases at once: what a new configuration ends, the list, and the tidying up.

use std::time::Duration;

use sqlx::SqliteConnection;
use tidegate_core::config::Document;
use tidegate_core::lease::{Lease, expire, reconcile_with_document};
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{MAX_DELETE_ROWS, MAX_SWEPT_LEASES};

use super::super::configuration::current_version;
use super::super::{Survives, begin};
use super::clock;
use super::transaction::{read_all, write};
use crate::call::{Failure, Progress};
use crate::number::present;
use crate::rows::leases::LeaseRow;

/// Ends what a document does not cover, in a transaction of its own.
pub(super) async fn reconcile(
    connection: &mut SqliteConnection,
    progress: &Progress,
    document: &Document,
    version: u64,
) -> Result<u64, Failure> {
    let mut tx = begin(connection, Survives::PowerLoss).await?;
    // What a superseded document does not cover may be given under the later one.
    if current_version(&mut tx).await?.document > version {
        return Ok(0);
    }
    let ended = end_uncovered(&mut tx, document).await?;
    progress.decides();
    tx.commit().await?;
    Ok(ended)
}

/// The same in the transaction of a caller.
pub(in super::super) async fn end_uncovered(
    connection: &mut SqliteConnection,
    document: &Document,
) -> Result<u64, Failure> {
    let now = clock(connection).await?;
    let leases = read_active(connection).await?;
    let changes = reconcile_with_document(&leases, document, now);
    write(connection, &changes).await?;
    Ok(u64::try_from(changes.len()).unwrap_or(u64::MAX))
}

pub(super) async fn list(
    connection: &mut SqliteConnection,
) -> Result<(Timestamp, Vec<Lease>), Failure> {
    Ok((clock(connection).await?, read_active(connection).await?))
}

async fn read_active(connection: &mut SqliteConnection) -> Result<Vec<Lease>, Failure> {
    let rows: Vec<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases WHERE ended_at IS NULL ORDER BY connection",
    )
    .fetch_all(connection)
    .await?;
    Ok(read_all(rows)?)
}

pub(super) async fn sweep(
    connection: &mut SqliteConnection,
    progress: &Progress,
    keep: Duration,
) -> Result<u64, Failure> {
    let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
    let mut tx = begin(connection, Survives::PowerLoss).await?;
    let now = clock(&mut tx).await?;
    let overdue: Vec<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases WHERE ended_at IS NULL AND expires_at <= ?1 LIMIT ?2",
    )
    .bind(present(now))
    .bind(MAX_SWEPT_LEASES)
    .fetch_all(&mut *tx)
    .await?;
    let changes = expire(&read_all(overdue)?, now);
    write(&mut tx, &changes).await?;
    let registrations = sqlx::query(
        "DELETE FROM lease_activity WHERE rowid IN (
             SELECT rowid FROM lease_activity WHERE until <= ?1 LIMIT ?2)",
    )
    .bind(present(now))
    .bind(MAX_DELETE_ROWS)
    .execute(&mut *tx)
    .await?;
    let ended = sqlx::query(
        "DELETE FROM leases WHERE seq IN (
             SELECT seq FROM leases WHERE ended_at <= ?1 AND NOT EXISTS (
                 SELECT 1 FROM lease_activity AS activity
                 WHERE activity.connection = leases.connection
                     AND activity.owner = leases.owner
                     AND activity.generation = leases.generation)
             ORDER BY ended_at LIMIT ?2)",
    )
    .bind(present(now.minus_ms(keep_ms)))
    .bind(MAX_DELETE_ROWS)
    .execute(&mut *tx)
    .await?;
    progress.decides();
    tx.commit().await?;
    let expired = u64::try_from(changes.len()).unwrap_or(u64::MAX);
    Ok(expired
        .saturating_add(registrations.rows_affected())
        .saturating_add(ended.rows_affected()))
}

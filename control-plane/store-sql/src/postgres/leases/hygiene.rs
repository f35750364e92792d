//! All leases at once: what a new configuration ends, the list, and the tidying up.

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tidegate_core::config::Document;
use tidegate_core::lease::{Change, Lease, expire, reconcile_with_document};
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStoreError, MAX_DELETE_ROWS, MAX_SWEPT_LEASES};

use super::super::allow;
use super::super::configuration::current_version;
use super::clock;
use super::transaction::{MAX_ROUNDS, Rounds, Stop, write};
use crate::call::{Failure, Progress};
use crate::number::present;
use crate::rows::leases::{LeaseRow, id_bytes};

/// Ends what a document does not cover, in a transaction of its own.
pub(super) async fn reconcile(
    connection: &mut PgConnection,
    progress: &Progress,
    (document, version): (&Document, u64),
    limit: Duration,
) -> Result<u64, Failure> {
    let mut rounds = Rounds::default();
    loop {
        let mut tx = connection.begin().await?;
        allow(&mut tx, limit).await?;
        let round = end_uncovered(&mut tx, document, version).await;
        if let Some(ended) = rounds.settle(round)? {
            progress.decides();
            tx.commit().await?;
            return Ok(ended);
        }
        tx.rollback().await?;
    }
}

/// The same in the transaction of a caller, who begins anew when it is [`DurableStoreError::Contended`].
pub(in super::super) async fn reconcile_in(
    connection: &mut PgConnection,
    document: &Document,
    version: u64,
) -> Result<(), Failure> {
    match end_uncovered(connection, document, version).await {
        Ok(_) => Ok(()),
        Err(Stop::Lost) => {
            Err(DurableStoreError::Contended("a lease changed meanwhile".to_owned()).into())
        }
        Err(Stop::Failed(failure)) => Err(failure),
    }
}

/// Looks at all, and locks only what ends. What waited for another's command may have been followed by a lease that is
/// not covered either, so it looks until there is nothing to end.
///
/// Which document is stored is asked after each look, in a statement of its own: a lease that was seen and is given under
/// a later document was committed after that, so the statement sees it. What is locked afterwards was seen before.
async fn end_uncovered(
    connection: &mut PgConnection,
    document: &Document,
    version: u64,
) -> Result<u64, Stop> {
    let mut ended: u64 = 0;
    for _ in 0..MAX_ROUNDS {
        let (now, leases) = list(connection).await?;
        let ending: Vec<Vec<u8>> = reconcile_with_document(&leases, document, now)
            .iter()
            .filter_map(Change::ends)
            .map(id_bytes)
            .collect();
        if ending.is_empty() || current_version(connection).await?.document > version {
            return Ok(ended);
        }
        let rows: Vec<LeaseRow> = sqlx::query_as(
            "SELECT id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                    expires_at, ended_at, end_reason
             FROM leases WHERE id = ANY($1) AND ended_at IS NULL ORDER BY seq FOR UPDATE",
        )
        .bind(ending)
        .fetch_all(&mut *connection)
        .await?;
        let leases = read_all(rows)?;
        let now = clock(connection).await?;
        let changes = reconcile_with_document(&leases, document, now);
        write(connection, &changes).await?;
        ended = ended.saturating_add(u64::try_from(changes.len()).unwrap_or(u64::MAX));
    }
    Err(Stop::Lost)
}

pub(super) async fn list(
    connection: &mut PgConnection,
) -> Result<(Timestamp, Vec<Lease>), Failure> {
    let now = clock(connection).await?;
    let rows: Vec<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases WHERE ended_at IS NULL ORDER BY connection COLLATE \"C\"",
    )
    .fetch_all(connection)
    .await?;
    Ok((now, read_all(rows)?))
}

/// Passes over what others have locked.
pub(super) async fn sweep(
    connection: &mut PgConnection,
    progress: &Progress,
    keep: Duration,
) -> Result<u64, Failure> {
    let mut rounds = Rounds::default();
    loop {
        let round = sweep_once(connection, progress, keep).await;
        if let Some(rows) = rounds.settle(round)? {
            return Ok(rows);
        }
    }
}

async fn sweep_once(
    connection: &mut PgConnection,
    progress: &Progress,
    keep: Duration,
) -> Result<u64, Stop> {
    let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
    let mut tx = connection.begin().await?;
    let now = clock(&mut tx).await?;
    // The order is no index's: for that of the key, or none, the planner may walk through all the history that lies before
    // the rows that have not ended.
    let overdue: Vec<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                    expires_at, ended_at, end_reason
             FROM leases WHERE ended_at IS NULL AND expires_at <= $1
             ORDER BY seq + 0 LIMIT $2 FOR UPDATE SKIP LOCKED",
    )
    .bind(present(now))
    .bind(i64::from(MAX_SWEPT_LEASES))
    .fetch_all(&mut *tx)
    .await?;
    let changes = expire(&read_all(overdue)?, now);
    write(&mut tx, &changes).await?;
    let registrations = sqlx::query(
        "WITH past AS MATERIALIZED (
                 SELECT connection, owner, generation, plane FROM lease_activity
                 WHERE until <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)
             DELETE FROM lease_activity AS activity USING past
             WHERE (activity.connection, activity.owner, activity.generation, activity.plane)
                 = (past.connection, past.owner, past.generation, past.plane)",
    )
    .bind(present(now))
    .bind(i64::from(MAX_DELETE_ROWS))
    .execute(&mut *tx)
    .await?;
    let ended = sqlx::query(
        "WITH past AS MATERIALIZED (
                 SELECT seq FROM leases WHERE ended_at <= $1 AND NOT EXISTS (
                     SELECT FROM lease_activity AS activity
                     WHERE activity.connection = leases.connection
                         AND activity.owner = leases.owner
                         AND activity.generation = leases.generation)
                 ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED)
             DELETE FROM leases USING past WHERE leases.seq = past.seq",
    )
    .bind(present(now.minus_ms(keep_ms)))
    .bind(i64::from(MAX_DELETE_ROWS))
    .execute(&mut *tx)
    .await?;
    progress.decides();
    tx.commit().await?;
    let expired = u64::try_from(changes.len()).unwrap_or(u64::MAX);
    Ok(expired
        .saturating_add(registrations.rows_affected())
        .saturating_add(ended.rows_affected()))
}

fn read_all(rows: Vec<LeaseRow>) -> Result<Vec<Lease>, DurableStoreError> {
    let mut leases = Vec::with_capacity(rows.len());
    for row in rows {
        leases.push(row.read()?);
    }
    Ok(leases)
}

//! One command about leases: look, run the rule, write.

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteQueryResult;
use tidegate_core::ids::ConnectionId;
use tidegate_core::lease::{
    Change, Generation, Lease, LeaseId, LeaseName, OwnerHash, Step, Stored,
};
use tidegate_store::durable::{DurableStoreError, LeaseReply};

use super::super::{Survives, begin};
use crate::call::{Failure, Progress};
use crate::number::{bits, moment};
use crate::rows::leases::{Found, InFlightRow, LeaseRow, Scope, generation, id_bytes, sequence};
use crate::rows::to_json;

/// Runs a rule on the rows of a scope, and writes what it says.
pub(super) async fn decide<T: Stored>(
    connection: &mut SqliteConnection,
    progress: &Progress,
    scope: &Scope<'_>,
    rule: impl Fn(&Found) -> Step<T>,
) -> Result<LeaseReply<T>, Failure> {
    let mut tx = begin(connection, Survives::PowerLoss).await?;
    let found = find(&mut tx, scope).await?;
    let step = rule(&found);
    let mut opened = Vec::new();
    if !step.changes.is_empty() {
        opened = write(&mut tx, &step.changes).await?;
        progress.decides();
        tx.commit().await?;
    }
    Ok(found.reply_after(step.answer, &opened))
}

/// What stands, and when.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    scope: &Scope<'_>,
) -> Result<Found, Failure> {
    let (name, eligible) = (scope.owner.to_string(), scope.connections());
    let names = to_json("names of connections", &eligible)?;
    let rows: Vec<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases WHERE ended_at IS NULL
             AND (owner = ?1 OR connection IN (SELECT value FROM json_each(?2)))",
    )
    .bind(&name)
    .bind(&names)
    .fetch_all(&mut *connection)
    .await?;
    let leases = read_all(rows)?;
    let rows: Vec<InFlightRow> = sqlx::query_as(
        "SELECT newest.*, plane, number, until
         FROM lease_activity AS activity LEFT JOIN leases AS newest ON newest.seq = (
             SELECT max(seq) FROM leases
             WHERE owner = activity.owner AND generation = activity.generation
                 AND connection = activity.connection)
         WHERE activity.connection IN (SELECT value FROM json_each(?1))",
    )
    .bind(&names)
    .fetch_all(&mut *connection)
    .await?;
    let in_flight: Result<_, _> = rows.into_iter().map(InFlightRow::read).collect();
    let present: (i64, Option<i64>) = sqlx::query_as(
        "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER),
                (SELECT last FROM lease_generations WHERE owner = ?1)",
    )
    .bind(&name)
    .fetch_one(&mut *connection)
    .await?;
    let newest = match scope.generation {
        Some(number) => newest_of(connection, scope.owner, number).await?,
        None => None,
    };
    Ok(Found::new(scope, leases, in_flight?, newest, present)?)
}

/// The newest row of a lease on a connection, over or not.
pub(super) async fn newest_on(
    connection: &mut SqliteConnection,
    lease: LeaseName,
    on: &ConnectionId,
) -> Result<Option<Lease>, Failure> {
    let row: Option<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases WHERE owner = ?1 AND generation = ?2 AND connection = ?3
         ORDER BY seq DESC LIMIT 1",
    )
    .bind(lease.owner.to_string())
    .bind(generation(lease.generation))
    .bind(on.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(row.map(LeaseRow::read).transpose()?)
}

/// The newest row of a lease on any connection, over or not.
async fn newest_of(
    connection: &mut SqliteConnection,
    owner: OwnerHash,
    number: Generation,
) -> Result<Option<Lease>, Failure> {
    let row: Option<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases WHERE owner = ?1 AND generation = ?2 ORDER BY seq DESC LIMIT 1",
    )
    .bind(owner.to_string())
    .bind(generation(number))
    .fetch_optional(connection)
    .await?;
    Ok(row.map(LeaseRow::read).transpose()?)
}

/// Writes what a rule says, and tells the rows that it made. There is no other writer, so a row that is not as the rule saw it is a fault of ours.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    changes: &[Change],
) -> Result<Vec<(LeaseId, u64)>, Failure> {
    let mut opened = Vec::new();
    for change in changes {
        let written = match change {
            Change::End { lease, ended, .. } => {
                sqlx::query(
                    "UPDATE leases SET ended_at = ?2, end_reason = ?3
                     WHERE id = ?1 AND ended_at IS NULL",
                )
                .bind(id_bytes(*lease))
                .bind(moment(ended.at))
                .bind(ended.reason.as_str())
                .execute(&mut *connection)
                .await?
            }
            Change::Extend {
                lease,
                renewed_at,
                expires_at,
                ..
            } => {
                sqlx::query(
                    "UPDATE leases SET renewed_at = ?2, expires_at = ?3
                     WHERE id = ?1 AND ended_at IS NULL",
                )
                .bind(id_bytes(*lease))
                .bind(moment(*renewed_at))
                .bind(moment(*expires_at))
                .execute(&mut *connection)
                .await?
            }
            Change::Forget(activity) => {
                sqlx::query(
                    "DELETE FROM lease_activity
                     WHERE connection = ?1 AND owner = ?2 AND generation = ?3 AND plane = ?4",
                )
                .bind(activity.connection.as_str())
                .bind(activity.lease.owner.to_string())
                .bind(generation(activity.lease.generation))
                .bind(bits(activity.plane.0))
                .execute(&mut *connection)
                .await?
            }
            Change::Open { lease, begins } => {
                if *begins {
                    changed(&count(connection, lease.name()).await?)?;
                }
                opened.push((lease.id, open(connection, lease).await?));
                continue;
            }
        };
        changed(&written)?;
    }
    Ok(opened)
}

fn changed(written: &SqliteQueryResult) -> Result<(), DurableStoreError> {
    if written.rows_affected() == 0 {
        let text = "a lease changed meanwhile".to_owned();
        return Err(DurableStoreError::Refused(text));
    }
    Ok(())
}

/// The owner has had this generation.
async fn count(
    connection: &mut SqliteConnection,
    name: LeaseName,
) -> Result<SqliteQueryResult, sqlx::Error> {
    sqlx::query(
        "INSERT INTO lease_generations AS old (owner, last) VALUES (?1, ?2)
         ON CONFLICT (owner) DO UPDATE SET last = excluded.last WHERE old.last < excluded.last",
    )
    .bind(name.owner.to_string())
    .bind(generation(name.generation))
    .execute(connection)
    .await
}

/// Makes a row; its place in the order of rows.
async fn open(connection: &mut SqliteConnection, lease: &Lease) -> Result<u64, Failure> {
    let made = sqlx::query(
        "INSERT INTO leases (id, owner, key_id, provider, connection, generation, acquired_at,
             renewed_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )
    .bind(id_bytes(lease.id))
    .bind(lease.owner.to_string())
    .bind(lease.key.as_str())
    .bind(lease.provider.as_str())
    .bind(lease.connection.as_str())
    .bind(generation(lease.generation))
    .bind(moment(lease.acquired_at))
    .bind(moment(lease.renewed_at))
    .bind(moment(lease.expires_at))
    .execute(&mut *connection)
    .await?;
    Ok(sequence(made.last_insert_rowid()))
}

pub(super) fn read_all(rows: Vec<LeaseRow>) -> Result<Vec<Lease>, DurableStoreError> {
    rows.into_iter().map(LeaseRow::read).collect()
}

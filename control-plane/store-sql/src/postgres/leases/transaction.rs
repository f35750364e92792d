//! One command about leases: look, run the rule, write while what was seen still stands; again when another was first.
//!
//! A look is one statement without locks, so who is refused waits for nobody, and nobody for who is refused. Most
//! commands change one row, with one statement too, which is its own transaction.
//!
//! Arrays are handed to these statements by `(SELECT $n)`. The planner cannot see how long they are then, so that a plan for
//! all of them is as good as one for each, and it stops to plan at every call, which takes longer than the statement.

use std::slice;
use std::time::Instant;

use sqlx::{Connection, FromRow, PgConnection, Row};
use tidegate_core::lease::{Change, Lease, LeaseId, Step, Stored};
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStoreError, LeaseReply};

use super::foreseen;
use super::recent::Recent;
use crate::call::{Failure, Progress};
use crate::number::{bits, moment, ordered};
use crate::rows::leases::{Found, InFlightRow, LeaseRow, Scope, generation, id_bytes, sequence};
use crate::sqlstate::is_lost_race;

/// Most times that a command is begun, within the limit of its call. Each lost race is another's command that was
/// carried out, so that many of them mean many who ask at once.
pub(super) const MAX_ROUNDS: usize = 32;

/// How old a look may be when a row is made by it, in ms; as long as a call may take (decision 54). The row holds from the
/// time of the look, so that one by an older look could seem to hold beside another that has come and gone.
pub(super) const MAX_LOOK_AGE_MS: u64 = 500;

/// Why a round ended without an answer.
pub(super) enum Stop {
    /// Another was first.
    Lost,
    /// The call fails.
    Failed(Failure),
}

impl From<sqlx::Error> for Stop {
    fn from(error: sqlx::Error) -> Self {
        if is_lost_race(&error) {
            Self::Lost
        } else {
            Self::Failed(error.into())
        }
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<DurableStoreError> for Stop {
    fn from(error: DurableStoreError) -> Self {
        Self::Failed(error.into())
    }
}

/// How often a command was begun.
#[derive(Debug, Default)]
pub(super) struct Rounds(usize);

impl Rounds {
    /// What a round came to; `None`: it is to be begun anew.
    pub(super) fn settle<T>(&mut self, round: Result<T, Stop>) -> Result<Option<T>, Failure> {
        self.0 = self.0.saturating_add(1);
        match round {
            Ok(answer) => Ok(Some(answer)),
            Err(Stop::Lost) if self.0 < MAX_ROUNDS => Ok(None),
            Err(Stop::Lost) => {
                let text = format!("lost {MAX_ROUNDS} races for leases");
                Err(DurableStoreError::Contended(text).into())
            }
            Err(Stop::Failed(failure)) => Err(failure),
        }
    }
}

/// Runs a rule on the rows of a scope, and writes what it says; on what is foreseen of them, where that is right.
pub(super) async fn decide(
    connection: &mut PgConnection,
    progress: &Progress,
    recent: &Recent,
    scope: &Scope<'_>,
    rule: impl Fn(&Found) -> Step<Lease>,
) -> Result<LeaseReply<Lease>, Failure> {
    let foreseen = foreseen::decide(connection, progress, recent, scope, &rule).await?;
    match foreseen {
        Some(reply) => Ok(reply),
        None => decide_on_sight(connection, progress, recent, scope, rule).await,
    }
}

/// The same, and looks first in any case.
pub(super) async fn decide_on_sight<T: Stored>(
    connection: &mut PgConnection,
    progress: &Progress,
    recent: &Recent,
    scope: &Scope<'_>,
    rule: impl Fn(&Found) -> Step<T>,
) -> Result<LeaseReply<T>, Failure> {
    let mut rounds = Rounds::default();
    loop {
        let round = decide_once(connection, progress, recent, scope, &rule).await;
        if let Some(reply) = rounds.settle(round)? {
            return Ok(reply);
        }
    }
}

async fn decide_once<T: Stored>(
    connection: &mut PgConnection,
    progress: &Progress,
    recent: &Recent,
    scope: &Scope<'_>,
    rule: impl Fn(&Found) -> Step<T>,
) -> Result<LeaseReply<T>, Stop> {
    let found = look(connection, recent, scope).await?;
    let step = rule(&found);
    let opened = match step.changes.as_slice() {
        [] => Vec::new(),
        [_] => {
            progress.decides();
            write(connection, &step.changes).await?
        }
        changes => {
            let mut tx = connection.begin().await?;
            let opened = write(&mut tx, changes).await?;
            progress.decides();
            tx.commit().await?;
            opened
        }
    };
    recent.wrote(scope.owner, &step.changes, &opened);
    Ok(found.reply_after(step.answer, &opened))
}

/// What stands, and when: a snapshot, and a time that is not earlier than anything in it.
pub(super) async fn look(
    connection: &mut PgConnection,
    recent: &Recent,
    scope: &Scope<'_>,
) -> Result<Found, Failure> {
    let rows = sqlx::query(
        "SELECT now, last, found.*
         FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now,
                      (SELECT last FROM lease_generations WHERE owner = $1) AS last) AS present
         LEFT JOIN (
             SELECT 'stands' AS what, id, owner, key_id, provider, connection, generation, seq,
                    acquired_at, renewed_at, expires_at, ended_at, end_reason,
                    NULL::bigint AS plane, NULL::bigint AS number, NULL::bigint AS until
             FROM leases
             WHERE ended_at IS NULL AND (owner = $1 OR connection = ANY((SELECT $2)::text[]))
             UNION ALL
             SELECT 'in flight', newest.*, plane, number, until
             FROM lease_activity AS activity LEFT JOIN LATERAL (
                 SELECT id, owner, key_id, provider, connection, generation, seq,
                        acquired_at, renewed_at, expires_at, ended_at, end_reason
                 FROM leases
                 WHERE owner = activity.owner AND generation = activity.generation
                     AND connection = activity.connection
                 ORDER BY seq DESC LIMIT 1) AS newest ON true
             WHERE activity.connection = ANY((SELECT $2)::text[])
             UNION ALL
             (SELECT 'newest', id, owner, key_id, provider, connection, generation, seq,
                     acquired_at, renewed_at, expires_at, ended_at, end_reason, NULL, NULL, NULL
              FROM leases WHERE owner = $1 AND generation = $3 ORDER BY seq DESC LIMIT 1)
         ) AS found ON true",
    )
    .bind(scope.owner.to_string())
    .bind(scope.connections())
    .bind(scope.generation.map(generation))
    .fetch_all(connection)
    .await?;
    let answered = Instant::now();
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let present = (first.try_get("now")?, first.try_get("last")?);
    let (mut stand, mut in_flight, mut newest) = (Vec::new(), Vec::new(), None);
    for row in &rows {
        let what: Option<&str> = row.try_get("what")?;
        match what {
            Some("stands") => stand.push(LeaseRow::from_row(row)?.read()?),
            Some("in flight") => in_flight.push(InFlightRow::from_row(row)?.read()?),
            Some(_) => newest = Some(LeaseRow::from_row(row)?.read()?),
            None => {}
        }
    }
    let found = Found::new(scope, stand, in_flight, newest, present)?;
    recent.saw(scope, &found, answered);
    Ok(found)
}

/// Writes what a rule says, and tells the rows that it made. A row that is not as the rule saw it means that the race is
/// lost; several changes need a transaction, which then ends without a commit.
pub(super) async fn write(
    connection: &mut PgConnection,
    changes: &[Change],
) -> Result<Vec<(LeaseId, u64)>, Stop> {
    let mut opened = Vec::new();
    let alike = |one: &Change, next: &Change| one.ends().is_some() && next.ends().is_some();
    for changes in changes.chunk_by(alike) {
        let written = match changes {
            [Change::Open { lease, begins }] => {
                opened.push((lease.id, open(connection, lease, *begins).await?));
                1
            }
            [change] => write_one(connection, change, None).await?,
            ends => end_all(connection, ends, None).await?,
        };
        if usize::try_from(written) != Ok(changes.len()) {
            return Err(Stop::Lost);
        }
    }
    Ok(opened)
}

/// Ends rows, however many, with one statement. They are locked in the order of their numbers, as everybody does.
/// `foreseen_until` as for [`write_one`].
async fn end_all(
    connection: &mut PgConnection,
    ends: &[Change],
    foreseen_until: Option<Timestamp>,
) -> Result<u64, sqlx::Error> {
    let (mut ids, mut expiries) = (Vec::new(), Vec::new());
    let (mut moments, mut reasons) = (Vec::new(), Vec::new());
    for change in ends {
        if let Change::End { lease, seen, ended } = change {
            ids.push(id_bytes(*lease));
            expiries.push(moment(*seen));
            moments.push(moment(ended.at));
            reasons.push(ended.reason.as_str());
        }
    }
    let written = sqlx::query(
        "WITH held AS MATERIALIZED (
             SELECT leases.seq, seen, at, reason
             FROM leases JOIN unnest((SELECT $1::bytea[]), (SELECT $2::bigint[]),
                     (SELECT $3::bigint[]), (SELECT $4::text[]))
                 AS ended (lease, seen, at, reason) ON id = lease
             WHERE ended_at IS NULL AND expires_at = seen
                 AND ($5::bigint IS NULL OR renewed_at <= at)
             ORDER BY leases.seq FOR UPDATE OF leases),
         ended AS MATERIALIZED (
             SELECT held.*, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now FROM held)
         UPDATE leases SET ended_at = ended.at, end_reason = ended.reason
         FROM ended
         WHERE leases.seq = ended.seq
             AND ($5::bigint IS NULL OR (seen > now AND now BETWEEN at AND $5))",
    )
    .bind(ids)
    .bind(expiries)
    .bind(moments)
    .bind(reasons)
    .bind(foreseen_until.map(moment))
    .execute(connection)
    .await?;
    Ok(written.rows_affected())
}

/// How many rows it wrote. A change that was foreseen is written only if it is not too early, and no later than
/// `foreseen_until`.
///
/// The clock is read once the row is locked, which takes a step of its own: the list of what a locking query selects is
/// computed before it waits, and a condition of the update is not looked at again after a wait for another's lock that
/// changed nothing. Either would revive a lease that ended meanwhile.
pub(super) async fn write_one(
    connection: &mut PgConnection,
    change: &Change,
    foreseen_until: Option<Timestamp>,
) -> Result<u64, Stop> {
    let written = match change {
        Change::End { .. } => {
            let ends = slice::from_ref(change);
            return Ok(end_all(connection, ends, foreseen_until).await?);
        }
        Change::Extend {
            lease,
            seen,
            renewed_at,
            expires_at,
        } => {
            sqlx::query(
                "WITH held AS MATERIALIZED (
                     SELECT seq FROM leases
                     WHERE id = $1 AND ended_at IS NULL AND expires_at = $2
                         AND ($5::bigint IS NULL OR renewed_at <= $3)
                     FOR UPDATE),
                 extended AS MATERIALIZED (
                     SELECT seq, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
                     FROM held)
                 UPDATE leases SET renewed_at = $3, expires_at = $4
                 FROM extended
                 WHERE leases.seq = extended.seq AND $2 > now
                     AND ($5::bigint IS NULL OR now BETWEEN $3 AND $5)",
            )
            .bind(id_bytes(*lease))
            .bind(moment(*seen))
            .bind(moment(*renewed_at))
            .bind(moment(*expires_at))
            .bind(foreseen_until.map(moment))
            .execute(&mut *connection)
            .await?
        }
        Change::Forget(activity) => {
            sqlx::query(
                "DELETE FROM lease_activity
                 WHERE connection = $1 AND owner = $2 AND generation = $3 AND plane = $4
                     AND number = $5 AND until = $6",
            )
            .bind(activity.connection.as_str())
            .bind(activity.lease.owner.to_string())
            .bind(generation(activity.lease.generation))
            .bind(bits(activity.plane.0))
            .bind(ordered(activity.number))
            .bind(moment(activity.until))
            .execute(&mut *connection)
            .await?
        }
        // Those are written by themselves.
        Change::Open { .. } => return Ok(0),
    };
    Ok(written.rows_affected())
}

/// Makes a row; its place in the order of rows. What else it takes, and why, is with the function (migration 7).
async fn open(
    connection: &mut PgConnection,
    lease: &Lease,
    begins: bool,
) -> Result<u64, sqlx::Error> {
    let looked_at = lease.acquired_at;
    let made =
        sqlx::query_scalar("SELECT open_lease_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)")
            .bind(id_bytes(lease.id))
            .bind(lease.owner.to_string())
            .bind(lease.key.as_str())
            .bind(lease.provider.as_str())
            .bind(lease.connection.as_str())
            .bind(generation(lease.generation))
            .bind(begins)
            .bind(moment(looked_at))
            .bind(moment(lease.renewed_at))
            .bind(moment(lease.expires_at))
            .bind(moment(looked_at.plus_ms(MAX_LOOK_AGE_MS)))
            .fetch_one(connection)
            .await?;
    Ok(sequence(made))
}

//! One command about leases: lock, look, run the rule, write; again when another was first.

use std::slice;

use sqlx::{Connection, PgConnection};
use tidegate_core::ids::ConnectionId;
use tidegate_core::lease::{
    Activity, Change, Generation, Lease, LeaseId, LeaseName, OwnerHash, Step, Stored,
};
use tidegate_store::durable::{DurableStoreError, LeaseReply};

use crate::call::{Failure, Progress};
use crate::number::{bits, from_moment, moment, ordered};
use crate::rows::leases::{
    ActivityRow, Found, InFlightRows, LeaseRow, Scope, generation, id_bytes, sequence,
};
use crate::sqlstate::is_lost_race;

/// Most times that a command is begun, within the limit of its call. Each lost race is another's command that was
/// carried out, so that many of them mean many who ask at once.
pub(super) const MAX_ROUNDS: usize = 32;

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

/// Runs a rule on the rows of a scope, and writes what it says.
pub(super) async fn decide<T: Stored>(
    connection: &mut PgConnection,
    progress: &Progress,
    scope: &Scope<'_>,
    rule: impl Fn(&Found) -> Step<T>,
) -> Result<LeaseReply<T>, Failure> {
    let mut rounds = Rounds::default();
    loop {
        let round = decide_once(connection, progress, scope, &rule).await;
        if let Some(reply) = rounds.settle(round)? {
            return Ok(reply);
        }
    }
}

async fn decide_once<T: Stored>(
    connection: &mut PgConnection,
    progress: &Progress,
    scope: &Scope<'_>,
    rule: impl Fn(&Found) -> Step<T>,
) -> Result<LeaseReply<T>, Stop> {
    let mut tx = connection.begin().await?;
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

/// Locks what may change, then reads what stands and the time. What others hold is read only: who is refused keeps nobody
/// waiting.
async fn find(connection: &mut PgConnection, scope: &Scope<'_>) -> Result<Found, Stop> {
    let (name, eligible) = (scope.owner.to_string(), scope.connections());
    let locked: Vec<Vec<u8>> = sqlx::query_scalar(
        "SELECT id FROM leases
         WHERE ended_at IS NULL AND (owner = $1 OR connection = ANY($2)
             AND expires_at <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
         ORDER BY seq FOR UPDATE",
    )
    .bind(&name)
    .bind(&eligible)
    .fetch_all(&mut *connection)
    .await?;
    // Anew, since the rows that were waited for may have been followed by others, which are not locked. They are
    // somebody's, which is all that counts of them, unless the rule may change them.
    let rows: Vec<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases WHERE ended_at IS NULL AND (owner = $1 OR connection = ANY($2))",
    )
    .bind(&name)
    .bind(&eligible)
    .fetch_all(&mut *connection)
    .await?;
    let mut leases = Vec::with_capacity(rows.len());
    for row in rows {
        leases.push(row.read()?);
    }
    let activities = if eligible.is_empty() {
        Vec::new()
    } else {
        read_activities(connection, &eligible).await?
    };
    let newest = newest_of_all(connection, &activities).await?;
    let newest_asked = match scope.generation {
        Some(number) => newest_of(connection, scope.owner, number).await?,
        None => None,
    };
    // Last, so that nothing that was seen is later than the present.
    let present: (i64, Option<i64>) = sqlx::query_as(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
                (SELECT last FROM lease_generations WHERE owner = $1)",
    )
    .bind(&name)
    .fetch_one(&mut *connection)
    .await?;
    let is_locked = |lease: &Lease| locked.contains(&id_bytes(lease.id));
    let now = from_moment(present.0);
    let may_change = |lease: &Lease| lease.owner == scope.owner || !lease.is_live(now);
    if leases
        .iter()
        .any(|lease| !is_locked(lease) && may_change(lease))
    {
        return Err(Stop::Lost);
    }
    let in_flight = InFlightRows { activities, newest };
    Ok(Found::new(scope, leases, in_flight, newest_asked, present)?)
}

/// What is registered. It is not locked: who forgets one makes sure that it is as it was read.
async fn read_activities(
    connection: &mut PgConnection,
    eligible: &[&str],
) -> Result<Vec<Activity>, Stop> {
    let rows: Vec<ActivityRow> = sqlx::query_as(
        "SELECT connection, owner, generation, plane, number, until FROM lease_activity
         WHERE connection = ANY($1)",
    )
    .bind(eligible)
    .fetch_all(connection)
    .await?;
    let mut activities = Vec::with_capacity(rows.len());
    for row in rows {
        activities.push(row.read()?);
    }
    Ok(activities)
}

/// The newest row of the lease of each registration, on its connection.
async fn newest_of_all(
    connection: &mut PgConnection,
    activities: &[Activity],
) -> Result<Vec<Lease>, Stop> {
    if activities.is_empty() {
        return Ok(Vec::new());
    }
    let (mut connections, mut owners, mut generations) = (Vec::new(), Vec::new(), Vec::new());
    for activity in activities {
        connections.push(activity.connection.as_str());
        owners.push(activity.lease.owner.to_string());
        generations.push(generation(activity.lease.generation));
    }
    let rows: Vec<LeaseRow> = sqlx::query_as(
        "SELECT DISTINCT ON (owner, generation, connection)
                id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases JOIN (SELECT DISTINCT * FROM unnest($1::text[], $2::text[], $3::bigint[])
                           AS of_lease (connection, owner, generation)) AS of_lease
              USING (connection, owner, generation)
         ORDER BY owner, generation, connection, seq DESC",
    )
    .bind(connections)
    .bind(owners)
    .bind(generations)
    .fetch_all(connection)
    .await?;
    let mut leases = Vec::with_capacity(rows.len());
    for row in rows {
        leases.push(row.read()?);
    }
    Ok(leases)
}

/// The newest row of a lease on any connection, over or not.
async fn newest_of(
    connection: &mut PgConnection,
    owner: OwnerHash,
    number: Generation,
) -> Result<Option<Lease>, Stop> {
    let row: Option<LeaseRow> = sqlx::query_as(
        "SELECT id, owner, key_id, provider, connection, generation, seq, acquired_at, renewed_at,
                expires_at, ended_at, end_reason
         FROM leases WHERE owner = $1 AND generation = $2 ORDER BY seq DESC LIMIT 1",
    )
    .bind(owner.to_string())
    .bind(generation(number))
    .fetch_optional(connection)
    .await?;
    Ok(row.map(LeaseRow::read).transpose()?)
}

/// Writes what a rule says, and tells the rows that it made. A row that is not as the rule saw it means that the race is
/// lost.
pub(super) async fn write(
    connection: &mut PgConnection,
    changes: &[Change],
) -> Result<Vec<(LeaseId, u64)>, Stop> {
    let mut opened = Vec::new();
    let alike = |one: &Change, next: &Change| one.ends().is_some() && next.ends().is_some();
    for changes in changes.chunk_by(alike) {
        let written = match changes {
            [Change::Open(lease)] => {
                opened.push((lease.id, open(connection, lease).await?));
                1
            }
            [change] => write_one(connection, change).await?,
            ends => end_all(connection, ends).await?,
        };
        if usize::try_from(written) != Ok(changes.len()) {
            return Err(Stop::Lost);
        }
    }
    Ok(opened)
}

/// Ends rows, however many, with one statement.
async fn end_all(connection: &mut PgConnection, ends: &[Change]) -> Result<u64, sqlx::Error> {
    let (mut ids, mut moments, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    for change in ends {
        if let Change::End { lease, ended } = change {
            ids.push(id_bytes(*lease));
            moments.push(moment(ended.at));
            reasons.push(ended.reason.as_str());
        }
    }
    let written = sqlx::query(
        "UPDATE leases SET ended_at = ended.at, end_reason = ended.reason
         FROM unnest($1::bytea[], $2::bigint[], $3::text[]) AS ended (lease, at, reason)
         WHERE id = ended.lease AND ended_at IS NULL",
    )
    .bind(ids)
    .bind(moments)
    .bind(reasons)
    .execute(connection)
    .await?;
    Ok(written.rows_affected())
}

/// How many rows it wrote.
async fn write_one(connection: &mut PgConnection, change: &Change) -> Result<u64, Stop> {
    let written = match change {
        Change::End { .. } => return Ok(end_all(connection, slice::from_ref(change)).await?),
        Change::Extend {
            lease,
            renewed_at,
            expires_at,
        } => {
            sqlx::query(
                "UPDATE leases SET renewed_at = $2, expires_at = $3
                     WHERE id = $1 AND ended_at IS NULL",
            )
            .bind(id_bytes(*lease))
            .bind(moment(*renewed_at))
            .bind(moment(*expires_at))
            .execute(&mut *connection)
            .await?
        }
        Change::Count {
            owner,
            generation: number,
        } => {
            sqlx::query(
                "INSERT INTO lease_generations AS old (owner, last) VALUES ($1, $2)
                     ON CONFLICT (owner) DO UPDATE SET last = excluded.last
                     WHERE old.last < excluded.last",
            )
            .bind(owner.to_string())
            .bind(generation(*number))
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
        Change::Open(_) => return Ok(0),
    };
    Ok(written.rows_affected())
}

/// Makes a row; its place in the order of rows.
async fn open(connection: &mut PgConnection, lease: &Lease) -> Result<u64, Stop> {
    let made: i64 = sqlx::query_scalar(
        "INSERT INTO leases (id, owner, key_id, provider, connection, generation, acquired_at,
             renewed_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING seq",
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
    .fetch_one(&mut *connection)
    .await?;
    // A lease may have come and gone since we looked, and left something in flight. From the insert on there can be no
    // other on this connection, so what is seen now is all there will be.
    if others_in_flight(connection, &lease.connection, lease.name()).await? {
        return Err(Stop::Lost);
    }
    Ok(sequence(made))
}

async fn others_in_flight(
    connection: &mut PgConnection,
    on: &ConnectionId,
    own: LeaseName,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM lease_activity
                        WHERE connection = $1 AND (owner, generation) <> ($2, $3))",
    )
    .bind(on.as_str())
    .bind(own.owner.to_string())
    .bind(generation(own.generation))
    .fetch_one(connection)
    .await
}

//! Commands without a look: one round trip instead of two, when what the rule goes by is as it was foreseen.
//!
//! The rule is run on what this replica knows ([`Recent`]). Only if it says to change one row, and how to answer then, that is
//! written, by a statement which looks first whether all that the rule went by is so; the present, too, may be foreseen
//! too early by no more than a look may be old. Otherwise nothing is written, and the caller looks. Refusals always come of
//! a look.

use std::time::Instant;

use sqlx::PgConnection;
use tidegate_core::lease::{
    Change, Fence, Grant, Granted, Lease, Step, Stored as _, fence as fence_rule,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::LeaseReply;

use super::recent::Recent;
use super::transaction::{MAX_LOOK_AGE_MS, Stop, write_one};
use crate::call::{Failure, Progress};
use crate::number::{bits, from_moment, moment, ordered};
use crate::rows::leases::{Found, Scope, generation, id_bytes, sequence};

/// What became of what was foreseen.
pub(super) enum Outcome<T> {
    /// It was so, and is written.
    Foreseen(T),
    /// It was not so. Nothing is written.
    Wrong,
    /// Nothing that could be written was foreseen.
    Unknown,
}

/// Runs a rule on what is foreseen; `None`: nothing was written, and nothing is answered.
pub(super) async fn decide(
    connection: &mut PgConnection,
    progress: &Progress,
    recent: &Recent,
    scope: &Scope<'_>,
    rule: impl Fn(&Found) -> Step<Lease>,
) -> Result<Option<LeaseReply<Lease>>, Failure> {
    let outcome = try_to_decide(connection, progress, recent, scope, rule).await?;
    Ok(recent.came_to(outcome))
}

async fn try_to_decide(
    connection: &mut PgConnection,
    progress: &Progress,
    recent: &Recent,
    scope: &Scope<'_>,
    rule: impl Fn(&Found) -> Step<Lease>,
) -> Result<Outcome<LeaseReply<Lease>>, Failure> {
    let Some(found) = recent.foresee(scope, Instant::now()) else {
        return Ok(Outcome::Unknown);
    };
    let step = rule(&found);
    let (Ok(answer), [change]) = (step.answer, step.changes.as_slice()) else {
        return Ok(Outcome::Unknown);
    };
    progress.decides();
    let written = match change {
        Change::Open {
            lease,
            begins: true,
        } => open(connection, scope, lease).await,
        Change::Extend { .. } | Change::End { .. } => {
            let until = Some(found.now.plus_ms(MAX_LOOK_AGE_MS));
            let written = write_one(connection, change, until).await;
            written.map(|rows| (rows == 1).then_some(answer))
        }
        Change::Open { begins: false, .. } | Change::Forget(_) => {
            progress.has_decided_nothing();
            return Ok(Outcome::Unknown);
        }
    };
    match written {
        Ok(Some(lease)) => {
            let change = match change {
                Change::Open { begins, .. } => Change::Open {
                    lease: lease.clone(),
                    begins: *begins,
                },
                change => change.clone(),
            };
            recent.wrote(scope.owner, &[change], &[]);
            Ok(Outcome::Foreseen(found.reply(Ok(lease))))
        }
        Ok(None) | Err(Stop::Lost) => {
            progress.has_decided_nothing();
            recent.was_wrong(scope.owner);
            Ok(Outcome::Wrong)
        }
        Err(Stop::Failed(failure)) => {
            recent.was_wrong(scope.owner);
            Err(failure)
        }
    }
}

/// Makes a row. What is looked at first is with the function (migration 9).
async fn open(
    connection: &mut PgConnection,
    scope: &Scope<'_>,
    lease: &Lease,
) -> Result<Option<Lease>, Stop> {
    let passed_over: Vec<&str> = scope
        .connections()
        .into_iter()
        .take_while(|before| *before != lease.connection.as_str())
        .collect();
    let foreseen = lease.acquired_at;
    let made: (Option<i64>, Option<i64>) = sqlx::query_as(
        "SELECT made, begun
         FROM open_foreseen_lease_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(id_bytes(lease.id))
    .bind(lease.owner.to_string())
    .bind(lease.key.as_str())
    .bind(lease.provider.as_str())
    .bind(lease.connection.as_str())
    .bind(generation(lease.generation))
    .bind(moment(foreseen))
    .bind(moment(lease.expires_at))
    .bind(moment(foreseen.plus_ms(MAX_LOOK_AGE_MS)))
    .bind(passed_over)
    .fetch_one(connection)
    .await?;
    let (Some(made), Some(begun)) = made else {
        return Ok(None);
    };
    let begun = from_moment(begun);
    let mut lease = Lease {
        acquired_at: begun,
        renewed_at: begun,
        ..lease.clone()
    };
    lease.stored(lease.id, sequence(made));
    Ok(Some(lease))
}

/// The first fence of a busy period: registers if the lease stands as it is known and nothing of this data plane is registered
/// under it there. What is granted is what the rule says of that registration at the time it was made. Later ones of the period
/// need no more than one look, so nothing is foreseen for them, and they do not count.
pub(super) async fn fence(
    connection: &mut PgConnection,
    progress: &Progress,
    recent: &Recent,
    asked: &Fence<'_>,
    settings: &LeaseSettings,
) -> Result<Option<Grant>, Failure> {
    if recent.is_registered(asked) {
        return Ok(None);
    }
    let outcome = try_to_fence(connection, progress, recent, asked, settings).await?;
    Ok(recent.came_to(outcome).flatten())
}

/// Registered, it grants nothing only where the rule says so by then.
async fn try_to_fence(
    connection: &mut PgConnection,
    progress: &Progress,
    recent: &Recent,
    asked: &Fence<'_>,
    settings: &LeaseSettings,
) -> Result<Outcome<Option<Grant>>, Failure> {
    let Some((lease, now)) = recent.lease(asked.lease.owner, Instant::now()) else {
        return Ok(Outcome::Unknown);
    };
    let Ok(Granted {
        write: Some(activity),
        ..
    }) = fence_rule(Some(&lease), None, asked, settings, now)
    else {
        return Ok(Outcome::Unknown);
    };
    // Registered after its end, a lease would keep others away for nothing.
    let last = lease.expires_at.minus_ms(1);
    progress.decides();
    let written: Result<Option<i64>, sqlx::Error> = sqlx::query_scalar(
        "WITH lease AS MATERIALIZED (
             SELECT FROM leases WHERE id = $1 AND ended_at IS NULL AND expires_at = $2 FOR SHARE)
         INSERT INTO lease_activity (connection, owner, generation, plane, number, until)
         SELECT $3::text, $4::text, $5::bigint, $6::bigint, $7::bigint, $8::bigint FROM lease
         WHERE (extract(epoch FROM clock_timestamp()) * 1000)::bigint BETWEEN $9 AND $10
         ON CONFLICT (connection, owner, generation, plane) DO NOTHING
         RETURNING (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    )
    .bind(id_bytes(lease.id))
    .bind(moment(lease.expires_at))
    .bind(activity.connection.as_str())
    .bind(activity.lease.owner.to_string())
    .bind(generation(activity.lease.generation))
    .bind(bits(activity.plane.0))
    .bind(ordered(activity.number))
    .bind(moment(activity.until))
    .bind(moment(now))
    .bind(moment(last.min(now.plus_ms(MAX_LOOK_AGE_MS))))
    .fetch_optional(connection)
    .await;
    let registered_at: Timestamp = match written.map_err(Stop::from) {
        Ok(Some(at)) => from_moment(at),
        Ok(None) | Err(Stop::Lost) => {
            progress.has_decided_nothing();
            recent.was_wrong(asked.lease.owner);
            return Ok(Outcome::Wrong);
        }
        Err(Stop::Failed(failure)) => return Err(failure),
    };
    let told = fence_rule(
        Some(&lease),
        Some(&activity),
        asked,
        settings,
        registered_at,
    );
    let granted = told.ok().filter(|told| told.write.is_none());
    Ok(Outcome::Foreseen(granted.map(|told| told.grant)))
}

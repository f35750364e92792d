//! Leases in Postgres.
//!
//! READ COMMITTED. Commands look without locks and write only while what they saw still stands ([`transaction`],
//! [`activity`]), or foresee what they would see ([`foreseen`], from what is known in [`recent`]); what they write is locked in one order: leases by number, then registrations, then counters and new rows.

mod activity;
mod foreseen;
mod hygiene;
mod recent;
mod transaction;

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{PgConnection, Postgres};
use tidegate_core::config::Document;
use tidegate_core::lease::{
    Acquire, ActivityName, Eligibility, EndReason, Fence, FenceError, Grant, Inference, Lease,
    Named, OwnerHash, Placement, acquire, place, release, renew, status,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStoreError, Foresight, LeaseReply, LeaseStore};

use super::PgDurableStore;
use crate::call::{Progress, run};
use crate::number::from_moment;
use crate::rows::leases::{Scope, without_changes};
pub(super) use hygiene::reconcile_in;
pub(super) use recent::Recent;
use transaction::{decide, decide_on_sight, look};

/// The present.
const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now";

#[async_trait]
impl LeaseStore for PgDurableStore {
    async fn acquire_lease(
        &self,
        asked: &Acquire<'_>,
        settings: &LeaseSettings,
    ) -> Result<LeaseReply<Lease>, DurableStoreError> {
        let candidates = match asked.eligibility {
            Eligibility::Some(candidates) => candidates,
            Eligibility::UnknownModel | Eligibility::None | Eligibility::Blocked => &[],
        };
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                let scope = Scope {
                    owner: asked.owner,
                    eligible: candidates,
                    generation: None,
                };
                decide(connection, progress, &self.recent, &scope, |found| {
                    acquire(&found.rows(), asked, settings, found.now)
                })
                .await
            },
        )
        .await
    }

    async fn renew_lease(
        &self,
        owner: OwnerHash,
        asked: Named<'_>,
        ttl_ms: u64,
    ) -> Result<LeaseReply<Lease>, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                decide(
                    connection,
                    progress,
                    &self.recent,
                    &Scope::of(owner),
                    |found| renew(found.own.as_ref(), asked, ttl_ms, found.now),
                )
                .await
            },
        )
        .await
    }

    async fn release_lease(
        &self,
        owner: OwnerHash,
        asked: Named<'_>,
        reason: EndReason,
    ) -> Result<LeaseReply<Lease>, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                let scope = Scope {
                    owner,
                    eligible: &[],
                    generation: Some(asked.generation),
                };
                decide(connection, progress, &self.recent, &scope, |found| {
                    let (own, newest) = (found.own.as_ref(), found.newest.as_ref());
                    release(own, newest, asked, reason, found.now)
                })
                .await
            },
        )
        .await
    }

    async fn lease_status(
        &self,
        owner: OwnerHash,
        asked: Named<'_>,
    ) -> Result<LeaseReply<Lease>, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, _: &Progress| {
                let found = look(connection, &self.recent, &Scope::of(owner)).await?;
                let answer = status(found.own.as_ref(), asked, found.now).cloned();
                Ok(found.reply(answer))
            },
        )
        .await
    }

    async fn place_under_lease(
        &self,
        asked: &Inference<'_>,
        settings: &LeaseSettings,
    ) -> Result<LeaseReply<Placement>, DurableStoreError> {
        let owner = asked.name.owner;
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                // As long as the owner's row stays as it is, the others do not count.
                let found = look(connection, &self.recent, &Scope::of(owner)).await?;
                let step = place(&found.rows(), asked, settings, found.now);
                if let Some(answer) = without_changes(step) {
                    return Ok(found.reply(answer));
                }
                let scope = Scope {
                    owner,
                    eligible: asked.candidates,
                    generation: None,
                };
                decide_on_sight(connection, progress, &self.recent, &scope, |found| {
                    place(&found.rows(), asked, settings, found.now)
                })
                .await
            },
        )
        .await
    }

    async fn fence(
        &self,
        asked: &Fence<'_>,
        settings: &LeaseSettings,
    ) -> Result<Result<Grant, FenceError>, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                activity::fence(connection, progress, &self.recent, asked, settings).await
            },
        )
        .await
    }

    async fn renew_activity(
        &self,
        activity: &ActivityName,
        settings: &LeaseSettings,
    ) -> Result<Option<Grant>, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                activity::renew(connection, progress, activity, settings).await
            },
        )
        .await
    }

    async fn delete_activity(&self, activity: &ActivityName) -> Result<(), DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                self.recent.ended(activity);
                activity::delete(connection, progress, activity).await
            },
        )
        .await
    }

    async fn reconcile_leases(
        &self,
        document: &Document,
        version: u64,
    ) -> Result<u64, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.whole,
            async |connection: &mut PgConnection, progress: &Progress| {
                let limit = self.limits.whole;
                hygiene::reconcile(connection, progress, (document, version), limit).await
            },
        )
        .await
    }

    async fn list_leases(&self) -> Result<(Timestamp, Vec<Lease>), DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.whole,
            async |connection: &mut PgConnection, _: &Progress| hygiene::list(connection).await,
        )
        .await
    }

    async fn sweep_leases(&self, keep: Duration) -> Result<u64, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                hygiene::sweep(connection, progress, keep).await
            },
        )
        .await
    }

    fn foresight(&self) -> Foresight {
        self.recent.foresight()
    }
}

pub(super) async fn clock(connection: &mut PgConnection) -> Result<Timestamp, sqlx::Error> {
    let now = sqlx::query_scalar(CLOCK).fetch_one(connection).await?;
    Ok(from_moment(now))
}

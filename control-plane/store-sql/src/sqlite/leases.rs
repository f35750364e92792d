//! Leases in SQLite. All writes go through one connection, so that one command comes after the other and no race is lost.
//! What is in flight ends with the machine, so registrations need not outlive it.

mod activity;
mod hygiene;
mod transaction;

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Sqlite, SqliteConnection};
use tidegate_core::config::Document;
use tidegate_core::lease::{
    Acquire, ActivityName, Eligibility, EndReason, Fence, FenceError, Grant, Granted, Inference,
    Lease, Named, OwnerHash, Placement, acquire, place, release, renew, status,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStoreError, LeaseReply, LeaseStore};

use super::SqliteDurableStore;
use crate::call::{Progress, run};
use crate::number::from_moment;
use crate::rows::leases::{Scope, without_changes};
pub(super) use hygiene::end_uncovered;
use transaction::{decide, find};

/// The present.
const CLOCK: &str = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";

#[async_trait]
impl LeaseStore for SqliteDurableStore {
    async fn acquire_lease(
        &self,
        asked: &Acquire<'_>,
        settings: &LeaseSettings,
    ) -> Result<LeaseReply<Lease>, DurableStoreError> {
        let candidates = match asked.eligibility {
            Eligibility::Some(candidates) => candidates,
            Eligibility::UnknownModel | Eligibility::None | Eligibility::Blocked => &[],
        };
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let scope = Scope {
                    owner: asked.owner,
                    eligible: candidates,
                    generation: None,
                };
                decide(connection, progress, &scope, |found| {
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
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                decide(connection, progress, &Scope::of(owner), |found| {
                    renew(found.own.as_ref(), asked, ttl_ms, found.now)
                })
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
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let scope = Scope {
                    owner,
                    eligible: &[],
                    generation: Some(asked.generation),
                };
                decide(connection, progress, &scope, |found| {
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
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |connection: &mut SqliteConnection, _: &Progress| {
                let found = find(connection, &Scope::of(owner)).await?;
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
        // As long as the owner's row stays as it is, the others do not count.
        let found = run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |connection: &mut SqliteConnection, _: &Progress| {
                find(connection, &Scope::of(owner)).await
            },
        )
        .await?;
        let step = place(&found.rows(), asked, settings, found.now);
        if let Some(answer) = without_changes(step) {
            return Ok(found.reply(answer));
        }
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let scope = Scope {
                    owner,
                    eligible: asked.candidates,
                    generation: None,
                };
                decide(connection, progress, &scope, |found| {
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
        let seen = run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |connection: &mut SqliteConnection, _: &Progress| {
                activity::look(connection, asked, settings).await
            },
        )
        .await?;
        match seen {
            Ok(Granted { grant, write: None }) => return Ok(Ok(grant)),
            Ok(Granted { write: Some(_), .. }) => {}
            Err(error) => return Ok(Err(error)),
        }
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                activity::fence(connection, progress, asked, settings).await
            },
        )
        .await
    }

    async fn renew_activity(
        &self,
        activity: &ActivityName,
        settings: &LeaseSettings,
    ) -> Result<Option<Grant>, DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                activity::renew(connection, progress, activity, settings).await
            },
        )
        .await
    }

    async fn delete_activity(&self, activity: &ActivityName) -> Result<(), DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
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
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.whole,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                hygiene::reconcile(connection, progress, document, version).await
            },
        )
        .await
    }

    async fn list_leases(&self) -> Result<(Timestamp, Vec<Lease>), DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.whole,
            async |connection: &mut SqliteConnection, _: &Progress| hygiene::list(connection).await,
        )
        .await
    }

    async fn sweep_leases(&self, keep: Duration) -> Result<u64, DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                hygiene::sweep(connection, progress, keep).await
            },
        )
        .await
    }
}

pub(super) async fn clock(connection: &mut SqliteConnection) -> Result<Timestamp, sqlx::Error> {
    let now = sqlx::query_scalar(CLOCK).fetch_one(connection).await?;
    Ok(from_moment(now))
}

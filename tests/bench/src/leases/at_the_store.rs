//! The adapter, called as the service calls it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use tidegate_core::ids::{KeyId, PlaneIncarnation, ProviderId};
use tidegate_core::lease::{
    Acquire, ActivityName, Eligibility, Eligible, EndReason, Fence, Lease, LeaseId, Named,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_store::durable::LeaseStore as _;
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::Postgres;

use super::{Bare, Level, POOL, TTL_MS, connection, owner, that_syncs};

pub(super) struct Store {
    store: PgDurableStore,
    bare: Bare,
    key: KeyId,
    /// Ids of leases.
    number: AtomicU64,
    /// Stops when it is dropped.
    _postgres: Postgres,
}

pub(super) async fn open() -> Result<Store> {
    let postgres = Postgres::start_with(that_syncs()).await?;
    let url = postgres.create_database().await?;
    let limits = SqlLimits {
        call: Duration::from_secs(10),
        connections: POOL,
        ..SqlLimits::default()
    };
    Ok(Store {
        store: PgDurableStore::open(&url, limits).await?,
        bare: Bare::open(&url).await?,
        key: KeyId::new("k")?,
        number: AtomicU64::new(1),
        _postgres: postgres,
    })
}

impl Store {
    fn named(&self, lease: &Lease) -> Named<'_> {
        Named {
            generation: lease.generation,
            key: &self.key,
        }
    }
}

impl Level for Store {
    type Lease = Lease;

    fn bare(&self) -> &Bare {
        &self.bare
    }

    async fn acquire(&self, worker: usize) -> Result<Lease> {
        let eligible = [Eligible {
            provider: ProviderId::new("p")?,
            connection: connection(worker)?,
        }];
        let asked = Acquire {
            id: LeaseId(u128::from(self.number.fetch_add(1, Ordering::Relaxed))),
            owner: owner(worker)?,
            key: &self.key,
            eligibility: Eligibility::Some(&eligible),
            why: &|_| None,
            ttl_ms: TTL_MS,
        };
        let settings = LeaseSettings::default();
        Ok(self.store.acquire_lease(&asked, &settings).await?.answer?)
    }

    async fn release(&self, _worker: usize, lease: &Lease) -> Result<()> {
        let (named, reason) = (self.named(lease), EndReason::OwnerExit);
        let released = self.store.release_lease(lease.owner, named, reason).await?;
        released.answer?;
        Ok(())
    }

    async fn renew(&self, _worker: usize, lease: &Lease) -> Result<()> {
        let named = self.named(lease);
        let renewed = self.store.renew_lease(lease.owner, named, TTL_MS).await?;
        renewed.answer?;
        Ok(())
    }

    async fn fence(&self, _worker: usize, lease: &Lease, number: u64) -> Result<()> {
        let fence = Fence {
            lease: lease.name(),
            key: &self.key,
            connection: &lease.connection,
            plane: PlaneIncarnation(1),
            number,
        };
        let granted = self.store.fence(&fence, &LeaseSettings::default()).await?;
        ensure!(granted.is_ok(), "{granted:?}");
        Ok(())
    }

    async fn end(&self, _worker: usize, lease: &Lease, number: u64) -> Result<()> {
        let name = ActivityName {
            connection: lease.connection.clone(),
            lease: lease.name(),
            plane: PlaneIncarnation(1),
            number,
        };
        Ok(self.store.delete_activity(&name).await?)
    }
}

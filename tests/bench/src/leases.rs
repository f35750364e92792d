//! What the authority of leases costs: 16 owners at once, each with a connection of its own, over a Postgres that syncs.
//! At the store and over gRPC, against the least that Postgres could do: one read by an index, and one commit.
//!
//! Limits that are aimed at (decision 42): `fence_ratio` 2 reads, `first_fence_ratio` 1.5 commits, `acquire_ratio` 3
//! commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tidegate_core::ids::{ConnectionId, KeyId, PlaneIncarnation, ProviderId};
use tidegate_core::lease::{
    Acquire, ActivityName, Eligibility, Eligible, EndReason, Fence, Lease, LeaseId, Named,
    OwnerHash,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_store::durable::LeaseStore as _;
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::{Postgres, PostgresOptions};

use crate::load::{Run, Sample, drive, median};
use crate::summary::Summary;
use crate::{ROUND_TIME, ROUNDS};

mod over_grpc;

const OWNERS: usize = 16;
/// Those of the store's pool, also for the other side.
const POOL: u32 = 8;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// One row by its key.
    Read,
    /// One row is changed.
    Commit,
    /// An owner without a lease gets one.
    Acquire,
    Renew,
    /// Nothing is registered.
    FirstFence,
    /// What is registered covers it.
    Fence,
}

impl Side {
    const ALL: [Self; 6] = [
        Self::Read,
        Self::Commit,
        Self::Acquire,
        Self::Renew,
        Self::FirstFence,
        Self::Fence,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Commit => "commit",
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::FirstFence => "first_fence",
            Self::Fence => "fence",
        }
    }

    /// What it is compared with.
    fn least(self) -> Self {
        match self {
            Self::Read | Self::Fence => Self::Read,
            Self::Commit | Self::Acquire | Self::Renew | Self::FirstFence => Self::Commit,
        }
    }
}

/// Measures both levels and notes the figures.
pub(crate) async fn measure(summary: &mut Summary) -> Result<()> {
    at_the_store(summary).await?;
    over_grpc::measure(summary).await
}

/// The runs of each side, in the order of [`Side::ALL`].
type Runs = [Vec<Run>; 6];

fn note(level: &str, runs: &Runs, summary: &mut Summary) {
    let figure = |side: Side, percentile: f64| {
        let index = Side::ALL.iter().position(|other| *other == side);
        let runs = index.and_then(|index| runs.get(index));
        median(
            runs.into_iter()
                .flatten()
                .map(|run| run.first_chunk_ms(percentile)),
        )
    };
    for side in Side::ALL {
        for (name, percentile) in [("p50", 0.5), ("p99", 0.99)] {
            let ours = figure(side, percentile);
            let mut set = |what: &str, figure| {
                summary.set(
                    format!("leases.{level}.{}.{name}_{what}", side.name()),
                    figure,
                );
            };
            set("ms", ours);
            if side.least() != side {
                set("ratio", ours / figure(side.least(), percentile));
            }
        }
    }
}

/// What the other side uses.
struct Bare(PgPool);

impl Bare {
    async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(POOL)
            .min_connections(POOL)
            .connect(url)
            .await?;
        let made = sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS bench_rows (id bigint PRIMARY KEY, n bigint NOT NULL)
                 WITH (fillfactor = 70);
             INSERT INTO bench_rows SELECT id, 0 FROM generate_series(0, 15) id ON CONFLICT DO NOTHING",
        );
        made.execute(&pool).await?;
        Ok(Self(pool))
    }

    /// How long it takes.
    async fn time(&self, side: Side, worker: usize) -> Result<Duration> {
        let id = i64::try_from(worker)?;
        let began = Instant::now();
        if side == Side::Read {
            let read = sqlx::query("SELECT n FROM bench_rows WHERE id = $1").bind(id);
            read.fetch_one(&self.0).await?;
        } else {
            let write = sqlx::query("UPDATE bench_rows SET n = n + 1 WHERE id = $1").bind(id);
            write.execute(&self.0).await?;
        }
        Ok(began.elapsed())
    }
}

fn owner(worker: usize) -> Result<OwnerHash> {
    Ok(OwnerHash::from_bytes([u8::try_from(worker)?; 32]))
}

fn connection(worker: usize) -> Result<ConnectionId> {
    Ok(ConnectionId::new(format!("c{worker}"))?)
}

/// The adapter, called as the service calls it.
struct Store {
    store: PgDurableStore,
    bare: Bare,
    key: KeyId,
    /// Numbers of registrations, and ids of leases.
    number: AtomicU64,
}

async fn at_the_store(summary: &mut Summary) -> Result<()> {
    let postgres = Postgres::start_with(PostgresOptions {
        durable: true,
        ..PostgresOptions::default()
    })
    .await?;
    let url = postgres.create_database().await?;
    let limits = SqlLimits {
        call: Duration::from_secs(10),
        connections: POOL,
        ..SqlLimits::default()
    };
    let store = Arc::new(Store {
        store: PgDurableStore::open(&url, limits).await?,
        bare: Bare::open(&url).await?,
        key: KeyId::new("k")?,
        number: AtomicU64::new(1),
    });
    let mut runs = Runs::default();
    for _ in 0..ROUNDS {
        for (side, runs) in Side::ALL.into_iter().zip(&mut runs) {
            for worker in 0..OWNERS {
                store.acquire(worker).await?;
            }
            let store = Arc::clone(&store);
            let run = drive(OWNERS, ROUND_TIME, move |worker| {
                let store = Arc::clone(&store);
                async move {
                    Ok(Sample {
                        first_chunk: Some(store.time(side, worker).await?),
                    })
                }
            });
            runs.push(run.await?);
        }
    }
    note("store", &runs, summary);
    Ok(())
}

impl Store {
    /// Makes the one thing that is measured happen, and what it needs before or after besides.
    async fn time(&self, side: Side, worker: usize) -> Result<Duration> {
        match side {
            Side::Read | Side::Commit => self.bare.time(side, worker).await,
            Side::Acquire => {
                let lease = self.acquire(worker).await?;
                let reason = EndReason::OwnerExit;
                let named = self.named(&lease);
                let released = self.store.release_lease(lease.owner, named, reason).await?;
                released.answer?;
                let began = Instant::now();
                self.acquire(worker).await?;
                Ok(began.elapsed())
            }
            Side::Renew => {
                let lease = self.acquire(worker).await?;
                let began = Instant::now();
                let renewed = self
                    .store
                    .renew_lease(lease.owner, self.named(&lease), 600_000);
                renewed.await?.answer?;
                Ok(began.elapsed())
            }
            Side::FirstFence => {
                let lease = self.acquire(worker).await?;
                let number = self.next();
                let took = self.fence(&lease, number).await?;
                self.end(&lease, number).await?;
                Ok(took)
            }
            Side::Fence => {
                let lease = self.acquire(worker).await?;
                let number = self.next();
                self.fence(&lease, number).await?;
                let took = self.fence(&lease, number).await?;
                self.end(&lease, number).await?;
                Ok(took)
            }
        }
    }

    fn next(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    fn named(&self, lease: &Lease) -> Named<'_> {
        Named {
            generation: lease.generation,
            key: &self.key,
        }
    }

    async fn acquire(&self, worker: usize) -> Result<Lease> {
        let eligible = [Eligible {
            provider: ProviderId::new("p")?,
            connection: connection(worker)?,
        }];
        let asked = Acquire {
            id: LeaseId(u128::from(self.next())),
            owner: owner(worker)?,
            key: &self.key,
            eligibility: Eligibility::Some(&eligible),
            why: &|_| None,
            ttl_ms: 600_000,
        };
        let settings = LeaseSettings::default();
        Ok(self.store.acquire_lease(&asked, &settings).await?.answer?)
    }

    async fn fence(&self, lease: &Lease, number: u64) -> Result<Duration> {
        let fence = Fence {
            lease: lease.name(),
            key: &self.key,
            connection: &lease.connection,
            plane: PlaneIncarnation(1),
            number,
        };
        let began = Instant::now();
        let granted = self.store.fence(&fence, &LeaseSettings::default()).await?;
        let took = began.elapsed();
        ensure!(granted.is_ok(), "{granted:?}");
        Ok(took)
    }

    async fn end(&self, lease: &Lease, number: u64) -> Result<()> {
        let name = ActivityName {
            connection: lease.connection.clone(),
            lease: lease.name(),
            plane: PlaneIncarnation(1),
            number,
        };
        Ok(self.store.delete_activity(&name).await?)
    }
}

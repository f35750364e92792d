//! What the authority of leases costs: 16 owners at once, each with a connection of its own, over a Postgres that syncs.
//! At the store and over gRPC, against the least that Postgres could do: one read by an index, and one commit.
//!
//! While one call is measured, the others that run are of its kind: what a side needs besides is there before its round
//! begins. Two sides cannot be repeated without undoing them, `acquire` by a release and `first_fence` by the end of its
//! registration; for those the bare side commits twice too, and measures one. So each waits, for the pool and for the
//! disk, behind as much as what it is compared with does.
//!
//! Limits that are aimed at (decision 42): `fence_ratio` 2 reads, `first_fence_ratio` 1.5 commits, `acquire_ratio` 3
//! commits.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tidegate_core::ids::ConnectionId;
use tidegate_core::lease::OwnerHash;
use tidegate_test_support::PostgresOptions;
use tokio::sync::Mutex;

use crate::load::{Run, Sample, drive, median};
use crate::summary::Summary;
use crate::{ROUND_TIME, ROUNDS};

mod at_the_store;
mod over_grpc;

const OWNERS: usize = 16;
/// Those of the store's pool, also for the other side.
const POOL: u32 = 8;
/// Longer than the benchmark runs.
const TTL_MS: u64 = 600_000;

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
    let store = at_the_store::open().await?;
    note("store", &rounds(store).await?, summary);
    let service = over_grpc::open().await?;
    note("grpc", &rounds(service).await?, summary);
    Ok(())
}

/// Where leases are asked for.
trait Level: Send + Sync + 'static {
    /// What is known of a lease.
    type Lease: Send;

    fn bare(&self) -> &Bare;
    fn acquire(&self, worker: usize) -> impl Future<Output = Result<Self::Lease>> + Send;
    fn release(
        &self,
        worker: usize,
        lease: &Self::Lease,
    ) -> impl Future<Output = Result<()>> + Send;
    fn renew(&self, worker: usize, lease: &Self::Lease) -> impl Future<Output = Result<()>> + Send;
    /// Registers with this number, unless that is done.
    fn fence(
        &self,
        worker: usize,
        lease: &Self::Lease,
        number: u64,
    ) -> impl Future<Output = Result<()>> + Send;
    fn end(
        &self,
        worker: usize,
        lease: &Self::Lease,
        number: u64,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// An owner with its lease.
struct Owner<L> {
    lease: L,
    /// Of its registration.
    number: u64,
}

/// The runs of each side, in the order of [`Side::ALL`].
type Runs = [Vec<Run>; 6];

async fn rounds<L: Level>(level: L) -> Result<Runs> {
    let level = Arc::new(level);
    let mut runs = Runs::default();
    let mut number = 0;
    for _ in 0..ROUNDS {
        for (side, runs) in Side::ALL.into_iter().zip(&mut runs) {
            number += 1_000_000;
            runs.push(round(&level, side, number).await?);
        }
    }
    Ok(runs)
}

/// One round of a side. Its registrations have numbers from `number` on.
async fn round<L: Level>(level: &Arc<L>, side: Side, number: u64) -> Result<Run> {
    let mut owners = Vec::with_capacity(OWNERS);
    for worker in 0..OWNERS {
        let lease = level.acquire(worker).await?;
        if side == Side::Fence {
            level.fence(worker, &lease, number).await?;
        }
        // Each is its worker's alone, so the lock is never waited for.
        owners.push(Mutex::new(Owner { lease, number }));
    }
    let owners = Arc::new(owners);
    let (measured, asked) = (Arc::clone(level), Arc::clone(&owners));
    let run = drive(OWNERS, ROUND_TIME, move |worker| {
        let (level, owners) = (Arc::clone(&measured), Arc::clone(&asked));
        async move {
            let mut owner = owners.get(worker).context("no owner")?.lock().await;
            let took = time(&*level, side, worker, &mut owner).await?;
            Ok(Sample {
                first_chunk: Some(took),
            })
        }
    })
    .await?;
    if side == Side::Fence {
        for (worker, owner) in owners.iter().enumerate() {
            let owner = owner.lock().await;
            level.end(worker, &owner.lease, owner.number).await?;
        }
    }
    Ok(run)
}

/// How long the one thing takes that is measured.
async fn time<L: Level>(
    level: &L,
    side: Side,
    worker: usize,
    owner: &mut Owner<L::Lease>,
) -> Result<Duration> {
    match side {
        Side::Read => timed(level.bare().read(worker)).await,
        Side::Commit => {
            level.bare().commit(worker).await?;
            timed(level.bare().commit(worker)).await
        }
        Side::Acquire => {
            level.release(worker, &owner.lease).await?;
            let began = Instant::now();
            owner.lease = level.acquire(worker).await?;
            Ok(began.elapsed())
        }
        Side::Renew => timed(level.renew(worker, &owner.lease)).await,
        Side::FirstFence => {
            owner.number += 1;
            let took = timed(level.fence(worker, &owner.lease, owner.number)).await?;
            level.end(worker, &owner.lease, owner.number).await?;
            Ok(took)
        }
        Side::Fence => timed(level.fence(worker, &owner.lease, owner.number)).await,
    }
}

async fn timed(call: impl Future<Output = Result<()>>) -> Result<Duration> {
    let began = Instant::now();
    call.await?;
    Ok(began.elapsed())
}

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
            // Nor does the store test one that has just come back.
            .test_before_acquire(false)
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

    async fn read(&self, worker: usize) -> Result<()> {
        let read = sqlx::query("SELECT n FROM bench_rows WHERE id = $1").bind(row(worker)?);
        read.fetch_one(&self.0).await?;
        Ok(())
    }

    async fn commit(&self, worker: usize) -> Result<()> {
        let write = sqlx::query("UPDATE bench_rows SET n = n + 1 WHERE id = $1").bind(row(worker)?);
        write.execute(&self.0).await?;
        Ok(())
    }
}

fn row(worker: usize) -> Result<i64> {
    Ok(i64::try_from(worker)?)
}

fn owner(worker: usize) -> Result<OwnerHash> {
    Ok(OwnerHash::from_bytes([u8::try_from(worker)?; 32]))
}

fn connection(worker: usize) -> Result<ConnectionId> {
    Ok(ConnectionId::new(format!("c{worker}"))?)
}

/// A Postgres whose commits wait for the disk.
fn that_syncs() -> PostgresOptions {
    PostgresOptions {
        durable: true,
        ..PostgresOptions::default()
    }
}

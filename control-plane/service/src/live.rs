//! Tells the other replicas how many data planes watch here, and hears it of them.
//!
//! **Stance:** fail-open. While the store is away what the others said last stays, for that is when it is needed: shares
//! of permits are parts by the data planes last known (decision 62). **Staleness:** two seconds, and seven for what a
//! replica said that is gone.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::Shard;
use tidegate_core::live_planes::{self, LivePlanes, SCHEMA, TELL_EVERY_MS};
use tidegate_core::state::codec::CodecError;
use tidegate_store::hot::{Cell, HotStoreError, Swap, SwapOutcome};

use crate::clock::Clock;
use crate::hot::{Hot, WRITE_LIMIT};
use crate::watch::Live;

/// Changes by others after which the next round tries again.
const MAX_TRIES: u32 = 8;

/// Tells and hears.
#[derive(Debug)]
pub(crate) struct Teller {
    pub(crate) replica: String,
    pub(crate) hot: Arc<Hot>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) live: Live,
}

/// Why a round came to nothing.
#[derive(Debug, thiserror::Error)]
enum Untold {
    #[error(transparent)]
    Store(#[from] HotStoreError),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("others kept changing it")]
    Contended,
}

impl Teller {
    /// For ever.
    pub(crate) async fn run(self) {
        let mut ticks = tokio::time::interval(Duration::from_millis(TELL_EVERY_MS));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.round().await {
                tracing::debug!(%error, "how many data planes live elsewhere is as it was");
            }
        }
    }

    async fn round(&self) -> Result<(), Untold> {
        // All replicas change the same value.
        let shard = Shard::all().next().ok_or(Untold::Contended)?;
        let mut found = self.hot.cell(shard, live_planes::KEY, WRITE_LIMIT).await?;
        for _ in 0..MAX_TRIES {
            let now = self.clock.now();
            let mut planes = read(found.as_ref())?;
            planes.tell(&self.replica, self.live.count(), now);
            let swap = Swap {
                shard,
                key: live_planes::KEY.to_owned(),
                expected: found.as_ref().map(|cell| cell.version),
                schema: SCHEMA,
                payload: live_planes::encode(&planes)?,
                expires_at: planes.ends_at(),
                not_after: now,
                sheddable: false,
            };
            match self.hot.swap(swap, WRITE_LIMIT).await? {
                SwapOutcome::Swapped { .. } => {
                    self.live.hears(planes.elsewhere(&self.replica, now));
                    return Ok(());
                }
                SwapOutcome::Refused { found: newer, .. } => found = newer,
            }
        }
        Err(Untold::Contended)
    }
}

fn read(found: Option<&Cell>) -> Result<LivePlanes, CodecError> {
    match found {
        Some(cell) => live_planes::decode(cell.schema, &cell.payload),
        None => Ok(LivePlanes::default()),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use tidegate_core::ids::PlaneIncarnation;
    use tidegate_store::fault::FaultyHotStore;
    use tidegate_store::memory::MemoryHotStore;

    use super::*;
    use crate::telemetry::metrics::{Metrics, SharedRegistry};
    use crate::watch::{Plane, Present};

    fn teller(replica: &str, memory: &MemoryHotStore) -> (Teller, FaultyHotStore<MemoryHotStore>) {
        let store = FaultyHotStore::new(Arc::new(memory.clone()), WRITE_LIMIT);
        let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
        let clock = Arc::new(Clock::new());
        let hot = Hot::new(Arc::new(store.clone()), Arc::clone(&clock), metrics);
        let teller = Teller {
            replica: replica.to_owned(),
            hot: Arc::new(hot),
            clock,
            live: Live::default(),
        };
        (teller, store)
    }

    fn watches(teller: &Teller, number: u64) -> Present {
        let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
        let plane = Plane::new(PlaneIncarnation(number), "plane", 0);
        Present::new(&teller.live, plane, &metrics)
    }

    #[tokio::test]
    async fn data_planes_are_counted_over_replicas_also_while_the_store_is_away() {
        let memory = MemoryHotStore::default();
        let (one, _) = teller("1", &memory);
        let (two, store) = teller("2", &memory);
        let _first = [watches(&one, 1), watches(&one, 2)];
        let _second = [watches(&two, 3), watches(&two, 4)];
        one.round().await.unwrap();
        two.round().await.unwrap();
        one.round().await.unwrap();
        assert_eq!((one.live.in_fleet(), two.live.in_fleet()), (4, 4));
        store.fail_each(NonZeroU64::new(1));
        assert!(two.round().await.is_err());
        assert_eq!(two.live.in_fleet(), 4);
        // What comes here counts at once.
        let _another = watches(&two, 5);
        assert_eq!(two.live.in_fleet(), 5);
    }

    #[tokio::test]
    async fn a_replica_that_many_change_before_is_told_the_next_time() {
        let memory = MemoryHotStore::default();
        let tellers: Vec<_> = (0..6)
            .map(|number| teller(&number.to_string(), &memory).0)
            .collect();
        let _present: Vec<_> = tellers
            .iter()
            .zip(1..)
            .map(|(it, n)| watches(it, n))
            .collect();
        for _ in 0..2 {
            let rounds = tellers.iter().map(|teller| teller.round());
            for round in futures::future::join_all(rounds).await {
                round.unwrap();
            }
        }
        assert!(tellers.iter().all(|teller| teller.live.in_fleet() == 6));
    }
}

//! Pins in the durable store, for a hot store that lost its memory (decision 43).
//!
//! Whoever writes a pin saves it, once a second, many in a call. What cannot be saved is dropped and counted: a pin is a
//! preference. A mark in the hot store tells that pins are there: when it is missing, the store is new or lost its memory,
//! and one replica puts back what the durable store has, each pin unless one stands. Who does it holds the mark for a
//! while, so that another one goes on when it dies; doing it twice does no harm.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use parking_lot::Mutex;
use tidegate_core::affinity::{PIN_SCHEMA, Pin, PinKey, encode};
use tidegate_core::ids::Shard;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStore, MAX_PIN_ROWS, StoredPin};
use tidegate_store::hot::{Swap, SwapOutcome};
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::hot::{Hot, WRITE_LIMIT};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::pin_metrics::PinEvent;

/// Between two saves.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// Saves between two looks at the mark.
const LOOK_EVERY: u32 = 5;
/// Most pins that wait to be saved.
pub(super) const MAX_WAITING: usize = 16_384;
/// Most pins that are put back.
const MAX_RESTORED: usize = 100_000;
/// Pins put back at once.
const AT_ONCE: usize = 16;
/// Limit of a call to the durable store (decision 54).
const LIMIT: Duration = Duration::from_millis(500);
/// The mark in the hot store.
const MARK: &str = "pins";
/// How long nobody else puts pins back.
const CLAIM_MS: u64 = 30_000;

/// What became of a pin.
#[derive(Clone, Debug)]
enum Fate {
    /// It stands.
    Stands(Pin),
    /// It was taken away.
    Gone(Pin),
}

/// What was written and is not saved yet, the last of each pin.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<BTreeMap<PinKey, Fate>>);

impl Waiting {
    /// A pin was written; `false` when there is no room for it.
    pub(super) fn note(&self, key: &PinKey, before: Option<&Pin>, after: Option<&Pin>) -> bool {
        let fate = match (before, after) {
            (_, Some(pin)) => Fate::Stands(pin.clone()),
            (Some(pin), None) => Fate::Gone(pin.clone()),
            (None, None) => return true,
        };
        let mut waiting = self.0.lock();
        if waiting.len() >= MAX_WAITING && !waiting.contains_key(key) {
            return false;
        }
        waiting.insert(key.clone(), fate);
        true
    }

    fn take(&self) -> BTreeMap<PinKey, Fate> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Saves pins and puts them back.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(super) waiting: Arc<Waiting>,
    pub(super) hot: Arc<Hot>,
    pub(super) clock: Arc<Clock>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) durable: Arc<dyn DurableStore>,
}

impl Keeper {
    /// Saves until told to stop, then what still waits, once.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(SAVE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick: u32 = 0;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => break,
            }
            self.save().await;
            if tick.is_multiple_of(LOOK_EVERY) {
                // A stop need not wait for it: another replica goes on.
                let _ended = stop.run_until_cancelled(self.look()).await;
            }
            tick = tick.wrapping_add(1);
        }
        self.save().await;
    }

    pub(super) async fn save(&self) {
        let (mut stand, mut gone) = (Vec::new(), Vec::new());
        for (key, fate) in self.waiting.take() {
            match fate {
                Fate::Stands(pin) => stand.push(StoredPin { key, pin }),
                Fate::Gone(pin) => gone.push(StoredPin { key, pin }),
            }
        }
        for pins in stand.chunks(MAX_PIN_ROWS) {
            self.saved(pins.len(), self.durable.save_pins(pins)).await;
        }
        for pins in gone.chunks(MAX_PIN_ROWS) {
            self.saved(pins.len(), self.durable.delete_pins(pins)).await;
        }
    }

    async fn saved<E: std::fmt::Display>(
        &self,
        count: usize,
        call: impl Future<Output = Result<(), E>>,
    ) {
        let event = match timeout(LIMIT, call).await {
            Ok(Ok(())) => PinEvent::Saved,
            Ok(Err(error)) => {
                tracing::warn!(count, %error, "pins of sessions were not saved");
                PinEvent::NotSaved
            }
            Err(_elapsed) => {
                tracing::warn!(count, "pins of sessions were not saved in time");
                PinEvent::NotSaved
            }
        };
        self.metrics.pins.count_many(event, count);
    }

    /// Puts pins back if the store has none of them.
    pub(super) async fn look(&self) {
        let (Some(shard), false) = (Shard::all().next(), self.hot.is_away()) else {
            return;
        };
        let Ok(None) = self.hot.cell(shard, MARK, LIMIT).await else {
            return;
        };
        let until = self.clock.now().plus_ms(CLAIM_MS);
        let Some(claim) = self.mark(shard, None, until).await else {
            return;
        };
        match self.restore().await {
            Some(restored) => {
                tracing::info!(restored, "pins of sessions were put back");
                self.mark(shard, Some(claim), Timestamp(u64::MAX)).await;
            }
            None => tracing::warn!("not all pins of sessions could be put back"),
        }
    }

    /// Sets the mark if it stands as expected; its version.
    async fn mark(&self, shard: Shard, expected: Option<u64>, until: Timestamp) -> Option<u64> {
        let swap = Swap {
            shard,
            key: MARK.to_owned(),
            expected,
            schema: PIN_SCHEMA,
            payload: Vec::new(),
            expires_at: until,
            // Set by the call.
            not_after: until,
            sheddable: false,
        };
        match self.hot.swap(swap, WRITE_LIMIT).await {
            Ok(SwapOutcome::Swapped { version, .. }) => Some(version),
            Ok(SwapOutcome::Refused { .. }) | Err(_) => None,
        }
    }

    /// How many were put back; `None` when a store failed on the way.
    async fn restore(&self) -> Option<usize> {
        let (mut seen, mut restored) = (0_usize, 0_usize);
        let mut after: Option<PinKey> = None;
        while seen < MAX_RESTORED {
            let page = self
                .durable
                .load_pins(after.as_ref(), self.clock.now(), MAX_PIN_ROWS);
            let page = match timeout(LIMIT, page).await {
                Ok(Ok(page)) => page,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "pins of sessions were not read back");
                    return None;
                }
                Err(_elapsed) => return None,
            };
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            seen = seen.saturating_add(page.len());
            let put = futures::stream::iter(page)
                .map(|stored| self.put_back(stored))
                .buffer_unordered(AT_ONCE)
                .collect::<Vec<_>>()
                .await;
            for put in put {
                restored = restored.saturating_add(usize::from(put?));
            }
        }
        Some(restored)
    }

    /// Whether it was put back, and none stood; `None` when the store failed.
    async fn put_back(&self, stored: StoredPin) -> Option<bool> {
        let StoredPin { key, pin } = stored;
        let Ok(payload) = encode(&key, &pin) else {
            return Some(false);
        };
        let swap = Swap {
            shard: key.shard(),
            key: key.cell_name(),
            expected: None,
            schema: PIN_SCHEMA,
            payload,
            expires_at: pin.expires_at,
            // Set by the call.
            not_after: pin.expires_at,
            sheddable: true,
        };
        match self.hot.swap(swap, WRITE_LIMIT).await {
            Ok(SwapOutcome::Swapped { .. }) => {
                self.metrics.pins.count(PinEvent::Restored);
                Some(true)
            }
            Ok(SwapOutcome::Refused { .. }) => Some(false),
            Err(_counted_by_the_call) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::ids::{ConnectionId, ProviderId};
    use tidegate_core::session_key::SessionKey;

    use super::*;

    fn key(number: usize) -> PinKey {
        let session = SessionKey::parse(&format!("header:{number}")).unwrap();
        PinKey::new(&ProviderId::new("alpha").unwrap(), None, &session)
    }

    fn pin(made: u64) -> Pin {
        Pin {
            connection: ConnectionId::new("a").unwrap(),
            created_at: Timestamp(made),
            expires_at: Timestamp(made).plus_ms(1_000),
        }
    }

    #[test]
    fn the_last_word_about_a_pin_is_saved_and_no_more_than_there_is_room_for() {
        let waiting = Waiting::default();
        assert!(waiting.note(&key(0), None, Some(&pin(1))));
        assert!(waiting.note(&key(0), Some(&pin(1)), None));
        assert!(waiting.note(&key(0), None, Some(&pin(2))));
        for number in 1..MAX_WAITING {
            assert!(waiting.note(&key(number), None, Some(&pin(1))));
        }
        assert!(!waiting.note(&key(MAX_WAITING), None, Some(&pin(1))));
        assert!(
            waiting.note(&key(7), Some(&pin(1)), None),
            "it waits already"
        );
        let taken = waiting.take();
        assert_eq!(taken.len(), MAX_WAITING);
        assert!(matches!(taken.get(&key(0)), Some(Fate::Stands(last)) if *last == pin(2)));
        assert!(matches!(taken.get(&key(7)), Some(Fate::Gone(_))));
        assert!(waiting.take().is_empty());
    }
}

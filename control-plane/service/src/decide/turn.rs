//! Taking the next number of a counter that all replicas share (decision 51).
//!
//! While the store does not answer in time, this replica counts by itself, so that the fleet's shares are exact only per
//! replica; that is counted.

use std::time::{Duration, Instant};

use tidegate_core::ids::Shard;
use tidegate_core::routing::strategy::{Scope, TurnKey, TurnPurpose};

use crate::clock::local_now;
use crate::hot::Hot;
use crate::telemetry::metrics::TurnTaken;

use super::Decider;

/// A counter that nobody asked for so long begins anew.
const COUNTER_TTL: Duration = Duration::from_secs(7 * 86_400);

impl Decider {
    /// The next number, or `None` when it is not to be had before the deadline.
    pub(super) async fn shared_turn(&self, key: &TurnKey, deadline: Instant) -> Option<u64> {
        let now = local_now();
        let limit = self
            .limits
            .store_call
            .min(deadline.saturating_duration_since(now));
        let turn = taken(&self.hot, key, limit, now).await;
        self.metrics.turn(if turn.is_some() {
            TurnTaken::Shared
        } else {
            TurnTaken::Local
        });
        turn
    }
}

/// Asks the store, unless it is known at this moment to be away or there is no time: a call that cannot be answered would take the time
/// of a decision that goes on without it, and count against the store.
async fn taken(hot: &Hot, key: &TurnKey, limit: Duration, now: Instant) -> Option<u64> {
    if hot.is_away_at(now) || limit.is_zero() {
        return None;
    }
    let (shard, name) = counter(key);
    hot.next_turn(shard, &name, COUNTER_TTL, limit).await.ok()
}

/// Where the store keeps the counter: its name is part of the stored format.
fn counter(key: &TurnKey) -> (Shard, String) {
    let purpose = match key.purpose {
        TurnPurpose::StrictRandom => "deck",
        // Counted per replica; named all the same, so that no two counters could ever be one.
        TurnPurpose::RoundRobin => "round-robin",
        TurnPurpose::Weighted => "weighted",
        TurnPurpose::Tie => "tie",
        TurnPurpose::Tier(_) => "tier",
    };
    match &key.scope {
        Scope::Combo(combo) => (
            Shard::of_name(combo.as_str()),
            format!("turn:{purpose}:combo:{combo}"),
        ),
        Scope::Accounts(provider) => (
            Shard::of_provider(provider),
            format!("turn:{purpose}:accounts:{provider}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::ids::{ComboName, ProviderId};
    use tidegate_store::fault::FaultyHotStore;
    use tidegate_store::memory::MemoryHotStore;

    use super::*;
    use crate::clock::Clock;
    use crate::telemetry::metrics::{Metrics, SharedRegistry};

    #[tokio::test]
    async fn a_store_that_is_known_to_be_away_is_not_waited_for() {
        let limit = Duration::from_millis(10);
        let store = FaultyHotStore::new(Arc::new(MemoryHotStore::default()), limit);
        let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
        let clock = Arc::new(Clock::new());
        let hot = Hot::new(Arc::new(store.clone()), clock, Arc::clone(&metrics));
        let key = TurnKey {
            scope: Scope::Combo(ComboName::new("combo").unwrap()),
            purpose: TurnPurpose::StrictRandom,
        };
        // However long this takes, no time passes.
        let now = local_now();
        let any_time = Duration::from_secs(10);
        assert_eq!(taken(&hot, &key, any_time, now).await, Some(0));
        assert_eq!(taken(&hot, &key, Duration::ZERO, now).await, None);
        assert!(hot.answers(), "a call without time is no failure");
        store.freeze();
        while !hot.is_away_at(now) {
            assert_eq!(taken(&hot, &key, limit, now).await, None);
        }
        let calls = || {
            let text = metrics.encode().unwrap();
            let calls = text.lines().filter(|line| line.contains("call=\"turn\""));
            calls.map(str::to_owned).collect::<Vec<_>>()
        };
        let before = calls();
        assert!(!before.is_empty());
        assert_eq!(taken(&hot, &key, limit, now).await, None);
        assert_eq!(calls(), before);
    }

    #[test]
    fn a_combo_and_a_provider_of_one_name_do_not_share() {
        let purpose = TurnPurpose::StrictRandom;
        let combo = Scope::Combo(ComboName::new("same").unwrap());
        let accounts = Scope::Accounts(ProviderId::new("same").unwrap());
        let name = |scope| counter(&TurnKey { scope, purpose }).1;
        assert_eq!(name(combo), "turn:deck:combo:same");
        assert_eq!(name(accounts), "turn:deck:accounts:same");
    }
}

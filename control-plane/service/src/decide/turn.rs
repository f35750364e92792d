//! Taking the next number of a counter that all replicas share (decision 51).
//!
//! While the store does not answer in time, this replica counts by itself, so that the fleet's shares are exact only per
//! replica; that is counted.

use std::time::{Duration, Instant};

use tidegate_core::ids::Shard;
use tidegate_core::routing::strategy::{Scope, TurnKey, TurnPurpose};

use crate::clock::local_now;
use crate::telemetry::metrics::TurnTaken;

use super::Decider;

/// A counter that nobody asked for so long begins anew.
const COUNTER_TTL: Duration = Duration::from_secs(7 * 86_400);

impl Decider {
    /// The next number, or `None` when it is not to be had before the deadline.
    pub(super) async fn shared_turn(&self, key: &TurnKey, deadline: Instant) -> Option<u64> {
        let left = deadline.saturating_duration_since(local_now());
        let limit = self.limits.store_call.min(left);
        let (shard, name) = counter(key);
        let turn = self
            .hot
            .next_turn(shard, &name, COUNTER_TTL, limit)
            .await
            .ok();
        self.metrics.turn(if turn.is_some() {
            TurnTaken::Shared
        } else {
            TurnTaken::Local
        });
        turn
    }
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
    use tidegate_core::ids::{ComboName, ProviderId};

    use super::*;

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

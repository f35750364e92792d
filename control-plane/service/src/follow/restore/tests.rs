use std::sync::Arc;

use tidegate_core::ids::ConnectionId;
use tidegate_core::ids::ProviderId;
use tidegate_core::state::{ConnectionState, StateValue};
use tidegate_core::version::Revision;
use tidegate_store::durable::CheckpointStore as _;
use tidegate_store::fault::FaultyHotStore;
use tidegate_store::memory::MemoryHotStore;

use super::*;
use crate::clock::{Clock, local_now};
use crate::hot::Hot;
use crate::telemetry::metrics::{Metrics, SharedRegistry};
use crate::test_durable;
use crate::view::View;

/// Years from now.
const LATE: Timestamp = Timestamp(4_000_000_000_000);
const OLD: Version = Version {
    incarnation: Incarnation(1),
    revision: Revision(5),
};

fn provider() -> ProviderId {
    ProviderId::new("alpha").unwrap()
}

fn key(connection: usize) -> StateKey {
    let connection = ConnectionId::new(format!("c{connection}")).unwrap();
    StateKey::Connection(provider(), connection)
}

fn value() -> StoredValue {
    StoredValue {
        live: StateValue::Connection(ConnectionState {
            credential_version: 3,
            ..ConnectionState::default()
        }),
        restored: None,
        ancestor: Version::default(),
        forget_at: LATE,
    }
}

#[tokio::test]
async fn checkpoint_is_owed_until_it_is_written_and_not_only_read() {
    let directory = tempfile::tempdir().unwrap();
    let durable = test_durable::open(directory.path()).await;
    let faulty = FaultyHotStore::new(
        Arc::new(MemoryHotStore::default()),
        Duration::from_millis(40),
    );
    let clock = Arc::new(Clock::new());
    let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
    let hot = Hot::new(
        Arc::new(faulty.clone()),
        Arc::clone(&clock),
        Arc::clone(&metrics),
    );
    let shard = Shard::of_provider(&provider());
    let saved = written(&codec::encode(&key(1), None, &value()).unwrap(), OLD);
    durable
        .save_checkpoint(shard, &[saved], &[], clock.now())
        .await
        .unwrap();
    let incarnation = hot
        .begin_incarnation(shard, None, OLD.incarnation)
        .await
        .unwrap()
        .unwrap();
    let image = hot.read(shard).await.unwrap();
    let follower = Follower::new(
        Arc::new(hot),
        Arc::new(durable),
        Arc::new(View::new(local_now())),
        clock,
        metrics,
    );
    follower.owe_checkpoint(shard, true);
    faulty.freeze();
    restore_into(&follower, shard, incarnation, image.clone())
        .await
        .unwrap_err();
    assert!(follower.owes_checkpoint(shard));
    faulty.drop_parked();
    faulty.thaw().await;
    let taken = restore_into(&follower, shard, incarnation, image)
        .await
        .unwrap();
    assert_eq!(taken, 1);
    assert!(!follower.owes_checkpoint(shard));
}

#[test]
fn marks_wait_for_the_last_values() {
    let shard = Shard::of_provider(&provider());
    let next = Incarnation(2);
    let offers: Offers = (0..=MAX_WRITE_VALUES)
        .map(|connection| (key(connection), vec![(value(), OLD)]))
        .collect();
    let marks = Marks::from([(PlaneIncarnation(7), 9)]);
    let mut current = Current::new();
    let first = next_write(shard, next, &offers, &current, &marks, Timestamp(1));
    assert_eq!(
        (first.values.len(), first.marks.len()),
        (MAX_WRITE_VALUES, 0)
    );
    let version = Version {
        incarnation: next,
        revision: Revision(1),
    };
    for value in &first.values {
        current.extend(read(&written(value, version)));
    }
    let last = next_write(shard, next, &offers, &current, &marks, Timestamp(1));
    assert_eq!((last.values.len(), last.marks.len()), (1, 1));
}

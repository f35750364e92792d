use std::sync::Arc;

use tidegate_core::ids::{AttemptId, ConnectionId, ModelId, PlaneIncarnation, ProviderId, Shard};
use tidegate_core::outcome::{Attempt, AttemptOutcome, Outcome};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tidegate_store::hot::{MAX_WRITE_VALUES, MarkMove};

use super::queue::{MAX_UNDER_WAY, Report, ShardQueue};

const PLANE: PlaneIncarnation = PlaneIncarnation(1);
const OTHER: PlaneIncarnation = PlaneIncarnation(2);

fn shard() -> Shard {
    Shard::new(0).unwrap()
}

fn outcome(plane: PlaneIncarnation, number: u64, connection: &str, at: u64) -> AttemptOutcome {
    AttemptOutcome {
        attempt: Attempt {
            id: AttemptId { plane, number },
            provider: ProviderId::new("alpha").unwrap(),
            connection: ConnectionId::new(connection).unwrap(),
            model: ModelId::new("m").unwrap(),
            decided_on: Version::default(),
            epoch: Version::default(),
            credential_version: 1,
            egress: None,
            probe: false,
            synthetic: false,
        },
        outcome: Outcome::Success,
        occurred_at: Timestamp(at),
        next_target_same_provider: false,
        combo: false,
        count: 1,
    }
}

fn report(plane: PlaneIncarnation, number: u64, connection: &str, at: u64) -> Report {
    Report {
        number,
        outcome: Some(Arc::new(outcome(plane, number, connection, at))),
    }
}

fn empty(number: u64) -> Report {
    Report {
        number,
        outcome: None,
    }
}

fn runs(queue: &ShardQueue) -> Vec<MarkMove> {
    queue.next_batch(shard(), 0, |_| 0).0.runs
}

fn run(plane: PlaneIncarnation, first: u64, last: u64) -> MarkMove {
    MarkMove { plane, first, last }
}

#[test]
fn batch_takes_runs_from_the_front_and_covers_numbers_with_nothing_to_apply() {
    let queue = ShardQueue::default();
    queue.fill(
        PLANE,
        [report(PLANE, 3, "a", 9), empty(4), report(PLANE, 7, "b", 5)],
    );
    queue.fill(OTHER, [report(OTHER, 1, "a", 7)]);
    let (batch, _) = queue.next_batch(shard(), 0, |_| 0);
    assert_eq!(batch.runs, [run(PLANE, 3, 7), run(OTHER, 1, 1)]);
    let times: Vec<u64> = batch.outcomes.iter().map(|it| it.occurred_at.0).collect();
    assert_eq!(times, [5, 7, 9], "folded in the order of what happened");
}

#[test]
fn run_ends_where_the_write_is_full_so_that_no_mark_skips_a_report() {
    let queue = ShardQueue::default();
    let connections = u64::try_from(MAX_WRITE_VALUES).unwrap() + 10;
    let reports = (1..=connections).map(|number| {
        let connection = format!("c{number}");
        report(PLANE, number, &connection, number)
    });
    // The last one would fit, since its connection is in the write already, but what is before it does not.
    let again = report(PLANE, connections + 1, "c1", 1);
    queue.fill(PLANE, reports.chain([again]));
    // One value is the provider's.
    let fits = u64::try_from(MAX_WRITE_VALUES).unwrap() - 1;
    assert_eq!(runs(&queue), [run(PLANE, 1, fits)]);
    assert_eq!(queue.complete(shard(), PLANE, fits), fits);
    assert_eq!(runs(&queue), [run(PLANE, fits + 1, connections + 1)]);
}

#[test]
fn planes_take_turns_at_being_first() {
    let queue = ShardQueue::default();
    let many = |plane| (1..=100).map(move |number| report(plane, number, &format!("c{number}"), 1));
    queue.fill(PLANE, many(PLANE));
    queue.fill(
        OTHER,
        many(OTHER).map(|it| Report {
            number: it.number,
            outcome: it.outcome.map(|outcome| {
                let mut other = (*outcome).clone();
                other.attempt.connection = ConnectionId::new(format!("d{}", it.number)).unwrap();
                Arc::new(other)
            }),
        }),
    );
    let first_of = |turn| queue.next_batch(shard(), turn, |_| 0).0.runs[0].plane;
    assert_ne!(first_of(0), first_of(1));
}

#[test]
fn what_another_replica_applied_is_dropped_and_acknowledged() {
    let queue = ShardQueue::default();
    let progress = queue.fill(
        PLANE,
        (1..=4).map(|number| report(PLANE, number, "a", number)),
    );
    let (batch, dropped) = queue.next_batch(shard(), 0, |_| 3);
    assert_eq!((batch.runs, dropped), (vec![run(PLANE, 4, 4)], 3));
    assert_eq!(progress.acknowledged(shard()), 3);
    let (batch, dropped) = queue.next_batch(shard(), 0, |_| 9);
    assert!(batch.is_empty());
    assert_eq!(dropped, 1);
    assert_eq!(progress.acknowledged(shard()), 9);
    assert!(queue.is_empty());
}

#[test]
fn what_is_applied_takes_no_room_under_way_though_it_waits_for_its_worker() {
    let queue = ShardQueue::default();
    let is_full = |applied| queue.planes.lock()[&PLANE].is_full(applied);
    let most = u64::try_from(MAX_UNDER_WAY).unwrap();
    queue.fill(PLANE, (1..=most).map(empty));
    assert!(is_full(0));
    assert!(!is_full(1));
    assert!(!is_full(most));
    queue.fill(PLANE, (1..=2 * most).map(empty));
    assert!(is_full(2 * most), "bounded all the same");
}

#[test]
fn each_report_goes_into_the_overlay_once() {
    let queue = ShardQueue::default();
    queue.fill(
        PLANE,
        (1..=3).map(|number| report(PLANE, number, "a", number)),
    );
    assert_eq!(queue.take_for_overlay(&[run(PLANE, 1, 2)]).len(), 2);
    assert_eq!(queue.take_for_overlay(&[run(PLANE, 1, 3)]).len(), 1);
    assert!(!queue.nothing_overlaid());
    queue.complete(shard(), PLANE, 3);
    assert!(queue.nothing_overlaid());
}

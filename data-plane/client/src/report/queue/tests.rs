use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_core::ids::{AttemptId, ConnectionId, ModelId};
use tidegate_core::outcome::{Attempt, UpstreamError};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tidegate_wire::attempt::report_from_proto;

use super::*;

const PLANE: PlaneIncarnation = PlaneIncarnation(7);

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

fn queue(max_waiting: usize) -> ReportQueue {
    ReportQueue::new(
        PLANE,
        QueueLimits {
            max_waiting,
            max_bytes: 1_000_000_000,
            max_age: ms(300_000),
            batch: ms(100),
        },
    )
}

fn report(provider: &str, connection: &str, status: u16, at: u64) -> AttemptOutcome {
    let outcome = match status {
        200 => Outcome::Success,
        status => Outcome::Response(UpstreamError {
            status,
            ..UpstreamError::default()
        }),
    };
    AttemptOutcome {
        attempt: Attempt {
            id: AttemptId {
                plane: PLANE,
                number: at.max(1),
            },
            provider: ProviderId::new(provider).unwrap(),
            connection: ConnectionId::new(connection).unwrap(),
            model: ModelId::new("m").unwrap(),
            decided_on: Version::default(),
            epoch: Version::default(),
            credential_version: 1,
            egress: None,
            probe: false,
            synthetic: false,
        },
        outcome,
        occurred_at: Timestamp(at),
        next_target_same_provider: false,
        combo: false,
        count: 1,
    }
}

fn taken(queue: &mut ReportQueue, now: Instant) -> Vec<(u64, AttemptOutcome)> {
    let mut taken = Vec::new();
    while let Some(message) = queue.take(now, true) {
        assert!(message.reports.len() <= WINDOW);
        for numbered in message.reports {
            taken.push((numbered.number, report_from_proto(numbered.report).unwrap()));
        }
    }
    taken
}

#[test]
fn reports_are_numbered_per_shard_from_one_without_gaps() {
    let (mut queue, now) = (queue(100), Instant::now());
    queue.push(report("openai", "a", 500, 10), true, now);
    queue.push(report("anthropic", "b", 500, 11), true, now);
    queue.push(report("openai", "a", 429, 12), true, now);
    let mut numbers = BTreeMap::<u32, Vec<u64>>::new();
    while let Some(message) = queue.take(now, false) {
        let shard = message.shard;
        let of_shard = message.reports.iter().map(|report| report.number);
        numbers.entry(shard).or_default().extend(of_shard);
        assert_eq!(message.plane, PLANE.0);
    }
    let shard = |name| {
        let provider = ProviderId::new(name).unwrap();
        u32::from(Shard::of_provider(&provider).number())
    };
    let expected = [(shard("anthropic"), vec![1]), (shard("openai"), vec![1, 2])];
    assert_eq!(numbers, BTreeMap::from(expected));
    queue.push(report("openai", "a", 500, 13), true, now);
    assert_eq!(taken(&mut queue, now)[0].0, 3);
}

#[test]
fn successes_are_counted_together_unless_a_failure_came_between() {
    let (mut queue, now) = (queue(100), Instant::now());
    for at in [10, 11, 12] {
        queue.push(report("openai", "a", 200, at), false, now);
    }
    queue.push(report("openai", "b", 200, 13), false, now);
    queue.push(report("openai", "a", 500, 14), false, now);
    queue.push(report("openai", "a", 200, 15), false, now);
    queue.push(report("openai", "a", 200, 15 + 5_000), false, now);
    let seen: Vec<_> = taken(&mut queue, now)
        .into_iter()
        .map(|(_, report)| {
            (
                report.attempt.connection.to_string(),
                report.count,
                report.occurred_at.0,
            )
        })
        .collect();
    let expected = [
        ("a", 3, 12),
        ("b", 1, 13),
        ("a", 1, 14),
        ("a", 1, 15),
        ("a", 1, 5_015),
    ];
    let expected = expected.map(|(connection, count, at)| (connection.to_owned(), count, at));
    assert_eq!(seen, expected);
}

#[test]
fn of_equal_failures_the_first_and_the_last_remain() {
    let (mut queue, now) = (queue(100), Instant::now());
    for at in [10, 11, 12, 13] {
        queue.push(report("openai", "a", 429, at), false, now);
    }
    queue.push(report("openai", "a", 500, 14), false, now);
    let mut probe = report("openai", "a", 500, 15);
    probe.attempt.probe = true;
    queue.push(probe.clone(), false, now);
    queue.push(probe, false, now);
    let seen: Vec<_> = taken(&mut queue, now)
        .into_iter()
        .map(|(_, report)| (report.occurred_at.0, report.count))
        .collect();
    assert_eq!(seen, [(10, 1), (13, 1), (14, 1), (15, 1), (15, 1)]);
}

#[test]
fn a_full_queue_drops_the_oldest_successes_first_and_counts_them() {
    let (mut queue, now) = (queue(4), Instant::now());
    queue.push(report("openai", "f1", 500, 1), false, now);
    queue.push(report("openai", "s1", 200, 2), false, now);
    queue.push(report("openai", "s1", 200, 3), false, now);
    queue.push(report("openai", "s2", 200, 4), false, now);
    queue.push(report("openai", "f2", 500, 5), false, now);
    let dropped = |pushed: Pushed| (pushed.dropped_successes, pushed.dropped_failures);
    assert_eq!(
        dropped(queue.push(report("openai", "f3", 500, 6), false, now)),
        (2, 0)
    );
    assert_eq!(
        dropped(queue.push(report("openai", "f4", 500, 7), false, now)),
        (1, 0)
    );
    assert_eq!(
        dropped(queue.push(report("openai", "f5", 500, 8), false, now)),
        (0, 1)
    );
    assert_eq!(queue.waiting_count(), 4);
    let numbers: Vec<_> = taken(&mut queue, now)
        .into_iter()
        .map(|(number, report)| (number, report.attempt.connection.to_string()))
        .collect();
    let expected = [(1, "f2"), (2, "f3"), (3, "f4"), (4, "f5")];
    assert_eq!(
        numbers,
        expected.map(|(number, name)| (number, name.to_owned()))
    );
}

#[test]
fn what_was_never_sent_expires_and_leaves_no_gap() {
    let (mut queue, now) = (queue(100), Instant::now());
    queue.push(report("openai", "a", 500, 1), true, now);
    assert_eq!(taken(&mut queue, now).len(), 1);
    queue.push(report("openai", "b", 500, 2), true, now);
    let later = now + ms(300_001);
    queue.push(report("openai", "c", 500, 3), true, later);
    assert_eq!(queue.expire(later), 1);
    let numbers: Vec<u64> = taken(&mut queue, later)
        .iter()
        .map(|taken| taken.0)
        .collect();
    assert_eq!(numbers, [2]);
    // What was sent stays until it is acknowledged, whatever its age.
    assert_eq!(queue.resend(later)[0].reports.len(), 2);
}

#[test]
fn no_more_than_the_window_is_under_way() {
    let (mut queue, now) = (queue(10_000), Instant::now());
    for number in 0..400 {
        queue.push(report("openai", &format!("c{number}"), 500, 1), true, now);
    }
    assert_eq!(taken(&mut queue, now).len(), WINDOW);
    assert_eq!(queue.next_due(), None);
    let shard = Shard::of_provider(&ProviderId::new("openai").unwrap());
    assert_eq!(queue.acknowledge(shard, 100).reports, 100);
    assert_eq!(queue.acknowledge(shard, 100).reports, 0);
    assert_eq!(taken(&mut queue, now).len(), 100);
    let rest = queue.acknowledge(shard, u64::MAX);
    assert_eq!((rest.reports, rest.settled.len()), (256, 0));
    assert_eq!(taken(&mut queue, now).len(), 44);
    let rest = queue.acknowledge(shard, u64::MAX);
    assert_eq!((rest.reports, rest.settled.len()), (44, 1));
    assert!(queue.is_empty());
}

/// A failure with the longest body that is kept.
fn long(connection: &str) -> AttemptOutcome {
    let mut report = report("openai", connection, 500, 1);
    if let Outcome::Response(error) = &mut report.outcome {
        error.body = "x".repeat(tidegate_core::outcome::MAX_BODY_BYTES);
    }
    report
}

#[test]
fn all_that_is_under_way_in_a_shard_fits_into_one_message() {
    let (mut queue, now) = (queue(10_000), Instant::now());
    for number in 0..300 {
        queue.push(long(&format!("c{number}")), true, now);
    }
    let taken = taken(&mut queue, now).len();
    assert!((100..WINDOW).contains(&taken), "{taken}");
    let again = queue.resend(now);
    assert_eq!(again.len(), 1);
    assert!(again[0].encoded_len() < 2 * WINDOW_BYTES);
    let shard = Shard::of_provider(&ProviderId::new("openai").unwrap());
    while !queue.is_empty() {
        queue.acknowledge(shard, u64::MAX);
        queue.take(now, true);
    }
    assert_eq!(queue.waiting_bytes, 0);
    assert!(queue.shards.iter().all(|shard| shard.under_way_bytes == 0));
}

#[test]
fn long_bodies_fill_the_queue_sooner_than_many_reports() {
    let now = Instant::now();
    let mut queue = queue(10_000);
    queue.limits.max_bytes = 100_000;
    let mut dropped = 0;
    for number in 0..50 {
        dropped += queue
            .push(long(&format!("c{number}")), true, now)
            .dropped_failures;
    }
    assert!(queue.waiting_bytes <= 100_000);
    assert_eq!(queue.waiting_count(), 11);
    assert_eq!(dropped, 39);
}

#[test]
fn urgent_reports_are_due_at_once_and_others_wait_for_company() {
    let (mut queue, now) = (queue(100), Instant::now());
    queue.push(report("openai", "a", 200, 1), false, now);
    assert!(queue.take(now, false).is_none());
    assert_eq!(queue.next_due(), Some(now + ms(100)));
    queue.push(report("openai", "b", 500, 2), true, now);
    let message = queue.take(now, false).unwrap();
    assert_eq!(message.reports.len(), 2);
    assert_eq!(queue.oldest_urgent(), Some(now));
    queue.push(report("openai", "a", 200, 1), false, now);
    assert!(queue.take(now + ms(99), false).is_none());
    assert!(queue.take(now + ms(100), false).is_some());
}

/// A shard's mark and what was applied past it, as the control plane keeps them.
#[derive(Default)]
struct Shards(BTreeMap<u32, (u64, u64, u64)>);

impl Shards {
    /// Applies what is new of a message; a gap would be a report lost.
    fn receive(&mut self, message: &ReportRequest) {
        let (mark, successes, failures) = self.0.entry(message.shard).or_default();
        for numbered in &message.reports {
            if numbered.number <= *mark {
                continue;
            }
            assert_eq!(numbered.number, *mark + 1);
            *mark = numbered.number;
            let report = report_from_proto(numbered.report.clone()).unwrap();
            if report.outcome == Outcome::Success {
                *successes += u64::from(report.count);
            } else {
                *failures += 1;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    Push {
        connection: u8,
        failed: bool,
        urgent: bool,
    },
    /// Sends what is due; the message arrives at once, later, or never.
    Send {
        arrives: u8,
    },
    /// A new stream: everything under way again.
    Resend {
        arrives: u8,
    },
    Acknowledge {
        shard: u8,
    },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (0..4_u8, any::<bool>(), any::<bool>())
            .prop_map(|(connection, failed, urgent)| Action::Push { connection, failed, urgent }),
        3 => (0..3_u8).prop_map(|arrives| Action::Send { arrives }),
        1 => (0..3_u8).prop_map(|arrives| Action::Resend { arrives }),
        2 => (0..SHARDS).prop_map(|shard| Action::Acknowledge { shard }),
    ]
}

proptest! {
    #[test]
    fn nothing_is_lost_or_counted_twice_whatever_is_lost_or_repeated(
        actions in prop::collection::vec(action(), 0..200)
    ) {
        let mut queue = queue(100_000);
        let now = Instant::now();
        let mut shards = Shards::default();
        let mut delayed: Vec<ReportRequest> = Vec::new();
        let (mut successes, mut failures, mut merged, mut clock) = (0_u64, 0_u64, 0_u64, 0_u64);
        let mut broken = false;
        for action in actions {
            clock += 7;
            match action {
                Action::Push { connection, failed, urgent } => {
                    let provider = if connection % 2 == 0 { "openai" } else { "anthropic" };
                    let status = if failed { 500 } else { 200 };
                    let outcome = report(provider, &format!("c{connection}"), status, clock);
                    let pushed = queue.push(outcome, urgent, now);
                    if failed { failures += 1 } else { successes += 1 }
                    if failed && pushed.coalesced { merged += 1 }
                }
                // After a message is lost, a stream is broken: nothing more arrives on it.
                Action::Send { arrives } => {
                    while let Some(message) = queue.take(now, true) {
                        broken |= arrives == 0;
                        if broken { continue }
                        delayed.push(message.clone());
                        shards.receive(&message);
                    }
                }
                Action::Resend { arrives } => {
                    broken = arrives == 0;
                    for message in queue.resend(now) {
                        if broken { continue }
                        shards.receive(&message);
                        // What an earlier stream still held comes late.
                        for late in delayed.drain(..) { shards.receive(&late) }
                    }
                }
                Action::Acknowledge { shard } => {
                    if let Some((mark, _, _)) = shards.0.get(&u32::from(shard)) {
                        queue.acknowledge(Shard::new(shard).unwrap(), *mark);
                    }
                }
            }
        }
        // At the end the network is whole.
        while !queue.is_empty() {
            for message in queue.resend(now) { shards.receive(&message) }
            for shard in Shard::all() {
                if let Some((mark, _, _)) = shards.0.get(&u32::from(shard.number())) {
                    queue.acknowledge(shard, *mark);
                }
            }
            while let Some(message) = queue.take(now, true) { shards.receive(&message) }
        }
        let applied = shards.0.values().fold((0, 0), |sum, shard| (sum.0 + shard.1, sum.1 + shard.2));
        prop_assert_eq!(applied, (successes, failures - merged));
        prop_assert!(queue.outstanding.is_empty());
    }
}

//! Reports: what one replica is told, all know, once.

use tonic::Code;

use crate::fleet::{Fleet, eventually, failure, success};

#[tokio::test]
async fn failure_reported_to_one_replica_is_seen_by_the_other() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    one.open_breaker(7).await;
    other.breaker_becomes("OPEN").await;
    let decided = other.decide(8, 1).await;
    let Some(tidegate_proto::routing::v1::decide_response::Step::Reject(reject)) = decided.step
    else {
        panic!("expected a rejection: {decided:?}");
    };
    assert_eq!(reject.excluded[0].reason, "circuit_open");
}

#[tokio::test]
async fn report_delivered_three_times_to_two_replicas_counts_once() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    let attempt = one.dispatched(7).await;
    let report = failure(7, 1, &attempt);
    let mut first = one.report().await;
    let mut second = other.report().await;
    first.send(7, vec![report.clone()]).await;
    second.send(7, vec![report.clone()]).await;
    first.send(7, vec![report.clone()]).await;
    first.acknowledged_to(1).await;
    second.acknowledged_to(1).await;
    let mut again = other.report().await;
    again.send(7, vec![report]).await;
    again.acknowledged_to(1).await;
    for replica in [&one, &other] {
        eventually("the count", async || {
            replica.breaker_status().await.failure_count == 1
        })
        .await;
    }
}

#[tokio::test]
async fn number_that_changed_nothing_is_acknowledged_and_a_later_one_moves_the_mark_over_it() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    let attempt = one.dispatched(7).await;
    let mut reporting = one.report().await;
    reporting.send(7, vec![success(7, 1, &attempt)]).await;
    reporting.acknowledged_to(1).await;
    reporting
        .send(7, vec![failure(7, 2, &attempt), success(7, 3, &attempt)])
        .await;
    reporting.acknowledged_to(3).await;
    reporting.send(7, vec![failure(7, 4, &attempt)]).await;
    reporting.acknowledged_to(4).await;
    drop(fleet);
    // Everything again, elsewhere: nothing of it counts again.
    let mut again = other.report().await;
    let all = vec![
        success(7, 1, &attempt),
        failure(7, 2, &attempt),
        success(7, 3, &attempt),
        failure(7, 4, &attempt),
    ];
    again.send(7, all).await;
    again.acknowledged_to(4).await;
    assert_eq!(other.breaker_status().await.failure_count, 1);
}

#[tokio::test]
async fn reports_of_several_planes_and_providers_all_count() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    let attempt = one.dispatched(7).await;
    let mut streams = Vec::new();
    for plane in 1..=8 {
        let replica = if plane % 2 == 0 { &one } else { &other };
        let stream = replica.report().await;
        // Alternating, so that the count ends where it began, plus one of each plane.
        let mut reports = vec![success(plane, 1, &attempt)];
        reports.extend((2..=20).map(|number| success(plane, number, &attempt)));
        stream.send(plane, reports).await;
        streams.push(stream);
    }
    for stream in &mut streams {
        stream.acknowledged_to(20).await;
    }
    assert_eq!(one.breaker_status().await.failure_count, 0);
}

#[tokio::test]
async fn too_old_and_misplaced_reports_are_acknowledged_without_effect() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let attempt = one.dispatched(7).await;
    let mut old = failure(7, 1, &attempt);
    let report = old.report.as_mut().unwrap();
    report.occurred_at_unix_ms -= 301_000;
    let mut other_shard = failure(7, 2, &attempt);
    let misplaced = other_shard
        .report
        .as_mut()
        .unwrap()
        .attempt
        .as_mut()
        .unwrap();
    misplaced.provider = "beta".to_owned();
    let mut reporting = one.report().await;
    reporting.send(7, vec![old, other_shard]).await;
    reporting.acknowledged_to(2).await;
    assert_eq!(one.breaker_status().await.failure_count, 0);
}

#[tokio::test]
async fn broken_contract_ends_the_stream_with_a_clear_status() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let attempt = one.dispatched(7).await;
    let descending = one.report().await;
    descending
        .send(7, vec![success(7, 2, &attempt), success(7, 1, &attempt)])
        .await;
    assert_eq!(descending.refused().await.code(), Code::InvalidArgument);
    let too_high = one.report().await;
    too_high.send(7, vec![success(7, 1 << 53, &attempt)]).await;
    assert_eq!(too_high.refused().await.code(), Code::InvalidArgument);
    let no_shard = one.report().await;
    no_shard.send_to(7, 16, Vec::new()).await;
    assert_eq!(no_shard.refused().await.code(), Code::InvalidArgument);
    let no_plane = one.report().await;
    no_plane.send(0, Vec::new()).await;
    assert_eq!(no_plane.refused().await.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn window_of_reports_under_way_is_bounded() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let attempt = one.dispatched(7).await;
    one.hot.freeze();
    let reporting = one.report().await;
    let reports = |from: u64, to: u64| {
        (from..=to)
            .map(|number| failure(7, number, &attempt))
            .collect::<Vec<_>>()
    };
    reporting.send(7, reports(1, 256)).await;
    reporting.send(7, reports(257, 258)).await;
    assert_eq!(reporting.refused().await.code(), Code::ResourceExhausted);
    one.hot.thaw().await;
}

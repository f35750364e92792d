//! What survives what.

use tidegate_proto::admin::v1::{ResetRequest, ResetScope};

use crate::fleet::{Fleet, eventually, failure};

#[tokio::test]
async fn flushed_store_is_rebuilt_from_the_views() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    one.open_breaker(7).await;
    other.breaker_becomes("OPEN").await;
    let before = one.breaker_status().await.failure_count;
    fleet.memory.flush();
    // Nobody writes; the loss is noticed all the same.
    eventually("the restore", async || fleet.stores("p:alpha").await).await;
    for replica in [&one, &other] {
        let status = replica.breaker_status().await;
        assert_eq!(
            (status.state.as_str(), status.failure_count),
            ("OPEN", before)
        );
    }
    // Reports applied before the loss do not count again.
    let attempt = failure(7, 2, &Default::default());
    let mut reporting = other.report().await;
    reporting.send(7, vec![attempt]).await;
    reporting.acknowledged_to(2).await;
}

#[tokio::test]
async fn restart_of_everything_finds_the_state_in_the_checkpoint() {
    let (fleet, [one]) = Fleet::with_replicas().await;
    one.open_breaker(7).await;
    one.shutdown().await;
    fleet.memory.restart_empty();
    let after = fleet.start().await;
    after.has_configuration(1).await;
    assert_eq!(after.breaker().await, "OPEN");
}

#[tokio::test]
async fn store_that_went_back_in_time_is_brought_forward() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    let old = fleet.memory.image();
    assert!(!fleet.stores("p:alpha").await);
    one.open_breaker(7).await;
    other.breaker_becomes("OPEN").await;
    fleet.memory.restart_from(&old);
    eventually("the restore", async || fleet.stores("p:alpha").await).await;
    assert_eq!(one.breaker().await, "OPEN");
}

#[tokio::test]
async fn while_the_store_is_away_a_replica_knows_and_does_not_acknowledge() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    let attempt = one.dispatched(7).await;
    let mut reporting = one.report().await;
    one.hot.freeze();
    reporting
        .send(7, vec![failure(7, 1, &attempt), failure(7, 2, &attempt)])
        .await;
    // Its own decisions know.
    one.breaker_becomes("OPEN").await;
    let silent = tokio::time::timeout(
        std::time::Duration::from_millis(300),
        reporting.acknowledged.message(),
    )
    .await;
    assert!(
        silent.is_err(),
        "acknowledged without the store: {silent:?}"
    );
    assert_eq!(other.breaker().await, "CLOSED");
    one.hot.thaw().await;
    reporting.acknowledged_to(2).await;
    other.breaker_becomes("OPEN").await;
    let counts = [
        one.breaker_status().await.failure_count,
        other.breaker_status().await.failure_count,
    ];
    assert_eq!(counts, [2, 2]);
}

#[tokio::test]
async fn write_without_an_answer_counts_once() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let attempt = one.dispatched(7).await;
    let mut reporting = one.report().await;
    one.hot.lose_next_answers(1);
    reporting.send(7, vec![failure(7, 1, &attempt)]).await;
    reporting.acknowledged_to(1).await;
    assert_eq!(one.breaker_status().await.failure_count, 1);
}

#[tokio::test]
async fn reset_answers_with_its_checkpoint_and_is_seen_everywhere() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    one.open_breaker(7).await;
    other.breaker_becomes("OPEN").await;
    let request = ResetRequest {
        scope: ResetScope::Breakers.into(),
        ..ResetRequest::default()
    };
    let reset = other.admin().reset(request).await.unwrap().into_inner();
    assert_eq!(reset.reset_count, 1);
    assert!(reset.checkpointed);
    one.breaker_becomes("CLOSED").await;
    one.shutdown().await;
    other.shutdown().await;
    fleet.memory.restart_empty();
    let after = fleet.start().await;
    assert_eq!(after.breaker().await, "CLOSED");
}

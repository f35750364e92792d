//! Usage that the release before records beside this one (decision 57).

use tidegate_core::ids::{AttemptId, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
use tidegate_core::time::Timestamp;
use tidegate_core::usage::{OpenAttempt, TokenUsage, UsageRecord, UsageSource};
use tidegate_store::durable::UsageStore as _;
use tidegate_store::durable::conformance::Fixture as _;

use super::on_postgres;

/// The statement of the release before sources, of one record.
fn as_before(number: u64, input: &str) -> String {
    format!(
        "INSERT INTO usage (plane, number, at, provider, connection, model, key_id,
                            input_tokens, output_tokens)
         VALUES (7, {number}, 5, 'p', 'c', 'm', NULL, {input}, NULL)
         ON CONFLICT (plane, number) DO NOTHING"
    )
}

fn attempt(number: u64) -> AttemptId {
    AttemptId {
        plane: PlaneIncarnation(7),
        number,
    }
}

#[tokio::test]
async fn the_release_before_records_beside_this_one() {
    let fixture = on_postgres().await;
    let open = OpenAttempt {
        attempt: attempt(1),
        since: Timestamp(1),
        provider: ProviderId::new("p").unwrap(),
        connection: ConnectionId::new("c").unwrap(),
        model: ModelId::new("m").unwrap(),
        key: None,
    };
    let record = UsageRecord {
        attempt: attempt(1),
        at: Timestamp(9),
        provider: open.provider.clone(),
        connection: open.connection.clone(),
        model: open.model.clone(),
        key: None,
        tokens: TokenUsage {
            input: Some(4),
            output: Some(4),
            source: UsageSource::Estimated,
        },
    };
    fixture
        .store
        .open_attempts(open.attempt.plane, &[open])
        .await
        .unwrap();
    fixture.sql(&as_before(1, "3")).await;
    fixture.sql(&as_before(2, "NULL")).await;
    // A repeat that comes here counts no more than one that goes there, and neither does its silence.
    let again = fixture
        .store
        .record_usage(std::slice::from_ref(&record))
        .await
        .unwrap();
    assert_eq!(again, []);
    fixture
        .store
        .reap_open_attempts(std::time::Duration::ZERO)
        .await
        .unwrap();
    let new = UsageRecord {
        attempt: attempt(3),
        ..record
    };
    fixture.store.record_usage(&[new]).await.unwrap();
    fixture.sql(&as_before(3, "3")).await;
    let rows = fixture.usage().await.unwrap();
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (row.number, row.input, row.source.as_deref()))
        .collect();
    assert_eq!(
        rows,
        [
            (1, Some(3), None),
            (2, None, None),
            (3, Some(4), Some("estimated"))
        ]
    );
}

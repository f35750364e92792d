use std::sync::Arc;

use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_proto::config::v1 as proto;
use tidegate_store::durable::ConfigurationStore as _;
use tidegate_store::seal::{Sealer, SealingKey};
use tidegate_store_sql::{SqlLimits, SqliteDurableStore};

use super::*;
use crate::clock::local_now;
use crate::telemetry::metrics::Metrics;

/// All of a key but its first digit.
const KEY: &str = "0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn published(durable: &Arc<SqliteDurableStore>, key_digit: &str) -> Published {
    let key = SealingKey::parse(&SecretString::from(format!("{key_digit}{KEY}"))).unwrap();
    Published::new(
        Arc::clone(durable) as Arc<_>,
        Arc::new(Sealer::new(&key).unwrap()),
        BTreeMap::new(),
        Arc::new(Metrics::new()),
    )
}

fn wanted(priority: u32, secret: Option<&str>) -> Wanted {
    let provider = ProviderId::new("alpha").unwrap().to_string();
    let connection = ConnectionId::new("a1").unwrap().to_string();
    let document = proto::Document {
        providers: vec![proto::Provider {
            id: provider.clone(),
            protocol: "openai".to_owned(),
            base_url: "http://127.0.0.1:9/v1".to_owned(),
            ..proto::Provider::default()
        }],
        connections: vec![proto::Connection {
            id: connection.clone(),
            provider,
            priority: Some(priority),
            ..proto::Connection::default()
        }],
        ..proto::Document::default()
    };
    Wanted {
        document: tidegate_wire::document::from_proto(document).unwrap(),
        secrets: secret
            .map(|secret| (connection, secret.as_bytes().to_vec()))
            .into_iter()
            .collect(),
        expected: None,
        dry_run: false,
        reseal: false,
    }
}

#[tokio::test]
async fn a_replica_with_another_key_replaces_no_credential_unless_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tidegate.db");
    let durable = SqliteDurableStore::open(&file, SqlLimits::default())
        .await
        .unwrap();
    let durable = Arc::new(durable);
    let view = View::new(local_now());
    let first = published(&durable, "1");
    let applied = first.apply(wanted(1, Some("secret")), &view).await.unwrap();
    let other = published(&durable, "2");
    for secret in [None, Some("secret"), Some("new")] {
        match other.apply(wanted(2, secret), &view).await {
            Err(ApplyError::SealedElsewhere { connection, .. }) => {
                assert_eq!(connection.as_str(), "a1");
            }
            unexpected => panic!("expected a refusal: {unexpected:?}"),
        }
        assert!(other.current().is_none());
    }
    assert_eq!(
        durable.load_document().await.unwrap().version,
        applied.version
    );
    let resealed = Wanted {
        reseal: true,
        ..wanted(2, Some("secret"))
    };
    let renewed = other.apply(resealed, &view).await.unwrap();
    assert_eq!(other.config().unwrap().version, renewed.version);
}

#[tokio::test]
async fn apply_of_what_cannot_be_in_force_says_so_with_the_version() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tidegate.db");
    let durable = SqliteDurableStore::open(&file, SqlLimits::default())
        .await
        .unwrap();
    let durable = Arc::new(durable);
    let view = View::new(local_now());
    let first = published(&durable, "1");
    let applied = first.apply(wanted(1, Some("secret")), &view).await.unwrap();
    let other = published(&durable, "2");
    // Told to reseal, but without the secret: the credential that is kept cannot be opened.
    for (priority, expected) in [(1, applied.version), (2, applied.version + 1)] {
        let kept = Wanted {
            reseal: true,
            ..wanted(priority, None)
        };
        match other.apply(kept, &view).await {
            Err(ApplyError::NotInForce { version, .. }) => assert_eq!(version, expected),
            unexpected => panic!("expected a refusal: {unexpected:?}"),
        }
        assert!(other.current().is_none());
    }
}

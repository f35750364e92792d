use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::refresh::TokenState;
use tidegate_proto::config::v1 as proto;
use tidegate_store::durable::{
    ConfigurationStore as _, LeaseAnswer, RefreshedToken, SaveAnswer, SealedSecrets,
    TokenStore as _,
};
use tidegate_store::seal::{Sealer, SealingKey, TokenKind};
use tidegate_store_sql::SqliteDurableStore;

use super::*;
use crate::clock::local_now;
use crate::config::change::Terms;
use crate::telemetry::metrics::{Metrics, SharedRegistry};
use crate::test_durable;

/// All of a key but its first digit.
const KEY: &str = "0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn published(durable: &Arc<SqliteDurableStore>, key_digit: &str) -> Published {
    let key = SealingKey::parse(&SecretString::from(format!("{key_digit}{KEY}"))).unwrap();
    Published::new(
        Arc::clone(durable) as Arc<_>,
        Arc::new(Sealer::new(&key).unwrap()),
        BTreeMap::new(),
        Arc::new(Metrics::new(SharedRegistry::default())),
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
        secrets: WantedSecrets {
            credentials: secret
                .map(|secret| (connection, secret.as_bytes().to_vec()))
                .into_iter()
                .collect(),
            ..WantedSecrets::default()
        },
        mode: Mode::Replace,
        expected: None,
        dry_run: false,
        reseal: false,
        author: "admin".to_owned(),
    }
}

#[tokio::test]
async fn a_replica_with_another_key_replaces_no_credential_unless_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let durable = Arc::new(test_durable::open(directory.path()).await);
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
    let durable = Arc::new(test_durable::open(directory.path()).await);
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

#[tokio::test]
async fn an_apply_is_warned_of_a_combo_named_like_a_model() {
    let directory = tempfile::tempdir().unwrap();
    let durable = Arc::new(test_durable::open(directory.path()).await);
    let view = View::new(local_now());
    let published = published(&durable, "1");
    let mut wanted = wanted(1, Some("secret"));
    wanted.document.combos = serde_json::from_str(
        r#"[{"name": "alpha/m", "steps": ["alpha/m"]}, {"name": "best", "steps": ["alpha/m"]}]"#,
    )
    .unwrap();
    wanted.dry_run = true;
    let applied = published.apply(wanted, &view).await.unwrap();
    let fields: Vec<_> = applied
        .warnings
        .iter()
        .map(|it| it.field.as_str())
        .collect();
    assert_eq!(fields, ["combos[0].name"]);
}

/// Renews the token of a1 as a replica does.
async fn renew(durable: &SqliteDurableStore, published: &Published) {
    let a1 = ConnectionId::new("a1").unwrap();
    let lease = durable.lease_token(&a1, "me", Duration::from_secs(60));
    let LeaseAnswer::Granted(leased) = lease.await.unwrap() else {
        panic!("no lease");
    };
    let (token, credential) = (
        leased.grant.refresh_token.version,
        leased.row.credential_version,
    );
    let sealer = &published.sealer;
    let renewed = SecretString::from("renewed");
    let refreshed = RefreshedToken {
        used_version: token,
        refresh_token: sealer
            .seal_token(TokenKind::RefreshToken, &a1, token + 1, &renewed)
            .unwrap(),
        replaces_version: credential,
        credential: sealer.seal(&a1, credential + 1, &renewed).unwrap(),
        state: TokenState::of_new_token(leased.now, Some(1_000)),
    };
    let saved = durable.save_refreshed(&leased.lease, &refreshed).await;
    assert_eq!(saved.unwrap(), SaveAnswer::Saved);
}

/// Versions of credential, what was applied of it, and refresh token.
fn versions(secrets: &SealedSecrets) -> (u64, u64, u64) {
    let credential = &secrets.credentials[0];
    let token = &secrets.grants[0].refresh_token;
    (
        credential.version,
        credential.applied_version,
        token.version,
    )
}

#[tokio::test]
async fn an_apply_puts_no_renewed_token_back_and_fails_for_none() {
    let directory = tempfile::tempdir().unwrap();
    let durable = Arc::new(test_durable::open(directory.path()).await);
    let view = View::new(local_now());
    let published = published(&durable, "1");
    let wanted = |priority, secret, refresh_token: &str, expected| {
        let mut wanted = wanted(priority, Some(secret));
        let token = refresh_token.as_bytes().to_vec();
        wanted.secrets.refresh_tokens = BTreeMap::from([("a1".to_owned(), token)]);
        wanted.expected = expected;
        published.apply(wanted, &view)
    };
    let stored = async || durable.load_document().await.unwrap().secrets;
    wanted(1, "secret", "token", Some(0)).await.unwrap();
    assert_eq!(versions(&stored().await), (1, 1, 1));

    renew(&durable, &published).await;
    assert_eq!(versions(&stored().await), (2, 1, 2));
    let same = wanted(1, "secret", "token", Some(1)).await.unwrap();
    assert_eq!((same.version, same.differences.len()), (1, 0));
    published.refresh().await.unwrap();
    let current = published.current().unwrap();
    let a1 = ConnectionId::new("a1").unwrap();
    assert_eq!(current.credentials[&a1].version, 2);
    assert_eq!(current.snapshot.credentials[0].secret, b"renewed");
    assert_eq!(
        (
            current.snapshot.version,
            current.snapshot.credentials_revision
        ),
        (1, 1)
    );

    wanted(2, "secret", "token", Some(1)).await.unwrap();
    assert_eq!(
        versions(&stored().await),
        (2, 1, 2),
        "other members changed"
    );
    wanted(2, "secret", "another token", Some(2)).await.unwrap();
    assert_eq!(versions(&stored().await), (2, 1, 3));
    assert_eq!(
        durable.list_tokens().await.unwrap().1[0].state,
        TokenState::default()
    );
    wanted(2, "another secret", "another token", Some(3))
        .await
        .unwrap();
    assert_eq!(versions(&stored().await), (3, 3, 3));
}

#[tokio::test]
async fn a_change_of_settings_keeps_renewed_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let durable = Arc::new(test_durable::open(directory.path()).await);
    let published = published(&durable, "1");
    let mut wanted = wanted(1, Some("secret"));
    let token = b"token".to_vec();
    wanted.secrets.refresh_tokens = BTreeMap::from([("a1".to_owned(), token)]);
    let view = View::new(local_now());
    published.apply(wanted, &view).await.unwrap();

    let before = durable.load_document().await.unwrap();
    renew(&durable, &published).await;
    let change = Change {
        document: before.document,
        secrets: before.secrets,
        author: "admin",
        summary: "read before the renewal",
    };
    let mut turn = published.turn.lock().await;
    let saved = published.save(1, change, &mut turn).await.unwrap();
    assert!(matches!(saved, Saved::SecretsChanged));
    drop(turn);

    let patch = serde_json::json!({"modelLockout": {"enabled": true}});
    let patch = serde_json::from_value(patch).unwrap();
    let terms = Terms {
        expected: Some(1),
        author: "admin".to_owned(),
        dry_run: false,
        deadline: None,
    };
    let applied = published.patch_settings(&patch, &terms).await.unwrap();
    let stored = durable.load_document().await.unwrap();
    assert_eq!((applied.version, stored.version), (2, 2));
    assert_eq!(versions(&stored.secrets), (2, 1, 2));
    let current = published.current().unwrap();
    assert!(current.config.settings.model_lockout.enabled);
    assert_eq!(current.snapshot.credentials[0].secret, b"renewed");
    assert_eq!(current.stored_version(), stored.stored_version());
}

#[tokio::test]
async fn a_change_that_another_replica_made_before_is_in_force_when_it_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let durable = Arc::new(test_durable::open(directory.path()).await);
    let [one, other] = ["1", "1"].map(|key| published(&durable, key));
    let view = View::new(local_now());
    one.apply(wanted(1, None), &view).await.unwrap();
    other.refresh().await.unwrap();
    let patch = serde_json::json!({"modelLockout": {"enabled": true}});
    let patch = serde_json::from_value(patch).unwrap();
    let mut terms = Terms {
        expected: None,
        author: "admin".to_owned(),
        dry_run: false,
        deadline: None,
    };
    assert_eq!(one.patch_settings(&patch, &terms).await.unwrap().version, 2);
    // The other one has not heard of it. Who only looks changes nothing there.
    for (dry_run, in_force) in [(true, 1), (false, 2)] {
        terms.dry_run = dry_run;
        let again = other.patch_settings(&patch, &terms).await.unwrap();
        assert_eq!((again.version, again.differences.len()), (2, 0));
        assert_eq!(other.config().unwrap().version, in_force);
    }
}

#[tokio::test]
async fn a_change_that_nobody_waits_for_any_more_is_not_made() {
    let directory = tempfile::tempdir().unwrap();
    let durable = Arc::new(test_durable::open(directory.path()).await);
    let published = published(&durable, "1");
    let view = View::new(local_now());
    published.apply(wanted(1, None), &view).await.unwrap();
    let patch = serde_json::json!({"modelLockout": {"enabled": true}});
    let patch = serde_json::from_value(patch).unwrap();
    let terms = Terms {
        expected: None,
        author: "admin".to_owned(),
        dry_run: false,
        deadline: Some(tokio::time::Instant::now()),
    };
    // It came to its turn, and it does not.
    let refused = published.patch_settings(&patch, &terms).await;
    assert!(matches!(refused, Err(ApplyError::TooLate)), "{refused:?}");
    let turn = published.turn.lock().await;
    let refused = published.patch_settings(&patch, &terms).await;
    assert!(matches!(refused, Err(ApplyError::TooLate)), "{refused:?}");
    drop(turn);
    assert_eq!(durable.load_document().await.unwrap().version, 1);
}

//! Cases of refresh tokens and their leases.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::refresh::{TokenCondition, TokenState};
use tidegate_core::time::Timestamp;

use super::samples::{connection, credential, credentials, document, grant, token};
use super::{CaseError, CaseResult, Fixture, at_once, failed, stores};
use crate::durable::{
    DurableStore, DurableStoreError, LeaseAnswer, LeasedToken, RefreshedToken, SaveAnswer,
    SealedSecrets, StoredVersion, TokenLease,
};

/// Long enough for any case on a busy machine.
const LONG: Duration = Duration::from_secs(600);
/// Short enough to be waited out.
const SHORT: Duration = Duration::from_millis(100);

/// Secrets of these connections, each with a grant.
fn secrets(names: &[&str], version: u64) -> Result<SealedSecrets, CaseError> {
    let mut secrets = credentials(names, version)?;
    for name in names {
        secrets.grants.push(grant(name, version)?);
    }
    Ok(secrets)
}

/// Saves a first document with these connections.
async fn saved(store: &Arc<dyn DurableStore>, names: &[&str]) -> CaseResult {
    let secrets = secrets(names, 1)?;
    store
        .save_document(0, &document(names)?, &secrets, "ops", "")
        .await?;
    Ok(())
}

async fn lease(
    store: &Arc<dyn DurableStore>,
    id: &str,
    length: Duration,
) -> Result<LeasedToken, CaseError> {
    match store.lease_token(&connection("a")?, id, length).await? {
        LeaseAnswer::Granted(leased) => Ok(*leased),
        answer => Err(failed(format!("no lease: {answer:?}"))),
    }
}

/// What a renewal under this lease brought.
fn renewed(leased: &LeasedToken) -> Result<RefreshedToken, CaseError> {
    let used = leased.grant.refresh_token.version;
    let version = leased.row.credential_version + 1;
    Ok(RefreshedToken {
        used_version: used,
        refresh_token: token(used + 1),
        replaces_version: leased.row.credential_version,
        credential: credential("a", version)?,
        state: TokenState::of_new_token(leased.now, Some(3_600_000)),
    })
}

/// Grants are saved, kept and deleted with the document, and read back as they were.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn grants_follow_the_document(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    for (version, names) in (0..).zip([&["a", "b"][..], &["b"], &[], &["a"]]) {
        let mut wanted = secrets(names, version + 1)?;
        if let Some(grant) = wanted.grants.last_mut() {
            grant.client_secret = None;
        }
        store
            .save_document(version, &document(names)?, &wanted, "ops", "")
            .await?;
        assert_eq!(store.load_document().await?.secrets, wanted);
        let (_, rows) = store.list_tokens().await?;
        let listed: Vec<_> = rows.iter().map(|row| row.connection.as_str()).collect();
        assert_eq!(listed, names);
    }
    let twice = SealedSecrets {
        grants: vec![grant("a", 1)?, grant("a", 2)?],
        ..SealedSecrets::default()
    };
    let refused = store
        .save_document(4, &document(&["a"])?, &twice, "ops", "")
        .await;
    assert!(matches!(refused, Err(DurableStoreError::Refused(_))));
    Ok(())
}

/// Refresh token, access token and state are saved together, the revision grows and the document's version stays.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_renewed_token_is_saved_with_its_credential(fixture: &impl Fixture) -> CaseResult {
    let (store, other) = (fixture.store(), fixture.another().await?);
    saved(&store, &["a", "b"]).await?;
    let before = store.load_document().await?;
    for round in 1..=3 {
        let leased = lease(&store, &format!("one-{round}"), LONG).await?;
        assert!(!leased.waited_out);
        let refreshed = renewed(&leased)?;
        let answer = store.save_refreshed(&leased.lease, &refreshed).await?;
        assert_eq!(answer, SaveAnswer::Saved);

        let mut expected = before.clone();
        expected.secrets.revision = round;
        let stored = &mut expected.secrets.credentials[0];
        stored.version = 1 + round;
        stored.sealed.clone_from(&refreshed.credential.sealed);
        let stored = &mut expected.secrets.grants[0].refresh_token;
        stored.version = 1 + round;
        stored.sealed.clone_from(&refreshed.refresh_token.sealed);
        assert_eq!(other.load_document().await?, expected);
        let versions = StoredVersion {
            document: 1,
            secrets: round,
        };
        assert_eq!(other.stored_version().await?, versions);
        let (now, rows) = other.list_tokens().await?;
        assert_eq!(rows[0].state, refreshed.state);
        assert_eq!(rows[0].credential_version, 1 + round);
        assert!(now >= leased.now);
    }
    // A connection that never had a credential gets its first one.
    let alone = SealedSecrets {
        revision: 3,
        grants: vec![grant("a", 9)?],
        ..SealedSecrets::default()
    };
    store
        .save_document(1, &document(&["a"])?, &alone, "ops", "")
        .await?;
    let leased = lease(&store, "first", LONG).await?;
    assert_eq!(leased.row.credential_version, 0);
    let refreshed = renewed(&leased)?;
    let answer = store.save_refreshed(&leased.lease, &refreshed).await?;
    assert_eq!(answer, SaveAnswer::Saved);
    let stored = store.load_document().await?.secrets.credentials;
    assert_eq!((stored[0].version, stored[0].applied_version), (1, 0));
    assert!(stored[0].fingerprint.is_empty());
    Ok(())
}

/// Of many that ask at once one gets the lease; the others are told how long it runs.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn of_concurrent_replicas_one_gets_the_lease(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    saved(&store, &["a"]).await?;
    let answers = at_once(&stores(fixture, 8).await?, |index, store| async move {
        let id = format!("replica-{index}");
        Ok(store.lease_token(&connection("a")?, &id, LONG).await?)
    })
    .await?;
    let mut granted = Vec::new();
    for answer in answers {
        match answer {
            LeaseAnswer::Granted(leased) => granted.push(leased.lease),
            LeaseAnswer::Held { remaining_ms } => assert!(remaining_ms > 0),
            LeaseAnswer::Absent => return Err(failed("there is a token")),
        }
    }
    let [holder] = granted.as_slice() else {
        return Err(failed(format!("{} leases", granted.len())));
    };
    let stranger = TokenLease {
        id: "stranger".to_owned(),
        ..holder.clone()
    };
    store.release_token(&stranger).await?;
    let again = store.lease_token(&connection("a")?, "x", LONG).await?;
    assert!(matches!(again, LeaseAnswer::Held { .. }));
    store.release_token(holder).await?;
    assert!(!lease(&store, "next", LONG).await?.waited_out);
    let absent = store.lease_token(&connection("z")?, "x", LONG).await?;
    assert_eq!(absent, LeaseAnswer::Absent);
    Ok(())
}

/// A lease that is not given back is waited out; its holder saves nothing any more, and what the next one saves stays.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_lease_is_waited_out_and_then_lost(fixture: &impl Fixture) -> CaseResult {
    let (store, other) = (fixture.store(), fixture.another().await?);
    saved(&store, &["a"]).await?;
    let late = lease(&store, "late", SHORT).await?;
    let next = loop {
        match other.lease_token(&connection("a")?, "next", LONG).await? {
            LeaseAnswer::Granted(leased) => break leased,
            LeaseAnswer::Held { remaining_ms } => {
                tokio::time::sleep(Duration::from_millis(remaining_ms)).await;
            }
            LeaseAnswer::Absent => return Err(failed("there is a token")),
        }
    };
    assert!(next.waited_out);
    assert!(next.now >= late.now.plus_ms(100), "it was not waited for");
    let answer = store.save_refreshed(&late.lease, &renewed(&late)?).await?;
    assert_eq!(answer, SaveAnswer::LeaseLost);
    let state = TokenState::default();
    let answer = store.save_refresh_failure(&late.lease, 1, &state).await?;
    assert_eq!(answer, SaveAnswer::LeaseLost);
    assert_eq!(store.stored_version().await?.secrets, 0);
    let answer = other.save_refreshed(&next.lease, &renewed(&next)?).await?;
    assert_eq!(answer, SaveAnswer::Saved);
    // An answer that got lost: the save has ended the lease, so that a repeat does nothing.
    let answer = other.save_refreshed(&next.lease, &renewed(&next)?).await?;
    assert_eq!(answer, SaveAnswer::LeaseLost);

    let unused = lease(&store, "unused", SHORT).await?;
    tokio::time::sleep(SHORT * 2).await;
    let answer = store
        .save_refreshed(&unused.lease, &renewed(&unused)?)
        .await?;
    assert_eq!(
        answer,
        SaveAnswer::LeaseLost,
        "it ran out, though nobody has another"
    );
    Ok(())
}

/// A renewal with a token that was replaced since, or of a credential that was, is told so and saves nothing.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn what_rests_on_other_secrets_is_not_saved(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    saved(&store, &["a"]).await?;
    let leased = lease(&store, "one", LONG).await?;
    let mut applied = secrets(&["a"], 1)?;
    applied.credentials = vec![credential("a", 5)?];
    store
        .save_document(1, &document(&["a"])?, &applied, "ops", "")
        .await?;
    let mut refreshed = renewed(&leased)?;
    let answer = store.save_refreshed(&leased.lease, &refreshed).await?;
    assert_eq!(answer, SaveAnswer::CredentialReplaced { current: 5 });
    applied.grants = vec![grant("a", 2)?];
    store
        .save_document(2, &document(&["a"])?, &applied, "ops", "")
        .await?;
    refreshed.replaces_version = 5;
    let answer = store.save_refreshed(&leased.lease, &refreshed).await?;
    assert_eq!(answer, SaveAnswer::TokenReplaced);
    let state = TokenState::default();
    let answer = store.save_refresh_failure(&leased.lease, 1, &state).await?;
    assert_eq!(answer, SaveAnswer::TokenReplaced);
    assert_eq!(store.load_document().await?.secrets, applied);
    Ok(())
}

/// A save of the document that rests on older secrets is refused, whatever its version.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_document_does_not_put_renewed_secrets_back(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    saved(&store, &["a"]).await?;
    let read = store.load_document().await?;
    let leased = lease(&store, "one", LONG).await?;
    store
        .save_refreshed(&leased.lease, &renewed(&leased)?)
        .await?;
    let put_back = store
        .save_document(1, &read.document, &read.secrets, "ops", "")
        .await;
    assert!(matches!(put_back, Err(DurableStoreError::SecretsChanged)));
    let read = store.load_document().await?;
    store
        .save_document(1, &read.document, &read.secrets, "ops", "")
        .await?;
    let after = store.load_document().await?;
    assert_eq!((after.version, after.secrets), (2, read.secrets));
    Ok(())
}

/// Failed renewals are counted in the store until they are forgotten.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn failed_renewals_are_kept_until_forgotten(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    saved(&store, &["a"]).await?;
    let mut state = TokenState::default();
    for round in 1..=3_u32 {
        let leased = lease(&store, &format!("one-{round}"), LONG).await?;
        assert_eq!(leased.row.state, state);
        state.fail(TokenCondition::Expired, leased.now);
        state.fail(TokenCondition::Good, leased.now);
        let answer = store.save_refresh_failure(&leased.lease, 1, &state).await?;
        assert_eq!(answer, SaveAnswer::Saved);
    }
    let (_, rows) = store.list_tokens().await?;
    assert_eq!(rows[0].state, state);
    assert!(rows[0].state.is_inactive());
    assert!(store.forget_refresh_failures(&connection("a")?).await?);
    assert!(!store.forget_refresh_failures(&connection("a")?).await?);
    let (_, rows) = store.list_tokens().await?;
    assert_eq!(rows[0].state, TokenState::default());
    Ok(())
}

/// Secrets that an operator replaced forget what was known about the old ones; others keep it.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn new_secrets_begin_anew(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    saved(&store, &["a", "b"]).await?;
    let leased = lease(&store, "one", LONG).await?;
    let state = TokenState {
        retries: 3,
        last_retry_at: Some(Timestamp(5)),
        expires_at: Some(Timestamp(u64::MAX)),
        ..TokenState::default()
    };
    store.save_refresh_failure(&leased.lease, 1, &state).await?;
    let mut applied = secrets(&["a", "b"], 1)?;
    applied.renewed = vec![connection("b")?];
    store
        .save_document(1, &document(&["a", "b"])?, &applied, "ops", "")
        .await?;
    assert_eq!(store.list_tokens().await?.1[0].state, state);
    applied.renewed = vec![connection("a")?];
    store
        .save_document(2, &document(&["a", "b"])?, &applied, "ops", "")
        .await?;
    assert_eq!(store.list_tokens().await?.1[0].state, TokenState::default());
    Ok(())
}

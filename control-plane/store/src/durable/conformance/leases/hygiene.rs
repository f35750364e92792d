//! What a document ends, and the tidying up.

use std::time::Duration;

use tidegate_core::config::{ApiKey, Document, KeyScope};
use tidegate_core::lease::LeaseError;
use tidegate_core::settings::LeaseSettings;

use super::super::samples::{connection, document};
use super::{
    CaseError, CaseResult, Fixture, LONG_MS, acquired, activity, fenced, key, owner, release,
};
use crate::durable::SealedSecrets;

fn key_of_document(name: &str, connections: &[&str]) -> Result<ApiKey, CaseError> {
    let mut allowed_connections = Vec::new();
    for connection_name in connections {
        allowed_connections.push(connection(connection_name)?);
    }
    Ok(ApiKey {
        id: key(name)?,
        secret: None,
        sha256: Some("0".repeat(64)),
        allowed_connections,
        allowed_models: Vec::new(),
        scopes: vec![KeyScope::ExclusiveLease],
    })
}

fn document_with(connections: &[&str], keys: Vec<ApiKey>) -> Result<Document, CaseError> {
    let mut document = document(connections)?;
    for connection in &mut document.connections {
        connection.enabled = true;
    }
    document.keys = keys;
    Ok(document)
}

/// §1.11-8: a document ends the leases it does not cover as it is saved, also when a replica that had not heard of it
/// has given one since.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_document_ends_leases_it_does_not_cover(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let kept = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    acquired(&store, owner(2), &["b"], LONG_MS).await?;
    let covering = document_with(&["a", "b"], vec![key_of_document("k1", &["a"])?])?;
    let secrets = SealedSecrets::default();
    store
        .save_document(0, &covering, &secrets, "ops", "")
        .await?;
    assert_eq!(store.list_leases().await?.1, [kept]);
    acquired(&store, owner(2), &["b"], LONG_MS).await?;
    assert_eq!(store.reconcile_leases(&covering, 1).await?, 1);
    assert_eq!(store.reconcile_leases(&covering, 1).await?, 0);
    let refused = store
        .save_document(7, &Document::default(), &secrets, "ops", "")
        .await;
    assert!(refused.is_err());
    assert_eq!(
        store.list_leases().await?.1.len(),
        1,
        "a refused document ends nothing"
    );
    store
        .save_document(1, &Document::default(), &secrets, "ops", "")
        .await?;
    assert_eq!(store.list_leases().await?.1, []);
    Ok(())
}

/// A replica that takes up a document late, when a later one is stored already, ends nothing that the later one covers.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_superseded_document_ends_no_leases(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let before = document_with(&["a", "b"], vec![key_of_document("k1", &["a"])?])?;
    let after = document_with(&["a", "b"], vec![key_of_document("k1", &["a", "b"])?])?;
    let secrets = SealedSecrets::default();
    store.save_document(0, &before, &secrets, "ops", "").await?;
    store.save_document(1, &after, &secrets, "ops", "").await?;
    let lease = acquired(&store, owner(1), &["b"], LONG_MS).await?;
    assert_eq!(store.reconcile_leases(&before, 1).await?, 0);
    assert_eq!(store.list_leases().await?.1, [lease]);
    // Of the documents it is the version that counts, not what they say.
    assert_eq!(store.reconcile_leases(&before, 2).await?, 1);
    assert_eq!(store.list_leases().await?.1, []);
    Ok(())
}

/// What is over is tidied up; generations go on.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn swept_leases_leave_their_generation(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let lease = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    let held = acquired(&store, owner(2), &["b"], LONG_MS).await?;
    let on_a = activity(&lease, 1);
    fenced(&store, &on_a, &LeaseSettings::default()).await??;
    release(&store, &lease).await?.answer?;
    assert_eq!(
        store.sweep_leases(Duration::ZERO).await?,
        0,
        "it is in flight"
    );
    store.delete_activity(&on_a).await?;
    assert_eq!(
        store.sweep_leases(Duration::from_secs(600)).await?,
        0,
        "it is kept"
    );
    assert_eq!(store.sweep_leases(Duration::ZERO).await?, 1);
    assert_eq!(
        release(&store, &lease).await?.answer,
        Err(LeaseError::FenceStale)
    );
    assert_eq!(store.list_leases().await?.1, [held]);
    let next = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    assert_eq!(next.generation.number(), 2);
    Ok(())
}

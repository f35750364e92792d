//! Cases of the configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::samples::{credential, credentials, document, of_credentials};
use super::{CaseResult, Damage, Fixture, at_once, failed, stores};
use crate::durable::{DurableStoreError, MAX_AUDIT_TEXT_BYTES, SealedSecrets, StoredDocument};

/// Writers at once.
const WRITERS: usize = 16;
/// Documents that each of them gets saved.
const ROUNDS: usize = 4;

/// A new store has the default document at version 0.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_new_store_has_the_default_document_at_version_0(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    assert_eq!(store.load_document().await?, StoredDocument::default());
    assert_eq!(store.stored_version().await?.document, 0);
    assert_eq!(store.list_audit(10).await?, []);
    Ok(())
}

/// Document and credentials are the same for every reader.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_saved_document_comes_back_as_it_was(fixture: &impl Fixture) -> CaseResult {
    let (store, other) = (fixture.store(), fixture.another().await?);
    for (version, names) in (1..).zip([&["a", "b"][..], &["b"], &["a", "b", "c"]]) {
        let expected = StoredDocument {
            version,
            document: document(names)?,
            secrets: credentials(names, version)?,
        };
        let saved = store
            .save_document(
                version - 1,
                &expected.document,
                &expected.secrets,
                "ops",
                "apply",
            )
            .await?;
        assert_eq!(saved, version);
        for reader in [&store, &other] {
            assert_eq!(reader.load_document().await?, expected);
            assert_eq!(reader.stored_version().await?.document, version);
        }
    }
    Ok(())
}

/// Each version is written by one writer, and every writer whose write was confirmed finds it in the history.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn of_concurrent_writers_exactly_one_wins_each_version(
    fixture: &impl Fixture,
) -> CaseResult {
    let won = at_once(
        &stores(fixture, WRITERS).await?,
        |writer, store| async move {
            let author = format!("writer-{writer}");
            let document = document(&[author.as_str()])?;
            let mut won = Vec::new();
            let mut version = store.stored_version().await?.document;
            while won.len() < ROUNDS {
                match store
                    .save_document(version, &document, &SealedSecrets::default(), &author, "")
                    .await
                {
                    Ok(saved) => {
                        assert_eq!(saved, version + 1);
                        won.push((saved, author.clone()));
                        version = saved;
                    }
                    Err(DurableStoreError::VersionConflict { expected, current }) => {
                        assert_eq!(expected, version);
                        assert!(current > version, "a conflict with what was not written");
                        version = current;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(won)
        },
    )
    .await?;
    let mut won: Vec<(u64, String)> = won.into_iter().flatten().collect();
    won.sort();
    let all = u64::try_from(WRITERS * ROUNDS)?;
    assert!(
        won.iter().map(|(version, _)| *version).eq(1..=all),
        "{won:?}"
    );
    let store = fixture.store();
    let mut audited: Vec<(u64, String)> = store
        .list_audit(1_000)
        .await?
        .into_iter()
        .filter_map(|entry| Some((entry.document_version?, entry.author)))
        .collect();
    audited.sort();
    assert_eq!(audited, won);
    let last = store.load_document().await?;
    let (_, author) = won.last().ok_or_else(|| failed("nobody won"))?;
    assert_eq!(last.version, all);
    assert_eq!(last.document, document(&[author.as_str()])?);
    Ok(())
}

/// A conflict, and a list that no table can hold, change neither document nor credentials nor audit.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_refused_document_leaves_everything_as_it_was(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let (first, second) = (document(&["a"])?, document(&["b"])?);
    store
        .save_document(0, &first, &credentials(&["a"], 1)?, "ops", "first")
        .await?;
    let before = store.load_document().await?;
    for wrong in [0, 2, u64::MAX] {
        let error = store
            .save_document(wrong, &second, &credentials(&["b"], 1)?, "ops", "second")
            .await
            .err()
            .ok_or_else(|| failed("a wrong version was taken"))?;
        assert!(
            matches!(error, DurableStoreError::VersionConflict { expected, current: 1 } if expected == wrong),
            "{error}"
        );
        assert!(error.is_certainly_not_applied());
    }
    let twice = [credential("b", 1)?, credential("b", 2)?];
    let no_version = [credential("b", 0)?];
    let too_large = [credential("b", u64::MAX)?];
    for list in [&twice[..], &no_version, &too_large] {
        let error = store
            .save_document(1, &second, &of_credentials(list), "ops", "third")
            .await
            .err()
            .ok_or_else(|| failed("an impossible list was taken"))?;
        assert!(matches!(error, DurableStoreError::Refused(_)), "{error}");
    }
    assert_eq!(store.load_document().await?, before);
    assert_eq!(store.list_audit(10).await?.len(), 1);
    Ok(())
}

/// New ones come, changed ones change, those not in the list go.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn credentials_follow_the_document(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let document = document(&[])?;
    let steps = [
        vec![credential("a", 1)?, credential("b", 1)?],
        vec![
            credential("a", 2)?,
            credential("b", 1)?,
            credential("c", 1)?,
        ],
        vec![credential("c", 1)?],
        vec![],
    ];
    for (version, list) in (0..).zip(steps) {
        store
            .save_document(version, &document, &of_credentials(&list), "ops", "apply")
            .await?;
        assert_eq!(store.load_document().await?.secrets.credentials, list);
    }
    Ok(())
}

/// A reader beside a writer never sees the credentials of another version.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn readers_see_document_and_credentials_of_one_version(
    fixture: &impl Fixture,
) -> CaseResult {
    const VERSIONS: u64 = 40;
    let done = Arc::new(AtomicBool::new(false));
    let (writer, reader) = (fixture.store(), fixture.another().await?);
    let flag = Arc::clone(&done);
    let seen = at_once(&[writer, reader], move |index, store| {
        let done = Arc::clone(&flag);
        async move {
            let mut seen = 0_u64;
            if index == 0 {
                for version in 0..VERSIONS {
                    let list = credentials(&["a", "b"], version + 1)?;
                    let saved = store
                        .save_document(version, &document(&[])?, &list, "ops", "")
                        .await;
                    if saved.is_err() {
                        done.store(true, Ordering::Relaxed);
                    }
                    saved?;
                }
                done.store(true, Ordering::Relaxed);
            } else {
                while !done.load(Ordering::Relaxed) {
                    let stored = store.load_document().await?;
                    for credential in &stored.secrets.credentials {
                        assert_eq!(credential.version, stored.version);
                    }
                    seen += 1;
                }
            }
            Ok(seen)
        }
    })
    .await?;
    assert!(seen.iter().sum::<u64>() > 0, "the reader never read");
    Ok(())
}

/// Each version has its entry, newest first.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_document_and_its_audit_entry_are_saved_together(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    for (version, summary) in (0..).zip(["one", "two", "three"]) {
        store
            .save_document(
                version,
                &document(&[])?,
                &SealedSecrets::default(),
                "ops@example",
                summary,
            )
            .await?;
    }
    let audit = store.list_audit(2).await?;
    let told: Vec<_> = audit
        .iter()
        .map(|entry| {
            (
                entry.author.as_str(),
                entry.action.as_str(),
                entry.summary.as_str(),
                entry.document_version,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("ops@example", "save_document", "three", Some(3)),
            ("ops@example", "save_document", "two", Some(2)),
        ]
    );
    // Some moment of this century: the database's clock, in ms.
    assert!(
        audit
            .iter()
            .all(|entry| (1_700_000_000_000..4_102_444_800_000).contains(&entry.at.0))
    );
    Ok(())
}

/// A long or odd text does not refuse the document.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn audit_texts_are_cut_to_their_bound(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let long = "€\0".repeat(MAX_AUDIT_TEXT_BYTES);
    store
        .save_document(0, &document(&[])?, &SealedSecrets::default(), &long, &long)
        .await?;
    let audit = store.list_audit(u32::MAX).await?;
    let entry = audit.first().ok_or_else(|| failed("no entry"))?;
    for text in [&entry.author, &entry.summary] {
        assert!(text.len() <= MAX_AUDIT_TEXT_BYTES && text.chars().all(|c| c == '€'));
    }
    Ok(())
}

/// Other JSON than a document's is an error, and a new document mends it.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_document_that_does_not_decode_is_corrupt(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    fixture.damage(Damage::Document).await?;
    let error = store.load_document().await.err();
    assert!(
        matches!(error, Some(DurableStoreError::Corrupt(_))),
        "{error:?}"
    );
    let version = store.stored_version().await?.document;
    store
        .save_document(
            version,
            &document(&[])?,
            &SealedSecrets::default(),
            "ops",
            "mend",
        )
        .await?;
    assert_eq!(store.load_document().await?.document, document(&[])?);
    Ok(())
}

/// A credential whose connection has an impossible name is an error.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_credential_that_does_not_decode_is_corrupt(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    store
        .save_document(0, &document(&[])?, &credentials(&["a"], 1)?, "ops", "")
        .await?;
    fixture.damage(Damage::CredentialNames).await?;
    let error = store.load_document().await.err();
    assert!(
        matches!(error, Some(DurableStoreError::Corrupt(_))),
        "{error:?}"
    );
    Ok(())
}

/// No row is not the same as a new store: nothing is taken for applied or for empty.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_missing_document_row_is_an_error(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    fixture.damage(Damage::DocumentRow).await?;
    let errors = [
        store.load_document().await.err(),
        store.stored_version().await.err(),
        store
            .save_document(0, &document(&[])?, &SealedSecrets::default(), "ops", "")
            .await
            .err(),
    ];
    for error in errors {
        assert!(
            matches!(error, Some(DurableStoreError::Corrupt(_))),
            "{error:?}"
        );
    }
    Ok(())
}

//! Cases of history.

use tidegate_core::config::Document;
use tidegate_core::state::Transition;
use tidegate_core::time::Timestamp;
use tidegate_core::usage::UsageRecord;

use super::samples::{NOW, provider, transition, usage};
use super::{CaseResult, Damage, Fixture};
use crate::durable::{DurableStoreError, History, MAX_LIST_ROWS, SealedSecrets};

fn numbered(rows: &[Transition]) -> Vec<(String, Transition)> {
    (0..)
        .zip(rows)
        .map(|(number, row): (u32, _)| (format!("{number:04}"), row.clone()))
        .collect()
}

/// By moment, and within one by the order of appending; also for one provider.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn transitions_are_appended_once_and_listed_newest_first(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    let rows = [
        transition("openai", 30, 1)?,
        transition("anthropic", 10, 2)?,
        transition("openai", 20, 3)?,
        transition("openai", 20, 4)?,
        Transition {
            connection: None,
            attempt: None,
            origin: None,
            ..transition("openai", u64::MAX, 5)?
        },
    ];
    for _ in 0..3 {
        store.append_transitions(&numbered(&rows)).await?;
    }
    store.append_transitions(&[]).await?;
    let [a, b, c, d, e] = rows;
    let all = [e.clone(), a.clone(), d.clone(), c.clone(), b.clone()];
    assert_eq!(store.list_transitions(None, 100).await?, all);
    assert_eq!(
        store.list_transitions(None, 2).await?,
        [e.clone(), a.clone()]
    );
    let openai = provider("openai")?;
    assert_eq!(
        store.list_transitions(Some(&openai), 100).await?,
        [e, a, d, c]
    );
    let none = provider("none")?;
    assert_eq!(store.list_transitions(Some(&none), 100).await?, []);
    Ok(())
}

/// A batch of which some is known.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_repeated_batch_with_something_new_appends_only_that(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    let mut rows = numbered(&[transition("openai", 1, 1)?, transition("openai", 2, 2)?]);
    store.append_transitions(&rows).await?;
    // The same id with another body is the same transition; the first stands. Twice in a call counts once.
    for row in &mut rows {
        row.1.at = Timestamp(9);
    }
    let new = ("new".to_owned(), transition("openai", 3, 3)?);
    rows.push(new.clone());
    rows.push(new);
    store.append_transitions(&rows).await?;
    let levels: Vec<u64> = store
        .list_transitions(None, 100)
        .await?
        .into_iter()
        .map(|row| row.at.0)
        .collect();
    assert_eq!(levels, [3, 2, 1]);
    Ok(())
}

/// Whatever is asked for.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn lists_are_bounded(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let mut rows = Vec::new();
    for number in 0..MAX_LIST_ROWS + 5 {
        rows.push(transition("openai", u64::from(number), number)?);
    }
    store.append_transitions(&numbered(&rows)).await?;
    let listed = store.list_transitions(None, u32::MAX).await?;
    assert_eq!(listed.len(), usize::try_from(MAX_LIST_ROWS)?);
    assert_eq!(listed.first(), rows.last());
    assert_eq!(store.list_transitions(None, 0).await?, []);
    Ok(())
}

/// Other JSON than a transition's is an error.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_transition_that_does_not_decode_is_corrupt(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let rows = numbered(&[transition("openai", 1, 1)?]);
    store.append_transitions(&rows).await?;
    fixture.damage(Damage::Transitions).await?;
    let error = store.list_transitions(None, 10).await.err();
    assert!(
        matches!(error, Some(DurableStoreError::Corrupt(_))),
        "{error:?}"
    );
    // Appending does not look at what is there.
    let rows = [("new".to_owned(), transition("anthropic", 2, 2)?)];
    store.append_transitions(&rows).await?;
    let listed = store
        .list_transitions(Some(&provider("anthropic")?), 10)
        .await?;
    assert_eq!(listed.len(), 1);
    Ok(())
}

/// What is old goes, what is not stays, of each kind alone.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn old_history_is_deleted(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let at = |second: u64| NOW.plus_ms(second * 1_000);
    let transitions = [
        transition("openai", at(1).0, 1)?,
        transition("openai", at(2).0, 2)?,
        transition("openai", u64::MAX, 3)?,
    ];
    store.append_transitions(&numbered(&transitions)).await?;
    let mut records = Vec::new();
    for number in 1..=3 {
        records.push(UsageRecord {
            at: at(number),
            ..usage(1, number)?
        });
    }
    store.record_usage(&records).await?;
    let (document, secrets) = (Document::default(), SealedSecrets::default());
    store
        .save_document(0, &document, &secrets, "ops", "")
        .await?;
    for history in History::ALL {
        assert_eq!(store.delete_history(history, Timestamp(0)).await?, 0);
    }
    assert_eq!(store.delete_history(History::Usage, at(3)).await?, 2);
    assert_eq!(store.delete_history(History::Usage, at(3)).await?, 0);
    let left: Vec<u64> = fixture
        .usage()
        .await?
        .iter()
        .map(|row| row.number)
        .collect();
    assert_eq!(left, [3]);
    assert_eq!(store.list_transitions(None, 10).await?.len(), 3);
    assert_eq!(store.delete_history(History::Transitions, at(2)).await?, 1);
    let [_, kept, last] = transitions;
    assert_eq!(store.list_transitions(None, 10).await?, [last, kept]);
    assert_eq!(store.list_audit(10).await?.len(), 1);
    // The database's clock tells when an entry was made.
    let far = Timestamp(u64::MAX);
    assert_eq!(store.delete_history(History::Audit, far).await?, 1);
    assert_eq!(store.list_audit(10).await?.len(), 0);
    Ok(())
}

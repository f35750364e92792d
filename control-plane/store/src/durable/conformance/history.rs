//! Cases of history.

use tidegate_core::state::Transition;
use tidegate_core::time::Timestamp;

use super::samples::{NOW, provider, transition, usage};
use super::{CaseError, CaseResult, Damage, Fixture, at_once, stores};
use crate::durable::{DurableStoreError, MAX_LIST_ROWS, UsageRecord};

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

/// New ones count, known ones do not, within a call and between calls.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn usage_of_an_attempt_is_recorded_once(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let records = [usage(1, 1)?, usage(1, 2)?, usage(2, 1)?, usage(1, 1)?];
    assert_eq!(store.record_usage(&records).await?, 3);
    assert_eq!(store.record_usage(&records).await?, 0);
    let same_attempt = UsageRecord {
        at: NOW.plus_ms(1),
        input_tokens: None,
        output_tokens: Some(5),
        ..usage(1, 1)?
    };
    let records = [same_attempt, usage(2, 2)?];
    assert_eq!(store.record_usage(&records).await?, 1);
    assert_eq!(store.record_usage(&[]).await?, 0);
    Ok(())
}

/// Sixteen writers with the same attempts in different orders: each attempt counts for exactly one of them.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn concurrent_duplicates_of_usage_count_once(fixture: &impl Fixture) -> CaseResult {
    const WRITERS: usize = 16;
    const ATTEMPTS: u64 = 300;
    let new = at_once(
        &stores(fixture, WRITERS).await?,
        |writer, store| async move {
            let mut records = Vec::new();
            for number in 1..=ATTEMPTS {
                records.push(usage(u64::MAX - number % 3, number)?);
            }
            records.rotate_left(writer * 17);
            if writer % 2 == 1 {
                records.reverse();
            }
            let mut new = 0;
            for batch in records.chunks(100) {
                new += store.record_usage(batch).await?;
            }
            Ok::<u64, CaseError>(new)
        },
    )
    .await?;
    assert_eq!(new.iter().sum::<u64>(), ATTEMPTS);
    Ok(())
}

/// Numbers that a broken data plane may send neither fail the batch nor meet each other.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn absurd_numbers_do_not_hold_up_the_rest(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let mut records = Vec::new();
    for (plane, number) in [(0, 0), (u64::MAX, u64::MAX), (1 << 63, 1 << 63), (1, 1)] {
        records.push(UsageRecord {
            at: Timestamp(u64::MAX),
            input_tokens: Some(u64::MAX),
            output_tokens: Some(1 << 63),
            ..usage(plane, number)?
        });
    }
    assert_eq!(store.record_usage(&records).await?, 4);
    assert_eq!(store.record_usage(&records).await?, 0);
    Ok(())
}

//! Notes of conversations.

use tidegate_core::ids::ComboName;
use tidegate_core::routing::relay::{HandoffName, SessionDigest};

use super::samples::{NOW, connection};
use super::{CaseResult, Fixture, at_once, stores};
use crate::durable::{DurableStoreError, MAX_SEALED_HANDOFF_BYTES, SealedHandoff};

/// A note of a minute.
fn handoff(session: u8, combo: &str, made_on: &str) -> Result<SealedHandoff, super::CaseError> {
    Ok(SealedHandoff {
        name: HandoffName {
            session: SessionDigest([session; 32]),
            combo: ComboName::new(combo)?,
        },
        connection: connection(made_on)?,
        expires_at: NOW.plus_ms(60_000),
        sealed: (0..=u8::MAX).collect(),
    })
}

/// Of session and combo together, for whoever asks.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_note_comes_back_as_it_was(fixture: &impl Fixture) -> CaseResult {
    let (store, another) = (fixture.store(), fixture.another().await?);
    let notes = [
        handoff(1, "talk", "a")?,
        handoff(1, "walk", "b")?,
        handoff(2, "talk", "c")?,
    ];
    for note in &notes {
        assert!(store.save_handoff(note, NOW).await?);
    }
    for note in notes {
        let found = another.load_handoff(&note.name, NOW).await?;
        assert_eq!(found, Some(note));
    }
    let absent = handoff(2, "walk", "a")?;
    assert_eq!(store.load_handoff(&absent.name, NOW).await?, None);
    Ok(())
}

/// Until its end; then the next one takes its place.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_note_that_stands_is_not_replaced(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let first = handoff(1, "talk", "a")?;
    let second = SealedHandoff {
        expires_at: NOW.plus_ms(90_000),
        ..handoff(1, "talk", "b")?
    };
    assert!(store.save_handoff(&first, NOW).await?);
    let just_before = NOW.plus_ms(59_999);
    assert!(!store.save_handoff(&second, just_before).await?);
    let found = store.load_handoff(&first.name, just_before).await?;
    assert_eq!(found, Some(first.clone()));
    assert_eq!(
        store.load_handoff(&first.name, first.expires_at).await?,
        None
    );
    assert!(store.save_handoff(&second, first.expires_at).await?);
    let found = store.load_handoff(&first.name, first.expires_at).await?;
    assert_eq!(found, Some(second));
    Ok(())
}

/// Whoever is first.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn of_concurrent_notes_one_is_saved(fixture: &impl Fixture) -> CaseResult {
    let stores = stores(fixture, 6).await?;
    let saved = at_once(&stores, |number, store| async move {
        let note = handoff(1, "talk", &format!("c{number}"))?;
        Ok(store.save_handoff(&note, NOW).await?)
    });
    let saved = saved.await?;
    assert_eq!(saved.iter().filter(|saved| **saved).count(), 1);
    Ok(())
}

/// And nothing else.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn notes_past_their_end_are_deleted(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let (ends, stands) = (handoff(1, "talk", "a")?, handoff(2, "talk", "a")?);
    let stands = SealedHandoff {
        expires_at: ends.expires_at.plus_ms(1),
        ..stands
    };
    for note in [&ends, &stands] {
        store.save_handoff(note, NOW).await?;
    }
    assert_eq!(store.delete_expired_handoffs(NOW).await?, 0);
    assert_eq!(store.delete_expired_handoffs(ends.expires_at).await?, 1);
    assert_eq!(store.delete_expired_handoffs(ends.expires_at).await?, 0);
    assert_eq!(store.load_handoff(&ends.name, NOW).await?, None);
    assert!(store.load_handoff(&stands.name, NOW).await?.is_some());
    Ok(())
}

/// Nothing is stored.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_note_beyond_its_bound_is_refused(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let mut note = handoff(1, "talk", "a")?;
    for length in [0, MAX_SEALED_HANDOFF_BYTES + 1] {
        note.sealed = vec![7; length];
        let error = store.save_handoff(&note, NOW).await.err();
        assert!(
            matches!(error, Some(DurableStoreError::Refused(_))),
            "{error:?}"
        );
    }
    assert_eq!(store.load_handoff(&note.name, NOW).await?, None);
    note.sealed = vec![7; MAX_SEALED_HANDOFF_BYTES];
    assert!(store.save_handoff(&note, NOW).await?);
    Ok(())
}

//! Pins of sessions.

use std::slice::from_ref;

use tidegate_core::affinity::{Pin, PinKey};
use tidegate_core::ids::ProviderId;
use tidegate_core::session_key::SessionKey;

use super::samples::{NOW, connection};
use super::{CaseError, CaseResult, Fixture, at_once, failed, stores};
use crate::durable::{DurableStoreError, MAX_PIN_ROWS, StoredPin};

fn key(session: usize) -> Result<PinKey, CaseError> {
    let text = format!("header:{session}");
    let session = SessionKey::parse(&text).ok_or_else(|| failed("no key of a session"))?;
    Ok(PinKey::new(&ProviderId::new("glm")?, None, &session))
}

/// A pin of a minute, made so many ms after now.
fn pin(session: usize, at: &str, made_ms: u64) -> Result<StoredPin, CaseError> {
    Ok(StoredPin {
        key: key(session)?,
        pin: Pin {
            connection: connection(at)?,
            created_at: NOW.plus_ms(made_ms),
            expires_at: NOW.plus_ms(made_ms).plus_ms(60_000),
        },
    })
}

/// All of them, page by page.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn pins_come_back_in_the_order_of_their_keys(fixture: &impl Fixture) -> CaseResult {
    let (store, another) = (fixture.store(), fixture.another().await?);
    store.save_pins(&[]).await?;
    let mut pins = Vec::new();
    for session in 0..7 {
        pins.push(pin(session, &format!("c{session}"), 0)?);
    }
    store.save_pins(&pins).await?;
    pins.sort_by(|one, other| one.key.cmp(&other.key));
    let mut found = Vec::new();
    loop {
        let after = found.last().map(|last: &StoredPin| last.key.clone());
        let page = another.load_pins(after.as_ref(), NOW, 3).await?;
        assert!(page.len() <= 3);
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    assert_eq!(found, pins);
    Ok(())
}

/// Whatever comes last.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn the_later_of_two_pins_stands(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let (first, second) = (pin(1, "a", 0)?, pin(1, "b", 10)?);
    let mut touched = second.clone();
    touched.pin.expires_at = touched.pin.expires_at.plus_ms(5);
    store.save_pins(&[second.clone(), first.clone()]).await?;
    assert_eq!(store.load_pins(None, NOW, 9).await?, from_ref(&second));
    store.save_pins(from_ref(&touched)).await?;
    for earlier in [first, second] {
        store.save_pins(&[earlier]).await?;
        assert_eq!(store.load_pins(None, NOW, 9).await?, from_ref(&touched));
    }
    Ok(())
}

/// It was of the one before.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_pin_that_went_leaves_a_newer_one(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let (first, second) = (pin(1, "a", 0)?, pin(1, "b", 10)?);
    store.save_pins(from_ref(&second)).await?;
    store.delete_pins(from_ref(&first)).await?;
    let mut elsewhere = second.clone();
    elsewhere.pin.connection = connection("a")?;
    store.delete_pins(&[elsewhere]).await?;
    assert_eq!(store.load_pins(None, NOW, 9).await?, from_ref(&second));
    store.delete_pins(&[]).await?;
    store.delete_pins(&[second]).await?;
    assert_eq!(store.load_pins(None, NOW, 9).await?, []);
    Ok(())
}

/// Whoever writes when.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn concurrent_writers_leave_the_latest_pin(fixture: &impl Fixture) -> CaseResult {
    let stores = stores(fixture, 6).await?;
    let saved = at_once(&stores, |number, store| async move {
        let made_ms = u64::try_from(number)?;
        let mut pins = Vec::new();
        for session in 0..50 {
            pins.push(pin(session, &format!("c{number}"), made_ms)?);
        }
        // Not everybody in one order, which must not lock anybody out.
        if number % 2 == 0 {
            pins.reverse();
        }
        store.save_pins(&pins).await?;
        Ok(())
    });
    saved.await?;
    let found = fixture.store().load_pins(None, NOW, 100).await?;
    assert_eq!(found.len(), 50);
    assert!(found.iter().all(|it| it.pin.connection.as_str() == "c5"));
    Ok(())
}

/// And nothing else; they are not told before.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn pins_past_their_end_are_deleted(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let (ends, stands) = (pin(1, "a", 0)?, pin(2, "b", 1)?);
    store.save_pins(&[ends.clone(), stands.clone()]).await?;
    let end = ends.pin.expires_at;
    assert_eq!(store.load_pins(None, end.minus_ms(1), 9).await?.len(), 2);
    assert_eq!(store.load_pins(None, end, 9).await?, from_ref(&stands));
    assert_eq!(store.delete_expired_pins(NOW).await?, 0);
    assert_eq!(store.delete_expired_pins(end).await?, 1);
    assert_eq!(store.delete_expired_pins(end).await?, 0);
    assert_eq!(store.load_pins(None, NOW, 9).await?, [stands]);
    Ok(())
}

/// Nothing of them is stored.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn pins_beyond_their_bound_are_refused(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let mut pins = Vec::new();
    for session in 0..MAX_PIN_ROWS {
        pins.push(pin(session, "a", 0)?);
    }
    store.save_pins(&pins).await?;
    let found = store.load_pins(None, NOW, usize::MAX).await?;
    assert_eq!(found.len(), MAX_PIN_ROWS);
    pins.push(pin(MAX_PIN_ROWS, "a", 0)?);
    for refused in [store.save_pins(&pins).await, store.delete_pins(&pins).await] {
        assert!(
            matches!(refused, Err(DurableStoreError::Refused(_))),
            "{refused:?}"
        );
    }
    pins.pop();
    store.delete_pins(&pins).await?;
    assert_eq!(store.load_pins(None, NOW, 9).await?, []);
    Ok(())
}

//! Pins of sessions as both databases give them back.

use std::collections::BTreeMap;

use tidegate_core::affinity::{Pin, PinKey};
use tidegate_core::ids::ConnectionId;
use tidegate_store::durable::{DurableStoreError, MAX_PIN_ROWS, StoredPin};

use super::known;
use crate::number::from_moment;

/// A stored pin.
#[derive(sqlx::FromRow)]
pub(crate) struct PinRow {
    pin_key: String,
    connection: String,
    created_at: i64,
    expires_at: i64,
}

impl PinRow {
    pub(crate) fn read(self) -> Result<StoredPin, DurableStoreError> {
        let key = PinKey::parse(&self.pin_key)
            .ok_or_else(|| DurableStoreError::Corrupt("the key of a pin".to_owned()))?;
        Ok(StoredPin {
            key,
            pin: Pin {
                connection: known("a pin's connection", ConnectionId::new(self.connection))?,
                created_at: from_moment(self.created_at),
                expires_at: from_moment(self.expires_at),
            },
        })
    }
}

/// The latest of each key, in the order of keys: so that writers at once take their locks in one order.
pub(crate) fn latest_of_each(pins: &[StoredPin]) -> Result<Vec<&StoredPin>, DurableStoreError> {
    check_count(pins)?;
    let mut latest: BTreeMap<&PinKey, &StoredPin> = BTreeMap::new();
    for pin in pins {
        let moments = |it: &StoredPin| (it.pin.created_at, it.pin.expires_at);
        let standing = latest.entry(&pin.key).or_insert(pin);
        if moments(standing) < moments(pin) {
            *standing = pin;
        }
    }
    Ok(latest.into_values().collect())
}

/// Refuses more pins than one call may have.
fn check_count(pins: &[StoredPin]) -> Result<(), DurableStoreError> {
    if pins.len() > MAX_PIN_ROWS {
        let count = pins.len();
        return Err(DurableStoreError::Refused(format!(
            "{count} pins in a call"
        )));
    }
    Ok(())
}

/// How many rows a call may ask for.
pub(crate) fn page(limit: usize) -> i64 {
    i64::try_from(limit.min(MAX_PIN_ROWS)).unwrap_or(i64::MAX)
}

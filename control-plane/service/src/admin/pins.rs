//! Pins of sessions as operators see them: as they were saved about a second ago. Of a session only the first digits of its
//! hash are shown.

use std::time::Duration;

use tidegate_core::affinity::PinKey;
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::time::Timestamp;
use tidegate_proto::admin::v1 as proto;
use tidegate_store::durable::{MAX_PIN_ROWS, StoredPin};

use super::Admin;
use super::events::NotRead;
use super::page::Page;

/// Limit of one read (decision 54).
const LIMIT: Duration = Duration::from_millis(500);
/// Reads for one page: of one connection a page may hold less than was asked for.
const MAX_READS: u32 = 4;
/// Hexadecimal digits of a session that are shown.
const SESSION_DIGITS: usize = 8;

impl Admin {
    /// A page of pins, by provider, and the token of the next one.
    pub(crate) async fn list_pins(
        &self,
        provider: Option<&ProviderId>,
        connection: Option<&ConnectionId>,
        page: &Page<String>,
    ) -> Result<(Vec<proto::SessionPin>, String), NotRead> {
        let now = self.clock.now();
        let asked = page.after().and_then(|after| PinKey::parse(after));
        // Keys begin with the provider, so that its pins stand together.
        let mut after = asked.or_else(|| provider.and_then(before_all));
        let is_of = |key: &PinKey| {
            let of = key.as_str().split_once(':').map(|(of, _)| of);
            provider.is_none_or(|only| of == Some(only.as_str()))
        };
        let mut pins = Vec::new();
        for _ in 0..MAX_READS {
            // One more than fits says whether there is another page.
            let lacking = page.size().saturating_sub(pins.len()).saturating_add(1);
            let limit = match connection {
                None => lacking.min(MAX_PIN_ROWS),
                Some(_) => MAX_PIN_ROWS,
            };
            let read = self.durable.load_pins(after.as_ref(), now, limit);
            let stored = match tokio::time::timeout(LIMIT, read).await {
                Ok(stored) => stored?,
                Err(_elapsed) => return Err(NotRead::Late),
            };
            let was_last = stored.len() < limit;
            for pin in stored {
                if !is_of(&pin.key) {
                    return Ok((pins, String::new()));
                }
                if connection.is_none_or(|only| pin.pin.connection == *only) {
                    if pins.len() == page.size() {
                        let last = after.map(|key| key.as_str().to_owned());
                        return Ok((pins, page.token(&last.unwrap_or_default())));
                    }
                    pins.push(told(&pin, now));
                }
                after = Some(pin.key);
            }
            if was_last {
                return Ok((pins, String::new()));
            }
        }
        let last = after.map(|key| key.as_str().to_owned());
        Ok((pins, page.token(&last.unwrap_or_default())))
    }
}

/// A key that stands before all of a provider's.
fn before_all(provider: &ProviderId) -> Option<PinKey> {
    PinKey::parse(&format!("{provider}:{}", "0".repeat(64)))
}

fn told(stored: &StoredPin, now: Timestamp) -> proto::SessionPin {
    let (provider, session) = stored.key.as_str().split_once(':').unwrap_or_default();
    proto::SessionPin {
        provider: provider.to_owned(),
        connection: stored.pin.connection.to_string(),
        session_prefix: session.chars().take(SESSION_DIGITS).collect(),
        created_at_unix_ms: stored.pin.created_at.0,
        expires_at_unix_ms: stored.pin.expires_at.0,
        remaining_ms: stored.pin.expires_at.remaining_ms(now),
    }
}

//! Session affinity: a session goes where it went before, as long as that is eligible (`sessions-and-streams.md` §2,
//! decision 43). A preference, never a reason to fail.
//!
//! Pins are kept in the hot store under a key that holds the id of the client's API key, so that two clients that use
//! the same session id do not share one. A session without a pin is placed by rendezvous hash over what is eligible:
//! when pins are lost it lands where it was, and two first requests at once agree before either is stored.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::classify::{Classification, Reason};
use crate::ids::{ConnectionId, KeyId, ProviderId, Shard};
use crate::outcome::{LocalFault, Outcome};
use crate::routing::strategy::rendezvous::{Identity, Rendezvous};
use crate::session_key::SessionKey;
use crate::state::codec::CodecError;
use crate::time::Timestamp;

/// Longest time that a session may be kept together, in ms: 30 days.
pub const MAX_AFFINITY_TTL_MS: u64 = 30 * 86_400_000;
/// Schema of an encoded [`Pin`].
pub const PIN_SCHEMA: u32 = 1;
/// A pin is written again at most this often, in ms, or every twentieth of its time if that is longer.
const TOUCHED_APART_MS: u64 = 1_000;

/// What a pin is stored under: `<provider>:<hex>`, the hash being that of `<API key id>:<provider>:<session key>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinKey(String);

/// Where a session is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Its connection.
    pub connection: ConnectionId,
    /// Since when.
    pub created_at: Timestamp,
    /// Unused until then it counts no longer; at that very moment it does not.
    pub expires_at: Timestamp,
}

/// A change of what is stored. It is made only if there still stands what was read; otherwise the rule is asked again
/// with what stands there now, so that the later of two first requests adopts the earlier one's pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinChange {
    /// What was read.
    pub before: Option<Pin>,
    /// What is to stand there.
    pub after: Option<Pin>,
}

/// A change of one pin, to be made when the request is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinWrite {
    /// Which pin.
    pub key: PinKey,
    /// The change.
    pub change: PinChange,
}

/// What is known of a pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinReading {
    /// Nothing yet: it has to be read first.
    Unread,
    /// This stands there.
    Read(Option<Pin>),
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity<'a> {
    /// To this connection of the pool.
    pub connection: &'a ConnectionId,
    /// What to store. A request under a lease stores it only when it has the lease.
    pub change: Option<PinChange>,
}

/// How an attempt ended, as far as pins are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The request goes on elsewhere, or would if it could.
    FailedOver,
    /// The target took longer than its combo allows.
    TargetTimeout,
    /// It says nothing of the connection: the client went away, another attempt of a hedge was faster, or a limit of our
    /// own passed.
    Abandoned,
}

impl PinKey {
    /// Of a session at a provider, of the client with this API key. Clients without a key share one space.
    #[must_use]
    pub fn new(provider: &ProviderId, key: Option<&KeyId>, session: &SessionKey) -> Self {
        let key = key.map_or("", KeyId::as_str);
        let named = format!("{key}:{provider}:{}", session.as_str());
        Self(format!("{provider}:{}", hex::encode(Sha256::digest(named))))
    }

    /// A key that was written down.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (provider, hash) = text.split_once(':')?;
        let is_hash = hash.len() == 64
            && hash
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_key = is_hash && ProviderId::new(provider).is_ok();
        is_key.then(|| Self(text.to_owned()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The shard of the hot store that keeps it: sessions of one provider are spread over all of them.
    #[must_use]
    pub fn shard(&self) -> Shard {
        Shard::of_name(&self.0)
    }

    /// The name that it has there.
    #[must_use]
    pub fn cell_name(&self) -> String {
        format!("pin:{}", self.0)
    }
}

impl AttemptEnd {
    /// What the end of an attempt means to pins (`sessions-and-streams.md` §2.4).
    #[must_use]
    pub fn of(outcome: &Outcome, classification: &Classification) -> Self {
        match outcome {
            Outcome::Local(LocalFault::TargetExpired) => Self::TargetTimeout,
            Outcome::Success | Outcome::ClientAbort | Outcome::Local(_) => Self::Abandoned,
            Outcome::Response(_) | Outcome::Transport(_) | Outcome::Stream(_) => {
                let fails_over = classification.account_fallback
                    && !matches!(classification.reason, Reason::ClientFault | Reason::Local);
                if fails_over {
                    Self::FailedOver
                } else {
                    Self::Abandoned
                }
            }
        }
    }
}

/// A pin as the hot store keeps it, in [`PIN_SCHEMA`].
///
/// # Errors
/// [`CodecError::Payload`] when it cannot be encoded.
pub fn encode(key: &PinKey, pin: &Pin) -> Result<Vec<u8>, CodecError> {
    serde_json::to_vec(pin).map_err(|source| CodecError::Payload {
        key: key.as_str().to_owned(),
        source,
    })
}

/// The pin that the hot store keeps.
///
/// # Errors
/// [`CodecError`] for a schema of a newer build, or what is no pin.
pub fn decode(key: &PinKey, schema: u32, payload: &[u8]) -> Result<Pin, CodecError> {
    if schema > PIN_SCHEMA {
        return Err(CodecError::HigherSchema {
            key: key.as_str().to_owned(),
            schema,
        });
    }
    serde_json::from_slice(payload).map_err(|source| CodecError::Payload {
        key: key.as_str().to_owned(),
        source,
    })
}

/// How long a session is kept together, in ms; 0 = not at all. What a request asks for counts if it is a positive
/// number, else the setting.
#[must_use]
pub fn ttl_ms(of_request: Option<f64>, setting_ms: u64) -> u64 {
    let wanted = of_request.filter(|ms| ms.is_finite() && *ms > 0.0);
    let ttl_ms = wanted.map_or(setting_ms, |ms| {
        format!("{:.0}", ms.trunc())
            .parse()
            .unwrap_or(MAX_AFFINITY_TTL_MS)
    });
    ttl_ms.min(MAX_AFFINITY_TTL_MS)
}

/// Where a session goes among the eligible connections; `None` when affinity has no say. What the gates exclude is not
/// in the pool, so a pin on it breaks.
#[must_use]
pub fn select<'a>(
    key: &PinKey,
    stored: Option<&Pin>,
    pool: &'a [ConnectionId],
    ttl_ms: u64,
    now: Timestamp,
) -> Option<Affinity<'a>> {
    if ttl_ms == 0 {
        return None;
    }
    let live = stored.filter(|pin| pin.expires_at > now);
    let pinned = live.and_then(|pin| {
        let connection = pool
            .iter()
            .find(|candidate| **candidate == pin.connection)?;
        Some((connection, pin.touched(ttl_ms, now)))
    });
    let (connection, after) = match pinned {
        Some(kept) => kept,
        None => {
            let connection = placed(key, pool)?;
            let pin = Pin::new(connection.clone(), ttl_ms, now);
            (connection, Some(pin))
        }
    };
    let change = after.map(|pin| PinChange {
        before: stored.cloned(),
        after: Some(pin),
    });
    Some(Affinity { connection, change })
}

/// What becomes of the pin of a session that goes to this connection because another rule chose it among accounts of its
/// provider: from now on it is there.
#[must_use]
pub fn went_to(
    stored: Option<&Pin>,
    connection: &ConnectionId,
    ttl_ms: u64,
    now: Timestamp,
) -> Option<PinChange> {
    if ttl_ms == 0 {
        return None;
    }
    let standing = stored.filter(|pin| pin.expires_at > now && pin.connection == *connection);
    let after = match standing {
        Some(pin) => pin.touched(ttl_ms, now)?,
        None => Pin::new(connection.clone(), ttl_ms, now),
    };
    Some(PinChange {
        before: stored.cloned(),
        after: Some(after),
    })
}

/// What an attempt that did not succeed does to the pin of its session: it goes, unless it names another connection by
/// now, or the attempt's end says nothing about the connection.
#[must_use]
pub fn after_attempt(
    stored: Option<&Pin>,
    tried: &ConnectionId,
    end: AttemptEnd,
) -> Option<PinChange> {
    let breaks = match end {
        AttemptEnd::FailedOver | AttemptEnd::TargetTimeout => true,
        AttemptEnd::Abandoned => false,
    };
    let pin = stored.filter(|pin| breaks && pin.connection == *tried)?;
    Some(PinChange {
        before: Some(pin.clone()),
        after: None,
    })
}

impl Pin {
    fn new(connection: ConnectionId, ttl_ms: u64, now: Timestamp) -> Self {
        Self {
            connection,
            created_at: now,
            expires_at: now.plus_ms(ttl_ms),
        }
    }

    /// This pin used now; `None` when it need not be written again yet.
    fn touched(&self, ttl_ms: u64, now: Timestamp) -> Option<Self> {
        let expires_at = now.plus_ms(ttl_ms);
        // One that ends soon is written before it has ended.
        let apart_ms = TOUCHED_APART_MS.max(ttl_ms / 20).min(ttl_ms / 2);
        // It also ends earlier when the setting was lowered.
        let due = self.expires_at > expires_at || expires_at.ms_since(self.expires_at) >= apart_ms;
        due.then(|| Self {
            expires_at,
            ..self.clone()
        })
    }
}

fn placed<'a>(key: &PinKey, pool: &'a [ConnectionId]) -> Option<&'a ConnectionId> {
    let rendezvous = Rendezvous::new(key.as_str());
    pool.iter()
        .min_by_key(|&candidate| rendezvous.rank_of(Identity::of_connection(candidate)))
}

#[cfg(test)]
mod tests;

//! What a client sends about a lease, checked in the order of the contract: the first thing wrong is what it is told
//! (`sessions-and-streams.md` §1.7, §1.10).

use serde_json::{Map, Value};

use crate::ids::{ConnectionId, KeyId};

use super::{EndReason, Generation, LeaseError, OwnerHash};

/// Longest body of a lifecycle request, in bytes. A longer one is no action.
pub const MAX_LIFECYCLE_BYTES: usize = 65_536;
/// Longest `model` of an acquire, in characters, white space around it not counted.
pub const MAX_MODEL_CHARACTERS: usize = 512;

/// What leases look at of an API key.
#[derive(Clone, Copy, Debug)]
pub struct LeaseKey<'a> {
    /// Its id.
    pub id: &'a KeyId,
    /// It has the scope `lease:exclusive`.
    pub exclusive: bool,
    /// The connections it names.
    pub allowed_connections: &'a [ConnectionId],
}

/// What came as `Authorization: Bearer`.
#[derive(Clone, Copy, Debug)]
pub enum Bearer<'a> {
    /// Nothing.
    Missing,
    /// No key that is known.
    Unknown,
    /// This key.
    Key(LeaseKey<'a>),
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A lease of a connection that serves this model.
    Acquire {
        /// Trimmed, from 1 to [`MAX_MODEL_CHARACTERS`] characters.
        model: String,
    },
    /// More time.
    Renew {
        /// Of which lease.
        generation: Generation,
    },
    /// To give it back.
    Release {
        /// Which lease.
        generation: Generation,
        /// [`EndReason::OwnerExit`] or [`EndReason::ClientCancelled`].
        reason: EndReason,
    },
    /// How it stands.
    Status {
        /// Which lease.
        generation: Generation,
    },
}

/// A lifecycle request that is in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// What is asked for.
    pub action: Action,
    /// By whom.
    pub owner: OwnerHash,
}

/// Why a lifecycle request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused<E> {
    /// By a rule of leases.
    Lease(LeaseError),
    /// By what every request of the key is held to, in its own words.
    Policy(E),
}

impl<E> From<LeaseError> for Refused<E> {
    fn from(error: LeaseError) -> Self {
        Self::Lease(error)
    }
}

/// Checks a lifecycle request up to where its lease is looked at. `policy` is what every request of the key is held to;
/// it is given the model of an acquire.
///
/// # Errors
/// [`Refused`] with the first thing that is wrong.
pub fn read_lifecycle<E>(
    bearer: Bearer<'_>,
    content_type: Option<&[u8]>,
    body: &[u8],
    owner: Option<&[u8]>,
    policy: impl FnOnce(Option<&str>) -> Result<(), E>,
) -> Result<Lifecycle, Refused<E>> {
    let key = match bearer {
        Bearer::Missing => return Err(LeaseError::AuthenticationRequired.into()),
        Bearer::Unknown => return Err(LeaseError::ApiKeyInvalid.into()),
        Bearer::Key(key) => key,
    };
    if !is_json(content_type) {
        return Err(LeaseError::ContentTypeRequired.into());
    }
    let action = Action::of_body(body)?;
    policy(action.model()).map_err(Refused::Policy)?;
    key.check()?;
    let owner = OwnerHash::of_header(owner)?;
    Ok(Lifecycle { action, owner })
}

/// What a lease is called, also when it moves to another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName {
    /// Whose.
    pub owner: OwnerHash,
    /// Which of the owner's.
    pub generation: Generation,
}

impl LeaseName {
    /// The lease that an inference request names with `X-OmniRoute-Lease-Owner` and `X-OmniRoute-Lease-Generation`.
    ///
    /// # Errors
    /// [`LeaseError::ContextRequired`] without an owner, else [`LeaseError::ContextInvalid`].
    pub fn of_headers(owner: Option<&[u8]>, generation: Option<&[u8]>) -> Result<Self, LeaseError> {
        Ok(Self {
            owner: OwnerHash::of_header(owner)?,
            generation: Generation::of_header(generation)?,
        })
    }
}

impl LeaseKey<'_> {
    /// Whether the key may lease (`sessions-and-streams.md` §1.2).
    ///
    /// # Errors
    /// [`LeaseError::ScopeRequired`] or [`LeaseError::KeyConfigurationInvalid`].
    pub fn check(&self) -> Result<(), LeaseError> {
        if !self.exclusive {
            return Err(LeaseError::ScopeRequired);
        }
        if self.allowed_connections.is_empty() {
            return Err(LeaseError::KeyConfigurationInvalid);
        }
        Ok(())
    }
}

impl Action {
    /// Of a body. Members that no action has do not count.
    ///
    /// # Errors
    /// [`LeaseError::ActionInvalid`].
    pub fn of_body(body: &[u8]) -> Result<Self, LeaseError> {
        if body.len() > MAX_LIFECYCLE_BYTES {
            return Err(LeaseError::ActionInvalid);
        }
        let body: Map<String, Value> =
            serde_json::from_slice(body).map_err(|_| LeaseError::ActionInvalid)?;
        let generation = || Generation::of_json(body.get("generation"));
        match body.get("action").and_then(Value::as_str) {
            Some("acquire") => Ok(Self::Acquire {
                model: model(body.get("model"))?,
            }),
            Some("renew") => Ok(Self::Renew {
                generation: generation()?,
            }),
            Some("release") => Ok(Self::Release {
                generation: generation()?,
                reason: release_reason(body.get("reason"))?,
            }),
            Some("status") => Ok(Self::Status {
                generation: generation()?,
            }),
            Some(_) | None => Err(LeaseError::ActionInvalid),
        }
    }

    /// The model of an acquire.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Acquire { model } => Some(model),
            Self::Renew { .. } | Self::Release { .. } | Self::Status { .. } => None,
        }
    }
}

fn model(value: Option<&Value>) -> Result<String, LeaseError> {
    let model = value
        .and_then(Value::as_str)
        .ok_or(LeaseError::ActionInvalid)?
        .trim();
    if model.is_empty() || model.chars().nth(MAX_MODEL_CHARACTERS).is_some() {
        return Err(LeaseError::ActionInvalid);
    }
    Ok(model.to_owned())
}

fn release_reason(value: Option<&Value>) -> Result<EndReason, LeaseError> {
    let Some(value) = value else {
        return Ok(EndReason::OwnerExit);
    };
    value
        .as_str()
        .and_then(EndReason::of_word)
        .filter(|reason| matches!(reason, EndReason::OwnerExit | EndReason::ClientCancelled))
        .ok_or(LeaseError::ActionInvalid)
}

/// `application/json`, whatever its parameters.
fn is_json(content_type: Option<&[u8]>) -> bool {
    content_type
        .and_then(|value| value.split(|byte| *byte == b';').next())
        .is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"application/json"))
}

#[cfg(test)]
mod tests;

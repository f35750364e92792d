//! Admission to a connection's queue in a data plane, and how long what left it may take (`sessions-and-streams.md`
//! §3.2, decision 45). What is refused here is our own doing and says nothing about the upstream.

mod learned;
mod pacing;
mod told;

use crate::config::Config;
use crate::ids::{ConnectionId, ProviderId};
use crate::outcome::LocalFault;
use crate::settings::ProviderClass;
use crate::time::Timestamp;

pub use learned::{Place, Standing, WATCH_MS};
pub use pacing::{
    ASKED_AGAIN_MS, Admitted, LOOK_AGAIN_MS, PACE_SCHEMA, Pace, PaceLimits, WORD_TTL_MS, decode,
    encode, key_text,
};
pub use told::{MAX_AHEAD_MS, Told, ToldRequests, ToldTokens, read as told_by};

/// `error.code` when a queue is full.
pub const QUEUE_FULL: &str = "RATE_LIMIT_QUEUE_FULL";
/// `error.code` when executions expired and nothing else happened.
pub const EXECUTION_TIMEOUT: &str = "RATE_LIMIT_EXECUTION_TIMEOUT";

/// What holds for the requests that pass through the queue of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Requests that may wait in each data plane; 0 = any number.
    pub depth: u64,
    /// Longest execution, in ms.
    pub execution_ms: u64,
    /// How fast they may follow each other, in the whole fleet.
    pub pace: PaceLimits,
}

/// The terms of a connection; `None` for one whose requests pass through no queue: rate-limit protection is off for it, or
/// nobody said so and its provider is not of class `apikey`, or `autoEnableApiKeyProviders` is off
/// (`sessions-and-streams.md` §3.2).
#[must_use]
pub fn terms(config: &Config, connection: &ConnectionId) -> Option<Terms> {
    let connection = config.connection(connection)?;
    let settings = &config.settings.request_queue;
    let by_class = || {
        let entry = config.provider(&connection.provider);
        settings.auto_enable_api_key_providers
            && entry.is_some_and(|entry| entry.policy.class == ProviderClass::Apikey)
    };
    let is_protected = connection.rate_limit_protection.unwrap_or_else(by_class);
    is_protected.then(|| Terms {
        depth: settings.depth(),
        execution_ms: settings.execution_ms(),
        pace: config.settings.pace_of(&connection.provider),
    })
}

/// Which queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueName {
    /// The provider.
    pub provider: ProviderId,
    /// The connection.
    pub connection: ConnectionId,
}

/// Why a request is given up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// As many wait as may.
    #[error("the queue of {}/{} is full: {depth} requests wait", .queue.provider, .queue.connection)]
    QueueFull {
        /// Where.
        queue: QueueName,
        /// The limit.
        depth: u64,
    },
    /// The upstream took too long to accept the request.
    #[error("{}/{} did not accept the request within {limit_ms} ms", .queue.provider, .queue.connection)]
    ExecutionExpired {
        /// Where.
        queue: QueueName,
        /// The limit.
        limit_ms: u64,
    },
}

impl AdmissionError {
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::QueueFull { .. } => 429,
            Self::ExecutionExpired { .. } => 504,
        }
    }

    /// `error.code` of the body. Never a reason to treat an answer as ours: an upstream may send the same text.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::QueueFull { .. } => QUEUE_FULL,
            Self::ExecutionExpired { .. } => EXECUTION_TIMEOUT,
        }
    }

    /// What it is as the end of an attempt.
    #[must_use]
    pub fn local_fault(&self) -> LocalFault {
        match self {
            Self::QueueFull { .. } => LocalFault::QueueFull,
            Self::ExecutionExpired { .. } => LocalFault::ExecutionExpired,
        }
    }
}

/// Whether one more request may wait, when so many do. What runs does not count; a depth of 0 sets no limit.
///
/// # Errors
/// [`AdmissionError::QueueFull`].
pub fn check_depth(queued: u64, depth: u64, queue: &QueueName) -> Result<(), AdmissionError> {
    if depth > 0 && queued >= depth {
        return Err(AdmissionError::QueueFull {
            queue: queue.clone(),
            depth,
        });
    }
    Ok(())
}

/// The time that a request has from when it left the queue until the upstream accepted it with headers and the first
/// sign of a good answer. Neither waiting in the queue nor the body counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// When it left the queue.
    pub dispatched_at: Timestamp,
    /// How long it has, in ms.
    pub limit_ms: u64,
}

impl Execution {
    /// When its time is over.
    #[must_use]
    pub fn ends_at(self) -> Timestamp {
        self.dispatched_at.plus_ms(self.limit_ms)
    }

    /// Whether it has time left.
    ///
    /// # Errors
    /// [`AdmissionError::ExecutionExpired`].
    pub fn check(self, queue: &QueueName, now: Timestamp) -> Result<(), AdmissionError> {
        if now < self.ends_at() {
            return Ok(());
        }
        Err(AdmissionError::ExecutionExpired {
            queue: queue.clone(),
            limit_ms: self.limit_ms,
        })
    }
}

#[cfg(test)]
mod tests;

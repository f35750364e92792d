//! When the access token of a connection is renewed with its refresh token (`failure-state.md` §3.9,
//! decision 15).
//!
//! Three things make a renewal due. The upstream refused the token and the connection is `expired`: at once,
//! then, while renewals fail, 10 and 20 minutes after the last try; the third failure makes the connection
//! inactive, which only new credentials or an operator end. The upstream refused the token in words that a
//! refresh may answer (decision 14): at once. The token is about to run out: a margin before, so that it need
//! not fail first. In the latter two the connection stays active whatever comes of it, and tries follow each
//! other with a growing pause.
//!
//! An account that is banned or out of credits is left alone: no token changes that, and a renewal must not
//! hide it. Who does the renewing, and that only one does, is not decided here.

use serde::{Deserialize, Serialize};

use crate::classify::{Reason, TerminalKind};
use crate::settings::TokenRefreshSettings;
use crate::state::ConnectionState;
use crate::time::Timestamp;

/// Failed refreshes of an `expired` connection after which it is inactive (`EXPIRED_RETRY_MAX`).
pub const EXPIRED_RETRY_MAX: u32 = 3;
/// Longest pause between two refreshes whose token still works, in ms.
pub const MAX_PAUSE_MS: u64 = 3_600_000;
/// Longest life that a token endpoint is believed, in ms: ten years.
pub const MAX_TOKEN_LIFE_MS: u64 = 10 * 365 * 86_400_000;

/// What is known about a connection's access token and its renewals. Times are the durable store's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenState {
    /// When the token was asked for; none for one that an operator applied.
    pub obtained_at: Option<Timestamp>,
    /// When it runs out, if that is known.
    pub expires_at: Option<Timestamp>,
    /// Failed refreshes while `expired`; at [`EXPIRED_RETRY_MAX`] the connection is inactive.
    pub retries: u32,
    /// When the last of them was.
    pub last_retry_at: Option<Timestamp>,
    /// Failed refreshes in a row while not `expired`.
    pub failures: u32,
    /// When the last of them was.
    pub last_failure_at: Option<Timestamp>,
}

/// What a connection's state says about its access token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCondition {
    /// There is none yet.
    Missing,
    /// Nothing speaks against it.
    Good,
    /// The upstream refused it in words that a refresh may answer; the connection is not terminal.
    Refused,
    /// The connection is `expired`.
    Expired,
    /// The connection is banned or out of credits: no token helps.
    Ended,
}

/// What a failed refresh did to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedRefresh {
    /// It is not `expired` and stays as it is.
    KeptActive,
    /// It was counted.
    Counted,
    /// It was the last one allowed: the connection is inactive.
    Inactive,
}

impl TokenCondition {
    /// The condition of the token with this version (0 = there is none), as the connection's hot state has it.
    /// What was observed with an older credential says nothing about it.
    #[must_use]
    pub fn of(hot: &ConnectionState, credential_version: u64) -> Self {
        if let Some(terminal) = &hot.terminal
            && terminal.kind != TerminalKind::Expired
        {
            return Self::Ended;
        }
        if credential_version == 0 {
            return Self::Missing;
        }
        if hot.credential_version < credential_version {
            return Self::Good;
        }
        let refused = hot
            .last_error
            .as_ref()
            .is_some_and(|error| error.status == 401 && error.reason == Reason::AuthError);
        match &hot.terminal {
            Some(_) => Self::Expired,
            None if refused => Self::Refused,
            None => Self::Good,
        }
    }
}

impl TokenState {
    /// From when on a refresh may be tried; `None`: not as long as nothing else happens.
    #[must_use]
    pub fn next_attempt(
        &self,
        condition: TokenCondition,
        settings: &TokenRefreshSettings,
    ) -> Option<Timestamp> {
        if self.is_inactive() || !settings.enabled {
            return None;
        }
        let at_once = Timestamp(0);
        match condition {
            TokenCondition::Ended => None,
            TokenCondition::Expired => Some(self.last_retry_at.map_or(at_once, |last| {
                last.plus_ms(doubled(settings.retry_base_ms, self.retries))
            })),
            TokenCondition::Missing | TokenCondition::Refused => {
                Some(self.after_pause(at_once, settings))
            }
            TokenCondition::Good => {
                let expires_at = self.expires_at?;
                let life_ms = self
                    .obtained_at
                    .map_or(u64::MAX, |obtained| expires_at.ms_since(obtained));
                let margin_ms = settings.margin_ms.min(life_ms / 2);
                Some(self.after_pause(expires_at.minus_ms(margin_ms), settings))
            }
        }
    }

    /// Whether a refresh may be tried now.
    #[must_use]
    pub fn is_due(
        &self,
        condition: TokenCondition,
        settings: &TokenRefreshSettings,
        now: Timestamp,
    ) -> bool {
        self.next_attempt(condition, settings)
            .is_some_and(|at| at <= now)
    }

    /// Takes a failed refresh in.
    pub fn fail(&mut self, condition: TokenCondition, now: Timestamp) -> FailedRefresh {
        if condition != TokenCondition::Expired {
            self.failures = self.failures.saturating_add(1);
            self.last_failure_at = Some(now);
            return FailedRefresh::KeptActive;
        }
        self.retries = self.retries.saturating_add(1);
        self.last_retry_at = Some(now);
        if self.is_inactive() {
            FailedRefresh::Inactive
        } else {
            FailedRefresh::Counted
        }
    }

    /// The state of a token that was asked for at `asked_at` and lives so long, if the endpoint said so. A life
    /// of 0 is none.
    #[must_use]
    pub fn of_new_token(asked_at: Timestamp, life_ms: Option<u64>) -> Self {
        Self {
            obtained_at: Some(asked_at),
            expires_at: life_ms
                .filter(|life| *life > 0)
                .map(|life| asked_at.plus_ms(life.min(MAX_TOKEN_LIFE_MS))),
            ..Self::default()
        }
    }

    /// Only new credentials or an operator make refreshes happen again.
    #[must_use]
    pub fn is_inactive(&self) -> bool {
        self.retries >= EXPIRED_RETRY_MAX
    }

    fn after_pause(&self, wanted: Timestamp, settings: &TokenRefreshSettings) -> Timestamp {
        let Some(last) = self.last_failure_at else {
            return wanted;
        };
        let pause = doubled(settings.sweep_interval_ms, self.failures.saturating_sub(1));
        wanted.max(last.plus_ms(pause.min(MAX_PAUSE_MS)))
    }
}

/// `base · 2^times`, in ms. Saturates.
fn doubled(base_ms: u64, times: u32) -> u64 {
    let factor = 1_u64.checked_shl(times).unwrap_or(u64::MAX);
    base_ms.saturating_mul(factor)
}

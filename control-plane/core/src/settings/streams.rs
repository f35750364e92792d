//! Settings of the limits of an upstream attempt and of what its client hears meanwhile
//! (`sessions-and-streams.md` §4.6, §5.3).

use serde::{Deserialize, Serialize};

use super::Settings;
use super::member::{Bounds, Member};
use super::overrides::named::{
    ATTEMPT_DEADLINE_MS, BODY_MS, CONNECT_MS, HEADERS_MS, IDLE_MS, Named, READINESS_MS,
};

/// Members of `streams`.
pub(super) const MEMBERS: &[Member] = &[
    Member::whole("connectTimeoutMs", CONNECT_MS.bounds),
    Member::whole("headersTimeoutMs", HEADERS_MS.bounds),
    Member::whole("readinessTimeoutMs", READINESS_MS.bounds),
    Member::whole("idleTimeoutMs", IDLE_MS.bounds),
    Member::whole("bodyTimeoutMs", BODY_MS.bounds),
    Member::whole("earlyKeepaliveMs", Bounds::same(0, 30_000)),
];

/// `streams`: limits of one upstream attempt (`sessions-and-streams.md` §4.6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StreamSettings {
    /// Dialling. Unset = as `FETCH_CONNECT_TIMEOUT_MS` says, else 30 000.
    pub connect_timeout_ms: Option<u64>,
    /// From dispatch to response headers; 0 = off. Unset = as `FETCH_HEADERS_TIMEOUT_MS`, `FETCH_TIMEOUT_MS` or
    /// `REQUEST_TIMEOUT_MS` says, the first that is set, else 600 000.
    pub headers_timeout_ms: Option<u64>,
    /// From response headers to the first ready event; 0 = off. Unset = as `STREAM_READINESS_TIMEOUT_MS` says, else
    /// 30 000.
    pub readiness_timeout_ms: Option<u64>,
    /// Between two useful events; 0 = off. Unset = as `STREAM_IDLE_TIMEOUT_MS` or `REQUEST_TIMEOUT_MS` says, the first
    /// that is set, else 300 000.
    pub idle_timeout_ms: Option<u64>,
    /// Between two parts of an answer that is no stream; 0 = off. Unset = as `FETCH_BODY_TIMEOUT_MS`, `FETCH_TIMEOUT_MS`
    /// or `REQUEST_TIMEOUT_MS` says, the first that is set, else 600 000.
    pub body_timeout_ms: Option<u64>,
    /// A client that asked for a stream and has heard nothing for so long gets its 200 and keepalives, while what would
    /// have been a status is told inside the stream; 0 = off (decision 53).
    pub early_keepalive_ms: u64,
}

/// What one upstream attempt may take, in ms; 0 = no limit (`sessions-and-streams.md` §4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptLimits {
    /// Dialling.
    pub connect_ms: u64,
    /// From dispatch to response headers.
    pub headers_ms: u64,
    /// From response headers to the first ready event.
    pub readiness_ms: u64,
    /// Between two useful events.
    pub idle_ms: u64,
    /// Between two parts of an answer that is no stream.
    pub body_ms: u64,
    /// From dispatch to the end of the body (decision 46).
    pub attempt_ms: u64,
}

impl StreamSettings {
    /// Fills in what the environment decides, and what nobody said.
    pub(super) fn fill_in(&mut self, environment: &Named) {
        for (member, number) in [
            (&mut self.connect_timeout_ms, &CONNECT_MS),
            (&mut self.headers_timeout_ms, &HEADERS_MS),
            (&mut self.readiness_timeout_ms, &READINESS_MS),
            (&mut self.idle_timeout_ms, &IDLE_MS),
            (&mut self.body_timeout_ms, &BODY_MS),
        ] {
            *member = Some(number.acting(*member, environment));
        }
    }
}

impl Settings {
    /// What an upstream attempt may take.
    #[must_use]
    pub fn attempt_limits(&self) -> AttemptLimits {
        let streams = &self.streams;
        AttemptLimits {
            connect_ms: CONNECT_MS.or_built_in(streams.connect_timeout_ms),
            headers_ms: HEADERS_MS.or_built_in(streams.headers_timeout_ms),
            readiness_ms: READINESS_MS.or_built_in(streams.readiness_timeout_ms),
            idle_ms: IDLE_MS.or_built_in(streams.idle_timeout_ms),
            body_ms: BODY_MS.or_built_in(streams.body_timeout_ms),
            attempt_ms: ATTEMPT_DEADLINE_MS.or_built_in(self.stream_recovery.attempt_deadline_ms),
        }
    }
}

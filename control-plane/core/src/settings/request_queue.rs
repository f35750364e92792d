//! Settings of admission (`sessions-and-streams.md` §3.2, decision 45). The numbers that [`crate::admission`] runs on.

use serde::{Deserialize, Serialize};

use crate::admission::PaceLimits;

use super::Overrides;
use super::member::{Bounds, Member};

/// Longest execution, in ms.
pub(super) const MAX_WAIT_MS: Bounds = Bounds::same(1, 86_400_000);
/// Requests that may wait.
pub(super) const MAX_QUEUE_DEPTH: Bounds = Bounds::same(0, 100_000);

const DEFAULT_MAX_WAIT_MS: u64 = 15_000;

/// Members of `requestQueue`.
pub(super) const MEMBERS: &[Member] = &[
    Member::flag("autoEnableApiKeyProviders"),
    Member::whole("requestsPerMinute", Bounds::same(1, 1_000_000)),
    Member::whole("minTimeBetweenRequestsMs", Bounds::same(0, 3_600_000)),
    Member::whole("concurrentRequests", Bounds::same(1, 10_000)),
    Member::whole("globalConcurrentRequests", Bounds::same(0, 100_000)),
    Member::whole("maxWaitMs", MAX_WAIT_MS),
    Member::whole("maxQueueDepth", MAX_QUEUE_DEPTH),
];

/// `requestQueue`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RequestQueueSettings {
    /// Connections with an API key have a queue without being told to.
    pub auto_enable_api_key_providers: bool,
    /// Requests a minute to a connection, in the whole fleet. Unset = as many as come.
    pub requests_per_minute: Option<u32>,
    /// From one request to a connection to the next, in the whole fleet. Unset = none.
    pub min_time_between_requests_ms: Option<u64>,
    /// Requests to a connection at once, in the whole fleet; above 4 096 as 4 096. Unset = as many as come.
    pub concurrent_requests: Option<u32>,
    /// Accepted and kept without effect.
    pub global_concurrent_requests: u32,
    /// From when a request is sent until the upstream accepts it with headers and, for a stream, its first ready event;
    /// neither waiting nor the body counts. Unset = as `RATE_LIMIT_MAX_WAIT_MS` says, else 15 000.
    pub max_wait_ms: Option<u64>,
    /// Requests that may wait for a connection, in each data plane; 0 = any number. Unset = as
    /// `RATE_LIMIT_MAX_QUEUE_DEPTH` says, else 0.
    pub max_queue_depth: Option<u64>,
}

impl Default for RequestQueueSettings {
    fn default() -> Self {
        Self {
            auto_enable_api_key_providers: true,
            requests_per_minute: None,
            min_time_between_requests_ms: None,
            concurrent_requests: None,
            global_concurrent_requests: 0,
            max_wait_ms: None,
            max_queue_depth: None,
        }
    }
}

impl RequestQueueSettings {
    /// How fast requests may follow each other on a connection. One under way that is not renewed counts for `ttl_ms`.
    #[must_use]
    pub fn pace(&self, ttl_ms: u64) -> PaceLimits {
        PaceLimits {
            per_minute: self.requests_per_minute,
            apart_ms: self.min_time_between_requests_ms.unwrap_or(0),
            concurrent: self.concurrent_requests,
            ttl_ms,
        }
    }

    /// How long an execution may take, in ms.
    #[must_use]
    pub fn execution_ms(&self) -> u64 {
        self.max_wait_ms.unwrap_or(DEFAULT_MAX_WAIT_MS)
    }

    /// How many requests may wait for a connection in each data plane; 0 = any number.
    #[must_use]
    pub fn depth(&self) -> u64 {
        self.max_queue_depth.unwrap_or(0)
    }

    /// Fills in what the environment decides, and what nobody said.
    pub(super) fn fill_in(&mut self, overrides: &Overrides) {
        self.max_wait_ms = self.max_wait_ms.or_else(|| overrides.max_wait_ms());
        self.max_wait_ms = Some(self.execution_ms());
        self.max_queue_depth = self.max_queue_depth.or_else(|| overrides.max_queue_depth());
        self.max_queue_depth = Some(self.depth());
    }
}

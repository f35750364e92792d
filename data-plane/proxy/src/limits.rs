//! What a proxy accepts and how long it waits for its clients.

use std::time::Duration;

use tidegate_core::idempotency::WindowLimits;
use tidegate_core::ids::EgressId;

use crate::heartbeat::Heartbeats;
use crate::upstream::UpstreamAuthorities;

/// Settings of one proxy. [`Limits::default`] is what the binary starts with.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A key is required even when the configuration names none (`REQUIRE_API_KEY`).
    pub require_key: bool,
    /// Longest request body, in bytes.
    pub max_body_bytes: usize,
    /// Longest answer that is not a stream, in bytes.
    pub max_answer_bytes: usize,
    /// The same of a part of a plan, of which several are in memory at once and little is read.
    pub max_part_bytes: usize,
    /// Time for a client to send its request head.
    pub head_time: Duration,
    /// Time for a client to send its request body.
    pub body_time: Duration,
    /// Everything that a management request may take that only looks, a wait for its turn included; and the longest wait for
    /// a turn to be told which models can be had.
    pub look_time: Duration,
    /// Everything that a management request may take that changes something, from when its body is here: a reset writes value
    /// by value.
    pub change_time: Duration,
    /// How long a client may refuse to read before its connection is closed, or take nothing of a stream before
    /// the upstream is let go.
    pub stall_time: Duration,
    /// Signs of life in streams.
    pub heartbeats: Heartbeats,
    /// Client connections at once; further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// Requests with an `Idempotency-Key` that may wait at once for the answer of another.
    pub max_waiting: usize,
    /// What is remembered of requests with an `Idempotency-Key`.
    pub idempotency: WindowLimits,
    /// Identity under which this proxy's requests leave (decision 23).
    pub egress: Option<EgressId>,
    /// Who may sign upstreams' certificates besides the roots of the web.
    pub upstream_authorities: UpstreamAuthorities,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            require_key: false,
            max_body_bytes: 10 * 1024 * 1024,
            max_answer_bytes: 64 * 1024 * 1024,
            max_part_bytes: 8 * 1024 * 1024,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(60),
            look_time: Duration::from_secs(2),
            change_time: Duration::from_secs(10),
            stall_time: Duration::from_secs(120),
            heartbeats: Heartbeats::default(),
            max_connections: 10_000,
            max_waiting: 1_000,
            idempotency: WindowLimits::default(),
            egress: None,
            upstream_authorities: UpstreamAuthorities::default(),
        }
    }
}

//! The data plane's proxy: the phases of a request, from a client's socket to a provider's and back.
//!
//! ```text
//! server ─ handle ─ identify ─ request ─ drive ─┬─ (control port) decide
//!  accept  route    key        parse     loop   ├─ queues     in turn, where a pace is limited
//!                                               ├─ dispatch   request from scratch
//!                                               ├─ upstream   send
//!                                               ├─ observe    facts of the end
//!                                               ├─ stream     bytes to the client
//!                                               ├─ heartbeat  signs of life in it
//!                                               ├─ again      to the same account once more
//!                                               ├─ plan       several answers for one
//!                                               └─ relay      notes for the next account
//!                                        life: the end, once, whatever happens
//! ```
//!
//! The proxy never judges a failure and keeps no state about providers: it describes what it saw to the
//! [`ControlPort`] and does what it is told.

mod again;
mod control_port;
mod dispatch;
mod drive;
mod early;
mod endpoint;
mod event_stream;
mod facts;
mod fence;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod handle;
mod heartbeat;
mod idempotency;
mod identify;
mod leasing;
mod life;
mod limits;
mod metrics;
mod models;
mod observe;
mod occupants;
mod passage;
mod plan;
mod proxy;
mod queues;
mod redact;
mod refusal;
mod relay;
mod reply;
mod request;
mod retries;
mod sending;
mod server;
mod spans;
mod sse;
mod stream;
mod upstream;
mod waiting_room;

pub use control_port::ControlPort;
pub use endpoint::Guard;
pub use heartbeat::Heartbeats;
pub use limits::Limits;
pub use metrics::Metrics;
pub use proxy::{Proxy, Served, StartError, Surface, served};
pub use spans::Tracing;
pub use upstream::{AuthoritiesError, UpstreamAuthorities};

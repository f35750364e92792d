//! The control plane: use cases over the ports of the stores.
//!
//! | room | what it does |
//! |---|---|
//! | [`plane`] | wires, starts and ends all of it |
//! | `view` | the hot state in this process, read without locks |
//! | `follow` | keeps the view equal to the hot store, and restores the store when it lost its memory |
//! | `record` | applies reports and other events: folding, compare-and-set, acknowledgement, overlay |
//! | `decide` | where an attempt may go |
//! | `permits` | how many attempts may be under way on a connection |
//! | `watch` | feeds data planes |
//! | `checkpoint` | writes the hot state to the durable store |
//! | `config` | the configuration in force, and its replacement |
//! | `events` | what happens, for those who watch |
//! | `fleet` | what strategies know of the past, gathered from data planes and shared among replicas |
//! | `handoff` | notes that follow conversations to another account |
//! | `lease` | exclusive leases of connections, and what others see of them |
//! | `quota_poll` | asks quota endpoints what is left, one replica for all |
//! | `lead` | who does what one replica does for all |
//! | `outbound` | one HTTP request of our own |
//! | `refresh` | renews access tokens, one replica at a time |
//! | `usage` | tokens of attempts, counted once; data planes that were lost |
//! | `retention` | deletes history that is too old |
//! | `access` | who calls, and what they may do |
//! | `admin` | what operators ask and do |
//! | `schema` | which schema of values may be written |
//! | `grpc` | messages to use cases and back |
//! | [`rest`] | the contract's management endpoints over HTTP |
//! | `listener` | HTTP connections, their limits and their end |
//! | [`telemetry`] | metrics, liveness, readiness |
//!
//! It knows no rule (`tidegate-core` does) and names no adapter.

mod access;
mod admin;
mod checkpoint;
mod clock;
mod config;
mod decide;
mod events;
mod fleet;
mod follow;
mod grpc;
mod handoff;
mod hot;
mod lanes;
mod lead;
mod lease;
mod listener;
mod live;
mod outbound;
mod permits;
mod pins;
pub mod plane;
mod quota_poll;
mod record;
mod refresh;
pub mod rest;
mod retention;
mod schema;
mod shared_value;
pub mod telemetry;
#[cfg(test)]
mod test_durable;
mod usage;
mod view;
mod watch;

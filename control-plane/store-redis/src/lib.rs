//! The hot store in Redis: single server, Sentinel or Cluster.
//!
//! **Stance:** as the port says, nothing here fails a request. Each call has a limit, a server that is known to
//! be away is told at once, and a connection that answers nothing is replaced. **Staleness:** followers block on
//! the shards' streams; a store that lost its memory is seen by the next `check`, and by each follower within a
//! second. **Repair:** connections come back by themselves, with bounded pauses.
//!
//! | room | what it holds |
//! |---|---|
//! | [`config`] | where the servers are, and the limits |
//! | [`keys`] | the name of every key |
//! | `scripts` | the scripts (`scripts/*.lua`, versioned, contract in their headers) |
//! | `text`, `reply` | what is stored and what is answered, read back |
//! | `link` | one connection for calls, kept alive |
//! | `store` | the port |
//! | `follow` | the change stream |
//!
//! **What the servers must be:** Redis 7.0 or later, `maxmemory-policy noeviction`, and, for what survives a
//! restart, any persistence or none: whatever memory comes back under another run id is not written to before a
//! new incarnation has begun.

pub mod config;
mod failure;
mod follow;
pub mod keys;
mod link;
mod reply;
mod scripts;
mod store;
mod target;
mod text;

pub use config::{RedisConfig, RedisConfigError, RedisLimits, RedisMode};
pub use store::RedisHotStore;

//! The rules of Tidegate as pure state machines and pure functions: no async, no I/O, no clock, no
//! randomness. Time and random numbers are arguments, so every rule is a table in a test.
//!
//! | room | what it holds |
//! |---|---|
//! | [`ids`], [`time`], [`version`] | names, moments, the one version there is |
//! | [`condition`] | what of the control plane is not as it should be |
//! | [`management`] | the contract's management endpoints: paths, rights, bodies |
//! | [`settings`], [`config`] | the configuration document, its validation and its indexed form |
//! | [`outcome`], [`classify`] | what was seen, and what it means |
//! | [`breaker`], [`gate`], [`egress`], [`cooldown`], [`lockout`] | one state machine each |
//! | [`lease`] | one connection for one owner at a time |
//! | [`permit`] | how many attempts may be under way on a connection at once |
//! | [`pace`] | how often a line tells of what may happen with every request |
//! | [`idempotency`] | requests that a client sends twice |
//! | [`daily_reset`] | when the quotas of a day begin anew |
//! | [`refresh`] | when the access token of a connection is renewed |
//! | [`retry_budget`] | how many requests may be retries |
//! | [`state`] | the two hot values, events, apply, restore |
//! | [`catalogue`], [`telemetry`] | what models cost and can do; how targets did, and what is left of quotas |
//! | [`stream`] | when a stream is too slow, is opened again, or is continued |
//! | [`tool_limit`] | how many tools a provider takes |
//! | [`usage`] | tokens of attempts, told or estimated, counted once |
//! | [`routing`] | resolve, gates, exclusions, the attempt driver, final answers |

pub mod admission;
pub mod affinity;
pub mod breaker;
pub mod catalogue;
pub mod classify;
pub mod condition;
pub mod config;
pub mod cooldown;
pub mod daily_reset;
pub mod egress;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gate;
mod glob;
mod hash;
pub mod idempotency;
pub mod ids;
pub mod lease;
pub mod live_planes;
pub mod lockout;
pub mod management;
pub mod number;
pub mod occupancy;
pub mod outcome;
pub mod pace;
pub mod permit;
pub mod random;
pub mod refresh;
pub mod retry_budget;
pub mod routing;
mod secret_source;
pub mod session_key;
pub mod settings;
pub mod state;
pub mod stream;
pub mod telemetry;
pub mod time;
pub mod tool_limit;
pub mod usage;
pub mod version;

//! The gRPC services: from messages to use cases and back. No rule lives here.

mod admin;
mod admission;
mod auth;
pub(crate) mod error;
mod handoff;
mod lease;
mod quotas;
mod report;
mod routing;
pub(crate) mod server;
mod settings;
mod snapshot;

//! The gRPC services: from messages to use cases and back. No rule lives here.

mod admin;
mod admission;
mod auth;
mod changes;
pub(crate) mod error;
mod events;
mod handoff;
mod lease;
mod lists;
mod management;
mod mask;
mod origin;
mod quotas;
mod report;
mod resources;
mod routing;
pub(crate) mod rules;
pub(crate) mod server;
mod settings;
mod snapshot;
mod status;

//! The one way hot state changes.

use crate::classify::Classification;
use crate::config::Connection;
use crate::settings::ProviderPolicy;
use crate::time::Timestamp;

use super::{ConnectionState, Event, ProviderState, Transition};

/// The two values an event concerns. `connection` is absent for events of the provider alone.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The provider's value.
    pub provider: &'a mut ProviderState,
    /// The connection's value and configuration.
    pub connection: Option<(&'a Connection, &'a mut ConnectionState)>,
}

/// What applying an event did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Changes worth keeping in history.
    pub transitions: Vec<Transition>,
    /// For an outcome: how it was classified.
    pub classification: Option<Classification>,
    /// For `TakeProbe`: the attempt now holds the probe.
    pub probe_granted: bool,
}

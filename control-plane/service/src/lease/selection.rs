//! What ordinary selection says, from what this replica knows.

use tidegate_core::ids::{ConnectionId, EgressId};
use tidegate_core::routing::{
    AttemptsSoFar, DecisionTurns, Input, OrdinarySelection, RequestFacts, Speaks,
    View as RoutingView, ordinary_selection,
};
use tidegate_core::telemetry::fleet::Fleet;
use tidegate_core::time::Timestamp;

use crate::config::Current;

/// What is asked.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) current: &'a Current,
    pub(crate) fleet: &'a Fleet,
    pub(crate) view: &'a dyn RoutingView,
    pub(crate) facts: &'a RequestFacts,
    pub(crate) so_far: &'a AttemptsSoFar,
    pub(crate) egress: Option<&'a EgressId>,
    pub(crate) now: Timestamp,
}

impl Asked<'_> {
    /// Asks. No turn is taken.
    pub(crate) fn select(&self, speaks: Speaks) -> OrdinarySelection {
        let credentials = &self.current.credentials;
        let has_credential = |connection: &ConnectionId| credentials.contains_key(connection);
        let turns = DecisionTurns::peeking(&self.current.counters);
        let input = Input {
            config: &self.current.config,
            view: self.view,
            facts: self.facts,
            so_far: self.so_far,
            egress: self.egress,
            now: self.now,
            telemetry: self.fleet,
            turns: &turns,
            random: rand::random(),
            has_credential: &has_credential,
        };
        ordinary_selection(&input, speaks)
    }
}

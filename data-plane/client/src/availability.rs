//! Whether what a request asks for can be had, as far as it is known here: the configuration, the view as it was followed, and our own
//! failures that are not in it yet. Nothing is asked, taken or counted.

use tidegate_core::ids::{ConnectionId, EgressId};
use tidegate_core::routing::{
    self, AttemptsSoFar, DecisionTurns, Input, ModelAvailability, RequestFacts,
};
use tokio::time::Instant;

use crate::PlaneClient;
use crate::shadow::Scene;

impl PlaneClient {
    /// Tells it of a request that would leave under this identity; `None` without a configuration.
    #[must_use]
    pub fn availability(
        &self,
        facts: &RequestFacts,
        egress: Option<&EgressId>,
    ) -> Option<ModelAvailability> {
        let inner = &self.inner;
        let moment = Instant::now();
        let snapshot = self.snapshot()?;
        let now = self.now();
        let scene = Scene {
            config: &snapshot.config,
            view: &inner.view,
            now,
            newest_attempt: inner.newest_attempt(),
        };
        inner.shadow.refresh(scene, moment, inner.is_following());
        Some(routing::availability(&Input {
            config: &snapshot.config,
            view: &inner.shadow.over(&inner.view),
            facts,
            so_far: &AttemptsSoFar::default(),
            egress,
            telemetry: &*inner.telemetry.view(),
            turns: &DecisionTurns::peeking(&snapshot.counters),
            now,
            random: 0,
            has_credential: &|connection: &ConnectionId| {
                snapshot.credentials.contains_key(connection)
            },
        }))
    }
}

//! Where a request would go, and why not elsewhere. Takes no probe and sends nothing.

use std::sync::Arc;

use tidegate_core::config::{ApiKey, Protocol};
use tidegate_core::ids::{ConnectionId, EgressId};
use tidegate_core::routing::{
    AttemptsSoFar, DecisionTurns, Explanation, Input, RequestFacts, explain, resolve,
};
use tidegate_core::telemetry::NoTelemetry;
use tidegate_core::time::Timestamp;

use crate::config::Current;

use super::Admin;

/// What an operator asks.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) model: String,
    pub(crate) key: Option<Arc<ApiKey>>,
    /// Absent: the protocol of the first target.
    pub(crate) protocol: Option<Protocol>,
    /// Absent: no egress lock is shown.
    pub(crate) egress: Option<EgressId>,
}

impl Admin {
    /// Explains, with the time the explanation is of.
    pub(crate) fn explain(
        &self,
        current: &Current,
        question: Question,
    ) -> (Explanation, Timestamp) {
        let config = &*current.config;
        let protocol = question.protocol.or_else(|| {
            let route = resolve(config, &question.model)?;
            let first = route.targets.first()?;
            Some(config.provider(&first.provider)?.provider.protocol)
        });
        let facts = RequestFacts {
            key: question.key,
            ..RequestFacts::new(question.model, protocol.unwrap_or(Protocol::Openai))
        };
        let now = self.clock.now();
        let explanation = explain(&Input {
            config,
            view: &*self.view,
            facts: &facts,
            so_far: &AttemptsSoFar::default(),
            egress: question.egress.as_ref(),
            telemetry: &NoTelemetry,
            turns: &DecisionTurns::peeking(&current.counters),
            now,
            random: 0,
            has_credential: &|connection: &ConnectionId| {
                current.credentials.contains_key(connection)
            },
        });
        (explanation, now)
    }
}

//! What is told of a target for strategies and queues to know: what is under way there, how attempts ended, what its
//! answers say of quotas and limits. Synthetic attempts change nothing (decision 6), so nothing is told of them.

use http::{HeaderMap, StatusCode};
use tidegate_core::admission::{Place, terms, told_by};
use tidegate_core::config::Strategy;
use tidegate_core::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use tidegate_core::outcome::Outcome;
use tidegate_core::routing::{RequestFacts, resolve};
use tidegate_core::telemetry::aggregate::{End, Verdict};
use tidegate_core::telemetry::{QuotaSnapshot, quota};
use tidegate_core::time::Timestamp;
use tidegate_core::tool_limit::learn_tool_limit;
use tidegate_plane_client::{Dispatch, Lesson, Observation};

use crate::control_port::ControlPort;

/// Where an attempt went.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The combo and the execution key.
    of_combo: Option<(ComboName, String)>,
    provider: ProviderId,
    connection: ConnectionId,
    model: ModelId,
    synthetic: bool,
    began_at: Timestamp,
}

impl Target {
    pub(super) fn of(dispatch: &Dispatch, began_at: Timestamp) -> Self {
        let attempt = &dispatch.attempt;
        let key = &dispatch.target_key;
        Self {
            of_combo: dispatch
                .combo
                .as_ref()
                .filter(|_| !key.is_empty())
                .map(|combo| (combo.clone(), key.clone())),
            provider: attempt.provider.clone(),
            connection: attempt.connection.clone(),
            model: attempt.model.clone(),
            synthetic: attempt.synthetic,
            began_at,
        }
    }

    /// An attempt goes there.
    pub(super) fn begins(&self, control: &impl ControlPort) {
        if !self.synthetic {
            control.observe(Observation::Began(self.connection.clone()));
        }
    }

    /// The attempt is not under way any more.
    pub(super) fn is_over(&self, control: &impl ControlPort) {
        if !self.synthetic {
            control.observe(Observation::Over(self.connection.clone()));
        }
    }

    /// There is a verdict. `session` is what the turns of the conversation have in common, where that is bound.
    pub(super) fn ends(
        &self,
        control: &impl ControlPort,
        verdict: Verdict,
        session: Option<String>,
    ) {
        if self.synthetic {
            return;
        }
        control.observe(Observation::Ended(End {
            target: self.of_combo.clone(),
            provider: self.provider.clone(),
            connection: self.connection.clone(),
            model: self.model.clone(),
            verdict,
            began_at: self.began_at,
            at: control.now(),
            session,
        }));
    }

    /// Learns how many tools the provider takes, where an error says so about a request that offered so many
    /// (`routing.md` §13.3).
    pub(super) fn learns(&self, control: &impl ControlPort, outcome: &Outcome, offered: u32) {
        if let Outcome::Response(error) = outcome
            && let Some(limit) = learn_tool_limit(error.status, &error.body, offered)
            && !self.synthetic
        {
            let provider = self.provider.clone();
            control.observe(Observation::ToolLimit(provider, limit, control.now()));
        }
    }

    /// Learns what an answer tells of the upstream's limits, where requests pass through a queue (decision 45). `place` is
    /// which one of the counted requests was answered.
    pub(super) fn learns_pace(
        &self,
        control: &impl ControlPort,
        status: StatusCode,
        headers: &HeaderMap,
        place: Option<Place>,
    ) {
        let now = control.now();
        if self.synthetic {
            return;
        }
        if let Some(told) = told_by(status.as_u16(), telling(headers), now)
            && let Some(snapshot) = control.snapshot()
            && terms(&snapshot.config, &self.connection).is_some()
        {
            control.learn(&Lesson {
                connection: self.connection.clone(),
                model: self.model.clone(),
                told,
                place,
                sent_at: self.began_at,
            });
        }
    }

    /// Reads quotas off the headers of an answer.
    pub(super) fn sees(
        &self,
        control: &impl ControlPort,
        headers: &HeaderMap,
    ) -> Option<QuotaSnapshot> {
        if self.synthetic {
            return None;
        }
        let snapshot = quota::of_headers(telling(headers), control.now())?;
        let connection = self.connection.clone();
        control.observe(Observation::Quota(connection, snapshot.clone()));
        Some(snapshot)
    }
}

/// The headers that tell of quotas and limits. Most tell nothing; their values need not be looked at.
fn telling(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    headers.iter().filter_map(|(name, value)| {
        let name = name.as_str();
        quota::is_quota_header(name)
            .then(|| value.to_str().ok())
            .flatten()
            .map(|value| (name, value))
    })
}

/// What the turns of this conversation have in common, if its combo wants them together (`routing.md` §10.1) or looks
/// at where they were (`routing.md` §9.2, contextAffinity).
pub(super) fn binding(control: &impl ControlPort, facts: &RequestFacts) -> Option<String> {
    let session = facts.session.as_ref()?;
    let snapshot = control.snapshot()?;
    let route = resolve(&snapshot.config, &facts.model)?;
    let binds = route.strategy == Strategy::Auto || route.config.session_stickiness == Some(true);
    binds.then(|| session.clone())
}

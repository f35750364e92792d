//! `tidegate.routing.v1.RoutingService`.

use std::sync::Arc;

use tidegate_core::ids::{EgressId, KeyId, ProviderId};
use tidegate_core::routing::{Decision, Exclusion, WaitKind};
use tidegate_core::settings::StreamSettings;
use tidegate_core::time::Timestamp;
use tidegate_proto::common::v1 as common;
use tidegate_proto::routing::v1 as proto;
use tidegate_proto::routing::v1::routing_service_server::RoutingService;
use tidegate_wire as wire;
use tidegate_wire::WireError;
use tonic::{Request, Response, Status};

use crate::decide::{Answer, Ask, Decider, LastFailure};

use super::error::{Refusal, invalid};

/// Longest model name that is looked up, in bytes.
const MAX_MODEL_BYTES: usize = 1_024;

/// The service.
#[derive(Clone, Debug)]
pub(super) struct Routing {
    pub(super) decider: Arc<Decider>,
}

#[tonic::async_trait]
impl RoutingService for Routing {
    async fn decide(
        &self,
        request: Request<proto::DecideRequest>,
    ) -> Result<Response<proto::DecideResponse>, Status> {
        let ask = ask(request.into_inner())?;
        let answer = self.decider.decide(ask).await?;
        response(answer).map(Response::new)
    }

    async fn r#await(
        &self,
        request: Request<proto::AwaitRequest>,
    ) -> Result<Response<proto::AwaitResponse>, Status> {
        wire::attempt::id_from_proto(request.into_inner().attempt).map_err(|it| invalid(&it))?;
        // No decision of this build hands out tickets, so none can be granted.
        Ok(Response::new(proto::AwaitResponse { granted: false }))
    }

    async fn abandon(
        &self,
        request: Request<proto::AbandonRequest>,
    ) -> Result<Response<proto::AbandonResponse>, Status> {
        let request = request.into_inner();
        let attempt = wire::attempt::id_from_proto(request.attempt).map_err(|it| invalid(&it))?;
        let provider = name("provider", &request.provider, ProviderId::new)?;
        self.decider.abandon(attempt, provider).await?;
        Ok(Response::new(proto::AbandonResponse {}))
    }
}

fn ask(request: proto::DecideRequest) -> Result<Ask, Status> {
    let facts = request
        .facts
        .ok_or_else(|| Refusal::InvalidRequest.status("facts are missing"))?;
    if facts.model.len() > MAX_MODEL_BYTES {
        return Err(Refusal::InvalidRequest.status("facts.model is too long"));
    }
    let wire = |error: WireError| invalid(&error);
    Ok(Ask {
        attempt: wire::attempt::id_from_proto(request.attempt).map_err(wire)?,
        key: name("facts.key_id", &facts.key_id, KeyId::new)?,
        facts: wire::routing::facts_from_proto(facts).map_err(wire)?,
        so_far: wire::routing::so_far_from_proto(request.so_far).map_err(wire)?,
        last_failure: request.last_failure.map(last_failure).transpose()?,
        egress: name("egress", &request.egress, EgressId::new)?,
        configuration_version: request.configuration_version,
    })
}

fn last_failure(failure: proto::LastFailure) -> Result<LastFailure, Status> {
    let wire = |error: WireError| invalid(&error);
    Ok(LastFailure {
        attempt: wire::attempt::from_proto(failure.attempt).map_err(wire)?,
        outcome: wire::attempt::outcome_from_proto(failure.outcome).map_err(wire)?,
        age_ms: failure.age_ms,
        pass: failure.pass,
        target: failure.target,
    })
}

/// A name that may be left out.
pub(super) fn name<'a, T, E: std::fmt::Display>(
    field: &str,
    text: &'a str,
    make: impl FnOnce(&'a str) -> Result<T, E>,
) -> Result<Option<T>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    match make(text) {
        Ok(name) => Ok(Some(name)),
        Err(error) => Err(Refusal::InvalidRequest.status(format!("{field}: {error}"))),
    }
}

fn response(answer: Answer) -> Result<proto::DecideResponse, Status> {
    let now = answer.now;
    let step = match answer.decision {
        Decision::Dispatch(dispatch) => proto::decide_response::Step::Dispatch(proto::Dispatch {
            attempt: answer.attempt.as_ref().map(wire::attempt::to_proto),
            pass: dispatch.pass,
            target: dispatch.target,
            report_at_readiness: dispatch.report_at_readiness,
            excluded: exclusions(&dispatch.excluded, now),
            deadlines: Some(proto::Deadlines {
                // No limit is 0.
                target_ms: dispatch.timeout_ms.map_or(0, |limit| limit.max(1)),
                ..deadlines(&answer.deadlines)
            }),
            order: dispatch.order,
            max_tools: dispatch.max_tools,
            emergency_max_tokens: dispatch.emergency_max_tokens,
        }),
        Decision::Wait(wait) => proto::decide_response::Step::Wait(proto::Wait {
            kind: match wait.kind {
                WaitKind::Cooldown => proto::WaitKind::Cooldown.into(),
                WaitKind::RetryDelay => proto::WaitKind::RetryDelay.into(),
            },
            wait_ms: wait.wait_ms,
            ticket: Vec::new(),
        }),
        Decision::Plan(plan) => proto::decide_response::Step::Plan(wire::plan::to_proto(&plan)),
        Decision::TakeTurn(_) => return Err(Refusal::Internal.status("a number is missing")),
        Decision::Reject(rejection) => {
            let excluded = exclusions(&rejection.excluded, now);
            let reject = wire::routing::rejection_to_proto(&rejection, excluded);
            proto::decide_response::Step::Reject(reject)
        }
    };
    Ok(proto::DecideResponse {
        step: Some(step),
        failed_at_unix_ms: answer.judged.as_ref().map_or(0, |(_, at)| at.0),
        classification: answer
            .judged
            .map(|(meant, _)| wire::routing::classification_to_proto(&meant)),
        next_target_same_provider: answer.next_target_same_provider,
        freshness: Some(common::Freshness {
            age_ms: u64::try_from(answer.age.age.as_millis()).unwrap_or(u64::MAX),
            stale: answer.age.stale,
            store_time_unix_ms: now.0,
        }),
        configuration_version: answer.configuration_version,
        combo: answer.combo,
    })
}

/// Exclusions as messages.
pub(super) fn exclusions(excluded: &[Exclusion], now: Timestamp) -> Vec<common::Exclusion> {
    excluded
        .iter()
        .map(|it| wire::routing::exclusion_to_proto(it, it.reason.as_str(), now))
        .collect()
}

fn deadlines(settings: &StreamSettings) -> proto::Deadlines {
    proto::Deadlines {
        connect_ms: settings.connect_timeout_ms,
        headers_ms: settings.headers_timeout_ms,
        readiness_ms: settings.readiness_timeout_ms,
        idle_ms: settings.idle_timeout_ms,
        attempt_ms: settings.attempt_deadline_ms,
        target_ms: 0,
    }
}

//! `tidegate.routing.v1.RoutingService`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::config::Config;
use tidegate_core::ids::{AttemptId, ConnectionId, EgressId, KeyId, PlaneIncarnation, ProviderId};
use tidegate_core::routing::{Decision, Exclusion, WaitKind};
use tidegate_core::settings::AttemptLimits;
use tidegate_core::time::Timestamp;
use tidegate_proto::common::v1 as common;
use tidegate_proto::routing::v1 as proto;
use tidegate_proto::routing::v1::routing_service_server::RoutingService;
use tidegate_telemetry::Traces;
use tidegate_wire as wire;
use tidegate_wire::WireError;
use tonic::{Request, Response, Status};

use crate::decide::{Answer, Ask, Awaited, Decider, LastFailure, MAX_WAITED, PermitPast, Ticket};
use crate::permits::{Held, PoolName};

use super::error::{Refusal, invalid, invalid_member};
use super::origin::Asked;

/// Longest model name that is looked up, in bytes.
const MAX_MODEL_BYTES: usize = 1_024;
/// Most numbers of attempts in a message about permits.
const MAX_NUMBERS: usize = 65_536;
/// Most probes in such a message.
const MAX_PROBES: usize = 1_024;

/// The service.
#[derive(Clone, Debug)]
pub(super) struct Routing {
    pub(super) decider: Arc<Decider>,
    pub(super) traces: Traces,
}

#[tonic::async_trait]
impl RoutingService for Routing {
    async fn decide(
        &self,
        request: Request<proto::DecideRequest>,
    ) -> Result<Response<proto::DecideResponse>, Status> {
        let mut asked = Asked::by(request.metadata(), &self.traces);
        let checked = self.checked(request.into_inner());
        let ask = checked.inspect_err(|status| asked.refused(status))?;
        let attempt = ask.attempt;
        let answer = self.decider.decide(ask).await;
        asked.answered(attempt, &answer);
        response(answer?).map(Response::new)
    }

    async fn r#await(
        &self,
        request: Request<proto::AwaitRequest>,
    ) -> Result<Response<proto::AwaitResponse>, Status> {
        let request = request.into_inner();
        let attempt = wire::attempt::id_from_proto(request.attempt).map_err(|it| invalid(&it))?;
        let ticket = Ticket::decode(&request.ticket)
            .ok_or_else(|| Refusal::InvalidRequest.status("the ticket is none of ours"))?;
        let waited = self
            .decider
            .await_permit(attempt, &ticket, request.waited_ms);
        let (granted, queue_full) = match waited.await? {
            Awaited::Granted => (true, false),
            Awaited::QueueFull => (false, true),
            Awaited::InVain => (false, false),
            Awaited::Draining => return Err(Refusal::NotReady.status("this replica ends")),
        };
        Ok(Response::new(proto::AwaitResponse {
            granted,
            queue_full,
        }))
    }

    async fn keep_permits(
        &self,
        request: Request<proto::KeepPermitsRequest>,
    ) -> Result<Response<proto::KeepPermitsResponse>, Status> {
        let request = request.into_inner();
        let plane = plane(request.plane)?;
        bounded(request.asked.len())?;
        let asked: BTreeSet<u64> = request.asked.into_iter().collect();
        let config = self.config()?;
        let held = known(&config, held(request.held)?);
        let mut probes = probes(plane, request.probes)?;
        probes.retain(|(provider, _)| config.provider(provider).is_some());
        let permits = &self.decider.permits;
        let kept = permits.keep(plane, request.newest, &asked, held);
        let renewed = self.decider.renew_probes(probes);
        if let (true, true) = tokio::join!(kept, renewed) {
            Ok(Response::new(proto::KeepPermitsResponse {}))
        } else {
            Err(Refusal::HotStoreAway.status("not every permit and probe was renewed"))
        }
    }

    async fn release_permits(
        &self,
        request: Request<proto::ReleasePermitsRequest>,
    ) -> Result<Response<proto::ReleasePermitsResponse>, Status> {
        let request = request.into_inner();
        let plane = plane(request.plane)?;
        self.give_back(plane, held(request.released)?)?;
        Ok(Response::new(proto::ReleasePermitsResponse {}))
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

impl Routing {
    /// What is asked, if it is understood. What comes back with it is taken back.
    fn checked(&self, mut request: proto::DecideRequest) -> Result<Ask, Status> {
        let released = held(std::mem::take(&mut request.released))?;
        let ask = ask(request)?;
        self.give_back(ask.attempt.plane, released)?;
        Ok(ask)
    }

    /// What is wished for afterwards finds these permits free.
    fn give_back(&self, plane: PlaneIncarnation, released: Held) -> Result<(), Status> {
        if released.is_empty() {
            return Ok(());
        }
        let config = self.config()?;
        for (pool, numbers) in known(&config, released) {
            for number in numbers {
                let attempt = AttemptId { plane, number };
                self.decider.permits.release(&pool, attempt);
            }
        }
        Ok(())
    }

    /// The configuration; who has none yet must not let anybody believe that it heard of permits.
    fn config(&self) -> Result<Arc<Config>, Status> {
        let config = self.decider.config.config();
        config.ok_or_else(|| Refusal::NotReady.status("this replica has no configuration yet"))
    }
}

/// Only what is configured here; permits of others end by themselves.
fn known(config: &Config, mut held: Held) -> Held {
    held.retain(|pool, _| {
        let connection = config.connection(&pool.connection);
        connection.is_some_and(|connection| connection.provider == pool.provider)
    });
    held
}

pub(super) fn plane(number: u64) -> Result<PlaneIncarnation, Status> {
    if number == 0 {
        return Err(Refusal::InvalidRequest.status("plane must not be 0"));
    }
    Ok(PlaneIncarnation(number))
}

pub(super) fn bounded(numbers: usize) -> Result<(), Status> {
    if numbers > MAX_NUMBERS {
        return Err(Refusal::InvalidRequest.status("more than 65,536 numbers"));
    }
    Ok(())
}

/// Probes as a message tells them.
fn probes(
    plane: PlaneIncarnation,
    messages: Vec<proto::HeldProbe>,
) -> Result<Vec<(ProviderId, AttemptId)>, Status> {
    if messages.len() > MAX_PROBES {
        return Err(Refusal::InvalidRequest.status("more than 1,024 probes"));
    }
    let mut probes = Vec::with_capacity(messages.len());
    for message in messages {
        let number = message.number;
        if let Some(provider) = name("probes.provider", &message.provider, ProviderId::new)? {
            probes.push((provider, AttemptId { plane, number }));
        }
    }
    Ok(probes)
}

/// Permits of connections as a message tells them.
pub(super) fn held(messages: Vec<proto::HeldPermits>) -> Result<Held, Status> {
    bounded(
        messages
            .iter()
            .map(|message| message.numbers.len().max(1))
            .sum(),
    )?;
    let mut held = BTreeMap::new();
    for message in messages {
        let pool = PoolName {
            provider: ProviderId::new(&message.provider)
                .map_err(|error| Refusal::InvalidRequest.status(format!("provider: {error}")))?,
            connection: ConnectionId::new(&message.connection)
                .map_err(|error| Refusal::InvalidRequest.status(format!("connection: {error}")))?,
        };
        let numbers: &mut BTreeSet<u64> = held.entry(pool).or_default();
        numbers.extend(message.numbers);
    }
    Ok(held)
}

fn permit_past(attempt: AttemptId, request: &proto::DecideRequest) -> Result<PermitPast, Status> {
    if request.waited_in_vain.len() > MAX_WAITED {
        return Err(Refusal::InvalidRequest.status("more than 64 entries in waited_in_vain"));
    }
    if request.queues_full.len() > MAX_WAITED {
        return Err(Refusal::InvalidRequest.status("more than 64 entries in queues_full"));
    }
    let mut waited_in_vain = BTreeSet::new();
    for connection in &request.waited_in_vain {
        waited_in_vain.extend(name("waited_in_vain", connection, ConnectionId::new)?);
    }
    let mut queues_full = BTreeSet::new();
    for connection in &request.queues_full {
        queues_full.extend(name("queues_full", connection, ConnectionId::new)?);
    }
    Ok(PermitPast {
        replaces: (request.replaces > 0).then_some(AttemptId {
            plane: attempt.plane,
            number: request.replaces,
        }),
        granted: name("granted", &request.granted, ConnectionId::new)?,
        waited_in_vain,
        queues_full,
    })
}

fn ask(mut request: proto::DecideRequest) -> Result<Ask, Status> {
    let facts = request
        .facts
        .take()
        .ok_or_else(|| Refusal::InvalidRequest.status("facts are missing"))?;
    if facts.model.len() > MAX_MODEL_BYTES {
        return Err(Refusal::InvalidRequest.status("facts.model is too long"));
    }
    let wire = |error: WireError| invalid(&error);
    let attempt = wire::attempt::id_from_proto(request.attempt).map_err(wire)?;
    Ok(Ask {
        permits: permit_past(attempt, &request)?,
        attempt,
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
        Err(error) => Err(invalid_member(field, format!("{field}: {error}"))),
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
                ..deadlines(answer.deadlines)
            }),
            order: dispatch.order,
            max_tools: dispatch.max_tools,
            emergency_max_tokens: dispatch.emergency_max_tokens,
            permit: answer.permit,
            target_key: dispatch.target_key.as_ref().to_owned(),
            combo: dispatch.combo.map(String::from).unwrap_or_default(),
        }),
        Decision::Wait(wait) => proto::decide_response::Step::Wait(proto::Wait {
            kind: match wait.kind {
                WaitKind::Cooldown => proto::WaitKind::Cooldown.into(),
                WaitKind::RetryDelay | WaitKind::FallbackDelay => {
                    proto::WaitKind::RetryDelay.into()
                }
                WaitKind::Permit => proto::WaitKind::Permit.into(),
            },
            elsewhere: wait.kind == WaitKind::FallbackDelay,
            wait_ms: wait.wait_ms,
            ticket: answer
                .ticket
                .as_ref()
                .map(Ticket::encode)
                .unwrap_or_default(),
            provider: answer
                .ticket
                .as_ref()
                .map(|ticket| ticket.provider.to_string())
                .unwrap_or_default(),
            connection: answer
                .ticket
                .map(|ticket| ticket.connection.to_string())
                .unwrap_or_default(),
        }),
        Decision::Plan(plan) => proto::decide_response::Step::Plan(wire::plan::to_proto(&plan)),
        Decision::TakeTurn(_) => return Err(Refusal::Internal.status("a number is missing")),
        Decision::ReadPin(_) => return Err(Refusal::Internal.status("a pin is missing")),
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

fn deadlines(limits: AttemptLimits) -> proto::Deadlines {
    proto::Deadlines {
        connect_ms: limits.connect_ms,
        headers_ms: limits.headers_ms,
        readiness_ms: limits.readiness_ms,
        idle_ms: limits.idle_ms,
        attempt_ms: limits.attempt_ms,
        target_ms: 0,
        body_ms: Some(limits.body_ms),
    }
}

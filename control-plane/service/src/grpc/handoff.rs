//! `tidegate.routing.v1.HandoffService`.

use std::sync::Arc;

use tidegate_core::ids::{ConnectionId, ModelId, ProviderId};
use tidegate_core::routing::relay::NoHandoff;
use tidegate_core::time::Timestamp;
use tidegate_proto::routing::v1 as proto;
use tidegate_proto::routing::v1::handoff_service_server::HandoffService;
use tidegate_wire as wire;
use tonic::{Request, Response, Status};

use crate::handoff::{HandoffError, Handoffs, Success};

use super::error::{Refusal, invalid};
use super::routing::name;

/// The service.
#[derive(Clone, Debug)]
pub(super) struct HandoffApi {
    pub(super) handoffs: Arc<Handoffs>,
}

#[tonic::async_trait]
impl HandoffService for HandoffApi {
    async fn fetch_handoff(
        &self,
        request: Request<proto::FetchHandoffRequest>,
    ) -> Result<Response<proto::FetchHandoffResponse>, Status> {
        let which = wire::handoff::name_from_proto(request.into_inner().name);
        let which = which.map_err(|error| invalid(&error))?;
        let found = self.handoffs.fetch(&which).await.map_err(status)?;
        Ok(Response::new(found.map_or_else(
            proto::FetchHandoffResponse::default,
            |(note, connection)| proto::FetchHandoffResponse {
                note: Some(wire::handoff::note_to_proto(&note)),
                connection: connection.to_string(),
            },
        )))
    }

    async fn begin_handoff(
        &self,
        request: Request<proto::BeginHandoffRequest>,
    ) -> Result<Response<proto::BeginHandoffResponse>, Status> {
        let request = request.into_inner();
        let quota = request.quota.map(wire::quota::from_proto).transpose();
        let success = Success {
            name: wire::handoff::name_from_proto(request.name).map_err(|error| invalid(&error))?,
            provider: required("provider", &request.provider, ProviderId::new)?,
            connection: required("connection", &request.connection, ConnectionId::new)?,
            model: required("model", &request.model, ModelId::new)?,
            quota: quota.map_err(|error| invalid(&error))?,
        };
        let response = match self.handoffs.begin(success).await.map_err(status)? {
            Ok(terms) => wire::handoff::terms_to_proto(terms),
            Err(why_not) => proto::BeginHandoffResponse {
                reason: reason(why_not).into(),
                ..proto::BeginHandoffResponse::default()
            },
        };
        Ok(Response::new(response))
    }

    async fn save_handoff(
        &self,
        request: Request<proto::SaveHandoffRequest>,
    ) -> Result<Response<proto::SaveHandoffResponse>, Status> {
        let request = request.into_inner();
        let which =
            wire::handoff::name_from_proto(request.name).map_err(|error| invalid(&error))?;
        let note = wire::handoff::note_from_proto(request.note).map_err(|error| invalid(&error))?;
        let connection = required("connection", &request.connection, ConnectionId::new)?;
        let expires_at = Timestamp(request.expires_at_unix_ms);
        let saved = self
            .handoffs
            .save(which, connection, expires_at, &note)
            .await
            .map_err(status)?;
        Ok(Response::new(proto::SaveHandoffResponse { saved }))
    }
}

fn required<'a, T, E: std::fmt::Display>(
    field: &str,
    text: &'a str,
    make: impl FnOnce(&'a str) -> Result<T, E>,
) -> Result<T, Status> {
    name(field, text, make)?
        .ok_or_else(|| Refusal::InvalidRequest.status(format!("{field} is missing")))
}

fn reason(why_not: NoHandoff) -> proto::NoHandoffReason {
    match why_not {
        NoHandoff::OtherStrategy
        | NoHandoff::OtherProvider
        | NoHandoff::QuotaUnknown
        | NoHandoff::BelowThreshold
        | NoHandoff::TooLate => proto::NoHandoffReason::NotWanted,
        NoHandoff::Active => proto::NoHandoffReason::Active,
        NoHandoff::Running => proto::NoHandoffReason::Running,
    }
}

fn status(error: HandoffError) -> Status {
    let refusal = match &error {
        HandoffError::NotReady => Refusal::NotReady,
        HandoffError::Durable(_) | HandoffError::Late => Refusal::DurableStoreAway,
        HandoffError::Hot(_) | HandoffError::GuardLate => Refusal::HotStoreAway,
        HandoffError::Seal(_) => Refusal::SealedElsewhere,
        HandoffError::NotANote => Refusal::Internal,
    };
    refusal.status(error.to_string())
}

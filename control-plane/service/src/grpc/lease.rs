//! `tidegate.lease.v1.LeaseService`.

use std::sync::Arc;

use tidegate_core::ids::KeyId;
use tidegate_core::lease::{
    ActivityName, EndReason, FenceError, LEASE_TTL_MS, LeaseName, MAX_MODEL_CHARACTERS,
};
use tidegate_proto::lease::v1 as proto;
use tidegate_proto::lease::v1::lease_service_server::LeaseService;
use tidegate_wire::lease as wire;
use tonic::{Request, Response, Status};

use crate::lease::{AcquireAsked, LeaseFault, Leases};

use super::error::{Refusal, invalid, invalid_member};

/// The service.
#[derive(Clone, Debug)]
pub(super) struct LeaseApi {
    pub(super) leases: Arc<Leases>,
}

#[tonic::async_trait]
impl LeaseService for LeaseApi {
    async fn acquire(
        &self,
        request: Request<proto::AcquireRequest>,
    ) -> Result<Response<proto::AcquireResponse>, Status> {
        use proto::acquire_response::Answer;
        let request = request.into_inner();
        let owner = wire::owner_from_proto("owner_sha256", &request.owner_sha256);
        let asked = AcquireAsked {
            owner: owner.map_err(|error| invalid(&error))?,
            key: key(request.key_id)?,
            model: model(&request.model)?,
            ttl_ms: ttl_ms(request.ttl_ms),
            configuration_version: request.configuration_version,
        };
        let answer = match self.leases.acquire(asked).await? {
            Ok(lease) => Answer::Lease(wire::lease_to_proto(&lease)),
            Err(error) => Answer::Refused(wire::refusal_to_proto(error)),
        };
        let answer = Some(answer);
        Ok(Response::new(proto::AcquireResponse { answer }))
    }

    async fn renew(
        &self,
        request: Request<proto::RenewRequest>,
    ) -> Result<Response<proto::RenewResponse>, Status> {
        use proto::renew_response::Answer;
        let request = request.into_inner();
        let (name, key) = (name(request.lease)?, key(request.key_id)?);
        let ttl_ms = ttl_ms(request.ttl_ms);
        let answer = match self.leases.renew(name, &key, ttl_ms).await? {
            Ok(lease) => Answer::Lease(wire::lease_to_proto(&lease)),
            Err(error) => Answer::Refused(wire::refusal_to_proto(error)),
        };
        let answer = Some(answer);
        Ok(Response::new(proto::RenewResponse { answer }))
    }

    async fn release(
        &self,
        request: Request<proto::ReleaseRequest>,
    ) -> Result<Response<proto::ReleaseResponse>, Status> {
        use proto::release_response::Answer;
        let request = request.into_inner();
        let (name, key) = (name(request.lease)?, key(request.key_id)?);
        let reason = reason(&request.reason)?;
        let answer = match self.leases.release(name, &key, reason).await? {
            Ok(lease) => Answer::Lease(wire::lease_to_proto(&lease)),
            Err(error) => Answer::Refused(wire::refusal_to_proto(error)),
        };
        let answer = Some(answer);
        Ok(Response::new(proto::ReleaseResponse { answer }))
    }

    async fn status(
        &self,
        request: Request<proto::StatusRequest>,
    ) -> Result<Response<proto::StatusResponse>, Status> {
        use proto::status_response::Answer;
        let request = request.into_inner();
        let (name, key) = (name(request.lease)?, key(request.key_id)?);
        let answer = match self.leases.status(name, &key).await? {
            Ok(standing) => Answer::Standing(proto::LeaseStanding {
                lease: Some(wire::lease_to_proto(&standing.lease)),
                // Documents name no connection for people, and its id may be somebody's.
                display_name: String::new(),
                provider: standing.provider.to_string(),
            }),
            Err(error) => Answer::Refused(wire::refusal_to_proto(error)),
        };
        let answer = Some(answer);
        Ok(Response::new(proto::StatusResponse { answer }))
    }

    async fn fence(
        &self,
        request: Request<proto::FenceRequest>,
    ) -> Result<Response<proto::FenceResponse>, Status> {
        use proto::fence_response::Answer;
        let request = request.into_inner();
        let (registration, key) = (registration(request.registration)?, key(request.key_id)?);
        let answer = match self.leases.fence(&registration, &key).await? {
            Ok(grant) => Answer::Grant(wire::grant_to_proto(grant)),
            Err(FenceError::Lease(error)) => Answer::Refused(wire::refusal_to_proto(error)),
            Err(FenceError::Superseded) => Answer::Superseded(true),
        };
        let answer = Some(answer);
        Ok(Response::new(proto::FenceResponse { answer }))
    }

    async fn renew_activity(
        &self,
        request: Request<proto::RenewActivityRequest>,
    ) -> Result<Response<proto::RenewActivityResponse>, Status> {
        let registration = registration(request.into_inner().registration)?;
        let grant = self.leases.renew_activity(&registration).await?;
        let grant = grant.map(wire::grant_to_proto);
        Ok(Response::new(proto::RenewActivityResponse { grant }))
    }

    async fn end_activity(
        &self,
        request: Request<proto::EndActivityRequest>,
    ) -> Result<Response<proto::EndActivityResponse>, Status> {
        let registration = registration(request.into_inner().registration)?;
        self.leases.end_activity(&registration).await?;
        Ok(Response::new(proto::EndActivityResponse {}))
    }
}

fn name(message: Option<tidegate_proto::common::v1::LeaseName>) -> Result<LeaseName, Status> {
    wire::name_from_proto("lease", message).map_err(|error| invalid(&error))
}

fn registration(message: Option<proto::Registration>) -> Result<ActivityName, Status> {
    let registration = wire::registration_from_proto(message).map_err(|error| invalid(&error))?;
    if registration.plane.0 == 0 {
        let message = "must not be 0".to_owned();
        return Err(invalid_member("registration.plane", message));
    }
    Ok(registration)
}

fn key(id: String) -> Result<KeyId, Status> {
    KeyId::new(id).map_err(|error| invalid_member("key_id", error.to_string()))
}

fn model(text: &str) -> Result<String, Status> {
    let text = text.trim();
    if text.is_empty() || text.chars().nth(MAX_MODEL_CHARACTERS).is_some() {
        let message = format!("must be 1 to {MAX_MODEL_CHARACTERS} characters");
        return Err(invalid_member("model", message));
    }
    Ok(text.to_owned())
}

fn ttl_ms(asked: u64) -> u64 {
    match asked {
        0 => LEASE_TTL_MS,
        asked => asked,
    }
}

fn reason(word: &str) -> Result<EndReason, Status> {
    match word {
        "" => Ok(EndReason::OwnerExit),
        word => EndReason::of_word(word)
            .filter(|reason| matches!(reason, EndReason::OwnerExit | EndReason::ClientCancelled))
            .ok_or_else(|| {
                let message = "must be OWNER_EXIT or CLIENT_CANCELLED".to_owned();
                invalid_member("reason", message)
            }),
    }
}

impl From<LeaseFault> for Status {
    fn from(fault: LeaseFault) -> Self {
        let refusal = match &fault {
            LeaseFault::NotReady => Refusal::NotReady,
            // Whatever it is, the call may be repeated, here or elsewhere.
            LeaseFault::Durable(_) | LeaseFault::Late => Refusal::DurableStoreAway,
        };
        refusal.status(fault.to_string())
    }
}

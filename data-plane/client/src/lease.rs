//! Leases, as a data plane has to do with them: what clients ask for ([`PlaneClient::lease`]), and the fence before each
//! attempt under one ([`PlaneClient::fence`]).
//!
//! **Stance:** fail-closed. Without an answer nothing is granted here; only what was granted before may still be used,
//! as long as that is safe (decision 42). Owners are known by their hashes alone, and not even those are told in logs.

mod ask;
mod clock;
mod ends;
mod fence;
mod leased;
mod presences;

use std::future::Future;

use tidegate_core::ids::{KeyId, ProviderId};
use tidegate_core::lease::{Action, LEASE_TTL_MS, LeaseError, LeaseName, LeaseSummary, Lifecycle};
use tidegate_proto::common::v1::LeaseRefusal;
use tidegate_proto::lease::v1 as proto;
use tidegate_proto::lease::v1::{
    acquire_response, release_response, renew_response, status_response,
};
use tidegate_wire::WireError;
use tidegate_wire::lease::{lease_from_proto, name_to_proto, refusal_from_proto};
use tonic::{Response, Status};

pub use leased::Leased;
pub(crate) use presences::Leases;

use self::ask::Client;
use crate::PlaneClient;
use crate::ask::Persist;

/// What a client is told about its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseAnswer {
    /// The lease.
    pub lease: LeaseSummary,
    /// Where it is, if it was asked how the lease stands.
    pub place: Option<LeasePlace>,
}

/// Where a lease is, as far as its owner may know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasePlace {
    /// The name that the operator gave the connection.
    pub display_name: Option<String>,
    /// Its provider.
    pub provider: ProviderId,
}

/// What the authority answered, before it is read.
enum Said {
    Lease(proto::Lease),
    Standing(proto::LeaseStanding),
    Refused(LeaseRefusal),
}

impl PlaneClient {
    /// Asks for what a client wants of its lease, within [`crate::Limits::lease`], also of other replicas.
    ///
    /// # Errors
    /// The refusal; [`LeaseError::ServiceUnavailable`] when no replica answers. It may have happened then, and may be
    /// asked for again.
    pub async fn lease(&self, asked: &Lifecycle, key: &KeyId) -> Result<LeaseAnswer, LeaseError> {
        let key_id = key.to_string();
        let name = |generation| {
            let owner = asked.owner;
            Some(name_to_proto(&LeaseName { owner, generation }))
        };
        let said = match &asked.action {
            Action::Acquire { model } => {
                use acquire_response::Answer;
                let request = proto::AcquireRequest {
                    owner_sha256: asked.owner.as_bytes().to_vec(),
                    key_id,
                    model: model.clone(),
                    ttl_ms: LEASE_TTL_MS,
                    configuration_version: self.inner.configuration_version(),
                };
                let answer = self.ask_lifecycle(request, |mut client, request| async move {
                    client.acquire(request).await
                });
                answer.await?.answer.map(|answer| match answer {
                    Answer::Lease(lease) => Said::Lease(lease),
                    Answer::Refused(refused) => Said::Refused(refused),
                })
            }
            Action::Renew { generation } => {
                use renew_response::Answer;
                let request = proto::RenewRequest {
                    lease: name(*generation),
                    key_id,
                    ttl_ms: LEASE_TTL_MS,
                };
                let answer = self.ask_lifecycle(request, |mut client, request| async move {
                    client.renew(request).await
                });
                answer.await?.answer.map(|answer| match answer {
                    Answer::Lease(lease) => Said::Lease(lease),
                    Answer::Refused(refused) => Said::Refused(refused),
                })
            }
            Action::Release { generation, reason } => {
                use release_response::Answer;
                let request = proto::ReleaseRequest {
                    lease: name(*generation),
                    key_id,
                    reason: reason.as_str().to_owned(),
                };
                let answer = self.ask_lifecycle(request, |mut client, request| async move {
                    client.release(request).await
                });
                answer.await?.answer.map(|answer| match answer {
                    Answer::Lease(lease) => Said::Lease(lease),
                    Answer::Refused(refused) => Said::Refused(refused),
                })
            }
            Action::Status { generation } => {
                use status_response::Answer;
                let request = proto::StatusRequest {
                    lease: name(*generation),
                    key_id,
                };
                let answer = self.ask_lifecycle(request, |mut client, request| async move {
                    client.status(request).await
                });
                answer.await?.answer.map(|answer| match answer {
                    Answer::Standing(standing) => Said::Standing(standing),
                    Answer::Refused(refused) => Said::Refused(refused),
                })
            }
        };
        let read = said.ok_or(WireError::Missing("answer")).and_then(read);
        read.unwrap_or_else(|error| {
            tracing::warn!(%error, "the answer about a lease is not understood");
            Err(LeaseError::ServiceUnavailable)
        })
    }

    async fn ask_lifecycle<R, T, F>(
        &self,
        request: R,
        call: impl Fn(Client, R) -> F,
    ) -> Result<T, LeaseError>
    where
        R: Clone,
        T: Send + 'static,
        F: Future<Output = Result<Response<T>, Status>> + Send + 'static,
    {
        let limit = self.inner.limits.lease;
        let ask = |client| call(client, request.clone());
        let answer = self.inner.ask_leases(limit, Persist::Again, ask).await;
        answer.ok_or(LeaseError::ServiceUnavailable)
    }
}

fn read(said: Said) -> Result<Result<LeaseAnswer, LeaseError>, WireError> {
    Ok(match said {
        Said::Lease(lease) => Ok(LeaseAnswer {
            lease: lease_from_proto(&lease)?,
            place: None,
        }),
        Said::Standing(standing) => {
            let lease = standing.lease.ok_or(WireError::Missing("standing.lease"))?;
            let provider = ProviderId::new(&standing.provider);
            Ok(LeaseAnswer {
                lease: lease_from_proto(&lease)?,
                place: Some(LeasePlace {
                    display_name: Some(standing.display_name).filter(|name| !name.is_empty()),
                    provider: provider.map_err(|source| WireError::Name {
                        field: "standing.provider".to_owned(),
                        source,
                    })?,
                }),
            })
        }
        Said::Refused(refused) => Err(refusal_from_proto(&refused)),
    })
}

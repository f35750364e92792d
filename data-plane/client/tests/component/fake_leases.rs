//! The lease service of a replica: does what a test says, and remembers what it was asked.

use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::lease::{Capacity, LeaseError};
use tidegate_proto::lease::v1 as lease;
use tidegate_proto::lease::v1::lease_service_server::LeaseService;
use tidegate_wire::lease::refusal_to_proto;
use tokio::time::sleep;
use tonic::{Request, Response, Status};

/// What it does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// Answers well.
    Grants,
    /// The same, after this long.
    GrantsAfter(Duration),
    /// Refuses.
    Refuses(LeaseError),
    /// What is asked about is not there any more.
    Forgets,
    /// Has no store.
    Fails,
    /// Never answers.
    Hangs,
}

/// See the module's documentation.
pub(crate) struct Leasing {
    pub(crate) script: Mutex<Script>,
    pub(crate) grant: Mutex<lease::Grant>,
    pub(crate) acquired: Mutex<Vec<lease::AcquireRequest>>,
    pub(crate) renewed: Mutex<Vec<lease::RenewRequest>>,
    pub(crate) released: Mutex<Vec<lease::ReleaseRequest>>,
    pub(crate) fenced: Mutex<Vec<lease::FenceRequest>>,
    pub(crate) kept: Mutex<Vec<lease::Registration>>,
    pub(crate) ended: Mutex<Vec<lease::Registration>>,
}

impl Default for Leasing {
    fn default() -> Self {
        Self {
            script: Mutex::new(Script::Grants),
            grant: Mutex::new(lease::Grant {
                lease_ms: 120_000,
                horizon_ms: 30_000,
                guard_ms: 2_000,
            }),
            acquired: Mutex::default(),
            renewed: Mutex::default(),
            released: Mutex::default(),
            fenced: Mutex::default(),
            kept: Mutex::default(),
            ended: Mutex::default(),
        }
    }
}

impl Leasing {
    pub(crate) fn set(&self, script: Script) {
        *self.script.lock() = script;
    }

    /// Numbers of the registrations that ended.
    pub(crate) fn ends(&self) -> Vec<u64> {
        self.ended.lock().iter().map(|it| it.number).collect()
    }

    async fn answer<T>(
        &self,
        good: impl FnOnce() -> T,
        refused: impl FnOnce(tidegate_proto::common::v1::LeaseRefusal) -> T,
        gone: impl FnOnce() -> T,
    ) -> Result<Response<T>, Status> {
        let script = *self.script.lock();
        Ok(Response::new(match script {
            Script::Grants => good(),
            Script::GrantsAfter(delay) => {
                sleep(delay).await;
                good()
            }
            Script::Refuses(error) => refused(refusal_to_proto(error)),
            Script::Forgets => gone(),
            Script::Fails => return Err(Status::unavailable("on demand")),
            Script::Hangs => std::future::pending().await,
        }))
    }
}

/// The lease that every good answer is about.
pub(crate) fn lease(state: &str) -> lease::Lease {
    lease::Lease {
        state: state.to_owned(),
        generation: 3,
        acquired_at_unix_ms: 1_000,
        renewed_at_unix_ms: 2_000,
        expires_at_unix_ms: 122_000,
    }
}

/// A capacity answer.
pub(crate) fn full() -> LeaseError {
    LeaseError::Capacity(Capacity {
        retry_after_seconds: 17,
        eligible: 4,
    })
}

#[tonic::async_trait]
impl LeaseService for Leasing {
    async fn acquire(
        &self,
        request: Request<lease::AcquireRequest>,
    ) -> Result<Response<lease::AcquireResponse>, Status> {
        use lease::acquire_response::Answer;
        self.acquired.lock().push(request.into_inner());
        let response = |answer| lease::AcquireResponse { answer };
        self.answer(
            || response(Some(Answer::Lease(lease("ACTIVE")))),
            |refused| response(Some(Answer::Refused(refused))),
            || response(None),
        )
        .await
    }

    async fn renew(
        &self,
        request: Request<lease::RenewRequest>,
    ) -> Result<Response<lease::RenewResponse>, Status> {
        use lease::renew_response::Answer;
        self.renewed.lock().push(request.into_inner());
        let response = |answer| lease::RenewResponse { answer };
        self.answer(
            || response(Some(Answer::Lease(lease("ACTIVE")))),
            |refused| response(Some(Answer::Refused(refused))),
            || response(None),
        )
        .await
    }

    async fn release(
        &self,
        request: Request<lease::ReleaseRequest>,
    ) -> Result<Response<lease::ReleaseResponse>, Status> {
        use lease::release_response::Answer;
        self.released.lock().push(request.into_inner());
        let response = |answer| lease::ReleaseResponse { answer };
        self.answer(
            || response(Some(Answer::Lease(lease("RELEASED")))),
            |refused| response(Some(Answer::Refused(refused))),
            || response(None),
        )
        .await
    }

    async fn status(
        &self,
        _request: Request<lease::StatusRequest>,
    ) -> Result<Response<lease::StatusResponse>, Status> {
        use lease::status_response::Answer;
        let standing = || lease::LeaseStanding {
            lease: Some(lease("ACTIVE")),
            display_name: String::new(),
            provider: "a".to_owned(),
        };
        let response = |answer| lease::StatusResponse { answer };
        self.answer(
            || response(Some(Answer::Standing(standing()))),
            |refused| response(Some(Answer::Refused(refused))),
            || response(None),
        )
        .await
    }

    async fn fence(
        &self,
        request: Request<lease::FenceRequest>,
    ) -> Result<Response<lease::FenceResponse>, Status> {
        use lease::fence_response::Answer;
        self.fenced.lock().push(request.into_inner());
        let grant = *self.grant.lock();
        let response = |answer| lease::FenceResponse { answer };
        self.answer(
            || response(Some(Answer::Grant(grant))),
            |refused| response(Some(Answer::Refused(refused))),
            || response(None),
        )
        .await
    }

    async fn renew_activity(
        &self,
        request: Request<lease::RenewActivityRequest>,
    ) -> Result<Response<lease::RenewActivityResponse>, Status> {
        let registration = request.into_inner().registration.unwrap();
        self.kept.lock().push(registration);
        let grant = *self.grant.lock();
        let response = |grant| lease::RenewActivityResponse { grant };
        self.answer(
            || response(Some(grant)),
            |_| response(Some(grant)),
            || response(None),
        )
        .await
    }

    async fn end_activity(
        &self,
        request: Request<lease::EndActivityRequest>,
    ) -> Result<Response<lease::EndActivityResponse>, Status> {
        let registration = request.into_inner().registration.unwrap();
        if *self.script.lock() == Script::Fails {
            return Err(Status::unavailable("on demand"));
        }
        self.ended.lock().push(registration);
        Ok(Response::new(lease::EndActivityResponse {}))
    }
}

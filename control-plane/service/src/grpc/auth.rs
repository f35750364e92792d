//! Each call is looked at before its service sees it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use futures::future::Either;
use http::header::AUTHORIZATION;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use crate::access::{Access, Denied};

use super::error::Refusal;
use super::rules::need;

/// A service behind its guard. The caller is an extension of each request that gets through.
#[derive(Clone, Debug)]
pub(super) struct Guarded<S> {
    inner: S,
    access: Access,
}

impl<S> Guarded<S> {
    pub(super) fn new(inner: S, access: &Access) -> Self {
        let access = access.clone();
        Self { inner, access }
    }

    fn refusal<B>(&self, request: &mut http::Request<B>) -> Option<Status> {
        let Some(need) = need(request.uri().path()) else {
            // Nobody said who may call it, so nobody may, and it is as if there were none.
            return Some(Status::new(Code::Unimplemented, "there is no such method"));
        };
        let header = request.headers().get(AUTHORIZATION);
        let header = header.and_then(|value| value.to_str().ok());
        match self.access.admit(need, header) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                None
            }
            Err(denied) => {
                self.access.count(denied);
                Some(denied.into())
            }
        }
    }
}

impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        let refusal = match denied {
            Denied::Unknown => Refusal::Unauthenticated,
            Denied::NotAllowed(_) => Refusal::NotAllowed,
        };
        refusal.status(denied.to_string())
    }
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B, R> Service<http::Request<B>> for Guarded<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>, Error = Infallible>,
    R: Default,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<S::Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        match self.refusal(&mut request) {
            None => Either::Left(self.inner.call(request)),
            Some(status) => Either::Right(ready(Ok(status.into_http()))),
        }
    }
}

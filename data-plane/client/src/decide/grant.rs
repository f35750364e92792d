//! Grants that nobody uses are given back, also when the request they are for is dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::outcome::Attempt;
use tidegate_proto::common::v1 as common;
use tidegate_proto::routing::v1::{DecideResponse, decide_response};
use tidegate_wire::attempt::id_to_proto;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tonic::{Response, Status};

use crate::abandon::Abandoned;
use crate::client::Inner;
use crate::permits::{Permits, PoolName};

/// How long a question is followed after its limit, or after its request was dropped.
const FOLLOW: Duration = Duration::from_secs(2);

type Call = Pin<Box<dyn Future<Output = Result<Response<DecideResponse>, Status>> + Send>>;

/// A question on its way. Dropped without an answer, it is followed in the background.
pub(super) struct Question {
    inner: Arc<Inner>,
    /// `None` once it is answered.
    call: Option<Call>,
}

impl Question {
    pub(super) fn new(inner: &Arc<Inner>, call: Call) -> Self {
        Self {
            inner: Arc::clone(inner),
            call: Some(call),
        }
    }

    /// Its answer. May be cut off.
    pub(super) async fn answer(&mut self) -> Result<Response<DecideResponse>, Status> {
        let Some(call) = self.call.as_mut() else {
            return Err(Status::internal("the question was answered before"));
        };
        let answer = call.await;
        self.call = None;
        answer
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else {
            return;
        };
        // Outside a runtime, or without room, the call is cut off and its grant expires.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let Ok(permit) = Arc::clone(&self.inner.followed).try_acquire_owned() else {
            return;
        };
        let inner = Arc::clone(&self.inner);
        let follow = async move {
            let answered = tokio::select! {
                answered = timeout(FOLLOW, call) => answered,
                () = inner.stop.cancelled() => return,
            };
            if let Ok(Ok(_)) = &answered {
                inner.gate.answered_late(Instant::now());
            }
            if let Ok(Ok(response)) = answered
                && let Some(decide_response::Step::Dispatch(dispatch)) = response.into_inner().step
                && let Some(attempt) = dispatch.attempt
            {
                if dispatch.permit {
                    inner.give_back_unused(&attempt);
                }
                if attempt.probe {
                    inner.give_back_late_probe(&attempt);
                }
            }
            drop(permit);
        };
        self.inner.tracker.spawn_on(follow, &runtime);
    }
}

impl Inner {
    /// Gives back a permit that came with an answer which nobody uses.
    fn give_back_unused(&self, attempt: &common::Attempt) {
        let (Ok(provider), Ok(connection)) = (
            ProviderId::new(&attempt.provider),
            ConnectionId::new(&attempt.connection),
        ) else {
            return;
        };
        let number = attempt.id.map_or(0, |id| id.number);
        let pool = PoolName {
            provider,
            connection,
        };
        self.permits.release_late(number, pool);
    }
}

impl Inner {
    /// Gives back a probe that came with an answer which nobody uses, unless another answer rests on it.
    fn give_back_late_probe(&self, attempt: &common::Attempt) {
        let number = attempt.id.map_or(0, |id| id.number);
        let Ok(provider) = ProviderId::new(&attempt.provider) else {
            return;
        };
        if self.permits.gives_back_late_probe(number, &provider) {
            self.abandoned.push(Abandoned {
                attempt: attempt.id,
                provider: attempt.provider.clone(),
            });
        }
    }
}

/// An attempt that is being decided on. What answers grant it that come too late is given back when that has ended.
pub(super) struct Deciding<'a> {
    inner: &'a Inner,
    number: u64,
}

impl<'a> Deciding<'a> {
    pub(super) fn begin(inner: &'a Inner, number: u64) -> Self {
        inner.permits.deciding(number);
        Self { inner, number }
    }
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        let Self { inner, number } = *self;
        for provider in inner.permits.decided(number) {
            inner.abandoned.push(Abandoned {
                attempt: Some(common::AttemptId {
                    plane: inner.incarnation.0,
                    number,
                }),
                provider: provider.to_string(),
            });
        }
    }
}

/// A permit that is waited for. Dropped before the wait has ended, it is given back, should it have been granted.
pub(crate) struct Awaited<'a> {
    permits: &'a Permits,
    number: u64,
    /// `None` once the wait has ended.
    pool: Option<PoolName>,
}

impl<'a> Awaited<'a> {
    pub(crate) fn new(permits: &'a Permits, number: u64, pool: PoolName) -> Self {
        Self {
            permits,
            number,
            pool: Some(pool),
        }
    }

    /// It is granted.
    pub(crate) fn granted(mut self) {
        if let Some(pool) = self.pool.take() {
            self.permits.hold(self.number, pool);
        }
    }

    /// It is not, and will not be.
    pub(crate) fn refused(mut self) {
        self.pool = None;
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            self.permits.release_unused(self.number, pool);
        }
    }
}

/// An attempt that was decided on but not handed out yet. Dropped unclaimed, it is given back.
pub(super) struct Unclaimed<'a> {
    inner: &'a Inner,
    notice: Option<Abandoned>,
    permit: Option<(u64, PoolName)>,
}

impl<'a> Unclaimed<'a> {
    pub(super) fn new(inner: &'a Inner, attempt: &Attempt, permit: bool) -> Self {
        let pool = || PoolName {
            provider: attempt.provider.clone(),
            connection: attempt.connection.clone(),
        };
        Self {
            inner,
            permit: permit.then(|| (attempt.id.number, pool())),
            notice: Some(Abandoned {
                attempt: Some(id_to_proto(attempt.id)),
                // Named, the provider is looked through for a probe that a replica may not know of yet.
                provider: if attempt.probe {
                    attempt.provider.to_string()
                } else {
                    String::new()
                },
            }),
        }
    }

    /// It is handed out.
    pub(super) fn claim(mut self) {
        self.notice = None;
    }
}

impl Drop for Unclaimed<'_> {
    fn drop(&mut self) {
        if let Some(notice) = self.notice.take() {
            self.inner.abandoned.push(notice);
            if let Some((number, pool)) = self.permit.take() {
                self.inner.permits.release_unused(number, pool);
            }
        }
    }
}

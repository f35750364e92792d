//! One question, put to one replica after the other until one answers.
//!
//! A replica that fails is followed by the next at once. Replicas that are late go on being waited for as long as the
//! caller likes, together with one more: nothing is asked twice of the same one, so waiting adds no load to a control
//! plane that has too much of it. All of them know the attempt by its number, and what a second one grants is the same
//! grant.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tidegate_core::time::Timestamp;
use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tidegate_proto::routing::v1::{DecideRequest, DecideResponse};
use tokio::time::{Instant, timeout_at};
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::{Code, Extensions, Request, Response, Status};

use super::grant::Question;
use crate::client::Inner;
use crate::port::Origin;
use crate::replicas::{Asked, Replica};

/// Names the request that a question is asked for, in logs and traces of whoever answers.
const REQUEST_ID: &str = "tidegate-request-id";

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Not yet; it may still come.
    Late,
    /// No replica could be asked.
    Unreached,
    /// The question means nothing to the other side, or it says no.
    Unusable,
}

/// Dropped, what has no answer yet is followed ([`Question`]).
pub(super) struct Questions<'a> {
    inner: &'a Arc<Inner>,
    question: DecideRequest,
    /// Whose it is.
    origin: MetadataMap,
    asked: Asked,
    waiting: Vec<&'a Replica>,
    calls: FuturesUnordered<BoxFuture<'static, Heard>>,
    /// A replica that is well said no.
    refused: bool,
    /// It is for a managed request: what becomes of it says nothing of how replicas decide for others.
    is_managed: bool,
}

/// What a replica said.
struct Heard {
    index: usize,
    asked_at: Instant,
    answer: Result<Response<DecideResponse>, Status>,
}

impl<'a> Questions<'a> {
    pub(super) fn new(inner: &'a Arc<Inner>, question: DecideRequest, origin: &Origin) -> Self {
        Self {
            inner,
            question,
            origin: metadata(origin),
            asked: Asked::default(),
            waiting: Vec::new(),
            calls: FuturesUnordered::new(),
            refused: false,
            is_managed: false,
        }
    }

    /// For a managed request.
    pub(super) fn managed(inner: &'a Arc<Inner>, question: DecideRequest, origin: &Origin) -> Self {
        Self {
            is_managed: true,
            ..Self::new(inner, question, origin)
        }
    }

    /// Asks one more replica, if there is one, and waits for the first answer of any. May be called again after
    /// [`NoAnswer::Late`].
    pub(super) async fn answer(&mut self, deadline: Instant) -> Result<DecideResponse, NoAnswer> {
        let is_late = !self.calls.is_empty();
        self.ask_one_more();
        loop {
            let heard = match timeout_at(deadline, self.calls.next()).await {
                Ok(Some(heard)) => heard,
                Ok(None) => {
                    tracing::debug!("no replica of the control plane decided");
                    return Err(if self.refused {
                        NoAnswer::Unusable
                    } else {
                        NoAnswer::Unreached
                    });
                }
                Err(_) => {
                    if !self.is_managed {
                        self.inner.metrics.decide_timeouts.inc();
                        for replica in &self.waiting {
                            self.inner.replicas.failed(replica, Instant::now());
                        }
                    }
                    return Err(NoAnswer::Late);
                }
            };
            let answered = self.waiting.iter().position(|it| it.index == heard.index);
            let Some(replica) = answered.map(|at| self.waiting.swap_remove(at)) else {
                continue;
            };
            match heard.answer {
                Ok(response) => {
                    let response = response.into_inner();
                    self.take_in(replica, &response, heard.asked_at, is_late);
                    return Ok(response);
                }
                Err(status) => {
                    self.inner.metrics.decide_errors.inc();
                    tracing::debug!(
                        replica = %replica.name, error = %status, "the control plane did not decide"
                    );
                    match status.code() {
                        Code::InvalidArgument => return Err(NoAnswer::Unusable),
                        // It is well and says no, for example to a key that its configuration lacks;
                        // another replica's may be newer.
                        Code::FailedPrecondition | Code::NotFound | Code::Aborted => {
                            self.refused = true;
                        }
                        _ if self.is_managed => {}
                        _ => self.inner.replicas.failed(replica, Instant::now()),
                    }
                    if Instant::now() < deadline {
                        self.ask_one_more();
                    }
                }
            }
        }
    }

    fn ask_one_more(&mut self) {
        let asked_at = Instant::now();
        let Some(replica) = self.inner.replicas.choose(asked_at, self.asked) else {
            return;
        };
        let index = replica.index;
        self.asked.add(index);
        self.waiting.push(replica);
        let mut client = RoutingServiceClient::new(replica.channel());
        let (origin, question) = (self.origin.clone(), self.question.clone());
        let question = Request::from_parts(origin, Extensions::default(), question);
        let call = async move { client.decide(question).await };
        let mut call = Question::new(self.inner, Box::pin(call));
        self.calls.push(Box::pin(async move {
            Heard {
                index,
                asked_at,
                answer: call.answer().await,
            }
        }));
    }

    fn take_in(
        &self,
        replica: &Replica,
        response: &DecideResponse,
        asked_at: Instant,
        is_late: bool,
    ) {
        let now = Instant::now();
        let freshness = response.freshness.as_ref();
        if let Some(freshness) = freshness {
            let time = Timestamp(freshness.store_time_unix_ms);
            self.inner.clock.answered(asked_at, now, time);
        }
        // One that answers too late is alive, and still asked after the others.
        if (is_late || self.is_managed)
            && now.saturating_duration_since(asked_at) >= self.inner.limits.decide
        {
            self.inner.replicas.heard(replica, freshness, now);
        } else {
            self.inner.replicas.answered(replica, freshness, now);
        }
    }
}

/// What goes with a question besides it: nothing that the answer depends on.
fn metadata(origin: &Origin) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    if let Ok(id) = AsciiMetadataValue::try_from(&origin.request_id)
        && !origin.request_id.is_empty()
    {
        metadata.insert(REQUEST_ID, id);
    }
    let Some(trace) = &origin.trace else {
        return metadata;
    };
    let mut headers = metadata.into_headers();
    trace.write(&mut headers);
    MetadataMap::from_headers(headers)
}

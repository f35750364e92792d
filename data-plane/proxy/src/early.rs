//! A stream that is promised before it is known whether there will be one (`sessions-and-streams.md` §5.3, decision 53).
//!
//! Some clients give up on a connection that says nothing for a few seconds, while a fail-over, a cooldown or a queue may
//! take longer. With `streams.earlyKeepaliveMs` a client that asked for a stream and has heard nothing for so long is
//! promised one: status 200, `text/event-stream`, and heartbeats, the first at once. Behind it the request goes on as it
//! would have: it fails over, waits, asks others.
//!
//! | what it comes to | what the client gets |
//! |---|---|
//! | an answer within the time | just that, as if there were no such setting |
//! | a stream | its events |
//! | a whole answer | the same as a stream of one chunk |
//! | an error | an event in its format, with the status and the wait that the answer would have had |
//! | the end of a drain | an event in its format |
//!
//! The price is that nothing in the answer's head can depend on how it ends: there is no status, no `Retry-After`, and no
//! header that names who answered. The request's id is there, and leads to all of it in the log.
//!
//! The request runs in a task of its own, because a client that opens no window asks for no bytes and must not hold up
//! what else waits for this request's permit. The task belongs to the body: a client that leaves takes it along.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body::{Body, Frame};
use tidegate_core::config::Config;
use tokio_util::task::AbortOnDropHandle;

use crate::control_port::ControlPort;
use crate::endpoint::Endpoint;
use crate::heartbeat::{Heartbeat, Names};
use crate::metrics::{EarlyEnd, EarlyLabels, RefusalLabels};
use crate::plan;
use crate::proxy::Shared;
use crate::refusal::Refusal;
use crate::reply::{
    EVENT_STREAM, ErrorContext, NO_CACHE, REQUEST_ID, ReplyBody, in_band_answer, is_event_stream,
    refuse,
};
use crate::request::RequestBody;
use crate::sse::Dialect;

/// How long a client that asked for a stream is left without a word; `None` for as long as it takes.
pub(crate) fn patience(config: &Config) -> Option<Duration> {
    let ms = config.settings.streams.early_keepalive_ms;
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// What is known of the answer before it is there.
pub(crate) struct Promise {
    pub(crate) endpoint: Endpoint,
    pub(crate) request_id: String,
    /// As the client sent it.
    pub(crate) body: RequestBody,
}

/// Waits for the answer, and promises it when it takes longer than `patience`.
pub(crate) async fn keep<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    patience: Duration,
    promise: Promise,
    mut answering: Pin<Box<impl Future<Output = Response<ReplyBody>> + Send + 'static>>,
) -> Response<ReplyBody> {
    if let Ok(answer) = tokio::time::timeout(patience, answering.as_mut()).await {
        return answer;
    }
    let names = Names {
        request_id: &promise.request_id,
        model: &promise.body.model,
        now: shared.control.now(),
    };
    let heartbeat = Heartbeat::begin(
        promise.endpoint,
        shared.limits.heartbeats,
        &names,
        shared.metrics.heartbeats.clone(),
    );
    let mut response = Response::new(ReplyBody::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, EVENT_STREAM);
    headers.insert(CACHE_CONTROL, NO_CACHE);
    if let Ok(id) = HeaderValue::try_from(&promise.request_id) {
        headers.insert(REQUEST_ID, id);
    }
    let body = PromisedBody {
        state: State::Waiting(Box::new(Waiting {
            // Whether the body is asked for or not, the end of a drain ends it.
            answer: AbortOnDropHandle::new(
                (shared.tasks).spawn(shared.end.clone().run_until_cancelled_owned(answering)),
            ),
            heartbeat: heartbeat.map(Heartbeat::at_once),
            promise,
        })),
        shared: Arc::clone(shared),
    };
    *response.body_mut() = ReplyBody::Stream(Box::pin(body));
    response
}

/// The body of a promised stream.
struct PromisedBody<C: ControlPort> {
    state: State,
    shared: Arc<Shared<C>>,
}

enum State {
    Waiting(Box<Waiting>),
    Answering(ReplyBody),
}

struct Waiting {
    /// The request. It ends when this is dropped.
    answer: AbortOnDropHandle<Option<Response<ReplyBody>>>,
    heartbeat: Option<Heartbeat>,
    promise: Promise,
}

impl Waiting {
    /// The answer, or why there will be none.
    fn poll_answer(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<ReplyBody>, Refusal>> {
        Pin::new(&mut self.answer)
            .poll(context)
            .map(|answer| match answer {
                Ok(answer) => answer.ok_or(Refusal::ShuttingDown),
                // It panicked; what it was about ended with it.
                Err(_panicked) => Err(Refusal::Internal),
            })
    }
}

impl<C: ControlPort> PromisedBody<C> {
    /// What is left of an answer when its head is spent.
    fn keep_promise(&self, promise: &Promise, answer: Response<ReplyBody>) -> ReplyBody {
        let dialect = Dialect::of(promise.endpoint);
        let (head, body) = answer.into_parts();
        let whole = match body {
            ReplyBody::Stream(_) => {
                self.count(EarlyEnd::Stream);
                return body;
            }
            ReplyBody::Whole(whole) => whole.unwrap_or_default(),
        };
        if !head.status.is_success() {
            self.count(EarlyEnd::Error);
            let event = in_band_answer(dialect, head.status, &head.headers, &whole);
            return ReplyBody::whole(event);
        }
        self.count(EarlyEnd::Whole);
        let stream = if is_event_stream(&head.headers) {
            whole
        } else {
            let stream = plan::one_chunk(promise.endpoint, &promise.body, &whole);
            stream.unwrap_or_else(|| as_event(&whole))
        };
        ReplyBody::whole(stream).kept_for(self.shared.limits.stall_time, &self.shared.tasks)
    }

    fn count(&self, end: EarlyEnd) {
        let labels = EarlyLabels { end };
        let counter = self.shared.metrics.early_keepalives.get_or_create(&labels);
        counter.inc();
    }

    fn refuse(&self, endpoint: Endpoint, refusal: &Refusal) -> Response<ReplyBody> {
        let labels = RefusalLabels {
            code: refusal.kind().to_owned(),
        };
        self.shared.metrics.refusals.get_or_create(&labels).inc();
        refuse(endpoint.format(), refusal, ErrorContext::default())
    }
}

/// A body that is nothing we know, as the one event of a stream.
fn as_event(body: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(body.len().saturating_add(16));
    for line in body.split(|byte| matches!(byte, b'\n' | b'\r')) {
        if !line.is_empty() {
            event.extend_from_slice(b"data: ");
            event.extend_from_slice(line);
            event.push(b'\n');
        }
    }
    event.push(b'\n');
    event.into()
}

impl<C: ControlPort> Body for PromisedBody<C> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if let State::Waiting(waiting) = &mut this.state {
            let Poll::Ready(answer) = waiting.poll_answer(context) else {
                let heartbeat = waiting.heartbeat.as_mut();
                let event = heartbeat.and_then(|heartbeat| heartbeat.poll(context, None));
                return match event {
                    Some(event) => Poll::Ready(Some(Ok(Frame::data(event)))),
                    None => Poll::Pending,
                };
            };
            let placeholder = State::Answering(ReplyBody::empty());
            if let State::Waiting(waiting) = std::mem::replace(&mut this.state, placeholder) {
                let promise = &waiting.promise;
                let answer =
                    answer.unwrap_or_else(|refusal| this.refuse(promise.endpoint, &refusal));
                this.state = State::Answering(this.keep_promise(promise, answer));
            }
        }
        match &mut this.state {
            State::Answering(body) => Pin::new(body).poll_frame(context),
            State::Waiting(_) => Poll::Pending,
        }
    }
}

impl<C: ControlPort> Drop for PromisedBody<C> {
    fn drop(&mut self) {
        if matches!(self.state, State::Waiting(_)) {
            self.count(EarlyEnd::Left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_several_lines_is_one_event() {
        assert_eq!(
            as_event(b"{\n \"a\": 1\r\n}\n"),
            "data: {\ndata:  \"a\": 1\ndata: }\n\n"
        );
    }
}

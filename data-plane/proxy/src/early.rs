//! A stream that is promised before it is known whether there will be one (`sessions-and-streams.md` §5.3, decision 53).
//!
//! Some clients give up on a connection that says nothing for a few seconds, while a fail-over, a cooldown or a queue may
//! take longer. With `streams.earlyKeepaliveMs` a client that asked for a stream and has heard nothing for so long is
//! promised one: status 200, `text/event-stream`, and heartbeats, the first at once. Behind it the request goes on as it
//! would have: it fails over, waits, asks others.
//!
//! The same is done without that setting for a client whose stream is ready and held back (§4.4) for as long as two
//! heartbeats are apart: it would have them by then if nothing were held, and they are no commitment to what is.
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
//! The request runs in a task of its own, and so does what is made of its answer, because a client that opens no window
//! asks for no bytes and must not hold up what else waits for this request's permit, nor keep its answer for as long as it
//! likes. The task belongs to the body: a client that leaves takes it along.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body::{Body, Frame};
use tidegate_core::config::Config;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::control_port::ControlPort;
use crate::endpoint::Endpoint;
use crate::heartbeat::{Heartbeat, Heartbeats, Names};
use crate::metrics::{EarlyEnd, EarlyLabels, RefusalLabels};
use crate::plan;
use crate::proxy::Shared;
use crate::refusal::Refusal;
use crate::reply::{
    EVENT_STREAM, ErrorContext, NO_CACHE, REQUEST_ID, ReplyBody, in_band, in_band_answer,
    is_event_stream, refuse,
};
use crate::request::RequestBody;
use crate::sse::Dialect;
use crate::stream::STALLED;

/// How long a client that asked for a stream is left without a word. Without either time, for as long as it takes.
pub(crate) struct Patience {
    /// Since its request.
    whole: Option<Duration>,
    /// Since its stream is held back.
    held: Option<Duration>,
}

impl Patience {
    /// `None` where there is nothing to run out of.
    pub(crate) fn of(config: &Config, heartbeats: Heartbeats) -> Option<Self> {
        let settings = &config.settings;
        let ms = settings.streams.early_keepalive_ms;
        let whole = (ms > 0).then(|| Duration::from_millis(ms));
        let is_held = settings.stream_recovery.is_enabled();
        let held = heartbeats.every.filter(|every| is_held && !every.is_zero());
        (whole.is_some() || held.is_some()).then_some(Self { whole, held })
    }

    /// Comes when it has run out. `held_since` tells since when a stream is held back, while one is.
    pub(crate) async fn runs_out(self, held_since: watch::Receiver<Option<Instant>>) {
        let passes = async |time: Option<Duration>| match time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        };
        tokio::select! {
            () = passes(self.whole) => {}
            () = held_for(self.held, held_since) => {}
        }
    }
}

/// Comes when one stream has been held back for so long.
async fn held_for(time: Option<Duration>, mut since: watch::Receiver<Option<Instant>>) {
    loop {
        let began = *since.borrow_and_update();
        let by = began
            .zip(time)
            .and_then(|(began, time)| began.checked_add(time));
        let changed = match by {
            Some(by) => match timeout_at(by, since.changed()).await {
                Ok(changed) => changed,
                Err(_elapsed) => return,
            },
            None => since.changed().await,
        };
        if changed.is_err() {
            // Whoever held it back has an answer.
            return std::future::pending().await;
        }
    }
}

/// What is known of the answer before it is there.
pub(crate) struct Promise {
    pub(crate) endpoint: Endpoint,
    pub(crate) request_id: String,
    /// As the client sent it.
    pub(crate) body: RequestBody,
}

/// Waits for the answer, and promises it when `patience` runs out before.
pub(crate) async fn keep<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    patience: impl Future<Output = ()>,
    promise: Promise,
    mut answering: Pin<Box<impl Future<Output = Response<ReplyBody>> + Send + 'static>>,
) -> Response<ReplyBody> {
    tokio::select! {
        biased;
        answer = answering.as_mut() => return answer,
        () = patience => {}
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
    let endpoint = promise.endpoint;
    // Whether the body is asked for or not, the end of a drain ends it.
    let answering = shared.end.clone().run_until_cancelled_owned(answering);
    let task = {
        let shared = Arc::clone(shared);
        async move {
            let drained = || refused(&shared, endpoint, &Refusal::ShuttingDown);
            let answer = answering.await.unwrap_or_else(drained);
            keep_promise(&shared, &promise, answer)
        }
    };
    let body = PromisedBody {
        state: State::Waiting(Box::new(Waiting {
            answer: AbortOnDropHandle::new(shared.tasks.spawn(task)),
            heartbeat: heartbeat.map(Heartbeat::at_once),
        })),
        endpoint,
        shared: Arc::clone(shared),
    };
    *response.body_mut() = ReplyBody::Stream(Box::pin(body));
    response
}

/// The body of a promised stream.
struct PromisedBody<C: ControlPort> {
    state: State,
    endpoint: Endpoint,
    shared: Arc<Shared<C>>,
}

enum State {
    Waiting(Box<Waiting>),
    Answering(ReplyBody),
}

struct Waiting {
    /// The request, and what is left of its answer. It ends when this is dropped.
    answer: AbortOnDropHandle<ReplyBody>,
    heartbeat: Option<Heartbeat>,
}

/// What is left of an answer when its head is spent. What is whole is let go when its client does not ask for it.
fn keep_promise<C: ControlPort>(
    shared: &Shared<C>,
    promise: &Promise,
    answer: Response<ReplyBody>,
) -> ReplyBody {
    let dialect = Dialect::of(promise.endpoint);
    let (head, body) = answer.into_parts();
    let whole = match body {
        ReplyBody::Stream(_) => {
            count(shared, EarlyEnd::Stream);
            return body;
        }
        ReplyBody::Whole(whole) => whole.unwrap_or_default(),
    };
    let stream = if head.status.is_success() {
        count(shared, EarlyEnd::Whole);
        if is_event_stream(&head.headers) {
            whole
        } else {
            let stream = plan::one_chunk(promise.endpoint, &promise.body, &whole);
            stream.unwrap_or_else(|| as_event(&whole))
        }
    } else {
        count(shared, EarlyEnd::Error);
        in_band_answer(dialect, head.status, &head.headers, &whole)
    };
    let (code, message) = STALLED;
    let said = in_band(dialect, code, message, None);
    // It may be cut in the middle of an event, which this ends.
    let last_words = [b"\n\n".as_slice(), &said].concat();
    ReplyBody::whole(stream).kept_for(
        shared.limits.stall_time,
        Some(last_words.into()),
        &shared.tasks,
    )
}

fn count<C: ControlPort>(shared: &Shared<C>, end: EarlyEnd) {
    let labels = EarlyLabels { end };
    let counter = shared.metrics.early_keepalives.get_or_create(&labels);
    counter.inc();
}

fn refused<C: ControlPort>(
    shared: &Shared<C>,
    endpoint: Endpoint,
    refusal: &Refusal,
) -> Response<ReplyBody> {
    let labels = RefusalLabels {
        code: refusal.kind().to_owned(),
    };
    shared.metrics.refusals.get_or_create(&labels).inc();
    refuse(endpoint.format(), refusal, ErrorContext::default())
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

impl<C: ControlPort> PromisedBody<C> {
    /// The words for a request that came to no end.
    fn failed(&self) -> ReplyBody {
        count(&self.shared, EarlyEnd::Error);
        let (head, body) = refused(&self.shared, self.endpoint, &Refusal::Internal).into_parts();
        let body = match body {
            ReplyBody::Whole(body) => body.unwrap_or_default(),
            ReplyBody::Stream(_) => Bytes::new(),
        };
        let dialect = Dialect::of(self.endpoint);
        ReplyBody::whole(in_band_answer(dialect, head.status, &head.headers, &body))
    }
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
            // The first one is due at once, also when the answer is there by now.
            let heartbeat = waiting.heartbeat.as_mut();
            if let Some(event) = heartbeat.and_then(|heartbeat| heartbeat.poll(context, None)) {
                return Poll::Ready(Some(Ok(Frame::data(event))));
            }
            let answer = ready!(Pin::new(&mut waiting.answer).poll(context));
            // If it panicked, what it was about ended with it.
            this.state = State::Answering(answer.unwrap_or_else(|_panicked| this.failed()));
        }
        match &mut this.state {
            State::Answering(body) => Pin::new(body).poll_frame(context),
            State::Waiting(_) => Poll::Pending,
        }
    }
}

impl<C: ControlPort> Drop for PromisedBody<C> {
    fn drop(&mut self) {
        if let State::Waiting(waiting) = &self.state
            && !waiting.answer.is_finished()
        {
            count(&self.shared, EarlyEnd::Left);
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

//! Requests with an `Idempotency-Key`: the same one twice is sent once (`sessions-and-streams.md` §5.1).
//!
//! The rule is [`tidegate_core::idempotency`]; here are the waiting and the answers. A name belongs to the API key and
//! the endpoint that it was used with; of clients without a key, to the address that they come from, so that none of them
//! is given the answer, or refused because of the content, of another one. What is remembered is this data plane's own: a repetition that arrives at
//! another one is sent. `X-Request-Id` names no request in this sense, though the contract mentions it: proxies put
//! one on everything, some of them the same on what a client means to be two requests.
//!
//! | a second request, while the first | gets |
//! |---|---|
//! | runs | its whole answer, an error too |
//! | streams | 409 `idempotency_key_in_use` |
//! | ended with success, a moment ago | its whole answer |
//! | ended otherwise, or its client left | to run itself |
//! | differs in its content | 422 `idempotency_key_reused` |
//!
//! Requests under a lease are left out: each passes its fence by itself.

use std::convert::Infallible;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tidegate_core::config::ApiKey;
use tidegate_core::idempotency::{Entered, Ticket, Window, WindowLimits};
use tidegate_core::ids::KeyId;
use tidegate_core::routing::RequestFacts;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::dispatch::Passed;
use crate::endpoint::Endpoint;
use crate::metrics::{IdempotencyEnd, IdempotencyLabels, Metrics};
use crate::refusal::Refusal;
use crate::reply::{IDEMPOTENT_REPLAYED, ReplyBody};
use crate::request::RequestBody;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Longest name of a request, in bytes.
const MAX_NAME_BYTES: usize = 255;
const TRUE: HeaderValue = HeaderValue::from_static("true");

/// Who gives a request its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    /// The owner of an API key, wherever it comes from.
    Key(KeyId),
    /// A client without one, or whatever stands before it, at this address.
    At(IpAddr),
}

impl Whose {
    pub(crate) fn of(key: Option<&ApiKey>, peer: IpAddr) -> Self {
        match key {
            Some(key) => Self::Key(key.id.clone()),
            None => Self::At(peer.to_canonical()),
        }
    }
}

/// Whose request, where, and what it calls it.
type Name = (Whose, Endpoint, Bytes);

/// A request with a name.
#[derive(Debug)]
pub(crate) struct Named {
    name: Name,
    content: u64,
}

/// A whole answer that may be given again.
#[derive(Clone, Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// What the first request tells those that wait for it.
#[derive(Clone, Debug)]
enum Told {
    Answer(Answer),
    /// It has become a stream.
    Streams,
}

/// `None` until there is something to tell.
type Listener = watch::Receiver<Option<Told>>;

/// What is remembered of requests with names.
#[derive(Debug)]
pub(crate) struct Repetitions {
    window: Mutex<Window<Name, Listener, Answer>>,
    /// Room for requests that wait for the first one's answer.
    waiting: Semaphore,
    /// So that nobody can choose contents that look the same.
    hasher: RandomState,
    begun: Instant,
    metrics: Metrics,
}

/// The first request of a name, while it runs. Dropped without an answer, it never was.
struct Turn {
    repetitions: Arc<Repetitions>,
    name: Name,
    ticket: Ticket,
    teller: watch::Sender<Option<Told>>,
}

impl Repetitions {
    pub(crate) fn new(limits: WindowLimits, max_waiting: usize, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            window: Mutex::new(Window::new(limits)),
            waiting: Semaphore::new(max_waiting.min(Semaphore::MAX_PERMITS)),
            hasher: RandomState::new(),
            begun: Instant::now(),
            metrics,
        })
    }

    /// The name that a request has, if it has one that is heeded.
    ///
    /// # Errors
    /// [`Refusal::InvalidHeader`] when it has several names, or one that is too long.
    pub(crate) fn name(
        &self,
        whose: Whose,
        endpoint: Endpoint,
        headers: &HeaderMap,
        facts: &RequestFacts,
        body: &RequestBody,
        passed: &Passed,
    ) -> Result<Option<Named>, Refusal> {
        let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next().filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        if values.next().is_some() || value.len() > MAX_NAME_BYTES {
            return Err(Refusal::InvalidHeader(IDEMPOTENCY_KEY));
        }
        if facts.lease.is_some() {
            return Ok(None);
        }
        let mut content = self.hasher.build_hasher();
        body.bytes().hash(&mut content);
        passed.hash(&mut content);
        facts.forced_connection.hash(&mut content);
        Ok(Some(Named {
            name: (whose, endpoint, Bytes::copy_from_slice(value.as_bytes())),
            content: content.finish(),
        }))
    }

    /// Answers a request that has a name, by running it if it is the first of that name.
    ///
    /// # Errors
    /// [`Refusal::IdempotencyKeyInUse`] and [`Refusal::IdempotencyKeyReused`].
    pub(crate) async fn once(
        self: &Arc<Self>,
        named: Named,
        run: impl Future<Output = Response<ReplyBody>>,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let Named { name, content } = named;
        loop {
            let (teller, listener) = watch::channel(None);
            let now_ms = self.now_ms();
            let entered = self
                .window
                .lock()
                .enter(name.clone(), content, listener, now_ms);
            match entered {
                Entered::First(ticket) => {
                    self.count(IdempotencyEnd::First);
                    let turn = Turn {
                        repetitions: Arc::clone(self),
                        name,
                        ticket,
                        teller,
                    };
                    return Ok(turn.end(run.await));
                }
                Entered::Answered(answer) => {
                    self.count(IdempotencyEnd::Replayed);
                    return Ok(answer.again());
                }
                Entered::Other => {
                    self.count(IdempotencyEnd::Reused);
                    return Err(Refusal::IdempotencyKeyReused);
                }
                Entered::Full => {
                    self.count(IdempotencyEnd::NotRemembered);
                    return Ok(run.await);
                }
                Entered::Runs(mut listener) => {
                    let Ok(_room) = self.waiting.try_acquire() else {
                        self.count(IdempotencyEnd::NotRemembered);
                        return Ok(run.await);
                    };
                    let told = match listener.wait_for(Option::is_some).await {
                        Ok(told) => told.clone(),
                        // It ended without an answer, so the next one of those that wait is the first.
                        Err(_gone) => continue,
                    };
                    match told {
                        Some(Told::Answer(answer)) => {
                            self.count(IdempotencyEnd::Joined);
                            return Ok(answer.again());
                        }
                        Some(Told::Streams) => {
                            self.count(IdempotencyEnd::InUse);
                            return Err(Refusal::IdempotencyKeyInUse);
                        }
                        None => {}
                    }
                }
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn count(&self, end: IdempotencyEnd) {
        let labels = IdempotencyLabels { end };
        self.metrics.idempotency.get_or_create(&labels).inc();
    }

    fn forget_or_keep(&self, name: &Name, ticket: Ticket, answer: Option<(Answer, usize)>) {
        let now_ms = self.now_ms();
        let mut window = self.window.lock();
        window.end(name, ticket, answer, now_ms);
        let kept = i64::try_from(window.kept_bytes()).unwrap_or(i64::MAX);
        self.metrics.idempotency_kept_bytes.set(kept);
    }
}

impl Turn {
    /// Tells those that wait, keeps what is worth it, and holds the name while a stream runs.
    fn end(self, response: Response<ReplyBody>) -> Response<ReplyBody> {
        let (head, body) = response.into_parts();
        match body {
            ReplyBody::Whole(bytes) => {
                let answer = Answer {
                    status: head.status,
                    headers: head.headers.clone(),
                    body: bytes.clone().unwrap_or_default(),
                };
                if head.status.is_success() {
                    let size = answer.size();
                    let kept = Some((answer.apart(), size));
                    self.repetitions
                        .forget_or_keep(&self.name, self.ticket, kept);
                }
                self.teller.send_replace(Some(Told::Answer(answer)));
                Response::from_parts(head, ReplyBody::Whole(bytes))
            }
            ReplyBody::Stream(stream) => {
                self.teller.send_replace(Some(Told::Streams));
                let held = Held {
                    stream,
                    _turn: self,
                };
                Response::from_parts(head, ReplyBody::Stream(Box::pin(held)))
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // An answer that was kept stays.
        self.repetitions
            .forget_or_keep(&self.name, self.ticket, None);
    }
}

impl Answer {
    /// In memory of its own: as it came it may hold a whole buffer of its connection.
    fn apart(&self) -> Self {
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| {
            let apart = HeaderValue::from_bytes(value.as_bytes());
            (name.clone(), apart.unwrap_or_else(|_| value.clone()))
        });
        Self {
            status: self.status,
            headers: headers.collect(),
            body: Bytes::copy_from_slice(&self.body),
        }
    }

    fn size(&self) -> usize {
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| name.as_str().len().saturating_add(value.len()));
        headers.fold(self.body.len(), usize::saturating_add)
    }

    fn again(self) -> Response<ReplyBody> {
        tracing::info!(
            target: "tidegate::access",
            request_id = self.headers.get(crate::reply::REQUEST_ID).and_then(|id| id.to_str().ok()),
            status = self.status.as_u16(),
            "answered again"
        );
        let mut response = Response::new(ReplyBody::whole(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response.headers_mut().insert(IDEMPOTENT_REPLAYED, TRUE);
        response
    }
}

/// A stream whose request has a name.
struct Held {
    stream: Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>,
    _turn: Turn,
}

impl Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.stream.as_mut().poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.stream.size_hint()
    }
}

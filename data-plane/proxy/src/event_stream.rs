//! An upstream's stream with what is known of it.

mod following;

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Body as _;
use tidegate_core::config::Config;
use tidegate_core::outcome::StreamFault;
use tidegate_core::stream::{Turn, Watchdog, WatchdogLimits};
use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::passage::Passage;
use crate::sse::{Dialect, End, MAX_EVENT_BYTES};
use crate::stream::chunk::Shape;
use crate::upstream::UpstreamBody;
use following::Following;

/// The connection to the upstream and the bytes on their way.
#[derive(Debug)]
pub(crate) struct EventStream {
    /// `None` once it is let go.
    body: Option<UpstreamBody>,
    pub(crate) passage: Passage,
    /// When the last useful or protected event came; at first, when the stream became ready.
    pub(crate) progress: Instant,
    watchdog: Option<Watched>,
    /// Of a chat whose turn may be continued.
    following: Option<Box<Following>>,
}

/// A watchdog and where its clock began.
#[derive(Debug)]
struct Watched {
    watchdog: Watchdog,
    began: Instant,
}

/// How a stream is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// What it speaks.
    pub(crate) dialect: Dialect,
    /// How fast it must be, if that is watched (`sessions-and-streams.md` §4.2).
    pub(crate) watchdog: Option<WatchdogLimits>,
    /// Its beginning is held back (§4.4).
    pub(crate) is_held: bool,
    /// Its turn may be continued (§4.5).
    pub(crate) continues: bool,
}

/// What came of reading on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Bytes; they are in the passage.
    Taken,
    /// Bytes, and the watchdog found with them that the stream is too slow. They are in the passage, too.
    TooSlow,
    /// The upstream ended its stream in an orderly way.
    Ended,
    /// The connection broke.
    Broken,
}

impl Reading {
    /// As these settings say, which hold for an attempt from its beginning to its end (`sessions-and-streams.md` §4.8).
    pub(crate) fn of(endpoint: Endpoint, config: &Config) -> Self {
        let settings = &config.settings.stream_recovery;
        Self {
            dialect: Dialect::of(endpoint),
            watchdog: settings.watchdog(),
            is_held: settings.is_enabled(),
            continues: endpoint == Endpoint::ChatCompletions && settings.continues(),
        }
    }

    /// Its request may be sent once more where it went.
    pub(crate) fn may_be_sent_again(&self) -> bool {
        self.is_held || self.continues
    }
}

impl EventStream {
    pub(crate) fn new(body: UpstreamBody, reading: Reading) -> Self {
        let passage = Passage::new(reading.dialect);
        Self {
            body: Some(body),
            passage: if reading.continues {
                passage.keeping(Turn::default())
            } else {
                passage
            },
            progress: Instant::now(),
            watchdog: reading.watchdog.map(|limits| Watched {
                watchdog: Watchdog::new(limits),
                began: Instant::now(),
            }),
            following: reading.continues.then(Box::default),
        }
    }

    /// The next bytes for the client.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let following = self.following.as_mut();
        let next = following.and_then(|following| following.next());
        next.or_else(|| self.passage.next())
    }

    /// The next bytes for the client, if they are no more than so many.
    pub(crate) fn next_within(&mut self, most: usize) -> Option<Bytes> {
        let shown = self.following.as_ref().and_then(|it| it.next_bytes());
        let length = shown.or_else(|| self.passage.next_bytes())?;
        (length <= most).then(|| self.next())?
    }

    /// Bytes that wait here for the client.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let shown = self.following.as_ref().map_or(0, |it| it.shown_bytes());
        self.passage.whole_bytes().saturating_add(shown)
    }

    /// Bytes that wait here: for the client, or for the end of their event.
    pub(crate) fn held_bytes(&self) -> usize {
        let shown = self.following.as_ref().map_or(0, |it| it.shown_bytes());
        self.passage.held_bytes().saturating_add(shown)
    }

    /// More than one event's worth waits for the client.
    fn is_full(&self) -> bool {
        let shown = self.following.as_ref().map_or(0, |it| it.shown_bytes());
        self.passage.is_full() || shown > MAX_EVENT_BYTES
    }

    /// The end of its turn is kept back, because it may not be the end.
    pub(crate) fn keeps_end(&self) -> bool {
        self.following.as_ref().is_some_and(|it| it.keeps_back())
    }

    /// What is kept back is the client's.
    pub(crate) fn show_end(&mut self) {
        if let Some(following) = &mut self.following {
            following.show_kept();
        }
    }

    /// What was kept back, and the shape of its chunks.
    pub(crate) fn take_end(&mut self) -> (Vec<Bytes>, Option<Shape>) {
        let Some(following) = &mut self.following else {
            return (Vec::new(), None);
        };
        (following.take_kept(), following.shape.take())
    }

    /// Reads on. After the upstream's end there is nothing to be read.
    pub(crate) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Read> {
        loop {
            let Some(body) = self.body.as_mut() else {
                return Poll::Ready(Read::Ended);
            };
            return Poll::Ready(match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.take(data),
                    Err(_trailers) => continue,
                },
                Some(Err(_)) => Read::Broken,
                None => {
                    self.body = None;
                    self.passage.finish();
                    if let Some(following) = &mut self.following {
                        following.follows(&mut self.passage);
                    }
                    Read::Ended
                }
            });
        }
    }

    /// Reads on as far as that needs nothing more from the upstream; `None` when it does.
    pub(crate) fn poll_read_here(&mut self, context: &mut Context<'_>) -> Poll<Option<Read>> {
        if let Poll::Ready(read) = self.poll_read(context) {
            return Poll::Ready(Some(read));
        }
        let drained = self.body.as_ref().map(|body| body.poll_drained(context));
        drained.unwrap_or(Poll::Ready(())).map(|()| None)
    }

    /// Reads on, waited for.
    pub(crate) async fn read(&mut self) -> Read {
        std::future::poll_fn(|context| self.poll_read(context)).await
    }

    /// Takes bytes of the upstream.
    fn take(&mut self, data: Bytes) -> Read {
        if let Some(following) = &mut self.following {
            following.expects(&data, &mut self.passage);
        }
        let taken = self.passage.take(data);
        if let Some(following) = &mut self.following {
            following.follows(&mut self.passage);
        }
        if taken.progressed {
            self.progress = Instant::now();
        }
        let is_too_slow = self.watchdog.as_mut().is_some_and(|watched| {
            let elapsed = watched.began.elapsed().as_millis();
            let now_ms = u64::try_from(elapsed).unwrap_or(u64::MAX);
            watched.watchdog.sees(taken.progress, now_ms).is_err()
        });
        // Whoever has said everything is not late with it.
        if is_too_slow && self.passage.end() != End::Closed {
            Read::TooSlow
        } else {
            Read::Taken
        }
    }

    /// The upstream is not needed any more, nor what came of an event that will have no end.
    pub(crate) fn let_go(&mut self) {
        self.body = None;
        self.passage.drop_unfinished();
    }

    /// Drops what waits for the client. Gives back whether the client may be in the middle of an event then.
    pub(crate) fn forget(&mut self) -> bool {
        let is_inside = self.passage.is_inside() || self.held_bytes() > 0;
        self.following = None;
        self.passage.forget();
        is_inside
    }

    /// Reads until the first ready event.
    ///
    /// # Errors
    /// The stream ended, broke, was too slow, or said too much without being ready. [`Passage::take_error`] has the
    /// upstream's own words if it sent an error event instead.
    pub(crate) async fn until_ready(&mut self) -> Result<(), StreamFault> {
        loop {
            let read = self.read().await;
            if read == Read::Broken {
                return Err(StreamFault::EarlyEof);
            }
            if self.passage.is_ready() && read != Read::TooSlow {
                self.progress = Instant::now();
                return Ok(());
            }
            if read == Read::Ended || self.passage.has_error() {
                return Err(StreamFault::EarlyEof);
            }
            if read == Read::TooSlow {
                return Err(StreamFault::ThroughputTooLow);
            }
            if self.is_full() {
                return Err(StreamFault::ReadinessTimeout);
            }
        }
    }
}

//! A response body that is a list of steps: send, wait, break off, fall silent.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::connection::ConnectionState;
use crate::log::{Ending, RequestLog};
use crate::mode::Gate;

/// How often a body looks whether its bytes have left.
const LOOK: Duration = Duration::from_millis(1);
/// How often at most; a client that reads nothing is broken off all the same.
const MOST_LOOKS: u32 = 5_000;

/// One thing that a body does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Send(Bytes),
    Wait(Duration),
    /// Closes the connection when all that was sent before has left; over HTTP/2 it resets the stream.
    BreakOff,
    /// As [`Step::BreakOff`], with a TCP reset.
    Reset,
    /// The same so many times, without pause.
    Flood {
        bytes: Bytes,
        times: u64,
    },
    /// Nothing more until the gate is open.
    Await(Gate),
    /// Nothing more, for ever.
    Silence,
    /// The same again and again, for ever.
    Repeat {
        bytes: Bytes,
        every: Duration,
    },
}

/// Why a connection closes before its time; for hyper, which hands it to nobody.
#[derive(Debug, thiserror::Error)]
#[error("broken off on purpose")]
pub(crate) struct BrokenOff;

impl From<Infallible> for BrokenOff {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Tells the log how a request ended, at the latest when it is dropped.
#[derive(Debug)]
pub(crate) struct EndGuard {
    log: Arc<RequestLog>,
    number: u64,
    ending: Ending,
}

impl EndGuard {
    pub(crate) fn new(log: Arc<RequestLog>, number: u64) -> Self {
        Self {
            log,
            number,
            ending: Ending::Aborted,
        }
    }

    pub(crate) fn ends_as(&mut self, ending: Ending) {
        self.ending = ending;
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.log.end(self.number, self.ending);
    }
}

/// Bytes that tell that they are gone. Over HTTP/2 a reset takes with it what waits for its turn on the connection, and
/// flushes say nothing about one of many streams; but what has been put where it will be written is dropped.
struct Unsent {
    bytes: Bytes,
    _count: Arc<()>,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct PacedBody {
    steps: VecDeque<Step>,
    timer: Option<Pin<Box<Sleep>>>,
    gate: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Flushes seen when the body began to wait for one, and how often it has looked since.
    leaving: Option<(u64, u32)>,
    /// Held by whatever has not left, where the connection is not this body's alone.
    unsent: Arc<()>,
    connection: Arc<ConnectionState>,
    end: EndGuard,
}

impl PacedBody {
    pub(crate) fn new(
        steps: Vec<Step>,
        connection: Arc<ConnectionState>,
        mut end: EndGuard,
    ) -> Self {
        if steps.is_empty() {
            end.ends_as(Ending::Answered);
        }
        Self {
            steps: steps.into(),
            timer: None,
            gate: None,
            leaving: None,
            unsent: Arc::default(),
            connection,
            end,
        }
    }

    fn start_timer(&mut self, time: Duration) {
        self.timer = Some(Box::pin(sleep(time)));
    }

    /// Whether everything sent so far has left; if not, a timer runs.
    fn has_left(&mut self) -> bool {
        let flushes = self.connection.flushes();
        let (seen, looks) = *self.leaving.get_or_insert((flushes, 0));
        let has_left = if self.connection.is_multiplexed() {
            Arc::strong_count(&self.unsent) == 1
        } else {
            flushes > seen
        };
        if has_left || looks >= MOST_LOOKS {
            return true;
        }
        self.leaving = Some((seen, looks.saturating_add(1)));
        self.start_timer(LOOK);
        false
    }

    /// The next piece of the body.
    fn frame(&self, bytes: Bytes) -> Frame<Bytes> {
        if !self.connection.is_multiplexed() {
            return Frame::data(bytes);
        }
        let _count = Arc::clone(&self.unsent);
        Frame::data(Bytes::from_owner(Unsent { bytes, _count }))
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        loop {
            if let Some(timer) = &mut self.timer {
                ready!(timer.as_mut().poll(cx));
                self.timer = None;
            }
            if let Some(gate) = &mut self.gate {
                ready!(gate.as_mut().poll(cx));
                self.gate = None;
            }
            match self.steps.pop_front() {
                None => return Poll::Ready(None),
                Some(Step::Send(bytes)) => {
                    if self.steps.is_empty() {
                        self.end.ends_as(Ending::Answered);
                    }
                    return Poll::Ready(Some(Ok(self.frame(bytes))));
                }
                Some(Step::Wait(time)) => self.start_timer(time),
                Some(end @ (Step::BreakOff | Step::Reset)) => {
                    if self.has_left() {
                        if end == Step::Reset {
                            self.connection.reset_on_close();
                        }
                        self.end.ends_as(Ending::Broken);
                        return Poll::Ready(Some(Err(BrokenOff)));
                    }
                    self.steps.push_front(end);
                }
                Some(Step::Flood { bytes, times }) => {
                    let Some(left) = times.checked_sub(1) else {
                        continue;
                    };
                    if left > 0 {
                        self.steps.push_front(Step::Flood {
                            bytes: bytes.clone(),
                            times: left,
                        });
                    } else if self.steps.is_empty() {
                        self.end.ends_as(Ending::Answered);
                    }
                    return Poll::Ready(Some(Ok(self.frame(bytes))));
                }
                Some(Step::Await(gate)) => self.gate = Some(Box::pin(gate.opened())),
                Some(Step::Silence) => {
                    self.steps.push_front(Step::Silence);
                    // Nobody wakes us; the connection notices by itself when the client leaves.
                    return Poll::Pending;
                }
                Some(Step::Repeat { bytes, every }) => {
                    self.steps.push_front(Step::Repeat {
                        bytes: bytes.clone(),
                        every,
                    });
                    self.start_timer(every);
                    return Poll::Ready(Some(Ok(self.frame(bytes))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.steps.is_empty()
    }
}

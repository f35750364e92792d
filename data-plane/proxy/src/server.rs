//! Accepting: sockets, connections, and their limits.
//!
//! | what a client may do wrong | what happens |
//! |---|---|
//! | send nothing, or its head too slowly | the connection is closed after `head_time` |
//! | send more header than hyper takes | hyper answers 431 and closes, perhaps before all of it was read |
//! | refuse to read | at most 256 KiB are held for it; the connection is closed after `stall_time` |
//! | open too many connections | they wait in the kernel's queue |

mod io;
mod version;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::TaskTracker;

use crate::control_port::ControlPort;
use crate::handle;
use crate::metrics::Counted;
use crate::proxy::{Shared, Surface};
use io::PatientIo;

/// Pause after an accept that failed for lack of something, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What hyper itself refuses. Our own, smaller limits answer in the client's format.
const MAX_HEADERS: usize = 256;
/// Also what is held of an answer before more of it is asked for. With one event on top of it ([`crate::sse`]) and what
/// the upstream's connection holds ([`crate::upstream`]) that is at most 256 KiB for a client that does not read.
const MAX_HTTP1_BUFFER: usize = 48 * 1024;
const MAX_HTTP2_BUFFER: usize = 48 * 1024;
const MAX_HTTP2_HEAD_BYTES: u32 = 128 * 1024;
const MAX_STREAMS: u32 = 256;
const HTTP2_WINDOW: u32 = 1024 * 1024;
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(5);

/// Runs what hyper starts where a drain can await it.
#[derive(Clone, Debug)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// How connections are served.
struct Builders {
    http1: Builder<Tracked>,
    /// Finds out itself.
    either: Builder<Tracked>,
}

/// Accepts until the proxy stops.
pub(crate) async fn accept<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    listener: TcpListener,
    surface: Surface,
) {
    let either = builder(shared);
    let builders = Arc::new(Builders {
        http1: either.clone().http1_only(),
        either,
    });
    loop {
        let room = Arc::clone(shared.room(surface)).acquire_owned();
        let accepted = async {
            let room = room.await;
            (room, listener.accept().await)
        };
        let (room, accepted) = tokio::select! {
            () = shared.stop.cancelled() => return,
            accepted = accepted => accepted,
        };
        let Ok(room) = room else {
            return;
        };
        match accepted {
            Ok((stream, peer)) => {
                let (shared, builders) = (Arc::clone(shared), Arc::clone(&builders));
                shared.tasks.clone().spawn(async move {
                    let _open = (Counted::new(&shared.metrics.connections), room);
                    serve(&shared, &builders, stream, peer.ip(), surface).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn builder<C: ControlPort>(shared: &Shared<C>) -> Builder<Tracked> {
    let mut builder = Builder::new(Tracked(shared.tasks.clone()));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.limits.head_time)
        .max_headers(MAX_HEADERS)
        // Not `pipeline_flush`: it takes the limit off what is buffered for a client that does not read, and leaves
        // answers unsent while a client has sent more than was read.
        .max_buf_size(MAX_HTTP1_BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HTTP2_HEAD_BYTES)
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(MAX_HTTP2_BUFFER)
        .initial_stream_window_size(HTTP2_WINDOW)
        .initial_connection_window_size(HTTP2_WINDOW)
        .keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_TIME);
    builder
}

async fn serve<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    builders: &Builders,
    stream: TcpStream,
    peer: IpAddr,
    surface: Surface,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone before it was served");
        return;
    }
    // One of its own, since it is looked at whenever anything moves: all connections would take turns at the common one.
    let stop = shared.stop.child_token();
    let head_by = Instant::now() + shared.limits.head_time;
    // In a box that is gone when the connection is served, which may be for minutes.
    let first = Box::pin(timeout_at(head_by, version::is_http1(&stream)));
    let builder = match stop.run_until_cancelled(first).await {
        Some(Ok(Ok(true))) => &builders.http1,
        Some(Ok(Ok(false))) => &builders.either,
        // Nothing came in time, or never will.
        Some(Ok(Err(_)) | Err(_)) | None => return,
    };
    let asked = Arc::new(AtomicBool::new(false));
    let service = service_fn(|request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let shared = Arc::clone(shared);
        // hyper keeps room for this future as long as the connection lives, and a stream needs it only until its head is
        // sent. In a box it is gone by then.
        Box::pin(async move {
            Ok::<_, Infallible>(handle::handle(shared, surface, peer, request).await)
        })
    });
    let io = TokioIo::new(PatientIo::new(stream, shared.limits.stall_time));
    // Pinned to the stack it would be in this task twice: where it is made and where it is polled.
    let mut connection = Box::pin(builder.serve_connection(io, service));
    // hyper watches the time of a head only once it knows the HTTP version.
    let mut silence = Some(Box::pin(sleep_until(head_by)));
    let mut stopped = std::pin::pin!(stop.cancelled());
    let mut stopping = false;
    std::future::poll_fn(|context| {
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                if let Err(error) = ended {
                    tracing::debug!(error, "a connection ended with an error");
                }
                return Poll::Ready(());
            }
            if asked.load(Ordering::Relaxed) {
                silence = None;
            } else if let Some(silence) = &mut silence
                && silence.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(());
            }
            if stopping || stopped.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            stopping = true;
            connection.as_mut().graceful_shutdown();
        }
    })
    .await;
}

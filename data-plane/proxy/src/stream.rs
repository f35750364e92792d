//! A committed stream on its way to the client.
//!
//! The client's connection asks for the next bytes, this asks the upstream, so a slow client slows the upstream
//! down and a client that leaves drops everything at once. A client that opens no window is not asked for: a
//! watch beside it ([`attend`]) lets go of the upstream then. What ends it:
//!
//! | end | client sees | report |
//! |---|---|---|
//! | the dialect's last event, then the upstream's end | just that | none beyond the success at readiness |
//! | a finish reason, then an orderly end | just that | none |
//! | broken, or an end without either | in-band error, unless the turn is continued ([`continuation`]) | `Truncated` |
//! | no useful event in time | in-band error | `IdleTimeout` |
//! | too little text in time, where that is watched | in-band error | `ThroughputTooLow` |
//! | the attempt's deadline | in-band error | `DeadlineExceeded` |
//! | the upstream's own error event | just that | the error, as embedded |
//! | a drain's end | in-band error | none |
//! | the horizon of its lease | in-band error | `LeaseConflict`, which blames nobody |
//! | the client takes nothing for the stall time | in-band error, should it read on | none |
//! | the client leaves | – | none |

mod attend;
pub(crate) mod chunk;
mod continuation;
mod flow;
mod stop;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;
use tidegate_core::outcome::StreamFault;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::again::Again;
use crate::control_port::ControlPort;
use crate::event_stream::EventStream;
use crate::heartbeat::Heartbeat;
use crate::life::Life;
use crate::metrics::Counted;
use crate::observe::Clock;
use flow::Flow;
pub(crate) use stop::STALLED;

/// Without any limit the clock is still looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// See the module's documentation.
pub(crate) struct StreamBody<C: ControlPort> {
    flow: Arc<Mutex<Flow<C>>>,
    /// Ends with the stream.
    _watch: AbortOnDropHandle<()>,
}

/// Where the bytes come from.
pub(crate) struct Opened<C> {
    pub(crate) stream: EventStream,
    pub(crate) clock: Clock,
    /// It broke before its client saw any of it, which is reported.
    pub(crate) broken: Option<StreamFault>,
    /// With what the turn may be continued, if it may.
    pub(crate) again: Option<Arc<Again<C>>>,
}

/// What a stream needs beside the upstream and the request.
pub(crate) struct Surroundings<'a> {
    /// Where its watch runs.
    pub(crate) tasks: &'a TaskTracker,
    /// Cancelled at the end of a drain.
    pub(crate) drained: CancellationToken,
    /// How long a client may take nothing.
    pub(crate) stall_time: Duration,
    /// Counts the stream while it is open.
    pub(crate) open: Counted,
    /// Its signs of life, if it has any.
    pub(crate) heartbeat: Option<Heartbeat>,
}

impl<C: ControlPort> std::fmt::Debug for StreamBody<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("StreamBody").finish_non_exhaustive()
    }
}

impl<C: ControlPort> StreamBody<C> {
    /// Starts the watch, too.
    pub(crate) fn new(opened: Opened<C>, life: Life<C>, around: Surroundings<'_>) -> Self {
        let flow = Flow::new(opened, life, around.open, around.heartbeat);
        let flow = Arc::new(Mutex::new(flow));
        let watch = attend::attend(Arc::downgrade(&flow), around.drained, around.stall_time);
        Self {
            flow,
            _watch: AbortOnDropHandle::new(around.tasks.spawn(watch)),
        }
    }
}

impl<C: ControlPort> Body for StreamBody<C> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.flow.lock().poll_next(context);
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_plane_client::PlaneClient;

    use super::*;

    fn size_of_future<A, B, D, F>(_function: fn(A, B, D) -> F) -> usize {
        size_of::<F>()
    }

    /// Every open stream holds both, most of them for minutes.
    #[test]
    fn a_stream_is_small() {
        let flow = size_of::<Flow<PlaneClient>>();
        let watch = size_of_future(attend::attend::<PlaneClient>);
        assert!(flow <= 2_048, "the stream: {flow}");
        assert!(watch <= 640, "its watch: {watch}");
    }
}

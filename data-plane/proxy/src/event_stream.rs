//! An upstream's stream with what is known of it.

use http_body_util::BodyExt as _;
use tidegate_core::outcome::StreamFault;
use tokio::time::Instant;

use crate::passage::Passage;
use crate::sse::Dialect;
use crate::upstream::UpstreamBody;

/// The connection to the upstream and the bytes on their way.
#[derive(Debug)]
pub(crate) struct EventStream {
    pub(crate) body: UpstreamBody,
    pub(crate) passage: Passage,
    /// When the last useful or protected event came; at first, when the stream became ready.
    pub(crate) progress: Instant,
}

impl EventStream {
    pub(crate) fn new(body: UpstreamBody, dialect: Dialect) -> Self {
        Self {
            body,
            passage: Passage::new(dialect),
            progress: Instant::now(),
        }
    }

    /// Reads until the first ready event.
    ///
    /// # Errors
    /// The stream ended, broke, or said too much without being ready. [`Passage::take_error`] has the
    /// upstream's own words if it sent an error event instead.
    pub(crate) async fn until_ready(&mut self) -> Result<(), StreamFault> {
        let mut over = false;
        loop {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.passage.take(data);
                    }
                }
                Some(Err(_)) => return Err(StreamFault::EarlyEof),
                None => {
                    self.passage.finish();
                    over = true;
                }
            }
            if self.passage.is_ready() {
                self.progress = Instant::now();
                return Ok(());
            }
            if over || self.passage.has_error() {
                return Err(StreamFault::EarlyEof);
            }
            if self.passage.is_full() {
                return Err(StreamFault::ReadinessTimeout);
            }
        }
    }
}

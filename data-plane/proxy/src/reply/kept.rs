//! A whole answer for a client that may open no window for it.
//!
//! Over HTTP/1.1 a client that does not read loses its connection. Over HTTP/2 it can leave one stream's window shut and
//! be well otherwise, so that its answer would be held for as long as it likes. So an answer that is worth the trouble
//! leaves in pieces, each when there is room for it, and what is left of it is let go when nothing was asked for during
//! the stall time. The client then sees a body that is too short; or, where its head told of no length, last words of ours.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// What leaves at once. A shorter body is not watched: it costs less than the watch.
const PIECE_BYTES: usize = 16 * 1024;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct KeptBody {
    kept: Arc<Mutex<Kept>>,
    /// Ends the watch.
    _over: DropGuard,
}

#[derive(Debug)]
struct Kept {
    rest: Bytes,
    /// What is said instead of a rest that was let go.
    last_words: Bytes,
    /// How often the client's connection asked.
    polls: u64,
}

impl KeptBody {
    /// Whether a body is worth it.
    pub(super) fn is_for(bytes: &Bytes) -> bool {
        bytes.len() > PIECE_BYTES
    }

    /// Starts the watch, too. The rest is let go after one to two times `stall_time` without being asked for.
    pub(super) fn new(
        bytes: Bytes,
        last_words: Bytes,
        tasks: &TaskTracker,
        stall_time: Duration,
    ) -> Self {
        let kept = Arc::new(Mutex::new(Kept {
            rest: bytes,
            last_words,
            polls: 0,
        }));
        let over = CancellationToken::new();
        tasks.spawn(watch(Arc::downgrade(&kept), over.clone(), stall_time));
        Self {
            kept,
            _over: over.drop_guard(),
        }
    }
}

async fn watch(kept: Weak<Mutex<Kept>>, over: CancellationToken, stall_time: Duration) {
    let mut seen = 0;
    while over
        .run_until_cancelled(tokio::time::sleep(stall_time))
        .await
        .is_some()
    {
        let Some(kept) = kept.upgrade() else {
            return;
        };
        let mut kept = kept.lock();
        if kept.polls == seen {
            kept.rest = std::mem::take(&mut kept.last_words);
            return;
        }
        seen = kept.polls;
    }
}

impl Body for KeptBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut kept = self.kept.lock();
        kept.polls = kept.polls.wrapping_add(1);
        let length = kept.rest.len().min(PIECE_BYTES);
        let piece = kept.rest.split_to(length);
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.kept.lock().rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.kept.lock().rest.len();
        SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const STALL: Duration = Duration::from_secs(10);

    fn kept(length: usize) -> KeptBody {
        kept_with(length, Bytes::new())
    }

    fn kept_with(length: usize, last_words: Bytes) -> KeptBody {
        let bytes = Bytes::from(vec![b'x'; length]);
        KeptBody::new(bytes, last_words, &TaskTracker::new(), STALL)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_gets_all() {
        let mut body = kept(3 * PIECE_BYTES + 1);
        assert_eq!(body.size_hint().exact(), Some(49_153));
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            pieces.push(frame.unwrap().into_data().unwrap().len());
            // It asks once in the stall time, however slow.
            tokio::time::sleep(STALL - Duration::from_secs(1)).await;
        }
        assert_eq!(pieces, [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_is_let_go() {
        let mut body = kept(3 * PIECE_BYTES);
        assert!(body.frame().await.is_some());
        tokio::time::sleep(STALL * 2 + Duration::from_secs(1)).await;
        assert!(body.is_end_stream());
        assert!(body.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_let_go_may_leave_a_word() {
        let mut body = kept_with(3 * PIECE_BYTES, Bytes::from_static(b"gone"));
        assert!(body.frame().await.is_some());
        tokio::time::sleep(STALL * 2 + Duration::from_secs(1)).await;
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!(rest, "gone");
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_ends_with_the_body() {
        let tasks = TaskTracker::new();
        let body = KeptBody::new(Bytes::from_static(b"x"), Bytes::new(), &tasks, STALL);
        tasks.close();
        drop(body);
        tokio::time::timeout(Duration::from_millis(1), tasks.wait())
            .await
            .unwrap();
    }

    #[test]
    fn short_bodies_are_not_worth_it() {
        assert!(!KeptBody::is_for(&Bytes::from(vec![0; PIECE_BYTES])));
        assert!(KeptBody::is_for(&Bytes::from(vec![0; PIECE_BYTES + 1])));
    }
}

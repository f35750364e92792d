//! The body of an answer: whole, or a stream that runs until its upstream, its client or a limit ends it.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio_util::task::TaskTracker;

use super::kept::KeptBody;

/// A body for a client.
pub(crate) enum ReplyBody {
    /// In one piece; `None` once it is sent.
    Whole(Option<Bytes>),
    /// As it comes.
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>),
}

impl ReplyBody {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::Whole((!bytes.is_empty()).then_some(bytes))
    }

    /// A whole body that is let go, where that is worth the trouble, when nothing of it was asked for during
    /// `stall_time`. Its client is then told `last_words`, which there are if it was told of no length before.
    #[must_use]
    pub(crate) fn kept_for(
        self,
        stall_time: Duration,
        last_words: Option<Bytes>,
        tasks: &TaskTracker,
    ) -> Self {
        match self {
            Self::Whole(Some(bytes)) if KeptBody::is_for(&bytes) => {
                let kept = KeptBody::new(bytes, last_words.unwrap_or_default(), tasks, stall_time);
                Self::Stream(Box::pin(kept))
            }
            other => other,
        }
    }

    pub(crate) fn empty() -> Self {
        Self::Whole(None)
    }
}

impl fmt::Debug for ReplyBody {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Whole(_) => "ReplyBody::Whole",
            Self::Stream(_) => "ReplyBody::Stream",
        })
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(stream) => stream.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            Self::Stream(stream) => stream.size_hint(),
        }
    }
}

//! A request body of known length in a few pieces, none of which is copied.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// The pieces that are still to be sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    pieces: std::vec::IntoIter<Bytes>,
}

impl Pieces {
    pub(crate) fn new(mut pieces: Vec<Bytes>) -> Self {
        pieces.retain(|piece| !piece.is_empty());
        Self {
            pieces: pieces.into_iter(),
        }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.pieces.next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.as_slice().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let lengths = self.pieces.as_slice().iter().map(Bytes::len);
        let length: usize = lengths.fold(0, usize::saturating_add);
        SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
    }
}

//! The connection below HTTP: how it closes, when what was written has left, and what is said beside HTTP.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::mode::Closing;

/// What goes out before, or instead of, what HTTP writes.
#[derive(Debug)]
struct Words {
    left: Bytes,
    /// Whether HTTP's own bytes are dropped, and how the connection closes then.
    instead: Option<Closing>,
}

/// Shared by a connection and the requests on it.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    reset: AtomicBool,
    multiplexed: AtomicBool,
    flushes: AtomicU64,
    words: Mutex<Option<Words>>,
}

impl ConnectionState {
    /// These bytes go out before the next that HTTP writes.
    pub(crate) fn say_before(&self, bytes: Bytes) {
        *self.words.lock() = Some(Words {
            left: bytes,
            instead: None,
        });
    }

    /// These bytes go out instead of all that HTTP writes from now on.
    pub(crate) fn say_instead(&self, bytes: Bytes, then: Closing) {
        if then == Closing::Reset {
            self.reset_on_close();
        }
        *self.words.lock() = Some(Words {
            left: bytes,
            instead: Some(then),
        });
    }

    /// The connection closes with a TCP reset, whenever it closes; but not one that others use as well.
    pub(crate) fn reset_on_close(&self) {
        self.reset.store(!self.is_multiplexed(), Ordering::Relaxed);
    }

    /// It speaks HTTP/2.
    pub(crate) fn multiplexes(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    /// Whether other requests may be on it at the same time.
    pub(crate) fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// How often everything written had been handed to the kernel.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }
}

/// A TCP stream that tells and obeys its [`ConnectionState`].
#[derive(Debug)]
pub(crate) struct ObservedStream {
    stream: TcpStream,
    state: Arc<ConnectionState>,
}

impl ObservedStream {
    pub(crate) fn new(stream: TcpStream, state: Arc<ConnectionState>) -> Self {
        Self { stream, state }
    }

    /// Says what is to be said beside HTTP; then tells how the connection closes if HTTP's own bytes are dropped.
    fn poll_words(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Closing>>> {
        let mut words = self.state.words.lock();
        let Some(said) = words.as_mut() else {
            return Poll::Ready(Ok(None));
        };
        while said.left.has_remaining() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &said.left))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            said.left.advance(written);
        }
        let instead = said.instead;
        if instead.is_none() {
            *words = None;
        }
        Poll::Ready(Ok(instead))
    }

    /// Ready when the client has left.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut scratch = [0; 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl Drop for ObservedStream {
    fn drop(&mut self) {
        if self.state.reset.load(Ordering::Relaxed) {
            // With a lingering time of zero, close sends a reset. If it is refused, the client sees an ordinary end.
            drop(self.stream.set_zero_linger());
        }
    }
}

impl AsyncRead for ObservedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for ObservedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if ready!(self.poll_words(cx))?.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if ready!(self.poll_words(cx))?.is_some() {
            return Poll::Ready(Ok(buffers.iter().map(|buffer| buffer.len()).sum()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // HTTP calls this only when it has written all it had.
        self.state.flushes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state.reset.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let closing = ready!(self.poll_words(cx))?;
        if closing != Some(Closing::StayOpen) {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        match closing {
            Some(Closing::StayOpen | Closing::HalfClose) => self.poll_left(cx),
            Some(Closing::Close | Closing::Reset) | None => Poll::Ready(Ok(())),
        }
    }
}

//! The connection below HTTP: how it closes, and when what was written has left.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Shared by a connection and the requests on it.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    reset: AtomicBool,
    flushes: AtomicU64,
}

impl ConnectionState {
    /// The connection closes with a TCP reset, whenever it closes.
    pub(crate) fn reset_on_close(&self) {
        self.reset.store(true, Ordering::Relaxed);
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
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

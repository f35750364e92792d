//! Whether more of an answer is here than was handed over.
//!
//! hyper reads a connection over HTTP/1.1 in a task of its own, as much at a time as its buffer takes, and hands over one chunk
//! of a body at a time; the next one only when that was taken. So whoever reads the body cannot see whether others lie in the
//! buffer. It is known once hyper asks the connection for more bytes and there are none: then it has handed over all it had.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use parking_lot::Mutex;

/// What is known of one connection. Clones are of the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Supply(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_dry: AtomicBool,
    /// Of whoever waits to know.
    reader: Mutex<Option<Waker>>,
}

impl Supply {
    /// Ready once everything that was read of the connection was handed over. One waits at a time: another one who did
    /// before is woken, and looks for itself. It may be the reader of an answer that has just ended.
    pub(super) fn poll_dry(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_dry() {
            return Poll::Ready(());
        }
        let before = self.0.reader.lock().replace(context.waker().clone());
        if let Some(before) = before.filter(|before| !before.will_wake(context.waker())) {
            before.wake();
        }
        // It may have dried up before the waker was there.
        if self.is_dry() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn is_dry(&self) -> bool {
        self.0.is_dry.load(Ordering::Acquire)
    }

    fn flows(&self) {
        self.0.is_dry.store(false, Ordering::Release);
    }

    fn dries_up(&self) {
        if self.0.is_dry.swap(true, Ordering::AcqRel) {
            return;
        }
        let reader = self.0.reader.lock().take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// A connection whose supply is watched. Responses that come over it have the [`Supply`] among their extensions.
#[derive(Debug)]
pub(super) struct Tapped<T> {
    connection: T,
    supply: Supply,
}

impl<T> Tapped<T> {
    pub(super) fn new(connection: T) -> Self {
        Self {
            connection,
            supply: Supply::default(),
        }
    }
}

impl<T> Drop for Tapped<T> {
    fn drop(&mut self) {
        self.supply.dries_up();
    }
}

impl<T: Connection> Connection for Tapped<T> {
    fn connected(&self) -> Connected {
        self.connection.connected().extra(self.supply.clone())
    }
}

impl<T: Read + Unpin> Read for Tapped<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.connection).poll_read(context, buffer);
        match read {
            Poll::Ready(_) => self.supply.flows(),
            Poll::Pending => self.supply.dries_up(),
        }
        read
    }
}

impl<T: Write + Unpin> Write for Tapped<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(context, pieces)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use futures::FutureExt as _;
    use futures::future::poll_fn;
    use hyper::rt::ReadBuf;
    use hyper_util::rt::TokioIo;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Wakes {
        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    /// hyper asks for bytes.
    fn asks<T: Read + Unpin>(tapped: &mut Tapped<T>) -> bool {
        let mut bytes = [0; 8];
        let mut buffer = ReadBuf::new(&mut bytes);
        let read = poll_fn(|context| Pin::new(&mut *tapped).poll_read(context, buffer.unfilled()));
        read.now_or_never().is_some()
    }

    #[tokio::test]
    async fn it_is_dry_while_hyper_waits_for_bytes_or_is_gone() {
        let (mut upstream, ours) = tokio::io::duplex(64);
        let mut tapped = Tapped::new(TokioIo::new(ours));
        let supply = tapped.supply.clone();
        let (one, other) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
        let wakers = [&one, &other].map(|it| Waker::from(Arc::clone(it)));
        let context = Context::from_waker(&wakers[0]);
        let wakes = || (one.count(), other.count());
        // Nothing was asked for, so nobody knows.
        assert!(supply.poll_dry(&context).is_pending());
        assert!(!asks(&mut tapped));
        assert_eq!(wakes(), (1, 0));
        assert!(supply.poll_dry(&context).is_ready());

        upstream.write_all(b"more").await.unwrap();
        assert!(asks(&mut tapped));
        assert!(supply.poll_dry(&context).is_pending());
        // Somebody else waits from now on, and who did looks again.
        let context = Context::from_waker(&wakers[1]);
        assert!(supply.poll_dry(&context).is_pending());
        assert!(supply.poll_dry(&context).is_pending());
        assert_eq!(wakes(), (2, 0));
        drop(tapped);
        assert_eq!(wakes(), (2, 1));
        assert!(supply.poll_dry(&context).is_ready());
    }
}

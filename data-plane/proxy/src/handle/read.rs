//! Reading a request's body, within its limits.
//!
//! A client that writes its whole request before it reads must be let to the end of it, or it is told of nothing but a broken
//! connection. So what is refused is read all the same, to be thrown away as it comes: for a while, up to a length, and of
//! requests whose heads are refused only so many at once, since this is all that a stranger can have done for a long body.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::limits::Limits;
use crate::refusal::Refusal;

/// A body that is refused is still read for this long and this many bytes: a client that is cut off while it
/// writes may never read why.
const COURTESY_TIME: Duration = Duration::from_secs(2);
const COURTESY_BYTES: usize = 64 * 1024 * 1024;
/// The same of a body whose head is refused.
const UNREAD_BYTES: usize = 16 * 1024 * 1024;
/// Most of those at once; the connections of further ones end while they write.
const MAX_UNREAD: usize = 16;
/// Room that is made at once on a client's word.
const MAX_PREPARED_BYTES: usize = 256 * 1024;

/// Room for bodies whose heads are refused.
#[derive(Debug)]
pub(crate) struct Unread(Semaphore);

impl Default for Unread {
    fn default() -> Self {
        Self(Semaphore::new(MAX_UNREAD))
    }
}

impl Unread {
    /// Lets the client of a request whose head is refused write its body, so that it reads why.
    pub(super) async fn discard(&self, headers: &HeaderMap, body: impl Body<Data = Bytes> + Unpin) {
        if body.is_end_stream() {
            return;
        }
        if let Ok(_place) = self.0.try_acquire() {
            discard_unasked(headers, body, UNREAD_BYTES).await;
        }
    }
}

/// The whole body.
///
/// # Errors
/// It is compressed, too long, too slow, or its client left.
pub(super) async fn body(
    headers: &HeaderMap,
    body: Incoming,
    limits: &Limits,
) -> Result<Bytes, Refusal> {
    up_to(headers, body, limits.max_body_bytes, limits.body_time).await
}

/// The whole body of at most `limit` bytes, within `time`.
///
/// # Errors
/// As [`body`].
pub(super) async fn up_to(
    headers: &HeaderMap,
    mut body: Incoming,
    limit: usize,
    time: Duration,
) -> Result<Bytes, Refusal> {
    let encoded = headers
        .get(CONTENT_ENCODING)
        .is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"));
    if encoded {
        discard_unasked(headers, body, COURTESY_BYTES).await;
        return Err(Refusal::BodyEncoded);
    }
    let by = Instant::now() + time;
    let announced = announced(headers);
    if announced.is_some_and(|length| length > limit) {
        discard_unasked(headers, body, COURTESY_BYTES).await;
        return Err(Refusal::BodyTooLarge { limit });
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    loop {
        let frame = match tokio::time::timeout_at(by, body.frame()).await {
            Err(_elapsed) => return Err(Refusal::BodyTimeout),
            Ok(None) => break,
            Ok(Some(Err(_))) => return Err(Refusal::BodyBroken),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let length = first.len().saturating_add(rest.len());
        if length.saturating_add(data.len()) > limit {
            discard(body, COURTESY_BYTES).await;
            return Err(Refusal::BodyTooLarge { limit });
        }
        // Most bodies come in one piece, which is then not copied.
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            rest.reserve(announced.unwrap_or(0).min(MAX_PREPARED_BYTES));
        }
        rest.extend_from_slice(&std::mem::take(&mut first));
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() {
        first
    } else {
        rest.freeze()
    })
}

fn announced(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Nothing of the body has been read. Who asks whether to write it is answered instead: reading would tell it to.
async fn discard_unasked(headers: &HeaderMap, body: impl Body<Data = Bytes> + Unpin, bytes: usize) {
    if !headers.contains_key(EXPECT) {
        discard(body, bytes).await;
    }
}

async fn discard(mut body: impl Body<Data = Bytes> + Unpin, bytes: usize) {
    let mut left = bytes;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            left = left.saturating_sub(length);
            if left == 0 {
                break;
            }
        }
    };
    // Whether it ended or time was up, the answer is the same.
    let _courtesy = tokio::time::timeout(COURTESY_TIME, reading).await;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream::{self, Stream, StreamExt as _};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio::sync::mpsc;

    use super::*;

    const PIECE: usize = 64 * 1024;

    fn body(
        frames: impl Stream<Item = Bytes> + Unpin,
    ) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        StreamBody::new(frames.map(|piece| Ok(Frame::data(piece))))
    }

    fn piece() -> Bytes {
        Bytes::from_static(&[b' '; PIECE])
    }

    /// A body without an end, and what is there of it after a time.
    fn endless() -> (impl Stream<Item = Bytes> + Unpin, mpsc::Receiver<()>) {
        let (read, seen) = mpsc::channel(100_000);
        let pieces = stream::repeat_with(move || {
            assert!(read.try_send(()).is_ok(), "far too much is read");
            piece()
        });
        (pieces, seen)
    }

    #[tokio::test]
    async fn of_a_refused_body_no_more_is_read_than_a_stranger_may_cost() {
        let (pieces, seen) = endless();
        Unread::default()
            .discard(&HeaderMap::new(), body(pieces))
            .await;
        assert_eq!(seen.len(), UNREAD_BYTES / PIECE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_body_that_does_not_come_is_not_waited_for() {
        let began = Instant::now();
        let silent = body(stream::pending());
        Unread::default().discard(&HeaderMap::new(), silent).await;
        assert_eq!(began.elapsed(), COURTESY_TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_refused_bodies_are_read_at_once_and_no_more() {
        let unread = Unread::default();
        let headers = HeaderMap::new();
        let silent = stream::iter(0..MAX_UNREAD)
            .map(|_| unread.discard(&headers, body(stream::pending())))
            .buffer_unordered(MAX_UNREAD);
        let mut silent = std::pin::pin!(silent.collect::<Vec<_>>());
        assert!(futures::poll!(silent.as_mut()).is_pending());
        let (pieces, seen) = endless();
        unread.discard(&headers, body(pieces)).await;
        assert!(seen.is_empty());
        silent.await;
        let (pieces, seen) = endless();
        unread.discard(&headers, body(pieces)).await;
        assert!(!seen.is_empty());
    }

    #[tokio::test]
    async fn who_asks_whether_to_write_is_not_let_write() {
        let headers = HeaderMap::from_iter([(EXPECT, "100-continue".parse().unwrap())]);
        let (pieces, seen) = endless();
        Unread::default().discard(&headers, body(pieces)).await;
        assert!(seen.is_empty());
    }
}

//! Reading a request's body, within its limits.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::limits::Limits;
use crate::refusal::Refusal;

/// A body that is too long is still read for this long and this many bytes: a client that is cut off while it
/// writes may never read why.
const COURTESY_TIME: Duration = Duration::from_secs(2);
const COURTESY_BYTES: usize = 64 * 1024 * 1024;
/// Room that is made at once on a client's word.
const MAX_PREPARED_BYTES: usize = 256 * 1024;

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
        return Err(Refusal::BodyEncoded);
    }
    let by = Instant::now() + time;
    let announced = announced(headers);
    if announced.is_some_and(|length| length > limit) {
        discard(body).await;
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
            discard(body).await;
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

async fn discard(mut body: Incoming) {
    let mut left = COURTESY_BYTES;
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

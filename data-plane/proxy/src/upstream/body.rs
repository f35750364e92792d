//! The body of an upstream's answer, as its readers want it: plain.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Version;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::response::Parts;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::task::coop;

use super::decode::{DecodeFault, Decoder, Encoding};
use super::lanes::Seat;
use super::supply::Supply;

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyFault {
    /// The connection.
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    /// Its compression.
    #[error(transparent)]
    Decode(#[from] DecodeFault),
}

/// See the module's documentation. Dropping it ends the request.
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    decoder: Option<Decoder>,
    /// Of a connection that hands over one chunk at a time.
    supply: Option<Supply>,
    _seat: Seat,
}

impl UpstreamBody {
    /// The body that belongs to this head, which is made to describe the plain body. A head whose encoding is not known
    /// stays as it is.
    pub(super) fn new(head: &mut Parts, incoming: Incoming, seat: Seat) -> Self {
        let encoding = Encoding::of(&head.headers);
        if encoding != Encoding::Unknown {
            head.headers.remove(CONTENT_ENCODING);
        }
        let decoder = encoding.decoder();
        if decoder.is_some() {
            head.headers.remove(CONTENT_LENGTH);
        }
        let supply = head.extensions.remove::<Supply>();
        Self {
            incoming,
            decoder,
            // Over HTTP/2 everything that came can be taken at once.
            supply: supply.filter(|_| head.version != Version::HTTP_2),
            _seat: seat,
        }
    }

    /// When there is nothing to be taken: ready once nothing will be before more comes from the upstream.
    pub(crate) fn poll_drained(&self, context: &Context<'_>) -> Poll<()> {
        match &self.supply {
            Some(supply) => supply.poll_dry(context),
            None => Poll::Ready(()),
        }
    }
}

impl fmt::Debug for UpstreamBody {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UpstreamBody")
            .field("decodes", &self.decoder.is_some())
            .finish_non_exhaustive()
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let this = &mut *self;
        let Some(decoder) = &mut this.decoder else {
            let frame = ready!(Pin::new(&mut this.incoming).poll_frame(context));
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyFault::from)));
        };
        loop {
            // Decoding never waits, so it must be counted, or one large body keeps a thread to itself.
            let turn = ready!(coop::poll_proceed(context));
            match decoder.next() {
                Ok(Some(bytes)) => {
                    turn.made_progress();
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Some(Err(fault.into()))),
            }
            match ready!(Pin::new(&mut this.incoming).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        decoder.give(data);
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => {
                    let finished = decoder.finish();
                    return Poll::Ready(finished.err().map(|fault| Err(fault.into())));
                }
            }
        }
    }
}

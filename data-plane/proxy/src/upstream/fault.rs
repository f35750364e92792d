//! From an error of the HTTP client to what it says about the attempt.
//!
//! Whatever this process lacks (file descriptors, ports, memory) is our own fault and says nothing about the
//! provider (decision 5); the rest is told apart by type, never by text.

use std::error::Error;
use std::io;

use tidegate_core::outcome::{LocalFault, Outcome, TransportFault};

use super::connector::{ConnectTimeout, Unresolved};

/// Errors are not nested deeper than this; a cycle would otherwise never end.
const MAX_SOURCES: usize = 16;
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
const ENOMEM: i32 = 12;
const ENOBUFS: i32 = 105;

/// What a failed call of the client means for the attempt.
pub(super) fn outcome_of(error: &hyper_util::client::legacy::Error) -> Outcome {
    let mut fault = if error.is_connect() {
        TransportFault::Connect
    } else {
        TransportFault::Reset
    };
    let mut current: Option<&(dyn Error + 'static)> = error.source();
    for _ in 0..MAX_SOURCES {
        let Some(cause) = current else { break };
        if cause.is::<Unresolved>() {
            // Of a name that does not resolve, the I/O error below says nothing more.
            return Outcome::Transport(TransportFault::Resolve);
        }
        if cause.is::<ConnectTimeout>() {
            return Outcome::Transport(TransportFault::Connect);
        }
        if cause.is::<rustls::Error>() {
            return Outcome::Transport(TransportFault::Tls);
        }
        if let Some(hyper) = cause.downcast_ref::<hyper::Error>()
            && hyper.is_parse()
        {
            fault = TransportFault::Protocol;
        }
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            if is_ours(io) {
                return Outcome::Local(LocalFault::Internal);
            }
            // The error inside an I/O error is not its source.
            if let Some(inner) = io.get_ref() {
                if inner.is::<rustls::Error>() {
                    return Outcome::Transport(TransportFault::Tls);
                }
                current = Some(inner);
                continue;
            }
        }
        current = cause.source();
    }
    Outcome::Transport(fault)
}

/// Whether the upstream certainly did nothing with the request, so that it may be sent again: it was never written, or
/// an HTTP/2 upstream said so (RFC 9113 §8.7: refused, or beyond the last stream of its `GOAWAY`).
pub(super) fn is_unprocessed(error: &hyper_util::client::legacy::Error) -> bool {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.take(MAX_SOURCES).any(|cause| {
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            return error.is_remote()
                && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM));
        }
        let hyper = cause.downcast_ref::<hyper::Error>();
        hyper.is_some_and(hyper::Error::is_canceled)
    })
}

fn is_ours(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || matches!(
            error.raw_os_error(),
            Some(EMFILE | ENFILE | ENOMEM | ENOBUFS)
        )
}

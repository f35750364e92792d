//! How a request takes part in its trace ([`crate::spans`]).

use http::Request;
use tidegate_plane_client::Origin;
use tidegate_telemetry::Span;

use crate::control_port::ControlPort;
use crate::spans::Branch;
use crate::upstream::Pieces;

use super::Life;

impl<C: ControlPort> Life<C> {
    /// The request's trace.
    pub(crate) fn branch(&self) -> &Branch {
        &self.branch
    }

    /// A question about the request: its span, and what whoever answers is told of whose it is.
    pub(crate) fn question(&self) -> (Span, Origin) {
        self.branch.decide(&self.request_id)
    }

    /// What ordered the targets of the dispatch that is sent next.
    pub(crate) fn is_ordered_by(&mut self, strategy: Option<&'static str>) {
        self.decided.strategy = strategy;
    }

    /// The request for the upstream is about to be sent. It is told of its trace where that is wanted.
    pub(crate) fn tells(&mut self, request: &mut Request<Pieces>) {
        if let Some(in_flight) = &mut self.in_flight {
            let tell = self.shared.tracing.tell_upstreams;
            in_flight.span.is_sent(request.uri());
            if tell {
                in_flight.span.write(request.headers_mut());
            }
        }
    }
}

//! A stream failed, and the request is sent again to where it went (`sessions-and-streams.md` §4.4, §4.5).
//!
//! ```text
//! in flight --fails--> set aside --the new stream is ready--> over, its tokens recorded if any were told
//!                          '------no new stream comes-------> in flight again, as the one that the client sees
//! ```
//!
//! The request holds one permit and one place among those under way through all of it: what the first attempt was
//! granted is given back when the request ends, not before.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use tidegate_core::outcome::Outcome;
use tidegate_plane_client::{Dispatch, Leased, Running};

use crate::control_port::ControlPort;
use crate::sse::Tokens;

use super::{InFlight, Life};

/// A stream that failed, which the client may still be shown.
#[derive(Debug)]
pub(super) struct SetAside {
    in_flight: InFlight,
    tokens: Tokens,
}

/// What the client saw of an attempt that another one replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Nothing, and it never will.
    Nothing,
    /// Its beginning.
    Beginning,
}

impl<C: ControlPort> Life<C> {
    /// The same request goes out again, in place of the attempt in flight, whose failure was told
    /// ([`Life::breaks`]), or of one that failed in its place.
    pub(crate) fn sends_again(
        &mut self,
        dispatch: Box<Dispatch>,
        running: Running,
        leased: Option<Leased>,
    ) {
        if let Some(mut in_flight) = self.in_flight.take() {
            in_flight.lets_go(&self.shared.control);
            in_flight.counted = None;
            self.set_aside = Some(SetAside {
                in_flight,
                tokens: std::mem::take(&mut self.tokens),
            });
        }
        self.sends(dispatch, running, leased);
    }

    /// The upstream of the attempt in flight was let go, and another attempt may take its place.
    pub(crate) fn lets_go(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.lets_go(&self.shared.control);
        }
    }

    /// What looks at the headers of the answer to the attempt in flight, apart from this.
    pub(crate) fn sees_apart(&self) -> impl FnOnce(StatusCode, &HeaderMap) + Send + 'static {
        let in_flight = self.in_flight.as_ref();
        let seen = in_flight.map(|it| (it.target.clone(), it.running.place()));
        let shared = Arc::clone(&self.shared);
        move |status, headers| {
            if let Some((target, place)) = seen {
                target.learns_pace(&shared.control, status, headers, place);
                drop(target.sees(&shared.control, headers));
            }
        }
    }

    /// The attempt that was sent again failed without a stream. Nobody is asked about it, so it is reported at once.
    pub(crate) fn fails_again(&mut self, outcome: Outcome) {
        drop(self.fails(outcome));
        self.report_failure(false, None);
    }

    /// The attempt in flight is ready and takes the place of the one set aside.
    pub(crate) fn takes_over(&mut self, shown: Shown) {
        let Some(SetAside { in_flight, tokens }) = self.set_aside.take() else {
            return;
        };
        let InFlight {
            dispatch, running, ..
        } = in_flight;
        if let Some(new) = &mut self.in_flight {
            let paced = std::mem::replace(&mut new.running, Running::uncounted());
            new.running = running.and_then(move || drop(paced));
        }
        match shown {
            Shown::Beginning => {
                self.tokens_before = tokens.and_before(self.tokens_before);
                self.record_usage(dispatch.attempt, tokens);
            }
            // The provider counts it all the same, if it says so.
            Shown::Nothing if !tokens.is_unknown() => self.record_usage(dispatch.attempt, tokens),
            Shown::Nothing => {}
        }
    }

    /// Nothing came in place of the attempt set aside: it is the one that the client sees.
    pub(crate) fn falls_back(&mut self) {
        if self.in_flight.is_none()
            && let Some(SetAside { in_flight, tokens }) = self.set_aside.take()
        {
            self.in_flight = Some(in_flight);
            self.tokens = tokens;
        }
    }

    /// The request ends while another attempt is under way in place of one.
    pub(super) fn close_set_aside(&mut self) {
        if let Some(SetAside { in_flight, tokens }) = self.set_aside.take() {
            self.record_usage(in_flight.dispatch.attempt, tokens);
        }
    }
}

//! A stream failed, and the request is sent again to where it went (`sessions-and-streams.md` §4.4, §4.5).
//!
//! ```text
//! in flight --fails--> set aside --the new stream is ready--> over, its usage recorded
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

use super::Life;

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
            self.set_aside = Some(in_flight);
        }
        self.decided.again = true;
        self.sends(dispatch, running, leased);
        self.decided.again = false;
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

    /// The attempt in flight is ready and takes the place of the one set aside. What that one wrote is billed, whether
    /// the client saw any of it or not.
    pub(crate) fn takes_over(&mut self) {
        let Some(mut in_flight) = self.set_aside.take() else {
            return;
        };
        let running = std::mem::replace(&mut in_flight.running, Running::uncounted());
        if let Some(new) = &mut self.in_flight {
            let paced = std::mem::replace(&mut new.running, Running::uncounted());
            new.running = running.and_then(move || drop(paced));
        }
        self.record_usage(&mut in_flight);
        in_flight.ends(&self.shared.metrics.gen_ai, self.endpoint, None);
    }

    /// Nothing came in place of the attempt set aside: it is the one that the client sees.
    pub(crate) fn falls_back(&mut self) {
        if self.in_flight.is_none() {
            self.in_flight = self.set_aside.take();
        }
    }

    /// The request ends while another attempt is under way in place of one.
    pub(super) fn close_set_aside(&mut self) {
        if let Some(mut in_flight) = self.set_aside.take() {
            self.record_usage(&mut in_flight);
            in_flight.ends(&self.shared.metrics.gen_ai, self.endpoint, None);
        }
    }
}

//! Which OAuth accounts the sessions of this data plane are using (`sessions-and-streams.md` §1.12).
//!
//! A request of a session occupies its account from when it is sent until its attempt is over, however that comes about:
//! what is held goes with the attempt and gives back when dropped. It is a preference, so that nothing is refused where
//! no more can be known.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tidegate_core::config::Config;
use tidegate_core::ids::ConnectionId;
use tidegate_core::occupancy::{Occupancy, Reservation};
use tidegate_core::outcome::Attempt;
use tidegate_core::routing::{MAX_OCCUPIED, RequestFacts, minds_occupancy};
use tidegate_core::settings::ProviderClass;
use tidegate_core::time::Timestamp;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Occupants {
    occupancy: Mutex<Occupancy>,
    /// Pairs of account and session that are known.
    known: Gauge,
    /// Requests that are not known of.
    unknown: Counter,
}

/// An account that a request is using.
#[derive(Debug)]
pub(crate) struct Occupied {
    occupants: Arc<Occupants>,
    /// Taken when dropped.
    reservation: Option<Reservation>,
}

impl Occupants {
    pub(crate) fn new(known: Gauge, unknown: Counter) -> Self {
        Self {
            occupancy: Mutex::default(),
            known,
            unknown,
        }
    }

    /// An attempt goes out. `None` when it is of no session, at no OAuth account, or one too many.
    pub(crate) fn occupy(
        self: &Arc<Self>,
        config: &Config,
        facts: &RequestFacts,
        attempt: &Attempt,
        now: Timestamp,
    ) -> Option<Occupied> {
        let session = facts.session_key.as_ref()?;
        let class = config.provider(&attempt.provider)?.policy.class;
        if class != ProviderClass::Oauth {
            return None;
        }
        let reservation = {
            let mut occupancy = self.occupancy.lock();
            let reservation = occupancy.reserve(&attempt.connection, session, now);
            self.show(&occupancy);
            reservation
        };
        if reservation.is_none() {
            self.unknown.inc();
        }
        Some(Occupied {
            occupants: Arc::clone(self),
            reservation: Some(reservation?),
        })
    }

    /// The accounts that others are using, where that matters to a request.
    pub(crate) fn of_others(
        &self,
        config: &Config,
        facts: &RequestFacts,
        now: Timestamp,
    ) -> Vec<(ConnectionId, u32)> {
        if !minds_occupancy(config, facts) {
            return Vec::new();
        }
        let mut occupancy = self.occupancy.lock();
        if occupancy.is_empty() {
            return Vec::new();
        }
        occupancy.of_others(facts.session_key.as_ref(), now, MAX_OCCUPIED)
    }

    fn show(&self, occupancy: &Occupancy) {
        let known = i64::try_from(occupancy.len()).unwrap_or(i64::MAX);
        self.known.set(known);
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            let mut occupancy = self.occupants.occupancy.lock();
            occupancy.release(reservation);
            self.occupants.show(&occupancy);
        }
    }
}

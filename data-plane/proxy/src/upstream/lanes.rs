//! Several pools of connections, so that one HTTP/2 connection never carries everything.
//!
//! The HTTP client keeps one HTTP/2 connection per host and pool, however many requests there are. Providers allow it
//! about a hundred streams; what is beyond waits inside the connection, unseen, until a stream ends, which takes
//! minutes for LLM streams. And what happens to a connection happens to all its streams. So there are lanes, each
//! with a pool of its own, and a request takes the first one on which fewer than [`MOST_PER_LANE`] are in flight to
//! its host. Only beyond all of them are lanes filled further, evenly.

use std::collections::HashMap;
use std::sync::Arc;

use http::uri::Authority;
use parking_lot::Mutex;

/// Lanes, and so HTTP/2 connections per host at most.
pub(super) const LANES: usize = 32;
/// Requests in flight on a lane to one host before the next lane is used. HTTP/2 asks servers to allow no fewer than
/// 100 streams (RFC 9113 §6.5.2).
const MOST_PER_LANE: u32 = 64;

/// How many requests are in flight, by host and lane. A host without any has no entry.
#[derive(Debug, Default)]
pub(super) struct Lanes(Mutex<HashMap<Authority, [u32; LANES]>>);

/// A request in flight; over when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    lanes: Arc<Lanes>,
    host: Authority,
    pub(super) lane: usize,
}

impl Lanes {
    /// A request to `host` begins.
    pub(super) fn enter(self: &Arc<Self>, host: Authority) -> Seat {
        let lane = {
            let mut hosts = self.0.lock();
            let in_flight = hosts.entry(host.clone()).or_default();
            let lane = choose(in_flight);
            if let Some(count) = in_flight.get_mut(lane) {
                *count = count.saturating_add(1);
            }
            lane
        };
        Seat {
            lanes: Arc::clone(self),
            host,
            lane,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut hosts = self.lanes.0.lock();
        let Some(in_flight) = hosts.get_mut(&self.host) else {
            return;
        };
        if let Some(count) = in_flight.get_mut(self.lane) {
            *count = count.saturating_sub(1);
        }
        if in_flight.iter().all(|count| *count == 0) {
            hosts.remove(&self.host);
        }
    }
}

/// The first lane with room, else the emptiest.
fn choose(in_flight: &[u32]) -> usize {
    let roomy = in_flight.iter().position(|count| *count < MOST_PER_LANE);
    roomy.unwrap_or_else(|| {
        let emptiest = in_flight
            .iter()
            .enumerate()
            .min_by_key(|(_, count)| **count);
        emptiest.map_or(0, |(lane, _)| lane)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(&[0, 0, 0], 0)]
    #[case::room_in_the_first(&[63, 0, 0], 0)]
    #[case::the_first_is_full(&[64, 0, 0], 1)]
    #[case::a_seat_came_free(&[64, 64, 5], 2)]
    #[case::the_first_that_is_not_full(&[64, 63, 0], 1)]
    #[case::all_full(&[65, 64, 66], 1)]
    fn lanes_are_filled_in_order(#[case] in_flight: &[u32], #[case] lane: usize) {
        assert_eq!(choose(in_flight), lane);
    }

    #[test]
    fn a_host_without_requests_is_forgotten() {
        let lanes = Arc::new(Lanes::default());
        let (one, two) = (Authority::from_static("a:1"), Authority::from_static("b"));
        let seats: Vec<Seat> = (0..65).map(|_| lanes.enter(one.clone())).collect();
        assert_eq!(seats.last().map(|seat| seat.lane), Some(1));
        assert_eq!(lanes.enter(two).lane, 0, "hosts are counted apart");
        drop(seats);
        assert!(lanes.0.lock().is_empty());
    }
}

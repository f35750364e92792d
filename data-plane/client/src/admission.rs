//! Whether a request may go to a connection with a limited pace (decision 45).
//!
//! The control plane counts for the whole fleet. While it is gone, or its store is, each data plane keeps to its part of
//! the limits. While it is only slow nobody is admitted here, since others may be admitted by it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::admission::{Admitted, Pace, PaceLimits};
use tidegate_core::ids::{AttemptId, PlaneIncarnation};
use tidegate_core::time::Timestamp;
use tidegate_proto::common::v1 as common;
use tidegate_proto::routing::v1 as proto;
use tidegate_proto::routing::v1::admission_service_client::AdmissionServiceClient;
use tokio::time::{Instant, timeout};
use tonic::Code;

use crate::client::Inner;
use crate::decide::{Awaited, Standing};
use crate::permits::{Permits, PoolName};
use crate::port::{Admission, AdmissionAsk, Running};
use crate::replicas::Asked;

/// How long one replica may take, which answers within 200 ms.
const CALL_LIMIT: Duration = Duration::from_millis(300);
/// Connections above which the paces of those that rested are forgotten.
const MANY_PACES: usize = 4_096;

/// How fast requests went to connections while nobody counted for the fleet. Requests at once are counted with all that
/// are under way ([`crate::permits::Permits`]).
#[derive(Debug, Default)]
pub(crate) struct LocalPace {
    paces: Mutex<BTreeMap<PoolName, Pace>>,
}

impl LocalPace {
    /// One step of a connection's pace for a request of this number; `look` leaves it as it is.
    fn admit(
        &self,
        number: u64,
        lane: &PoolName,
        limits: PaceLimits,
        look: bool,
        now: Timestamp,
    ) -> Admitted {
        let limits = PaceLimits {
            concurrent: None,
            ..limits
        };
        let mut paces = self.paces.lock();
        if paces.len() >= MANY_PACES {
            paces.retain(|_, pace| pace.ends_at(limits) > now);
        }
        // All of them are of this data plane.
        let request = AttemptId {
            plane: PlaneIncarnation(0),
            number,
        };
        if look {
            let mut pace = paces.get(lane).cloned().unwrap_or_default();
            return pace.admit(request, limits, now);
        }
        let pace = paces.entry(lane.clone()).or_default();
        pace.admit(request, limits, now)
    }
}

impl Inner {
    /// Asks; see [`crate::PlaneClient::admit`]. Dropped, it gives back what it may be granted.
    pub(crate) async fn admit(self: &Arc<Self>, ask: &AdmissionAsk) -> Admission {
        let number = self.admissions.next_number();
        let lane = PoolName {
            provider: ask.provider.clone(),
            connection: ask.connection.clone(),
        };
        let _asking = Asking {
            admissions: &self.admissions,
            number,
        };
        let awaited = Awaited::new(&self.admissions, number, lane.clone());
        let found = if self.gate.standing(Instant::now()) == Standing::Gone {
            proto::Admission::NobodyCounts
        } else {
            match self.ask_admission(ask, number).await {
                Some(answer) => match answer.admission() {
                    proto::Admission::NotBefore => {
                        awaited.refused();
                        return Admission::NotBefore(Duration::from_millis(answer.wait_ms));
                    }
                    found => found,
                },
                None => proto::Admission::Unspecified,
            }
        };
        let counts = ask.limits.concurrent.is_some() && !ask.look;
        match found {
            proto::Admission::Now if counts => {
                awaited.granted();
                Admission::Now(self.running(number))
            }
            proto::Admission::Now => {
                awaited.refused();
                Admission::Now(Running::uncounted())
            }
            proto::Admission::Full => {
                awaited.refused();
                Admission::Full
            }
            proto::Admission::NobodyCounts => {
                awaited.refused();
                self.admit_here(ask, number, &lane)
            }
            proto::Admission::NotBefore
            | proto::Admission::Unknown
            | proto::Admission::Unspecified => {
                self.metrics.admissions_unanswered.inc();
                drop(awaited);
                Admission::Unknown
            }
        }
    }

    /// Asks one replica after the other until one answers.
    async fn ask_admission(&self, ask: &AdmissionAsk, number: u64) -> Option<proto::AdmitResponse> {
        let request = proto::AdmitRequest {
            admission: Some(common::AttemptId {
                plane: self.incarnation.0,
                number,
            }),
            provider: ask.provider.to_string(),
            connection: ask.connection.to_string(),
            look: ask.look,
            released: self.admissions.unheard(),
        };
        let mut asked = Asked::default();
        while let Some(replica) = self.replicas.choose(Instant::now(), asked) {
            asked.add(replica.index);
            let mut client = AdmissionServiceClient::new(replica.channel());
            match timeout(CALL_LIMIT, client.admit(request.clone())).await {
                Ok(Ok(answer)) => return Some(answer.into_inner()),
                // A control plane of an earlier release counts for nobody.
                Ok(Err(status)) if status.code() == Code::Unimplemented => {
                    return Some(proto::AdmitResponse {
                        admission: proto::Admission::NobodyCounts.into(),
                        wait_ms: 0,
                    });
                }
                Ok(Err(status)) => {
                    tracing::debug!(replica = %replica.name, error = %status, "no admission");
                }
                Err(_) => tracing::debug!(replica = %replica.name, "admission took too long"),
            }
        }
        None
    }

    /// Admits by this data plane's part of the limits.
    fn admit_here(self: &Arc<Self>, ask: &AdmissionAsk, number: u64, lane: &PoolName) -> Admission {
        let share = ask.limits.share(self.live_data_planes());
        let now = self.clock.at(Instant::now());
        if let Some(most) = share.concurrent {
            let has_room = if ask.look {
                self.admissions.has_room(lane, most)
            } else {
                self.admissions.take_share(number, lane, most)
            };
            if !has_room {
                return Admission::Full;
            }
        }
        match self.local_pace.admit(number, lane, share, ask.look, now) {
            Admitted::Now if ask.look => Admission::Now(Running::uncounted()),
            Admitted::Now => {
                self.metrics.local_admissions.inc();
                Admission::Now(self.running(number))
            }
            Admitted::Full => self.not_admitted(number, Admission::Full),
            Admitted::NotBefore(then) => {
                let wait = Duration::from_millis(then.remaining_ms(now));
                self.not_admitted(number, Admission::NotBefore(wait))
            }
        }
    }

    fn not_admitted(&self, number: u64, admission: Admission) -> Admission {
        self.admissions.release(number);
        admission
    }

    fn running(self: &Arc<Self>, number: u64) -> Running {
        let inner = Arc::clone(self);
        Running::until(move || inner.admissions.release(number))
    }
}

/// A question under way.
struct Asking<'a> {
    admissions: &'a Permits,
    number: u64,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.admissions.answered(self.number);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::ids::{ConnectionId, ProviderId};

    use super::*;

    #[test]
    fn a_look_takes_nothing_of_the_local_pace() {
        let pace = LocalPace::default();
        let lane = PoolName {
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new("c").unwrap(),
        };
        let limits = PaceLimits {
            apart_ms: 100,
            ..PaceLimits::default()
        };
        let at = |ms| Timestamp(1_000_000).plus_ms(ms);
        for look in [true, true, false] {
            assert_eq!(pace.admit(1, &lane, limits, look, at(0)), Admitted::Now);
        }
        let later = Admitted::NotBefore(at(100));
        for look in [true, false] {
            assert_eq!(pace.admit(2, &lane, limits, look, at(1)), later);
        }
        assert_eq!(pace.admit(2, &lane, limits, false, at(100)), Admitted::Now);
    }

    #[test]
    fn paces_of_connections_that_rested_are_forgotten() {
        let pace = LocalPace::default();
        let limits = PaceLimits {
            apart_ms: 100,
            ..PaceLimits::default()
        };
        let lane = |number: usize| PoolName {
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new(format!("c{number}")).unwrap(),
        };
        for number in 0..MANY_PACES + 10 {
            let now = Timestamp(1_000_000).plus_ms(u64::try_from(number).unwrap());
            pace.admit(1, &lane(number), limits, false, now);
        }
        assert!(pace.paces.lock().len() <= MANY_PACES);
    }
}

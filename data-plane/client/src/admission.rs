//! Whether a request may go to a connection with a limited pace (decision 45).
//!
//! The control plane counts for the whole fleet. While it is gone, or its store is, each data plane keeps to its part of
//! the limits. While it is only slow nobody is admitted here, since others may be admitted by it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::admission::{Admitted, Pace, PaceLimits, Standing};
use tidegate_core::ids::{AttemptId, ModelId, PlaneIncarnation};
use tidegate_core::time::Timestamp;
use tidegate_proto::common::v1 as common;
use tidegate_proto::routing::v1 as proto;
use tidegate_proto::routing::v1::admission_service_client::AdmissionServiceClient;
use tidegate_wire::admission::{place_from_proto, told_to_proto};
use tokio::time::{Instant, timeout};
use tonic::Code;

use crate::client::Inner;
use crate::decide::{self, Awaited};
use crate::learned::Unheard;
use crate::permits::{Permits, PoolName};
use crate::port::{Admission, AdmissionAsk, Running};
use crate::replicas::Asked;

/// How long one replica may take, which answers within 200 ms.
const CALL_LIMIT: Duration = Duration::from_millis(300);
/// Connections above which the paces of those that rested are forgotten.
const MANY_PACES: usize = 4_096;

/// A request that asks here.
#[derive(Clone, Copy, Debug)]
struct Asks<'a> {
    number: u64,
    lane: &'a PoolName,
    model: &'a ModelId,
    /// What an answer told of the model that nobody who counts has heard.
    unheard: Option<Unheard>,
    look: bool,
}

/// How fast requests went to connections while nobody counted for the fleet. Requests at once are counted with all that
/// are under way ([`crate::permits::Permits`]).
#[derive(Debug, Default)]
pub(crate) struct LocalPace {
    paces: Mutex<BTreeMap<PoolName, Pace>>,
}

impl LocalPace {
    /// One step of a connection's pace for a request; a look leaves it as it is. `planes` is of how many this one's part
    /// is.
    fn admit(
        &self,
        asks: Asks<'_>,
        limits: PaceLimits,
        planes: u32,
        now: Timestamp,
    ) -> (Admitted, Option<Standing>) {
        let Asks {
            number,
            lane,
            model,
            unheard,
            look,
        } = asks;
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
        let mut of_look = look.then(|| paces.get(lane).cloned().unwrap_or_default());
        let pace = match &mut of_look {
            Some(pace) => pace,
            None => paces.entry(lane.clone()).or_default(),
        };
        if let Some(unheard) = unheard {
            // Its place is none that is counted here.
            pace.learn(model, unheard.told.share(planes), None, now);
        }
        let (admitted, standing) = pace.admit(request, Some(model), limits, now);
        let until = standing.map(|Standing { until, .. }| Standing { place: None, until });
        (admitted, until)
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
        let unheard = self.learned.unheard(&ask.connection, &ask.model);
        let mut place = None;
        let found = if self.gate.standing(Instant::now()) == decide::Standing::Gone {
            proto::Admission::NobodyCounts
        } else {
            match self.ask_admission(ask, number, unheard).await {
                Some(answer) => {
                    self.is_heard(ask, unheard, &answer);
                    place = answer.place.map(place_from_proto);
                    match answer.admission() {
                        proto::Admission::NotBefore => {
                            awaited.refused();
                            let wait = Duration::from_millis(answer.wait_ms);
                            return if answer.spent {
                                self.spent(ask.look, wait)
                            } else {
                                Admission::NotBefore(wait)
                            };
                        }
                        found => found,
                    }
                }
                None => proto::Admission::Unspecified,
            }
        };
        let counts = ask.limits.concurrent.is_some() && !ask.look;
        match found {
            proto::Admission::Now if counts => {
                awaited.granted();
                Admission::Now(self.running(number).at(place))
            }
            proto::Admission::Now => {
                awaited.refused();
                Admission::Now(Running::uncounted().at(place))
            }
            proto::Admission::Full => {
                awaited.refused();
                Admission::Full
            }
            proto::Admission::NobodyCounts => {
                awaited.refused();
                let asks = Asks {
                    number,
                    lane: &lane,
                    model: &ask.model,
                    unheard: self.learned.newest(
                        &ask.connection,
                        &ask.model,
                        self.clock.at(Instant::now()),
                    ),
                    look: ask.look,
                };
                self.admit_here(asks, ask.limits)
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

    /// Whoever counts heard what was told, and said until when it counts.
    fn is_heard(&self, ask: &AdmissionAsk, told: Option<Unheard>, answer: &proto::AdmitResponse) {
        let counts = matches!(
            answer.admission(),
            proto::Admission::Now | proto::Admission::NotBefore | proto::Admission::Full
        );
        if counts {
            let now = self.clock.at(Instant::now());
            let until = now.plus_ms(answer.learned_ms);
            self.learned
                .heard(&ask.connection, &ask.model, told, until, now);
        }
    }

    /// Asks one replica after the other until one answers.
    async fn ask_admission(
        &self,
        ask: &AdmissionAsk,
        number: u64,
        unheard: Option<Unheard>,
    ) -> Option<proto::AdmitResponse> {
        let now = self.clock.at(Instant::now());
        let request = proto::AdmitRequest {
            admission: Some(common::AttemptId {
                plane: self.incarnation.0,
                number,
            }),
            provider: ask.provider.to_string(),
            connection: ask.connection.to_string(),
            look: ask.look,
            released: self.admissions.unheard(),
            model: ask.model.to_string(),
            told: unheard.and_then(|it| told_to_proto(&it.told, it.place, now)),
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
                        ..proto::AdmitResponse::default()
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
    fn admit_here(self: &Arc<Self>, asks: Asks<'_>, limits: PaceLimits) -> Admission {
        let Asks {
            number, lane, look, ..
        } = asks;
        let planes = self.live_data_planes();
        let share = limits.share(planes);
        let now = self.clock.at(Instant::now());
        if let Some(most) = share.concurrent {
            let has_room = if look {
                self.admissions.has_room(lane, most)
            } else {
                self.admissions.take_share(number, lane, most)
            };
            if !has_room {
                return Admission::Full;
            }
        }
        let (admitted, standing) = self.local_pace.admit(asks, share, planes, now);
        if let Some(standing) = standing {
            let connection = &lane.connection;
            self.learned
                .counts_here(connection, asks.model, standing.until);
        }
        match admitted {
            Admitted::Now if look => Admission::Now(Running::uncounted()),
            Admitted::Now => {
                self.metrics.local_admissions.inc();
                Admission::Now(self.running(number))
            }
            Admitted::Full => self.not_admitted(number, Admission::Full),
            Admitted::NotBefore(then) => {
                let wait = Duration::from_millis(then.remaining_ms(now));
                self.not_admitted(number, Admission::NotBefore(wait))
            }
            Admitted::Spent(then) => {
                let wait = Duration::from_millis(then.remaining_ms(now));
                self.not_admitted(number, self.spent(look, wait))
            }
        }
    }

    fn spent(&self, look: bool, wait: Duration) -> Admission {
        if !look {
            self.metrics.learned_waits.inc();
        }
        Admission::Spent(wait)
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
    use tidegate_core::admission::{Told, ToldRequests};
    use tidegate_core::ids::{ConnectionId, ProviderId};

    use super::*;

    const APART: PaceLimits = PaceLimits {
        per_minute: None,
        apart_ms: 100,
        concurrent: None,
        ttl_ms: 30_000,
    };

    fn at(ms: u64) -> Timestamp {
        Timestamp(1_000_000).plus_ms(ms)
    }

    fn lane(connection: &str) -> PoolName {
        PoolName {
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new(connection).unwrap(),
        }
    }

    /// A request asks; what an answer told is `unheard`.
    fn admit(
        pace: &LocalPace,
        (number, look): (u64, bool),
        limits: PaceLimits,
        unheard: Option<Unheard>,
        now: Timestamp,
    ) -> Admitted {
        let (lane, model) = (lane("c"), ModelId::new("m").unwrap());
        let asks = Asks {
            number,
            lane: &lane,
            model: &model,
            unheard,
            look,
        };
        pace.admit(asks, limits, 3, now).0
    }

    #[test]
    fn a_look_takes_nothing_of_the_local_pace() {
        let pace = LocalPace::default();
        for look in [true, true, false] {
            assert_eq!(admit(&pace, (1, look), APART, None, at(0)), Admitted::Now);
        }
        let later = Admitted::NotBefore(at(100));
        for look in [true, false] {
            assert_eq!(admit(&pace, (2, look), APART, None, at(1)), later);
        }
        assert_eq!(
            admit(&pace, (2, false), APART, None, at(100)),
            Admitted::Now
        );
    }

    #[test]
    fn of_what_an_upstream_told_a_data_plane_uses_its_part() {
        let pace = LocalPace::default();
        let told = Told {
            requests: Some(ToldRequests {
                limit: Some(90),
                remaining: 6,
                resets_at: at(9_000),
            }),
            tokens: None,
        };
        let unheard = Some(Unheard::of(told, at(0)));
        let free = PaceLimits::default();
        // Two of six, evenly spread; it is told with every question, as nobody else hears of it.
        for (number, ms) in [(1, 0), (2, 4_500)] {
            let look = admit(&pace, (number, true), free, unheard, at(ms));
            assert_eq!(look, Admitted::Now);
            let goes = admit(&pace, (number, false), free, unheard, at(ms));
            assert_eq!(goes, Admitted::Now);
        }
        for look in [true, false] {
            let spent = admit(&pace, (3, look), free, unheard, at(4_501));
            assert_eq!(spent, Admitted::Spent(at(9_000)));
        }
    }

    #[test]
    fn paces_of_connections_that_rested_are_forgotten() {
        let pace = LocalPace::default();
        let model = ModelId::new("m").unwrap();
        for number in 0..MANY_PACES + 10 {
            let now = at(u64::try_from(number).unwrap());
            let lane = lane(&format!("c{number}"));
            let asks = Asks {
                number: 1,
                lane: &lane,
                model: &model,
                unheard: None,
                look: false,
            };
            pace.admit(asks, APART, 1, now);
        }
        assert!(pace.paces.lock().len() <= MANY_PACES);
    }
}

//! `tidegate.routing.v1.AdmissionService`.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_core::admission::{self, Admitted, PaceLimits, Standing};
use tidegate_core::ids::{ConnectionId, ModelId, ProviderId};
use tidegate_proto::routing::v1 as proto;
use tidegate_proto::routing::v1::admission_service_server::AdmissionService;
use tidegate_wire as wire;
use tonic::{Request, Response, Status};

use crate::clock::Clock;
use crate::config::Published;
use crate::lanes::{Asks, Counted, Lanes};
use crate::permits::{Held, PoolName};

use super::error::{Refusal, invalid};
use super::routing::{bounded, held, name, plane};

/// Most admissions that a question may end.
const MAX_NAMED: usize = 256;

/// The service.
#[derive(Clone, Debug)]
pub(super) struct AdmissionApi {
    pub(super) lanes: Arc<Lanes>,
    pub(super) config: Arc<Published>,
    pub(super) clock: Arc<Clock>,
}

#[tonic::async_trait]
impl AdmissionService for AdmissionApi {
    async fn admit(
        &self,
        request: Request<proto::AdmitRequest>,
    ) -> Result<Response<proto::AdmitResponse>, Status> {
        let request = request.into_inner();
        let admission = wire::attempt::id_from_proto(request.admission);
        let admission = admission.map_err(|error| invalid(&error))?;
        let missing = |what: &str| Refusal::InvalidRequest.status(format!("{what} is missing"));
        let lane = PoolName {
            provider: name("provider", &request.provider, ProviderId::new)?
                .ok_or_else(|| missing("provider"))?,
            connection: name("connection", &request.connection, ConnectionId::new)?
                .ok_or_else(|| missing("connection"))?,
        };
        let named = request.released.iter().map(|it| it.numbers.len()).sum();
        if MAX_NAMED < named {
            return Err(Refusal::InvalidRequest.status("more than 256 numbers in released"));
        }
        let mut released = held(request.released)?;
        let model = name("model", &request.model, ModelId::new)?;
        let limits = self.limits(&lane);
        let Some(limits) = limits.filter(|limits| model.is_some() || !limits.is_free()) else {
            // Nothing is paced there any more, or not yet as far as is known here.
            return Ok(Response::new(answer(proto::Admission::Now, 0)));
        };
        let now = self.clock.now();
        let told = request.told.as_ref();
        let asks = Asks {
            request: admission,
            look: request.look,
            // Those of other connections need not be ended before this is answered.
            ended: released.remove(&lane).unwrap_or_default(),
            model,
            told: told.map(|told| wire::admission::told_from_proto(told, now)),
        };
        let (counted, standing) = self.lanes.admit(&lane, &asks, limits).await;
        let found = match counted {
            Counted::Nobody => answer(proto::Admission::NobodyCounts, 0),
            Counted::Unknown => answer(proto::Admission::Unknown, 0),
            Counted::Fleet(Admitted::Now) => answer(proto::Admission::Now, 0),
            Counted::Fleet(Admitted::Full) => answer(proto::Admission::Full, 0),
            Counted::Fleet(Admitted::NotBefore(then)) => {
                let wait_ms = then.remaining_ms(self.clock.now());
                answer(proto::Admission::NotBefore, wait_ms)
            }
            Counted::Fleet(Admitted::Spent(then)) => {
                let wait_ms = then.remaining_ms(self.clock.now());
                let spent = true;
                proto::AdmitResponse {
                    spent,
                    ..answer(proto::Admission::NotBefore, wait_ms)
                }
            }
        };
        Ok(Response::new(self.with(standing, found)))
    }

    async fn keep_admitted(
        &self,
        request: Request<proto::KeepAdmittedRequest>,
    ) -> Result<Response<proto::KeepAdmittedResponse>, Status> {
        let request = request.into_inner();
        let plane = plane(request.plane)?;
        bounded(request.asked.len())?;
        let asked: BTreeSet<u64> = request.asked.into_iter().collect();
        let held = self.known(held(request.held)?);
        let limits = self.any_limits();
        let kept = self
            .lanes
            .keep(plane, request.newest, &asked, held, limits)
            .await;
        done(kept).map(|()| Response::new(proto::KeepAdmittedResponse {}))
    }

    async fn release_admitted(
        &self,
        request: Request<proto::ReleaseAdmittedRequest>,
    ) -> Result<Response<proto::ReleaseAdmittedResponse>, Status> {
        let request = request.into_inner();
        let plane = plane(request.plane)?;
        let released = self.known(held(request.released)?);
        let limits = self.any_limits();
        let ended = self.lanes.release(plane, released, limits).await;
        done(ended).map(|()| Response::new(proto::ReleaseAdmittedResponse {}))
    }
}

impl AdmissionApi {
    /// The answer to one who stands so to what was learned.
    fn with(
        &self,
        standing: Option<Standing>,
        answer: proto::AdmitResponse,
    ) -> proto::AdmitResponse {
        let Some(Standing { place, until }) = standing else {
            return answer;
        };
        proto::AdmitResponse {
            learned_ms: until.remaining_ms(self.clock.now()),
            place: place.map(wire::admission::place_to_proto),
            ..answer
        }
    }

    /// The limits of a connection whose requests pass through a queue; they may be free.
    fn limits(&self, lane: &PoolName) -> Option<PaceLimits> {
        let config = self.config.config()?;
        let connection = config.connection(&lane.connection)?;
        if connection.provider != lane.provider {
            return None;
        }
        Some(admission::terms(&config, &lane.connection)?.pace)
    }

    /// The limits of all connections that have any, for how long a value is kept.
    fn any_limits(&self) -> PaceLimits {
        let config = self.config.config();
        config.map_or_else(PaceLimits::default, |config| {
            let settings = &config.settings;
            settings.request_queue.pace(settings.permits.ttl_ms)
        })
    }

    /// Only what is configured here; the rest ends by itself.
    fn known(&self, mut held: Held) -> Held {
        let config = self.config.config();
        held.retain(|lane, _| {
            let connection = config
                .as_ref()
                .and_then(|config| config.connection(&lane.connection));
            connection.is_some_and(|connection| connection.provider == lane.provider)
        });
        held
    }
}

fn answer(admission: proto::Admission, wait_ms: u64) -> proto::AdmitResponse {
    proto::AdmitResponse {
        admission: admission.into(),
        wait_ms,
        ..proto::AdmitResponse::default()
    }
}

fn done(all: bool) -> Result<(), Status> {
    if all {
        return Ok(());
    }
    Err(Refusal::HotStoreAway.status("not every request was renewed or ended"))
}

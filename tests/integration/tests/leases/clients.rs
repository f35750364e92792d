//! Owners that do what their schedule says, and write down what they asked and were told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde_json::json;
use tidegate_proto::common::v1 as common;
use tidegate_proto::lease::v1::{
    self as proto, AcquireRequest, ReleaseRequest, RenewRequest, StatusRequest,
};
use tokio_util::task::TaskTracker;
use tonic::{Code, Status};

use super::history::{Answer, Asked, LeaseName, Operation, Span};
use super::room::Room;
use super::schedule::{Action, Request, Step, Steps};
use super::stage::{Stage, chat_body, hash, inference, wire_name};

/// How long an owner waits for an answer about its lease.
const ASK_LIMIT: Duration = Duration::from_secs(3);
/// How long it waits for the end of an answer to a request: beyond any lease, so that what has no end is cut.
const SEND_LIMIT: Duration = Duration::from_secs(9);
/// Answers of the gateway that say that nobody knows, or that there was no time.
const NOBODY_KNOWS: [&str; 2] = ["LEASE_SERVICE_UNAVAILABLE", "control_plane_unavailable"];
/// Answers to who may not stand in line for a permit, or stood there in vain.
const IN_LINE: [&str; 3] = [
    "SEMAPHORE_QUEUE_FULL",
    "SEMAPHORE_TIMEOUT",
    "concurrency_cap",
];
/// What a client is told when its connection cools down: the upstream's own answer, or that nothing is left.
const TURNED_AWAY: [u16; 2] = [429, 503];

/// What all owners share.
pub(crate) struct Record {
    began: Instant,
    operations: Mutex<Vec<Operation>>,
    /// Answers that nothing was made of, and how often.
    strange: Mutex<BTreeMap<String, u64>>,
    /// Of the next request.
    number: AtomicU64,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            operations: Mutex::default(),
            strange: Mutex::default(),
            number: AtomicU64::new(1),
        }
    }

    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn operations(&self) -> Vec<Operation> {
        self.operations.lock().clone()
    }

    pub(crate) fn strange(&self) -> BTreeMap<String, u64> {
        self.strange.lock().clone()
    }

    fn add(&self, owner: u8, asked: Asked, from: Duration, answer: Answer) {
        let span = Span::new(from, self.now());
        self.operations.lock().push(Operation {
            owner,
            asked,
            span,
            answer,
        });
    }

    fn is_strange(&self, what: String) -> Answer {
        *self.strange.lock().entry(what).or_default() += 1;
        Answer::Unknown
    }
}

/// One owner.
pub(crate) struct Owner {
    pub(crate) number: u8,
    pub(crate) stage: Arc<Stage>,
    pub(crate) record: Arc<Record>,
    /// Requests go on in here.
    pub(crate) requests: TaskTracker,
    pub(crate) room: Arc<Room>,
    /// What it was last told to have.
    pub(crate) generation: Option<u64>,
}

impl Owner {
    /// Follows its schedule for a time.
    pub(crate) async fn run(mut self, seed: u64, time: Duration) -> Result<()> {
        let room = Arc::clone(&self.room);
        let goes_on = Room::lets_go_on(self.number);
        for step in Steps::new(seed, self.number) {
            if self.record.now() + step.pause >= time {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(step.pause) => self.step(&step).await?,
                () = room.is_wanted(), if !goes_on => {
                    self.give_back(step.plane).await?;
                    room.leave().await;
                }
            }
        }
        if !goes_on {
            room.left_for_good();
        }
        Ok(())
    }

    /// Releases what it has.
    pub(crate) async fn give_back(&mut self, plane: usize) -> Result<()> {
        if self.generation.is_none() {
            return Ok(());
        }
        let step = Step {
            pause: Duration::ZERO,
            plane,
            action: Action::Release,
        };
        self.step(&step).await
    }

    async fn step(&mut self, step: &Step) -> Result<()> {
        let Some(generation) = self.generation else {
            let ttl = match step.action {
                Action::Acquire { ttl } | Action::Renew { ttl } => ttl,
                _ => Duration::from_secs(3),
            };
            return self.acquire(step.plane, ttl).await;
        };
        match step.action {
            Action::Acquire { ttl } => self.acquire(step.plane, ttl).await,
            Action::Renew { ttl } => {
                let request = RenewRequest {
                    lease: Some(wire_name(self.name(generation))?),
                    key_id: "k1".to_owned(),
                    ttl_ms: ms(ttl),
                };
                let mut leases = self.leases(step.plane)?;
                let asking = async move {
                    let answer = leases.renew(request).await?.into_inner().answer;
                    Ok(match answer {
                        Some(proto::renew_response::Answer::Lease(lease)) => Ok(lease),
                        Some(proto::renew_response::Answer::Refused(refused)) => Err(refused),
                        None => return Err(Status::internal("no answer")),
                    })
                };
                self.ask(Asked::Renew { generation, ttl }, asking).await
            }
            Action::Release => {
                let request = ReleaseRequest {
                    lease: Some(wire_name(self.name(generation))?),
                    key_id: "k1".to_owned(),
                    reason: String::new(),
                };
                let mut leases = self.leases(step.plane)?;
                let asking = async move {
                    let answer = leases.release(request).await?.into_inner().answer;
                    Ok(match answer {
                        Some(proto::release_response::Answer::Lease(lease)) => Ok(lease),
                        Some(proto::release_response::Answer::Refused(refused)) => Err(refused),
                        None => return Err(Status::internal("no answer")),
                    })
                };
                self.ask(Asked::Release { generation }, asking).await?;
                self.generation = None;
                Ok(())
            }
            Action::Status => {
                let request = StatusRequest {
                    lease: Some(wire_name(self.name(generation))?),
                    key_id: "k1".to_owned(),
                };
                let mut leases = self.leases(step.plane)?;
                let asking = async move {
                    let answer = leases.status(request).await?.into_inner().answer;
                    Ok(match answer {
                        Some(proto::status_response::Answer::Standing(standing)) => {
                            Ok(standing.lease.unwrap_or_default())
                        }
                        Some(proto::status_response::Answer::Refused(refused)) => Err(refused),
                        None => return Err(Status::internal("no answer")),
                    })
                };
                self.ask(Asked::Status { generation }, asking).await
            }
            Action::Send(request) => self.send(step.plane, generation, request),
            Action::SendStale if generation > 1 => {
                self.send(step.plane, generation.saturating_sub(1), Request::Quick)
            }
            Action::SendStale => Ok(()),
        }
    }

    pub(crate) async fn acquire(&mut self, plane: usize, ttl: Duration) -> Result<()> {
        let request = AcquireRequest {
            owner_sha256: hash(self.number)?.as_bytes().to_vec(),
            key_id: "k1".to_owned(),
            model: "p/quick".to_owned(),
            ttl_ms: ms(ttl),
            configuration_version: 1,
        };
        let mut leases = self.leases(plane)?;
        let asking = async move {
            let answer = leases.acquire(request).await?.into_inner().answer;
            Ok(match answer {
                Some(proto::acquire_response::Answer::Lease(lease)) => Ok(lease),
                Some(proto::acquire_response::Answer::Refused(refused)) => Err(refused),
                None => return Err(Status::internal("no answer")),
            })
        };
        self.ask(Asked::Acquire { ttl }, asking).await
    }

    /// Asks, waits for the answer, and takes it in.
    async fn ask(
        &mut self,
        asked: Asked,
        asking: impl Future<Output = Result<Result<proto::Lease, common::LeaseRefusal>, Status>>,
    ) -> Result<()> {
        let from = self.record.now();
        let answer = match tokio::time::timeout(ASK_LIMIT, asking).await {
            Err(_) => Answer::Unknown,
            Ok(Err(status)) => match status.code() {
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                    Answer::Unknown
                }
                _ => self
                    .record
                    .is_strange(format!("{}: {status}", asked.word())),
            },
            Ok(Ok(Ok(lease))) => Answer::Lease {
                generation: lease.generation,
            },
            Ok(Ok(Err(refused))) => match refused.code.as_str() {
                "LEASE_FENCE_STALE" => Answer::Over,
                // The second when all that is free cools down.
                "lease-capacity-unavailable" | "LEASE_ELIGIBILITY_UNAVAILABLE" => Answer::Busy,
                code => self.record.is_strange(format!("{}: {code}", asked.word())),
            },
        };
        self.record.add(self.number, asked, from, answer);
        match answer {
            Answer::Lease { generation } => self.generation = Some(generation),
            Answer::Over | Answer::Busy => self.generation = None,
            Answer::Served | Answer::Cut | Answer::Failed | Answer::Full | Answer::Unknown => {}
        }
        Ok(())
    }

    /// Sends a request that goes on while its owner does.
    fn send(&self, plane: usize, generation: u64, request: Request) -> Result<()> {
        self.requests
            .spawn(self.sending(plane, generation, request)?);
        Ok(())
    }

    /// Sends a request; the answer, which is written down, too.
    pub(crate) fn sending(
        &self,
        plane: usize,
        generation: u64,
        request: Request,
    ) -> Result<impl Future<Output = Answer> + Send + use<>> {
        let planes = self.stage.fleet.data_planes.len();
        let plane = plane.checked_rem(planes).context("no data planes")?;
        let number = self.record.number.fetch_add(1, Ordering::Relaxed);
        let stream = matches!(request, Request::Stream | Request::Endless);
        let mut body = chat_body(&format!("p/{}", request.model()), stream);
        let marker = Marker {
            lease: self.name(generation),
            number,
            plane,
        };
        body["user"] = json!(marker.text());
        let request = inference(
            self.stage.data_plane(plane)?,
            "k1",
            self.name(generation),
            &body,
        )?;
        let (record, owner) = (Arc::clone(&self.record), self.number);
        Ok(async move {
            let from = record.now();
            let answered = tokio::time::timeout(SEND_LIMIT, answer_of(request));
            let answer = match answered.map(|ended| ended.ok()).await {
                Some(Ok(answer)) => answer,
                Some(Err(error)) => record.is_strange(format!("send: {error:#}")),
                None => Answer::Unknown,
            };
            let asked = Asked::Send {
                generation,
                number,
                plane,
            };
            record.add(owner, asked, from, answer);
            answer
        })
    }

    pub(crate) fn name(&self, generation: u64) -> LeaseName {
        LeaseName {
            owner: self.number,
            generation,
        }
    }

    fn leases(
        &self,
        replica: usize,
    ) -> Result<
        proto::lease_service_client::LeaseServiceClient<
            tidegate_plane_client::endpoint::PlaneChannel,
        >,
    > {
        let replicas = self.stage.fleet.control_planes.len();
        self.stage
            .leases(replica.checked_rem(replicas).context("no control planes")?)
    }
}

/// What a request carries to the upstream in its member `user`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) lease: LeaseName,
    pub(crate) number: u64,
    pub(crate) plane: usize,
}

impl Marker {
    fn text(self) -> String {
        let LeaseName { owner, generation } = self.lease;
        format!("{owner}.{generation}.{}.{}", self.number, self.plane)
    }

    pub(crate) fn of(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('.').collect();
        let [owner, generation, number, plane] = parts[..] else {
            bail!("not a marker: {text}");
        };
        Ok(Self {
            lease: LeaseName {
                owner: owner.parse()?,
                generation: generation.parse()?,
            },
            number: number.parse()?,
            plane: plane.parse()?,
        })
    }
}

/// What came of a request; the error is an answer that nobody expects.
async fn answer_of(request: http::Request<http_body_util::Full<bytes::Bytes>>) -> Result<Answer> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    // The data plane is never killed, so it takes the connection.
    let response = client.request(request).await?;
    let status = response.status();
    let Ok(body) = response.into_body().collect().await else {
        return Ok(Answer::Cut);
    };
    let body = body.to_bytes();
    let text = String::from_utf8_lossy(&body);
    if status == 200 {
        // A stream that was cut ends with an error in its place.
        let whole =
            text.contains("[DONE]") || serde_json::from_slice::<serde_json::Value>(&body).is_ok();
        return Ok(if whole { Answer::Served } else { Answer::Cut });
    }
    let json: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    match json["error"]["code"].as_str() {
        Some("LEASE_REQUIRED" | "LEASE_FENCE_STALE") => Ok(Answer::Over),
        Some("lease-capacity-unavailable") => Ok(Answer::Busy),
        Some(code) if IN_LINE.contains(&code) => Ok(Answer::Full),
        Some(code) if NOBODY_KNOWS.contains(&code) => Ok(Answer::Unknown),
        _ if TURNED_AWAY.contains(&status.as_u16()) => Ok(Answer::Failed),
        _ => bail!("{status} {text}"),
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[test]
fn a_marker_comes_back_as_it_was() {
    let marker = Marker {
        lease: LeaseName {
            owner: 3,
            generation: 5,
        },
        number: 17,
        plane: 1,
    };
    assert_eq!(Marker::of(&marker.text()).unwrap(), marker);
    assert!(Marker::of("3.5.17").is_err());
}

//! The attempt loop: decide, dispatch, judge, and again, until the client has an answer.
//!
//! Everything that happened to the request travels in [`AttemptsSoFar`]; the control plane keeps nothing of it.
//! A request that needs several answers ([`crate::plan`]) is driven part by part, each by a loop of its own.
//! A failure is asked about raw in the next question and added, classified, to what happened before.

mod admission;
mod answer;
mod attempt;
mod cooldown;
mod holdback;
mod permit;
mod remarks;
mod source;
mod words;

use std::sync::Arc;

use http::header::WARNING;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tidegate_core::admission::{Terms, terms};
use tidegate_core::config::Strategy;
use tidegate_core::ids::{AttemptId, ConnectionId};
use tidegate_core::outcome::{CommonFailure, Outcome, PassedLimits, StreamFault};
use tidegate_core::routing::{
    AttemptsSoFar, Plan, PriorAttempt, Rejection, RequestFacts, WaitKind,
};
use tidegate_plane_client::{Answer, Ask, Dispatch, LastFailure, PermitWaits, Step};
use tidegate_telemetry::Span;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::again::Again;
use crate::control_port::ControlPort;
use crate::dispatch::Passed;
use crate::endpoint::Endpoint;
use crate::event_stream::EventStream;
use crate::life::Life;
use crate::observe::{Answered, Clock};
use crate::plan;
use crate::proxy::Shared;
use crate::queues::Place;
use crate::refusal::Refusal;
use crate::relay::{self, Relay, Served};
use crate::reply::ReplyBody;
use crate::request::RequestBody;
use crate::retries::Spent;
use crate::spans::{Branch, tell_answer};
use admission::Gone;
use permit::BrokenWait;
use remarks::Remarks;
pub(crate) use source::Source;
use words::whole;

/// Most questions asked for one request. Whoever decides has smaller limits of its own; this one is for the case
/// that it has not.
const MAX_STEPS: usize = 500;
/// The client's wish for a background run was not met (decision 35).
const DEGRADED: HeaderValue = HeaderValue::from_static(
    "299 tidegate \"background is not supported; answered synchronously\"",
);

/// A request that was let in.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    pub(crate) endpoint: Endpoint,
    pub(crate) body: RequestBody,
    pub(crate) facts: Arc<RequestFacts>,
    pub(crate) passed: Passed,
}

/// What the loop came to.
pub(crate) enum End {
    /// A whole answer, and whose.
    Whole(Answered, Option<Source>),
    /// A stream that is ready, and whose.
    Stream(Box<Ready>, Option<Source>),
    /// Nothing (more) can be sent.
    Rejected(Box<Rejection>),
    /// Several answers are needed.
    Plan(Box<Plan>),
}

/// A stream that is ready.
pub(crate) struct Ready {
    status: StatusCode,
    headers: HeaderMap,
    stream: EventStream,
    clock: Clock,
    /// It broke while it was held back, which is reported: what is in it is all there will be.
    broken: Option<StreamFault>,
}

/// Drives a request to its answer. `held_since` is told since when a stream is held back, while one is.
pub(crate) async fn drive<C: ControlPort>(
    shared: Arc<Shared<C>>,
    request: Admitted,
    life: Life<C>,
    relay: Option<Relay>,
    held_since: watch::Sender<Option<Instant>>,
) -> Response<ReplyBody> {
    let mut drive = Drive::new(shared, request, life);
    drive.relay = relay;
    drive.held_since = held_since;
    let response = drive.run().await;
    let mut response = response.unwrap_or_else(|refusal| drive.refuse(&refusal));
    if drive.request.body.background == Some(true) {
        tracing::warn!(
            model = drive.request.facts.model,
            "background request degraded"
        );
        response.headers_mut().insert(WARNING, DEGRADED);
    }
    response
}

/// A request on its way to an answer.
pub(crate) struct Drive<C: ControlPort> {
    shared: Arc<Shared<C>>,
    pub(crate) request: Admitted,
    /// Until a stream takes it along.
    life: Option<Life<C>>,
    so_far: Arc<AttemptsSoFar>,
    last_failure: Option<LastFailure>,
    /// The last upstream's own words.
    pub(crate) words: Option<Answered>,
    /// What was waited for since the last attempt was sent.
    waited: PermitWaits,
    /// Where it waits until a connection may take it.
    place: Option<Place>,
    /// A wait for a permit at a control plane that is gone since.
    broken_wait: Option<BrokenWait>,
    /// The lease had moved when a dispatch came to the fence.
    has_moved: bool,
    /// What its failures have in common.
    failures: CommonFailure,
    /// Which limits of ours ended them.
    limits: PassedLimits,
    /// How the last attempt failed.
    pub(crate) last_outcome: Option<Outcome>,
    /// What ordered the targets of the last dispatch.
    strategy: Option<&'static str>,
    /// What the client is told of the last dispatch besides.
    remarks: Remarks,
    /// The note that goes with the conversation, where its combo has one.
    relay: Option<Relay>,
    /// The success that a note may be made after.
    served: Option<Served>,
    /// With what the stream in hand may be continued, if it may.
    again: Option<Arc<Again<C>>>,
    /// Longest answer that is not a stream.
    max_answer_bytes: usize,
    /// Told since when a stream is held back, while one is.
    held_since: watch::Sender<Option<Instant>>,
}

impl<C: ControlPort> Drive<C> {
    fn new(shared: Arc<Shared<C>>, request: Admitted, life: Life<C>) -> Self {
        Self {
            so_far: Arc::default(),
            last_failure: None,
            words: None,
            waited: PermitWaits::default(),
            place: None,
            broken_wait: None,
            has_moved: false,
            failures: CommonFailure::default(),
            limits: PassedLimits::default(),
            last_outcome: None,
            strategy: None,
            remarks: Remarks::default(),
            relay: None,
            served: None,
            again: None,
            max_answer_bytes: shared.limits.max_answer_bytes,
            held_since: watch::Sender::default(),
            shared,
            request,
            life: Some(life),
        }
    }

    /// A request of its own to one step of the combo.
    pub(crate) fn part(&self, body: RequestBody, facts: RequestFacts) -> Result<Self, Refusal> {
        let facts = Arc::new(facts);
        let life = self.life.as_ref().ok_or(Refusal::Internal)?;
        let life = life.part(Arc::clone(&facts));
        let request = Admitted {
            endpoint: self.request.endpoint,
            body,
            facts,
            passed: self.request.passed.clone(),
        };
        let max_answer_bytes = self.shared.limits.max_part_bytes;
        Ok(Self {
            max_answer_bytes,
            ..Self::new(Arc::clone(&self.shared), request, life)
        })
    }

    /// A request of ours that is made because of a client's and outlasts it.
    pub(crate) fn apart(
        shared: Arc<Shared<C>>,
        request: Admitted,
        request_id: String,
        branch: Branch,
    ) -> Self {
        let facts = Arc::clone(&request.facts);
        let endpoint = request.endpoint;
        let life = Life::apart(Arc::clone(&shared), request_id, endpoint, facts, branch);
        Self::new(shared, request, life)
    }

    /// The request itself goes on, to its end, as the last part of its plan.
    pub(crate) async fn as_last_part(
        &mut self,
        body: RequestBody,
        facts: RequestFacts,
    ) -> Result<End, Refusal> {
        self.request.body = body;
        self.request.facts = Arc::new(facts);
        self.until_end().await
    }

    /// How many attempts were sent, by parts included.
    pub(crate) fn attempts(&self) -> u32 {
        let sent = self.life.as_ref().map_or(0, Life::attempts);
        u32::try_from(sent).unwrap_or(u32::MAX)
    }

    /// Parts that still run are not needed any more.
    pub(crate) fn dismiss_parts(&self) {
        if let Some(life) = &self.life {
            life.dismiss_parts();
        }
    }

    async fn run(&mut self) -> Result<Response<ReplyBody>, Refusal> {
        let mut end = self.until_end().await?;
        if let End::Plan(plan) = end {
            self.strategy = Some(match *plan {
                Plan::Fusion(_) => Strategy::Fusion.as_str(),
                Plan::Pipeline(_) => Strategy::Pipeline.as_str(),
            });
            end = plan::carry_out(self, *plan).await?;
        }
        self.relay_after(&end);
        match end {
            End::Whole(answer, source) => {
                let mut response = whole(answer);
                self.name(&mut response, source);
                self.end(&response, None);
                Ok(response)
            }
            End::Stream(ready, source) => self.stream(*ready, source),
            End::Rejected(rejection) => Ok(self.reject(rejection)),
            // Parts are not planned again.
            End::Plan(_) => Err(Refusal::Internal),
        }
    }

    /// What the conversation came to may be needed by another account.
    fn relay_after(&mut self, end: &End) {
        if matches!(end, End::Whole(..) | End::Stream(..))
            && let (Some(relay), Some(served)) = (self.relay.take(), self.served.take())
            && let Some(life) = &self.life
        {
            let whose = (life.request_id.clone(), life.branch().clone());
            relay::make_after(&self.shared, relay, served, self.request.clone(), whose);
        }
    }

    /// Asks and sends until there is an end.
    pub(crate) async fn until_end(&mut self) -> Result<End, Refusal> {
        let mut attempt = self.shared.control.next_attempt();
        let mut steps = 0_usize;
        while steps < MAX_STEPS {
            steps = steps.saturating_add(1);
            let life = self.life.as_mut().ok_or(Refusal::Internal)?;
            life.asks(attempt);
            let so_far = Arc::make_mut(&mut self.so_far);
            so_far.elsewhere = life.attempts_elsewhere();
            so_far.elapsed_ms = life.elapsed_ms();
            if self.last_failure.is_some() || !so_far.attempts.is_empty() {
                let spent = spent(&self.shared, &self.request.facts.model);
                so_far.budget_spent = spent.combo;
                so_far.spent_providers = spent.providers;
            }
            so_far.occupied = occupied(&self.shared, &self.request.facts);
            let (mut span, origin) = life.question();
            let asked = Instant::now();
            let answer = self.shared.control.decide(Ask {
                attempt,
                facts: Arc::clone(&self.request.facts),
                stream: self.request.body.stream,
                so_far: Arc::clone(&self.so_far),
                last_failure: self.last_failure.clone(),
                egress: self.shared.limits.egress.clone(),
                replaces: life.holds_permit(),
                waited: self.waited.clone(),
                origin,
            });
            let answer = answer.await;
            let seconds = asked.elapsed().as_secs_f64();
            self.shared.metrics.decide_seconds.observe(seconds);
            tell_answer(&mut span, &answer);
            drop(span);
            life.hears(&answer);
            self.remember(&answer);
            // What is granted late to an earlier question must not be that of a later one.
            attempt = match answer.decision {
                Step::Dispatch(dispatch) => {
                    let terms = self.terms(&dispatch);
                    match self.pass_queue(&dispatch, terms).await? {
                        Gone::Sent(running) => {
                            match self.attempt(dispatch, terms, running).await? {
                                Some(end) => return Ok(end),
                                None => self.asks_anew(),
                            }
                        }
                        Gone::Anew(attempt) => {
                            // Whoever waited is asked about once more, however often others were faster.
                            steps = steps.saturating_sub(1);
                            attempt
                        }
                        Gone::Late => self.asks_anew(),
                    }
                }
                Step::Wait { kind, wait } => {
                    self.place = None;
                    let _span = self.waits(kind);
                    self.wait(kind, wait).await?;
                    self.asks_anew()
                }
                Step::AwaitPermit(wait) => {
                    let _span = self.waits(WaitKind::Permit);
                    self.await_permit(wait).await?
                }
                Step::Reject(rejection) => return Ok(End::Rejected(rejection)),
                Step::Plan(plan) => return Ok(End::Plan(plan)),
            };
        }
        // The number of a question that is not asked any more.
        self.shared.control.abandon(attempt, None);
        tracing::error!(
            model = self.request.facts.model,
            "a request was never decided"
        );
        Err(Refusal::Internal)
    }

    /// A span of a wait that begins.
    fn waits(&self, kind: WaitKind) -> Option<Span> {
        let kind = match kind {
            WaitKind::Cooldown => "cooldown",
            WaitKind::RetryDelay => "retry_delay",
            WaitKind::FallbackDelay => "fallback_delay",
            WaitKind::Permit => "permit",
        };
        Some(self.life.as_ref()?.branch().wait(kind))
    }

    /// Adds the failure that was asked about to what happened before.
    fn remember(&mut self, answer: &Answer) {
        let Some(failure) = self.last_failure.take() else {
            return;
        };
        let Some(classification) = answer.classification.clone() else {
            tracing::error!(attempt = %failure.attempt.id, "a failure was not classified");
            return;
        };
        Arc::make_mut(&mut self.so_far).attempts.push(PriorAttempt {
            attempt: failure.attempt,
            classification,
            failed_at: answer.failed_at,
            pass: failure.pass,
            target: failure.target,
        });
    }

    /// What holds for the queue of the connection, if it has one.
    fn terms(&self, dispatch: &Dispatch) -> Option<Terms> {
        let snapshot = self.shared.control.snapshot()?;
        terms(&snapshot.config, &dispatch.attempt.connection)
    }

    /// The attempt of the next question, which knows of no waits for permits.
    fn asks_anew(&mut self) -> AttemptId {
        self.waited = PermitWaits::default();
        self.broken_wait = None;
        self.shared.control.next_attempt()
    }
}

/// Which retry budgets are spent.
fn spent<C: ControlPort>(shared: &Shared<C>, model: &str) -> Spent {
    let Some(snapshot) = shared.control.snapshot() else {
        return Spent::default();
    };
    let config = &snapshot.config;
    let live_planes = shared.control.live_data_planes();
    shared
        .retries
        .spent(config, config.combo_for(model), live_planes)
}

/// The OAuth accounts that other sessions are using.
fn occupied<C: ControlPort>(shared: &Shared<C>, facts: &RequestFacts) -> Vec<(ConnectionId, u32)> {
    let Some(snapshot) = shared.control.snapshot() else {
        return Vec::new();
    };
    let now = shared.control.now();
    shared.occupants.of_others(&snapshot.config, facts, now)
}

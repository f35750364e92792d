//! The attempt loop: decide, dispatch, judge, and again, until the client has an answer.
//!
//! Everything that happened to the request travels in [`AttemptsSoFar`]; the control plane keeps nothing of it.
//! A failure is asked about raw in the next question and added, classified, to what happened before.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, RETRY_AFTER, WARNING};
use http::{HeaderMap, HeaderValue, Response};
use tidegate_core::config::Config;
use tidegate_core::outcome::{LocalFault, Outcome};
use tidegate_core::routing::{AttemptsSoFar, PriorAttempt, Rejection, RequestFacts, WaitKind};
use tidegate_plane_client::{Answer, Ask, Dispatch, LastFailure, Step};
use tokio::time::Instant;

use crate::control_port::ControlPort;
use crate::dispatch::{DispatchFault, Passed, prepare};
use crate::endpoint::Endpoint;
use crate::life::{Ending, Life};
use crate::metrics::{Counted, RefusalLabels};
use crate::observe::{self, Answered, Clock, Failure, Observed};
use crate::proxy::Shared;
use crate::refusal::Refusal;
use crate::reply::{
    DECISION, ErrorContext, FALLBACK_ATTEMPTS, PROVIDER, REQUEST_ID, ReplyBody, refuse,
};
use crate::request::RequestBody;
use crate::sse::Dialect;
use crate::stream::{StreamBody, Surroundings};

/// Most questions asked for one request. Whoever decides has smaller limits of its own; this one is for the case
/// that it has not.
const MAX_STEPS: usize = 500;
/// Longest single wait that is believed.
const MAX_WAIT: Duration = Duration::from_secs(300);
/// The client's wish for a background run was not met (decision 35).
const DEGRADED: HeaderValue = HeaderValue::from_static(
    "299 tidegate \"background is not supported; answered synchronously\"",
);

const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// A request that was let in.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) endpoint: Endpoint,
    pub(crate) body: RequestBody,
    pub(crate) facts: Arc<RequestFacts>,
    pub(crate) passed: Passed,
}

/// How the loop goes on after a step.
enum Next {
    Ask,
    Done(Response<ReplyBody>),
}

/// Drives a request to its answer.
pub(crate) async fn drive<C: ControlPort>(
    shared: Arc<Shared<C>>,
    request: Admitted,
    life: Life<C>,
) -> Response<ReplyBody> {
    let mut drive = Drive {
        so_far: Arc::new(AttemptsSoFar::default()),
        last_failure: None,
        words: None,
        strategy: None,
        shared,
        request,
        life: Some(life),
    };
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

struct Drive<C: ControlPort> {
    shared: Arc<Shared<C>>,
    request: Admitted,
    /// Until a stream takes it along.
    life: Option<Life<C>>,
    so_far: Arc<AttemptsSoFar>,
    last_failure: Option<LastFailure>,
    /// The last upstream's own words.
    words: Option<Answered>,
    /// What ordered the targets of the last dispatch.
    strategy: Option<&'static str>,
}

impl<C: ControlPort> Drive<C> {
    async fn run(&mut self) -> Result<Response<ReplyBody>, Refusal> {
        let mut attempt = self.shared.control.next_attempt();
        for _ in 0..MAX_STEPS {
            let life = self.life.as_mut().ok_or(Refusal::Internal)?;
            life.asks(attempt);
            let asked = Instant::now();
            let answer = self.shared.control.decide(Ask {
                attempt,
                facts: Arc::clone(&self.request.facts),
                stream: self.request.body.stream,
                so_far: Arc::clone(&self.so_far),
                last_failure: self.last_failure.clone(),
                egress: self.shared.limits.egress.clone(),
            });
            let answer = answer.await;
            let seconds = asked.elapsed().as_secs_f64();
            self.shared.metrics.decide_seconds.observe(seconds);
            life.hears(&answer);
            self.remember(&answer);
            match answer.decision {
                Step::Dispatch(dispatch) => match self.attempt(dispatch).await? {
                    Next::Done(response) => return Ok(response),
                    Next::Ask => attempt = self.shared.control.next_attempt(),
                },
                Step::Wait { kind, wait, .. } => self.wait(kind, asked, wait).await?,
                Step::Reject(rejection) => return Ok(self.reject(rejection)),
            }
        }
        tracing::error!(
            model = self.request.facts.model,
            "a request was never decided"
        );
        Err(Refusal::Internal)
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

    async fn attempt(&mut self, mut dispatch: Box<Dispatch>) -> Result<Next, Refusal> {
        let life = self.life.as_mut().ok_or(Refusal::Internal)?;
        let Admitted {
            endpoint,
            body,
            passed,
            ..
        } = &self.request;
        let snapshot = self.shared.control.snapshot();
        if self.so_far.order.is_empty() && !dispatch.order.is_empty() {
            let order = std::mem::take(&mut dispatch.order);
            Arc::make_mut(&mut self.so_far).order = order;
        }
        self.strategy = snapshot
            .as_deref()
            .and_then(|snapshot| strategy(&snapshot.config, &self.request.facts.model, &dispatch));
        let prepared = snapshot
            .ok_or(DispatchFault::NotConfigured)
            .and_then(|snapshot| prepare(&snapshot, *endpoint, body, passed, &dispatch));
        let clock = Clock::start(dispatch.deadlines);
        let provider = HeaderValue::try_from(dispatch.attempt.provider.as_str());
        let observed = match prepared {
            Ok(prepared) => {
                // The credential that is sent is the one that is judged (decision 9).
                dispatch.attempt.credential_version = prepared.credential_version;
                life.sends(dispatch);
                let (upstream, dialect) = (&self.shared.upstream, dialect(*endpoint));
                let max_bytes = self.shared.limits.max_answer_bytes;
                observe::attempt(upstream, prepared.request, dialect, clock, max_bytes).await
            }
            Err(fault) => {
                tracing::warn!(
                    attempt = %dispatch.attempt.id,
                    connection = %dispatch.attempt.connection,
                    error = %fault,
                    "a decision cannot be carried out here"
                );
                life.sends(dispatch);
                Observed::Failed(Outcome::Local(LocalFault::Internal).into())
            }
        };
        match observed {
            Observed::Whole(answer) => {
                life.succeeds();
                life.uses(answer.tokens);
                let mut response = whole(answer);
                self.name(&mut response, provider.ok());
                self.end(&response, None);
                Ok(Next::Done(response))
            }
            Observed::Stream(status, headers, stream) => {
                life.succeeds();
                life.answers(status, None);
                let mut response = Response::new(ReplyBody::empty());
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                response.headers_mut().insert(CACHE_CONTROL, NO_CACHE);
                self.name(&mut response, provider.ok());
                let life = self.life.take().ok_or(Refusal::Internal)?;
                let around = Surroundings {
                    tasks: &self.shared.tasks,
                    drained: self.shared.end.clone(),
                    stall_time: self.shared.limits.stall_time,
                    open: Counted::new(&self.shared.metrics.streams_open),
                };
                let body = StreamBody::new(*stream, clock, life, around);
                *response.body_mut() = ReplyBody::Stream(Box::pin(body));
                Ok(Next::Done(response))
            }
            Observed::Failed(Failure { outcome, words }) => {
                self.last_failure = life.fails(outcome);
                self.words = words;
                Ok(Next::Ask)
            }
        }
    }

    async fn wait(
        &mut self,
        kind: WaitKind,
        asked: Instant,
        wait: Duration,
    ) -> Result<(), Refusal> {
        let wait = wait.min(MAX_WAIT);
        let Ok(_room) = self.shared.waiting.try_acquire() else {
            return Err(Refusal::WaitingFull {
                retry_after_secs: whole_seconds(wait),
            });
        };
        tokio::time::sleep_until(asked + wait).await;
        if kind == WaitKind::Cooldown {
            let so_far = Arc::make_mut(&mut self.so_far);
            so_far.waits = so_far.waits.saturating_add(1);
            let waited = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            so_far.waited_ms = so_far.waited_ms.saturating_add(waited);
        }
        Ok(())
    }

    fn reject(&mut self, rejection: Box<Rejection>) -> Response<ReplyBody> {
        if rejection.pass_through
            && let Some(words) = self.words.take()
        {
            let retry_after = rejection.retry_after_secs;
            let code = rejection.code.clone();
            let status = Refusal::Rejected(rejection).status();
            let mut response = whole(words);
            if !response.status().is_client_error() && !response.status().is_server_error() {
                *response.status_mut() = status;
            }
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(RETRY_AFTER, seconds.into());
            }
            self.name(&mut response, None);
            self.end(&response, Some(&code));
            return response;
        }
        self.refuse(&Refusal::Rejected(rejection))
    }

    fn refuse(&mut self, refusal: &Refusal) -> Response<ReplyBody> {
        let attempt_order = self.life.as_ref().map(Life::attempt_order);
        let context = ErrorContext {
            attempt_order: attempt_order.as_deref().unwrap_or_default(),
        };
        let mut response = refuse(self.request.endpoint.format(), refusal, context);
        let labels = RefusalLabels {
            code: refusal.kind().to_owned(),
        };
        self.shared.metrics.refusals.get_or_create(&labels).inc();
        self.name(&mut response, None);
        self.end(&response, Some(refusal.code()));
        response
    }

    /// The contract's headers (decision 49). They never name the connection.
    fn name(&self, response: &mut Response<ReplyBody>, provider: Option<HeaderValue>) {
        let Some(life) = &self.life else {
            return;
        };
        let headers: &mut HeaderMap = response.headers_mut();
        if let Ok(id) = HeaderValue::try_from(&life.request_id) {
            headers.insert(REQUEST_ID, id);
        }
        let more = life.attempts().saturating_sub(1);
        if more > 0 {
            headers.insert(FALLBACK_ATTEMPTS, more.into());
        }
        if let Some(provider) = provider {
            let name = provider.to_str().unwrap_or_default();
            let latency_ms = life.elapsed_ms();
            let strategy = self.strategy.unwrap_or("unknown");
            let decision = format!("strategy={strategy}; provider={name}; latency_ms={latency_ms}");
            if let Ok(decision) = HeaderValue::try_from(decision) {
                headers.insert(DECISION, decision);
            }
            headers.insert(PROVIDER, provider);
        }
    }

    fn end(&mut self, response: &Response<ReplyBody>, code: Option<&str>) {
        if let Some(mut life) = self.life.take() {
            life.answers(response.status(), code);
            life.end(Ending::Answered);
        }
    }
}

fn whole(answer: Answered) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}

/// The combo's strategy; of a model that is no combo, the one that chose the account (`routing.md` §5.0).
fn strategy(config: &Config, model: &str, dispatch: &Dispatch) -> Option<&'static str> {
    if let Some(entry) = config.combo_for(model) {
        return Some(entry.combo.strategy.as_str());
    }
    let entry = config.provider(&dispatch.attempt.provider)?;
    Some(entry.provider.account_strategy.strategy().as_str())
}

fn dialect(endpoint: Endpoint) -> Dialect {
    match endpoint {
        Endpoint::ChatCompletions | Endpoint::Embeddings => Dialect::Chat,
        Endpoint::Responses => Dialect::Responses,
        Endpoint::Messages => Dialect::Messages,
    }
}

fn whole_seconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis().div_ceil(1_000))
        .unwrap_or(u64::MAX)
        .max(1)
}

//! What the client is told: a stream, a refusal, and the headers that name what was decided.

use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue, Response};
use tidegate_core::admission::EXECUTION_TIMEOUT;
use tidegate_core::routing::{ALL_MODELS_FAILED, Rejection};

use crate::control_port::ControlPort;
use crate::heartbeat::{Heartbeat, Names};
use crate::life::{Ending, Life};
use crate::metrics::{Counted, RefusalLabels};
use crate::refusal::Refusal;
use crate::reply::{
    DECISION, EMERGENCY_FALLBACK, ErrorContext, FALLBACK_ATTEMPTS, MODEL, NO_CACHE, PROVIDER,
    REQUEST_ID, ReplyBody, TOOLS_TRUNCATED, refuse,
};
use crate::stream::{Opened, StreamBody, Surroundings};

use super::words::handed_on;
use super::{Drive, Ready, Source};

impl<C: ControlPort> Drive<C> {
    /// Hands a stream to the client, together with the rest of the request.
    pub(super) fn stream(
        &mut self,
        ready: Ready,
        source: Option<Source>,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let life = self.life.as_mut().ok_or(Refusal::Internal)?;
        life.answers(ready.status, None);
        let mut response = Response::new(ReplyBody::empty());
        *response.status_mut() = ready.status;
        *response.headers_mut() = ready.headers;
        response.headers_mut().insert(CACHE_CONTROL, NO_CACHE);
        self.name(&mut response, source);
        let life = self.life.take().ok_or(Refusal::Internal)?;
        let around = Surroundings {
            tasks: &self.shared.tasks,
            drained: self.shared.end.clone(),
            stall_time: self.shared.limits.stall_time,
            open: Counted::new(&self.shared.metrics.streams_open),
            heartbeat: Heartbeat::begin(
                self.request.endpoint,
                self.shared.limits.heartbeats,
                &Names {
                    request_id: &life.request_id,
                    model: &self.request.facts.model,
                    now: self.shared.control.now(),
                },
                self.shared.metrics.heartbeats.clone(),
            ),
        };
        let opened = Opened {
            stream: ready.stream,
            clock: ready.clock,
            broken: ready.broken,
            again: self.again.take(),
        };
        let body = StreamBody::new(opened, life, around);
        *response.body_mut() = ReplyBody::Stream(Box::pin(body));
        Ok(response)
    }

    pub(super) fn reject(&mut self, mut rejection: Box<Rejection>) -> Response<ReplyBody> {
        if let Some(error) = rejection.lease {
            return self.refuse(&Refusal::Lease(error));
        }
        if rejection.pass_through
            && let Some(words) = self.words.take()
        {
            let retry_after = rejection.retry_after_secs;
            let code = rejection.code.clone();
            let status = Refusal::Rejected(rejection).status();
            let mut response = handed_on(words, status, retry_after);
            self.name(&mut response, None);
            self.end(&response, Some(&code));
            return response;
        }
        // Nobody has words for it, so the kind of failure is said, if it is one.
        if rejection.code == ALL_MODELS_FAILED
            && let Some(failure) = self.failures.code()
        {
            failure.code.clone_into(&mut rejection.code);
            if let Some(error_type) = failure.error_type {
                error_type.clone_into(&mut rejection.error_type);
            }
        }
        if rejection.code == EXECUTION_TIMEOUT
            && let Some(snapshot) = self.shared.control.snapshot()
            && let Some(limits) =
                (self.limits).in_words(snapshot.config.settings.request_queue.execution_ms())
        {
            rejection.message = format!("{limits}: {}", rejection.message);
        }
        self.refuse(&Refusal::Rejected(rejection))
    }

    pub(super) fn refuse(&mut self, refusal: &Refusal) -> Response<ReplyBody> {
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
    pub(super) fn name(&self, response: &mut Response<ReplyBody>, source: Option<Source>) {
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
        if let Some(Source { provider, model }) = source {
            let name = provider.to_str().unwrap_or_default();
            let latency_ms = life.elapsed_ms();
            let strategy = self.strategy.unwrap_or("unknown");
            let decision = format!("strategy={strategy}; provider={name}; latency_ms={latency_ms}");
            if let Ok(decision) = HeaderValue::try_from(decision) {
                headers.insert(DECISION, decision);
            }
            headers.insert(PROVIDER, provider);
            if let Some(model) = model {
                headers.insert(MODEL, model);
            }
            if let Some(most) = self.remarks.max_tools {
                headers.insert(TOOLS_TRUNCATED, most.into());
            }
            if let Some(target) = &self.remarks.emergency {
                headers.insert(EMERGENCY_FALLBACK, target.clone());
            }
        }
    }

    pub(super) fn end(&mut self, response: &Response<ReplyBody>, code: Option<&str>) {
        if let Some(mut life) = self.life.take() {
            life.answers(response.status(), code);
            life.end(Ending::Answered);
        }
    }
}

//! What a request tells of itself in a trace.
//!
//! ```text
//! POST /v1/chat/completions          server    the client's request, to the last byte of its answer
//!   decide                           internal  one question and its answer; the control plane's part is a child of it
//!   wait                             internal  for a cooldown, a delay or a permit, where there is one
//!   chat MODEL                       client    one attempt, until its upstream was let go
//! ```
//!
//! Names and attributes are those of OpenTelemetry's conventions for HTTP and GenAI where they have one, and begin with
//! `tidegate.` where they have not. Connections are named: traces are the operator's. Headers, bodies, credentials and
//! owners are not.

use std::time::SystemTime;

use http::{HeaderMap, StatusCode, Uri};
use tidegate_core::classify::Classification;
use tidegate_core::outcome::{LocalFault, Outcome};
use tidegate_core::routing::{Exclusion, RequestFacts};
use tidegate_core::usage::TokenUsage;
use tidegate_plane_client::{Answer, Dispatch, Origin, Step};
use tidegate_telemetry::{Span, SpanKind, TraceContext, Traces};

use crate::endpoint::Endpoint;

/// Most exclusions that a span names; how many there are is told in any case.
const MAX_EXCLUDED: usize = 16;

/// How a proxy takes part in traces.
#[derive(Clone, Debug, Default)]
pub struct Tracing {
    /// Makes spans, or does not.
    pub traces: Traces,
    /// Upstreams are told which trace an attempt belongs to (`architecture.md` §2). Off, they learn nothing of it.
    pub tell_upstreams: bool,
}

/// The trace of a request, for whatever happens in it. Clones belong to the same request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Branch {
    traces: Traces,
    parent: Option<TraceContext>,
}

impl Branch {
    /// A request of a client begins. What it says of its trace is believed of whoever has a key that is known:
    /// strangers must not decide what is sampled, nor in whose trace they are seen.
    pub(crate) fn of_request(
        traces: &Traces,
        endpoint: Endpoint,
        headers: &HeaderMap,
        has_key: impl FnOnce() -> bool,
    ) -> (Self, Span) {
        if !traces.are_on() {
            return (Self::default(), Span::none());
        }
        let caller = TraceContext::of_headers(headers).filter(|_| has_key());
        let mut span = traces.span(SpanKind::Server, endpoint.span_name(), caller.as_ref());
        if span.is_recording() {
            span.set("http.request.method", "POST");
            span.set("http.route", endpoint.route());
        }
        let branch = Self {
            traces: traces.clone(),
            parent: span.context(),
        };
        (branch, span)
    }

    /// The id of the trace, if it is sampled.
    pub(crate) fn trace_id(&self) -> Option<String> {
        self.parent.as_ref()?.sampled_trace_id()
    }

    /// A question is asked. Also what the control plane is told of whose it is.
    pub(crate) fn decide(&self, request_id: &str) -> (Span, Origin) {
        let span = self.child(SpanKind::Internal, "decide");
        let origin = Origin {
            request_id: request_id.to_owned(),
            trace: span.context(),
        };
        (span, origin)
    }

    /// Something is waited for.
    pub(crate) fn wait(&self, kind: &'static str) -> Span {
        let mut span = self.child(SpanKind::Internal, "wait");
        span.set("tidegate.wait.kind", kind);
        span
    }

    /// An attempt is sent.
    pub(crate) fn attempt(
        &self,
        endpoint: Endpoint,
        dispatch: &Dispatch,
        decided: Decided,
    ) -> AttemptSpan {
        let Some(parent) = &self.parent else {
            return AttemptSpan::default();
        };
        let attempt = &dispatch.attempt;
        let operation = endpoint.operation();
        let name = format!("{operation} {}", attempt.model);
        let mut span = self.traces.span(SpanKind::Client, &name, Some(parent));
        if !span.is_recording() {
            return AttemptSpan::of(span);
        }
        span.set("gen_ai.operation.name", operation);
        span.set("gen_ai.provider.name", attempt.provider.as_str());
        span.set("gen_ai.request.model", attempt.model.as_str());
        span.set("tidegate.attempt.id", &attempt.id.to_string());
        span.set("tidegate.connection", attempt.connection.as_str());
        if let Some(combo) = &dispatch.combo {
            span.set("tidegate.combo", combo.as_str());
        }
        if attempt.probe {
            span.set("tidegate.probe", true);
        }
        decided.tell(&mut span);
        tell_excluded(&mut span, &dispatch.excluded);
        AttemptSpan::of(span)
    }

    fn child(&self, kind: SpanKind, name: &'static str) -> Span {
        match &self.parent {
            Some(parent) => self.traces.span(kind, name, Some(parent)),
            None => Span::none(),
        }
    }
}

/// Why an attempt goes where it goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Decided {
    /// The strategy that ordered the targets.
    pub(crate) strategy: Option<&'static str>,
    /// Without the control plane.
    pub(crate) locally: bool,
    /// In place of an attempt that was decided on.
    pub(crate) again: bool,
}

impl Decided {
    fn tell(self, span: &mut Span) {
        span.set("tidegate.decision.by", by(self.locally));
        if let Some(strategy) = self.strategy {
            span.set("tidegate.decision.strategy", strategy);
        }
        if self.again {
            span.set("tidegate.decision.sent_again", true);
        }
    }
}

fn by(locally: bool) -> &'static str {
    if locally {
        "data_plane"
    } else {
        "control_plane"
    }
}

/// What a decision came to.
pub(crate) fn tell_answer(span: &mut Span, answer: &Answer) {
    if !span.is_recording() {
        return;
    }
    span.set("tidegate.decision.by", by(answer.local));
    let step = match &answer.decision {
        Step::Dispatch(_) => "dispatch",
        Step::Wait { .. } | Step::AwaitPermit(_) => "wait",
        Step::Plan(_) => "plan",
        Step::Reject(rejection) => {
            span.set("tidegate.decision.code", &rejection.code);
            tell_excluded(span, &rejection.excluded);
            "reject"
        }
    };
    span.set("tidegate.decision.step", step);
}

fn tell_excluded(span: &mut Span, excluded: &[Exclusion]) {
    if excluded.is_empty() {
        return;
    }
    let count = i64::try_from(excluded.len()).unwrap_or(i64::MAX);
    span.set("tidegate.decision.excluded_count", count);
    let told: Vec<String> = excluded
        .iter()
        .take(MAX_EXCLUDED)
        .map(|it| {
            let connection = it.connection.as_ref().map_or("*", |it| it.as_str());
            let (provider, model) = (&it.provider, &it.model);
            format!("{provider}/{connection}/{model} {}", it.reason.as_str())
        })
        .collect();
    span.set_all("tidegate.decision.excluded", &told);
}

// === AttemptSpan ===

/// The span of an attempt. What is learnt of it after its upstream was let go is told as well.
#[derive(Debug, Default)]
pub(crate) struct AttemptSpan {
    span: Span,
    /// When its upstream was let go.
    over: Option<SystemTime>,
}

impl AttemptSpan {
    fn of(span: Span) -> Self {
        Self { span, over: None }
    }

    /// It is sent there.
    pub(crate) fn is_sent(&mut self, upstream: &Uri) {
        let span = &mut self.span;
        if span.is_recording()
            && let Some((host, port)) = address(upstream)
        {
            span.set("server.address", host);
            span.set("server.port", i64::from(port));
        }
    }

    /// Tells the upstream.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        if let Some(context) = self.span.context() {
            context.write(headers);
        }
    }

    /// The first useful part of its stream came, so many seconds after it was sent.
    pub(crate) fn first_chunk(&mut self, seconds: f64) {
        let span = &mut self.span;
        span.set("gen_ai.response.time_to_first_chunk", seconds);
    }

    /// It failed.
    pub(crate) fn fails(&mut self, outcome: &Outcome) {
        let span = &mut self.span;
        match outcome {
            Outcome::Success => {}
            Outcome::Response(error) => {
                span.set("http.response.status_code", i64::from(error.status));
                if error.embedded {
                    span.fail(failure_code(outcome));
                } else {
                    span.fail(&error.status.to_string());
                }
            }
            // Nobody is to blame for an end that somebody wanted.
            Outcome::Local(LocalFault::ExecutionExpired) => {
                span.set("tidegate.attempt.ended_by", "data_plane");
            }
            Outcome::ClientAbort => span.set("tidegate.attempt.ended_by", "client"),
            Outcome::Transport(_) | Outcome::Stream(_) | Outcome::Local(_) => {
                span.fail(failure_code(outcome));
            }
        }
    }

    /// What its failure meant.
    pub(crate) fn means(&mut self, meant: &Classification) {
        if self.span.is_recording()
            && let Ok(serde_json::Value::String(reason)) = serde_json::to_value(meant.reason)
        {
            self.span.set("tidegate.failure.reason", &reason);
        }
    }

    /// What it used.
    pub(crate) fn uses(&mut self, usage: TokenUsage) {
        tell_usage(&mut self.span, usage);
    }

    /// Its upstream was let go.
    pub(crate) fn is_over(&mut self) {
        if self.span.is_recording() {
            self.over = Some(SystemTime::now());
        }
    }
}

impl Drop for AttemptSpan {
    fn drop(&mut self) {
        if let Some(at) = self.over {
            self.span.end_at(at);
        }
    }
}

/// A word of a closed set for a failure; of an answer, its status says more.
pub(crate) fn failure_code(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::Response(error) if error.embedded => "embedded_error",
        Outcome::Response(_) => "response",
        Outcome::Transport(fault) => fault.code(),
        Outcome::Stream(fault) => fault.code(),
        Outcome::Local(_) => "local",
        Outcome::ClientAbort => "client_abort",
    }
}

// === What requests tell ===

/// What an attempt, or a request, used.
pub(crate) fn tell_usage(span: &mut Span, usage: TokenUsage) {
    if !span.is_recording() {
        return;
    }
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    if let Some(input) = usage.input {
        span.set("gen_ai.usage.input_tokens", number(input));
    }
    if let Some(output) = usage.output {
        span.set("gen_ai.usage.output_tokens", number(output));
    }
    span.set("tidegate.usage.source", usage.source.name());
}

/// What is known of a request once it is let in.
pub(crate) fn tell_request(
    span: &mut Span,
    endpoint: Endpoint,
    request_id: &str,
    facts: &RequestFacts,
    stream: bool,
) {
    if !span.is_recording() {
        return;
    }
    span.set("gen_ai.operation.name", endpoint.operation());
    span.set("gen_ai.request.model", &facts.model);
    span.set("tidegate.request.id", request_id);
    span.set("tidegate.stream", stream);
    if let Some(key) = &facts.key {
        span.set("tidegate.key", key.id.as_str());
    }
}

/// What the client was answered.
pub(crate) fn tell_status(span: &mut Span, status: StatusCode, code: Option<&str>) {
    if !span.is_recording() {
        return;
    }
    span.set("http.response.status_code", i64::from(status.as_u16()));
    // As the conventions have it, a server's span fails by faults of the server.
    if status.is_server_error() {
        match code {
            Some(code) => span.fail(code),
            None => span.fail(status.as_str()),
        }
    } else if let Some(code) = code {
        span.set("error.type", code);
    }
}

fn address(uri: &Uri) -> Option<(&str, u16)> {
    let port = match uri.scheme_str() {
        Some("https") => 443,
        _ => 80,
    };
    Some((uri.host()?, uri.port_u16().unwrap_or(port)))
}

//! Whose question it is: for a span of the decision, and a line in the log that shows the same ids as the data plane's.

use tidegate_core::ids::AttemptId;
use tidegate_core::routing::Decision;
use tidegate_telemetry::{Span, SpanKind, TraceContext, Traces};
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::decide::{Answer, NoAnswer};

/// The data plane's id of the request.
const REQUEST_ID: &str = "tidegate-request-id";
/// Longest id that is believed.
const MAX_REQUEST_ID: usize = 64;
const NAME: &str = "tidegate.routing.v1.RoutingService/Decide";

/// A question that is being answered.
pub(super) struct Asked {
    span: Span,
    request_id: Option<String>,
    trace: Option<TraceContext>,
    /// How it ended was told.
    is_told: bool,
}

impl Asked {
    /// By whoever sent this.
    pub(super) fn by(metadata: &MetadataMap, traces: &Traces) -> Self {
        let id = metadata.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        let request_id = id.filter(|id| id.len() <= MAX_REQUEST_ID);
        let parent = TraceContext::of_headers(metadata.as_ref());
        let mut span = traces.span(SpanKind::Server, NAME, parent.as_ref());
        if span.is_recording() {
            span.set("rpc.system", "grpc");
            span.set("rpc.service", "tidegate.routing.v1.RoutingService");
            span.set("rpc.method", "Decide");
            if let Some(id) = request_id {
                span.set("tidegate.request.id", id);
            }
        }
        Self {
            trace: span.context().or(parent),
            span,
            request_id: request_id.map(str::to_owned),
            is_told: false,
        }
    }

    /// It is not understood.
    pub(super) fn refused(&mut self, status: &Status) {
        self.ends_without("invalid_request");
        tracing::debug!(
            target: "tidegate::decisions",
            request_id = self.request_id,
            trace_id = self.trace.as_ref().and_then(TraceContext::sampled_trace_id),
            code = ?status.code(),
            "refused"
        );
    }

    fn ends_without(&mut self, code: &'static str) {
        if !std::mem::replace(&mut self.is_told, true) {
            self.span.set("tidegate.decision.step", "none");
            self.span.fail(code);
        }
    }

    /// It is answered, or is not.
    pub(super) fn answered(mut self, attempt: AttemptId, answer: &Result<Answer, NoAnswer>) {
        self.is_told = true;
        let step = match answer {
            Ok(answer) => match &answer.decision {
                Decision::Dispatch(_) => "dispatch",
                Decision::Wait(_) => "wait",
                Decision::Reject(_) => "reject",
                Decision::Plan(_) => "plan",
                Decision::TakeTurn(_) | Decision::ReadPin(_) => "invalid",
            },
            Err(_) => "none",
        };
        let sent = answer.as_ref().ok().and_then(|it| it.attempt.as_ref());
        tracing::debug!(
            target: "tidegate::decisions",
            request_id = self.request_id,
            %attempt,
            trace_id = self.trace.as_ref().and_then(TraceContext::sampled_trace_id),
            step,
            provider = sent.map(|it| it.provider.as_str()),
            connection = sent.map(|it| it.connection.as_str()),
            model = sent.map(|it| it.model.as_str()),
            error = answer.as_ref().err().map(tracing::field::display),
            "decided"
        );
        let span = &mut self.span;
        if !span.is_recording() {
            return;
        }
        span.set("tidegate.attempt.id", &attempt.to_string());
        span.set("tidegate.decision.step", step);
        match answer {
            Ok(answer) => {
                if let Some(sent) = sent {
                    span.set("gen_ai.provider.name", sent.provider.as_str());
                    span.set("gen_ai.request.model", sent.model.as_str());
                    span.set("tidegate.connection", sent.connection.as_str());
                }
                if let Decision::Reject(rejection) = &answer.decision {
                    span.set("tidegate.decision.code", &rejection.code);
                }
                if answer.age.stale {
                    span.set("tidegate.view.stale", true);
                }
            }
            Err(NoAnswer::NotReady) => span.fail("not_ready"),
            Err(NoAnswer::UnknownKey) => span.fail("unknown_key"),
            Err(NoAnswer::UnknownProvider) => span.fail("unknown_provider"),
        }
    }
}

impl Drop for Asked {
    /// Whoever asked did not wait for the answer.
    fn drop(&mut self) {
        self.ends_without("abandoned");
    }
}

//! A request that is over is counted and logged, once.

use std::fmt::Write as _;

use tokio::time::Instant;

use crate::control_port::ControlPort;
use crate::metrics::{EndpointLabels, RequestEnd, RequestLabels};
use crate::spans;

use super::{Ending, Life, millis};

impl<C: ControlPort> Life<C> {
    fn request_end(&self) -> RequestEnd {
        match (self.ended, self.status) {
            (Some(Ending::BrokenStream), _) => RequestEnd::BrokenStream,
            (Some(Ending::Answered), Some(status)) if status.is_server_error() => {
                RequestEnd::ServerError
            }
            (Some(Ending::Answered), Some(status)) if status.is_client_error() => {
                RequestEnd::ClientError
            }
            (Some(Ending::Answered), _) => RequestEnd::Complete,
            (None, _) if std::thread::panicking() || self.shared.end.is_cancelled() => {
                RequestEnd::ServerError
            }
            (None, _) => RequestEnd::ClientAbort,
        }
    }

    pub(super) fn count_and_log(&mut self) {
        if self.is_part {
            self.log_part();
            return;
        }
        let metrics = &self.shared.metrics;
        let (endpoint, end) = (self.endpoint, self.request_end());
        metrics.requests_in_flight.dec();
        metrics
            .requests
            .get_or_create(&RequestLabels { endpoint, end })
            .inc();
        metrics
            .request_seconds
            .get_or_create(&EndpointLabels { endpoint })
            .observe(self.begun.elapsed().as_secs_f64());
        self.tell_end(end);
        let attempts = self.told_attempts();
        tracing::info!(
            target: "tidegate::access",
            request_id = self.request_id,
            trace_id = self.branch.trace_id(),
            endpoint = endpoint.name(),
            model = self.facts.model,
            key = self.facts.key.as_ref().map(|key| key.id.as_str()),
            stream = self.stream,
            status = self.status.map(|status| status.as_u16()),
            code = self.code.as_deref(),
            end = ?end,
            attempts,
            local = self.any_local,
            duration_ms = self.elapsed_ms(),
            input_tokens = self.usage.and_then(|usage| usage.input),
            output_tokens = self.usage.and_then(|usage| usage.output),
            usage = self.usage.map(|usage| usage.source.name()),
            "request"
        );
    }

    /// The end of the request's span.
    fn tell_end(&mut self, end: RequestEnd) {
        if let Some(status) = self.status {
            spans::tell_status(&mut self.span, status, self.code.as_deref());
        }
        if let Some(usage) = self.usage {
            spans::tell_usage(&mut self.span, usage);
        }
        let attempts = i64::try_from(self.attempts()).unwrap_or(i64::MAX);
        self.span.set("tidegate.attempts", attempts);
        match end {
            RequestEnd::BrokenStream => self.span.fail("broken_stream"),
            RequestEnd::ClientAbort => self.span.set("tidegate.ended_by", "client"),
            RequestEnd::ServerError if self.status.is_none() => self.span.fail("ended"),
            RequestEnd::Complete | RequestEnd::ClientError | RequestEnd::ServerError => {}
        }
    }

    fn log_part(&self) {
        tracing::info!(
            target: "tidegate::access",
            request_id = self.request_id,
            trace_id = self.branch.trace_id(),
            model = self.facts.model,
            step = self.facts.member,
            attempts = self.told_attempts(),
            local = self.any_local,
            duration_ms = millis(self.begun, Instant::now()),
            input_tokens = self.usage.and_then(|usage| usage.input),
            output_tokens = self.usage.and_then(|usage| usage.output),
            usage = self.usage.map(|usage| usage.source.name()),
            "part of a request"
        );
    }

    fn told_attempts(&self) -> String {
        let mut attempts = String::new();
        for trace in &self.traces {
            // Writing to a string cannot fail.
            let _written = write!(attempts, "{trace};");
        }
        attempts
    }
}

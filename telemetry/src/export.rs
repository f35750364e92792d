//! Sends spans to a collector, over OTLP/gRPC.
//!
//! A message is written once and may be sent several times: the collector may be starting. All of it has one limit, after
//! which its spans are dropped and counted. Only one message is under way at a time, so that a collector that is slow gets
//! no more than it takes; what ends meanwhile waits in the queue.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use prost::Message as _;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Extensions, Request, Status};
use tonic_types::StatusExt as _;

use crate::queue::{Lost, Queue, SpanMetrics};
use crate::settings::TraceSettings;
use crate::written;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Dialling, TLS included.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A connection that is dead is noticed, and made anew.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Until a message is sent again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// See the module's documentation.
pub(crate) struct Exporter {
    queue: Arc<Queue>,
    metrics: SpanMetrics,
    collector: Grpc<Channel>,
    shown: MetadataMap,
    /// Who is telling, written once ([`written::message`]).
    resource: Vec<u8>,
    scope: Vec<u8>,
    limit: Duration,
    batch: usize,
    delay: Duration,
    /// The last message was not delivered.
    is_failing: bool,
}

impl Exporter {
    pub(crate) fn new(
        settings: &TraceSettings,
        resource: &opentelemetry_sdk::Resource,
        queue: Arc<Queue>,
        metrics: SpanMetrics,
    ) -> Self {
        let mut collector = Grpc::new(channel(&settings.collector));
        if settings.gzip {
            collector = collector.send_compressed(CompressionEncoding::Gzip);
        }
        Self {
            queue,
            metrics,
            collector,
            shown: settings.headers.clone(),
            resource: resource_fields(resource),
            scope: scope_fields(),
            limit: settings.export_limit,
            batch: settings.max_batch,
            delay: settings.delay,
            is_failing: false,
        }
    }

    /// Sends what ends, until `stop` comes and what waits then is sent as well.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.queue.filled() => {}
                () = tokio::time::sleep(self.delay) => {}
                () = stop.cancelled() => break,
            }
            self.send_all(self.queue.take()).await;
        }
        self.send_all(self.queue.close()).await;
    }

    async fn send_all(&mut self, mut waiting: Vec<Vec<u8>>) {
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(self.batch));
            self.send(waiting).await;
            waiting = rest;
        }
    }

    async fn send(&mut self, spans: Vec<Vec<u8>>) {
        let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let message = Bytes::from(written::message(&self.resource, &self.scope, &spans));
        drop(spans);
        match self.deliver(&message).await {
            Ok(rejected) => {
                let rejected = rejected.min(count);
                self.metrics.exported(count.saturating_sub(rejected));
                self.metrics.lost(Lost::Rejected, rejected);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("traces are delivered again");
                }
            }
            Err(status) => {
                self.metrics.lost(Lost::NotDelivered, count);
                if !std::mem::replace(&mut self.is_failing, true) {
                    let error = status.message();
                    tracing::warn!(code = ?status.code(), error, "traces cannot be delivered");
                }
            }
        }
    }

    /// Gives back how many spans were rejected.
    async fn deliver(&mut self, message: &Bytes) -> Result<u64, Status> {
        let last = Instant::now() + self.limit;
        let mut pause = FIRST_PAUSE;
        loop {
            let called = match timeout_at(last, self.call(message.clone())).await {
                Ok(called) => called,
                Err(_elapsed) => return Err(Status::deadline_exceeded("no answer in time")),
            };
            let status = match called {
                Ok(answer) => {
                    let partial = answer.partial_success.unwrap_or_default();
                    return Ok(u64::try_from(partial.rejected_spans).unwrap_or(0));
                }
                Err(status) => status,
            };
            let Some(then) = until_again(&status, pause)
                .and_then(|pause| Instant::now().checked_add(pause))
                .filter(|then| *then < last)
            else {
                return Err(status);
            };
            sleep_until(then).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn call(&mut self, message: Bytes) -> Result<ExportTraceServiceResponse, Status> {
        let ready = self.collector.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        let request = Request::from_parts(self.shown.clone(), Extensions::default(), message);
        let path = PathAndQuery::from_static(EXPORT);
        let answer = self.collector.unary(request, path, Written).await?;
        Ok(answer.into_inner())
    }
}

/// A `ResourceSpans` without its spans.
fn resource_fields(resource: &opentelemetry_sdk::Resource) -> Vec<u8> {
    let ResourceAttributesWithSchema {
        attributes,
        schema_url,
    } = resource.into();
    let resource = Resource {
        attributes: attributes.0,
        ..Resource::default()
    };
    let fields = ResourceSpans {
        resource: Some(resource),
        schema_url: schema_url.unwrap_or_default(),
        ..ResourceSpans::default()
    };
    fields.encode_to_vec()
}

/// A `ScopeSpans` without its spans.
fn scope_fields() -> Vec<u8> {
    let scope = InstrumentationScope {
        name: "tidegate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let fields = ScopeSpans {
        scope: Some(scope),
        ..ScopeSpans::default()
    };
    fields.encode_to_vec()
}

/// How long to wait before a message is sent again: as long as the collector says, and no less than `pause`. `None` when it
/// must not be, as the protocol's specification says: a collector that has no room must say when it will have some.
fn until_again(status: &Status, pause: Duration) -> Option<Duration> {
    let told = status
        .get_details_retry_info()
        .map(|it| it.retry_delay.unwrap_or_default().max(pause));
    match status.code() {
        Code::ResourceExhausted => told,
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => Some(told.unwrap_or(pause)),
        _ => None,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the channel to a collector is none between planes; it sets keep-alive as well"
)]
fn channel(collector: &Endpoint) -> Channel {
    let endpoint = collector
        .clone()
        .connect_timeout(CONNECT_LIMIT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    endpoint.connect_lazy()
}

/// Messages that are written already.
struct Written;

impl Codec for Written {
    type Encode = Bytes;
    type Decode = ExportTraceServiceResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Written {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Written {
    type Item = ExportTraceServiceResponse;
    type Error = Status;

    fn decode(
        &mut self,
        from: &mut DecodeBuf<'_>,
    ) -> Result<Option<ExportTraceServiceResponse>, Status> {
        let answer = ExportTraceServiceResponse::decode(from.copy_to_bytes(from.remaining()));
        answer
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tonic_types::ErrorDetails;

    use super::*;

    const USUAL: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(7);

    #[rstest]
    #[case::starting(Code::Unavailable, None, Some(USUAL))]
    #[case::starting_and_says_until_when(Code::Unavailable, Some(LONG), Some(LONG))]
    #[case::sooner_than_usual(Code::Unavailable, Some(Duration::ZERO), Some(USUAL))]
    #[case::full(Code::ResourceExhausted, None, None)]
    #[case::full_for_a_while(Code::ResourceExhausted, Some(LONG), Some(LONG))]
    #[case::not_understood(Code::InvalidArgument, None, None)]
    #[case::not_understood_whatever_it_says(Code::InvalidArgument, Some(LONG), None)]
    #[case::not_served(Code::Unimplemented, None, None)]
    #[case::not_let_in(Code::Unauthenticated, None, None)]
    fn messages_are_sent_again_as_the_protocol_says(
        #[case] code: Code,
        #[case] told: Option<Duration>,
        #[case] expected: Option<Duration>,
    ) {
        let status = match told {
            Some(_) => {
                let details = ErrorDetails::with_retry_info(told);
                Status::with_error_details(code, "come again", details)
            }
            None => Status::new(code, "no"),
        };
        assert_eq!(until_again(&status, USUAL), expected);
    }
}

//! Sends spans to a collector, over OTLP/gRPC.
//!
//! A message is written once and may be sent several times: the collector may be starting. All of it has one limit, after
//! which its spans are dropped and counted. Only one message is under way at a time, so that a collector that is slow gets
//! no more than it takes; what ends meanwhile waits in the queue.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::trace::SpanData;
use prost::Message as _;
use secrecy::ExposeSecret as _;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Extensions, Request, Status};

use crate::queue::{Lost, Queue, SpanMetrics};
use crate::settings::TraceSettings;
use crate::spans::StartError;

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
    resource: ResourceAttributesWithSchema,
    limit: Duration,
    batch: usize,
    delay: Duration,
    /// The last message was not delivered.
    is_failing: bool,
}

impl Exporter {
    /// # Errors
    /// When the collector cannot be called at all, with these settings.
    pub(crate) fn new(
        settings: &TraceSettings,
        resource: ResourceAttributesWithSchema,
        queue: Arc<Queue>,
        metrics: SpanMetrics,
    ) -> Result<Self, StartError> {
        let mut collector = Grpc::new(channel(settings)?);
        if settings.gzip {
            collector = collector.send_compressed(CompressionEncoding::Gzip);
        }
        let mut shown = MetadataMap::new();
        for (name, value) in &settings.headers {
            let (Ok(name), Ok(mut value)) = (
                AsciiMetadataKey::from_bytes(name.as_bytes()),
                AsciiMetadataValue::try_from(value.expose_secret()),
            ) else {
                return Err(StartError::Header(name.clone()));
            };
            value.set_sensitive(true);
            shown.append(name, value);
        }
        Ok(Self {
            queue,
            metrics,
            collector,
            shown,
            resource,
            limit: settings.export_limit,
            batch: settings.max_batch,
            delay: settings.delay,
            is_failing: false,
        })
    }

    /// Sends what ends, until `stop` comes and what waits then is sent as well.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.queue.filled() => {}
                () = tokio::time::sleep(self.delay) => {}
                () = stop.cancelled() => break,
            }
            self.send_waiting().await;
        }
        self.send_waiting().await;
    }

    async fn send_waiting(&mut self) {
        let mut waiting = self.queue.take();
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(self.batch));
            self.send(waiting).await;
            waiting = rest;
        }
    }

    async fn send(&mut self, spans: Vec<SpanData>) {
        let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let message = ExportTraceServiceRequest {
            resource_spans: group_spans_by_resource_and_scope(spans, &self.resource),
        };
        let message = Bytes::from(message.encode_to_vec());
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
            let then = Instant::now() + pause;
            if !may_be_repeated(status.code()) || then >= last {
                return Err(status);
            }
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

/// As the protocol's specification says.
fn may_be_repeated(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    )
}

#[expect(
    clippy::disallowed_methods,
    reason = "the channel to a collector is none between planes; it sets keep-alive as well"
)]
fn channel(settings: &TraceSettings) -> Result<Channel, StartError> {
    let is_secure = settings.endpoint.scheme_str() == Some("https");
    let mut endpoint = Endpoint::from(settings.endpoint.clone())
        .connect_timeout(CONNECT_LIMIT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .tcp_nodelay(true);
    if is_secure {
        let tls = ClientTlsConfig::new();
        let tls = match &settings.ca_certificate {
            Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
            None => tls.with_webpki_roots(),
        };
        endpoint = endpoint.tls_config(tls)?;
    }
    Ok(endpoint.connect_lazy())
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

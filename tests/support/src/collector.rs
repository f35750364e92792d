//! A collector of traces: takes spans over OTLP/gRPC and keeps them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::wait::eventually;

/// A span as it came.
#[derive(Clone, Debug)]
pub struct CollectedSpan {
    /// `service.name` of whoever made it.
    pub service: String,
    /// Its name.
    pub name: String,
    /// `server`, `client` or `internal`.
    pub kind: &'static str,
    /// Its trace, as hexadecimal digits.
    pub trace_id: String,
    /// Itself, as hexadecimal digits.
    pub span_id: String,
    /// Its parent, as hexadecimal digits; empty without one.
    pub parent_id: String,
    /// Its attributes as text; lists as `[a, b]`.
    pub attributes: BTreeMap<String, String>,
    /// What it stands for failed.
    pub failed: bool,
    /// From its beginning to its end.
    pub took: Duration,
}

impl CollectedSpan {
    /// An attribute; empty without it.
    #[must_use]
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

/// What a collector answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CollectorMode {
    /// It keeps all spans.
    #[default]
    Keeps,
    /// It takes all and keeps none: for whoever sends more than is looked at.
    Forgets,
    /// It keeps none, and says to come again.
    Unavailable,
    /// It takes the message and says that so many spans in it are rejected.
    Rejects(i64),
    /// It does not answer until it does something else, and then says to come again.
    Stalls,
}

#[derive(Debug, Default)]
struct Kept {
    spans: Mutex<Vec<CollectedSpan>>,
    /// Everything that came, as text, whatever it means.
    text: Mutex<String>,
    headers: Mutex<Vec<String>>,
    calls: Mutex<u64>,
    mode: watch::Sender<CollectorMode>,
}

/// A running collector. Dropping it ends it.
#[derive(Debug)]
pub struct Collector {
    addr: SocketAddr,
    kept: Arc<Kept>,
    _stop: DropGuard,
}

impl Collector {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let kept = Arc::new(Kept::default());
        let stop = CancellationToken::new();
        let service = TraceServiceServer::new(Service(Arc::clone(&kept)))
            .accept_compressed(tonic::codec::CompressionEncoding::Gzip);
        let serving = Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        TaskTracker::new().spawn(stop.clone().run_until_cancelled_owned(serving));
        Ok(Self {
            addr,
            kept,
            _stop: stop.drop_guard(),
        })
    }

    /// Its address, for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// What it answers from now on.
    pub fn set_mode(&self, mode: CollectorMode) {
        self.kept.mode.send_replace(mode);
    }

    /// The spans it kept so far.
    #[must_use]
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.kept.spans.lock().clone()
    }

    /// How often it was called.
    #[must_use]
    pub fn calls(&self) -> u64 {
        *self.kept.calls.lock()
    }

    /// Everything that came, as it came: texts of resources, names, attributes and events are in it by the letter.
    #[must_use]
    pub fn text(&self) -> String {
        self.kept.text.lock().clone()
    }

    /// The headers of all calls, `name: value`.
    #[must_use]
    pub fn headers(&self) -> Vec<String> {
        self.kept.headers.lock().clone()
    }

    /// Waits until `look` finds what it looks for among the spans.
    ///
    /// # Errors
    /// When the limit passes; the text names the spans.
    pub async fn wait_for<T>(
        &self,
        limit: Duration,
        what: &str,
        look: impl Fn(&[CollectedSpan]) -> Option<T>,
    ) -> Result<T> {
        let found = eventually(limit, what, || async { look(&self.kept.spans.lock()) }).await;
        found.map_err(|error| {
            let names: Vec<String> = self.spans().into_iter().map(|span| span.name).collect();
            error.context(format!("there are the spans {names:?}"))
        })
    }
}

struct Service(Arc<Kept>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut modes = self.0.mode.subscribe();
        let mode = *modes.borrow_and_update();
        *self.0.calls.lock() += 1;
        if mode == CollectorMode::Forgets {
            return Ok(Response::new(ExportTraceServiceResponse::default()));
        }
        self.0.headers.lock().extend(
            request.metadata().as_ref().iter().map(|(name, value)| {
                format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))
            }),
        );
        let message = request.into_inner();
        let bytes = message.encode_to_vec();
        self.0
            .text
            .lock()
            .push_str(&String::from_utf8_lossy(&bytes));
        let rejected_spans = match mode {
            CollectorMode::Keeps | CollectorMode::Forgets => 0,
            CollectorMode::Rejects(count) => count,
            CollectorMode::Unavailable => return Err(Status::unavailable("come again")),
            CollectorMode::Stalls => {
                let other = modes.wait_for(|mode| *mode != CollectorMode::Stalls);
                drop(other.await);
                return Err(Status::unavailable("come again"));
            }
        };
        if mode == CollectorMode::Keeps {
            self.0.spans.lock().extend(spans(message));
        }
        Ok(Response::new(ExportTraceServiceResponse {
            partial_success: (rejected_spans > 0).then(|| ExportTracePartialSuccess {
                rejected_spans,
                error_message: "full".to_owned(),
            }),
        }))
    }
}

fn spans(message: ExportTraceServiceRequest) -> Vec<CollectedSpan> {
    let mut spans = Vec::new();
    for of_resource in message.resource_spans {
        let resource = texts(of_resource.resource.unwrap_or_default().attributes);
        let service = resource.get("service.name").cloned().unwrap_or_default();
        for span in of_resource.scope_spans.into_iter().flat_map(|it| it.spans) {
            let kind = match span.kind() {
                SpanKind::Server => "server",
                SpanKind::Client => "client",
                SpanKind::Internal => "internal",
                SpanKind::Producer | SpanKind::Consumer | SpanKind::Unspecified => "other",
            };
            spans.push(CollectedSpan {
                service: service.clone(),
                kind,
                trace_id: digits(&span.trace_id),
                span_id: digits(&span.span_id),
                parent_id: digits(&span.parent_span_id),
                attributes: texts(span.attributes),
                // 2 is an error.
                failed: span.status.unwrap_or_default().code == 2,
                took: Duration::from_nanos(
                    span.end_time_unix_nano
                        .saturating_sub(span.start_time_unix_nano),
                ),
                name: span.name,
            });
        }
    }
    spans
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    attributes
        .into_iter()
        .map(|attribute| (attribute.key, text(attribute.value)))
        .collect()
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::BoolValue(value)) => value.to_string(),
        Some(Value::IntValue(value)) => value.to_string(),
        Some(Value::DoubleValue(value)) => value.to_string(),
        Some(Value::ArrayValue(list)) => {
            let texts: Vec<String> = list.values.into_iter().map(|it| text(Some(it))).collect();
            format!("[{}]", texts.join(", "))
        }
        other => format!("{other:?}"),
    }
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

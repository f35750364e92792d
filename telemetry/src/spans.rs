//! Where spans are made.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanKind, TraceContextExt as _};
use opentelemetry::{Context, Key, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample as _,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::context::TraceContext;
use crate::export::Exporter;
use crate::queue::{Queue, SpanMetrics};
use crate::settings::TraceSettings;
use crate::span::Span;
use crate::written::Written;

const SERVICE_NAME: Key = Key::from_static_str("service.name");

/// Makes spans and sends them, or does neither. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<On>>);

#[derive(Debug)]
struct On {
    sampler: Sampler,
    ids: RandomIdGenerator,
    queue: Arc<Queue>,
    metrics: SpanMetrics,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Traces {
    /// Records nothing, and costs nothing.
    #[must_use]
    pub fn off() -> Self {
        Self::default()
    }

    /// Starts to make and send spans of `service`, a name for where the environment gives none, or does neither when
    /// there are no settings. `instance` tells processes of a service apart. Must be called in a runtime. Whether the
    /// collector is there does not matter.
    #[must_use]
    pub fn start(settings: Option<TraceSettings>, service: &'static str, instance: &str) -> Self {
        let Some(settings) = settings else {
            return Self::off();
        };
        let metrics = SpanMetrics::default();
        let queue = Arc::new(Queue::new(
            settings.max_queued,
            settings.max_batch,
            metrics.clone(),
        ));
        let exporter = Exporter::new(
            &settings,
            &resource(&settings, service, instance),
            Arc::clone(&queue),
            metrics.clone(),
        );
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        tasks.spawn(exporter.run(stop.clone()));
        tasks.close();
        tracing::info!(collector = %settings.collector.uri(), "traces are made");
        Self(Some(Arc::new(On {
            sampler: settings.sampler,
            ids: RandomIdGenerator::default(),
            queue,
            metrics,
            tasks,
            stop,
        })))
    }

    /// What became of the spans; all at zero where none are made.
    #[must_use]
    pub fn metrics(&self) -> SpanMetrics {
        self.0
            .as_ref()
            .map_or_else(SpanMetrics::default, |on| on.metrics.clone())
    }

    /// Whether spans are made at all.
    #[must_use]
    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// A span that begins now, as a child of `parent`, or as the first of a trace.
    #[must_use]
    pub fn span(&self, kind: SpanKind, name: &str, parent: Option<&TraceContext>) -> Span {
        let Some(on) = &self.0 else {
            return Span::none();
        };
        on.span(kind, name, parent.map(|TraceContext(parent)| parent))
    }

    /// Sends what waits, for at most `limit`. Spans that end later are lost.
    pub async fn shutdown(&self, limit: Duration) {
        let Some(on) = &self.0 else {
            return;
        };
        if on.stop.is_cancelled() {
            return;
        }
        on.stop.cancel();
        if tokio::time::timeout(limit, on.tasks.wait()).await.is_err() {
            tracing::warn!("traces were left undelivered");
        }
    }
}

impl On {
    fn span(&self, kind: SpanKind, name: &str, parent: Option<&SpanContext>) -> Span {
        let (trace_id, told) = match parent {
            Some(parent) => (
                parent.trace_id(),
                Context::new().with_remote_span_context(parent.clone()),
            ),
            None => (self.ids.new_trace_id(), Context::new()),
        };
        let sampled = self
            .sampler
            .should_sample(Some(&told), trace_id, name, &kind, &[], &[]);
        let is_sampled = sampled.decision == SamplingDecision::RecordAndSample;
        let flags = parent.map(SpanContext::trace_flags).unwrap_or_default();
        let context = SpanContext::new(
            trace_id,
            self.ids.new_span_id(),
            flags.with_sampled(is_sampled),
            false,
            sampled.trace_state,
        );
        let recording = is_sampled.then(|| {
            let written = Written::begin(&context, parent, kind, name, SystemTime::now());
            (written, Arc::clone(&self.queue))
        });
        Span::new(context, recording)
    }
}

/// Who is telling: what `OTEL_RESOURCE_ATTRIBUTES` says, and what it does not.
fn resource(settings: &TraceSettings, service: &'static str, instance: &str) -> Resource {
    let said = Resource::builder().build();
    let names = |key: &str| said.get(&Key::new(key.to_owned())).is_some();
    let mut more = Vec::new();
    // Without a name the library makes one up.
    let is_made_up = said
        .get(&SERVICE_NAME)
        .is_none_or(|name| name.as_str().starts_with("unknown_service"));
    match &settings.service_name {
        Some(name) => more.push(KeyValue::new(SERVICE_NAME, name.clone())),
        None if is_made_up => more.push(KeyValue::new(SERVICE_NAME, service)),
        None => {}
    }
    for (key, value) in [
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", instance),
    ] {
        if !names(key) {
            more.push(KeyValue::new(key, value.to_owned()));
        }
    }
    Resource::builder().with_attributes(more).build()
}

#[cfg(test)]
mod tests;

//! Where spans are made.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{
    SpanBuilder, SpanKind, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, InstrumentationScope, Key, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::context::TraceContext;
use crate::export::Exporter;
use crate::queue::{IntoQueue, Queue, SpanMetrics};
use crate::settings::TraceSettings;
use crate::span::Span;

/// What most spans hold.
const ATTRIBUTES: usize = 16;
const SERVICE_NAME: Key = Key::from_static_str("service.name");

/// Makes spans and sends them, or does neither. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    metrics: SpanMetrics,
    on: Option<Arc<On>>,
}

#[derive(Debug)]
struct On {
    tracer: SdkTracer,
    // Spans are handed on for as long as it lives.
    provider: SdkTracerProvider,
    tasks: TaskTracker,
    stop: CancellationToken,
    has_ended: Mutex<bool>,
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
        let resource = resource(&settings, service, instance);
        let queue = Arc::new(Queue::new(
            settings.max_queued,
            settings.max_batch,
            metrics.clone(),
        ));
        let exporter = Exporter::new(
            &settings,
            (&resource).into(),
            Arc::clone(&queue),
            metrics.clone(),
        );
        let provider = SdkTracerProvider::builder()
            .with_sampler(settings.sampler)
            .with_resource(resource)
            .with_span_processor(IntoQueue(queue))
            .build();
        let scope = InstrumentationScope::builder("tidegate")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        tasks.spawn(exporter.run(stop.clone()));
        tasks.close();
        tracing::info!(collector = %settings.collector.uri(), "traces are made");
        Self {
            metrics,
            on: Some(Arc::new(On {
                tracer: provider.tracer_with_scope(scope),
                provider,
                tasks,
                stop,
                has_ended: Mutex::new(false),
            })),
        }
    }

    /// What became of the spans.
    #[must_use]
    pub fn metrics(&self) -> &SpanMetrics {
        &self.metrics
    }

    /// Whether spans are made at all.
    #[must_use]
    pub fn are_on(&self) -> bool {
        self.on.is_some()
    }

    /// A span that begins now, as a child of `parent`, or as the first of a trace.
    #[must_use]
    pub fn span(
        &self,
        kind: SpanKind,
        name: impl Into<Cow<'static, str>>,
        parent: Option<&TraceContext>,
    ) -> Span {
        let Some(on) = &self.on else {
            return Span::none();
        };
        let builder = SpanBuilder::from_name(name)
            .with_kind(kind)
            .with_attributes(Vec::with_capacity(ATTRIBUTES));
        let context = match parent {
            Some(TraceContext(parent)) => Context::new().with_remote_span_context(parent.clone()),
            None => Context::new(),
        };
        Span::of(on.tracer.build_with_context(builder, &context))
    }

    /// Sends what waits, for at most `limit`. Spans that end later are lost.
    pub async fn shutdown(&self, limit: Duration) {
        let Some(on) = &self.on else {
            return;
        };
        if std::mem::replace(&mut *on.has_ended.lock(), true) {
            return;
        }
        on.stop.cancel();
        if tokio::time::timeout(limit, on.tasks.wait()).await.is_err() {
            tracing::warn!("traces were left undelivered");
        }
        // It has nothing to do any more, whatever it says of that.
        drop(on.provider.shutdown());
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

//! What our programs tell of what they do: logs as JSON lines, and traces for an OpenTelemetry collector.
//!
//! **Traces never slow a request.** A span that has ended is put into a queue of bounded length, or dropped and counted;
//! one task sends what is in it, with a time limit. A collector that is dead, slow or full is a metric and one line in the
//! log ([`Traces`]).
//!
//! **Nothing secret is in a span.** Spans hold names (of models, providers, connections, keys), numbers and codes, never
//! a header, a body, a credential or the token of an owner; texts are cut ([`MAX_TEXT`]).
//!
//! Settings are OpenTelemetry's own variables ([`OtlpArgs`]). Those that cannot be used are refused at the start.

mod context;
mod export;
mod families;
mod logs;
mod queue;
mod sampling;
mod settings;
mod span;
mod spans;
mod written;

pub use context::TraceContext;
pub use families::FamilyRegistry;
pub use logs::{LogOutput, check_filter, start_logging};
pub use opentelemetry::trace::SpanKind;
pub use queue::SpanMetrics;
pub use settings::{BadSetting, OtlpArgs, TraceSettings};
pub use span::{MAX_TEXT, Span};
pub use spans::Traces;
pub use written::Value;

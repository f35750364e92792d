//! One span, as those who record it see it.

use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::SpanContext;

use crate::context::TraceContext;
use crate::queue::Queue;
use crate::written::{Value, Written};

/// Longest text in a span, in bytes. Some come from clients.
pub const MAX_TEXT: usize = 256;

/// A span. Ends when it is dropped, if not before. Where nothing is recorded, everything it is told is forgotten.
#[derive(Debug, Default)]
pub struct Span(Option<Box<Known>>);

#[derive(Debug)]
struct Known {
    context: SpanContext,
    /// None for a span that is not sampled, or has ended.
    recording: Option<(Written, Arc<Queue>)>,
}

impl Span {
    /// One that records nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    pub(crate) fn new(context: SpanContext, recording: Option<(Written, Arc<Queue>)>) -> Self {
        Self(Some(Box::new(Known { context, recording })))
    }

    /// Whether what it is told is recorded.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.0.as_ref().is_some_and(|it| it.recording.is_some())
    }

    /// What its children, here and elsewhere, are told. There is one for a span that is not sampled, too, so that nobody
    /// else samples its trace; there is none when traces are off.
    #[must_use]
    pub fn context(&self) -> Option<TraceContext> {
        let known = self.0.as_ref()?;
        Some(TraceContext(known.context.clone()))
    }

    /// Sets an attribute. Texts are cut at [`MAX_TEXT`].
    pub fn set<'a>(&mut self, name: &'static str, value: impl Into<Value<'a>>) {
        if let Some(written) = self.written() {
            written.attribute(name, value.into());
        }
    }

    /// Sets an attribute to several texts, each cut at [`MAX_TEXT`].
    pub fn set_all(&mut self, name: &'static str, texts: &[impl AsRef<str>]) {
        if let Some(written) = self.written() {
            written.texts(name, texts);
        }
    }

    /// What it stands for failed, with a code.
    pub fn fail(&mut self, code: &str) {
        if let Some(written) = self.written() {
            written.attribute("error.type", code.into());
            written.fail();
        }
    }

    /// What it stands for is over, whatever more it is told until it is dropped.
    pub fn end(&mut self) {
        self.end_at(SystemTime::now());
    }

    /// It was over then.
    pub fn end_at(&mut self, at: SystemTime) {
        let recording = self.0.as_mut().and_then(|it| it.recording.take());
        if let Some((written, queue)) = recording {
            queue.push(written.end(at));
        }
    }

    fn written(&mut self) -> Option<&mut Written> {
        let (written, _) = self.0.as_mut()?.recording.as_mut()?;
        Some(written)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if self.is_recording() {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_traces_nothing_is_recorded_and_there_is_no_context() {
        let mut span = Span::none();
        span.set("a", 1_i64);
        span.fail("x");
        span.end();
        assert!(!span.is_recording());
        assert_eq!(span.context(), None);
    }
}

//! One span, as those who record it see it.

use std::time::SystemTime;

use opentelemetry::trace::{Span as _, Status};
use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::trace::Span as SdkSpan;

use crate::context::TraceContext;

/// Longest text in a span, in bytes. Some come from clients.
pub const MAX_TEXT: usize = 256;

/// A span. Ends when it is dropped, if not before. Where nothing is recorded, everything it is told is forgotten.
#[derive(Debug, Default)]
pub struct Span(Option<Box<SdkSpan>>);

impl Span {
    /// One that records nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    pub(crate) fn of(span: SdkSpan) -> Self {
        Self(Some(Box::new(span)))
    }

    /// Whether what it is told is recorded.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.0.as_ref().is_some_and(|span| span.is_recording())
    }

    /// What its children, here and elsewhere, are told. There is one for a span that is not sampled, too, so that nobody
    /// else samples its trace; there is none when traces are off.
    #[must_use]
    pub fn context(&self) -> Option<TraceContext> {
        let span = self.0.as_ref()?;
        Some(TraceContext(span.span_context().clone()))
    }

    /// Sets an attribute to a number, a truth value or a text that is known to be short.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new(name, value));
        }
    }

    /// Sets an attribute to a text, cut at [`MAX_TEXT`].
    pub fn set_text(&mut self, name: &'static str, text: &str) {
        if self.is_recording() {
            self.set(name, cut(text).to_owned());
        }
    }

    /// What it stands for failed, with a code of a closed set.
    pub fn fail(&mut self, code: &'static str) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new("error.type", code));
            span.set_status(Status::error(""));
        }
    }

    /// The same with a code that is made where it is needed.
    pub fn fail_with(&mut self, code: &str) {
        if let Some(span) = &mut self.0
            && span.is_recording()
        {
            span.set_attribute(KeyValue::new("error.type", cut(code).to_owned()));
            span.set_status(Status::error(""));
        }
    }

    /// What it stands for is over, whatever more it is told until it is dropped.
    pub fn end(&mut self) {
        if let Some(span) = &mut self.0 {
            span.end();
        }
    }

    /// It was over then.
    pub fn end_at(&mut self, at: SystemTime) {
        if let Some(span) = &mut self.0 {
            span.end_with_timestamp(at);
        }
    }
}

fn cut(text: &str) -> &str {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = format!("{}\u{e4}\u{e4}", "x".repeat(MAX_TEXT - 1));
        assert_eq!(cut(&long), "x".repeat(MAX_TEXT - 1));
    }

    #[test]
    fn without_traces_nothing_is_recorded_and_there_is_no_context() {
        let mut span = Span::none();
        span.set("a", 1);
        span.fail("x");
        span.end();
        assert!(!span.is_recording());
        assert_eq!(span.context(), None);
    }
}

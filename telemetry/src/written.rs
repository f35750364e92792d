//! A span as OTLP writes it (`opentelemetry/proto/trace/v1/trace.proto`), from its beginning on.
//!
//! What a span is told is written at once, behind what it was told before: the fields of a message may come in any order,
//! and an attribute is one of them. So a span is one buffer, which nobody takes apart again, and a message of many is these
//! buffers one behind the other ([`message`]). Why it is not the SDK that does this: `docs/adr/0026-spans-are-queued-here.md`.

mod wire;

use std::time::SystemTime;

use opentelemetry::trace::{SpanContext, SpanKind};
use opentelemetry_proto::tonic::trace::v1::{SpanFlags, span, status};

use wire::{
    Wire, len_of_key, len_of_part, len_of_whole, put_bytes, put_key, put_len, put_moment, put_whole,
};

/// What most spans need.
const ROOM: usize = 512;
/// Most attributes of a span; what comes later is counted.
const MAX_ATTRIBUTES: u32 = 64;

/// Numbers of fields.
mod field {
    /// Of `ExportTraceServiceRequest`.
    pub(super) const RESOURCE_SPANS: u32 = 1;
    /// Of `ResourceSpans`.
    pub(super) const SCOPE_SPANS: u32 = 2;
    /// Of `ScopeSpans`.
    pub(super) const SPANS: u32 = 2;
    // Of `Span`.
    pub(super) const TRACE_ID: u32 = 1;
    pub(super) const SPAN_ID: u32 = 2;
    pub(super) const TRACE_STATE: u32 = 3;
    pub(super) const PARENT_SPAN_ID: u32 = 4;
    pub(super) const NAME: u32 = 5;
    pub(super) const KIND: u32 = 6;
    pub(super) const START: u32 = 7;
    pub(super) const END: u32 = 8;
    pub(super) const ATTRIBUTES: u32 = 9;
    pub(super) const DROPPED_ATTRIBUTES: u32 = 10;
    pub(super) const STATUS: u32 = 15;
    pub(super) const FLAGS: u32 = 16;
    /// Of `Status`.
    pub(super) const CODE: u32 = 3;
    // Of `KeyValue`.
    pub(super) const KEY: u32 = 1;
    pub(super) const VALUE: u32 = 2;
    // Of `AnyValue`.
    pub(super) const STRING: u32 = 1;
    pub(super) const BOOL: u32 = 2;
    pub(super) const INT: u32 = 3;
    pub(super) const DOUBLE: u32 = 4;
    pub(super) const ARRAY: u32 = 5;
    /// Of `ArrayValue`.
    pub(super) const VALUES: u32 = 1;
}

/// What an attribute says.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any number.
    Double(f64),
    /// A text, of which [`crate::MAX_TEXT`] bytes are kept.
    Text(&'a str),
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Value<'_> {
    fn from(value: f64) -> Self {
        Self::Double(value)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Self::Text(value)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(value: &'a String) -> Self {
        Self::Text(value)
    }
}

/// A span that has not ended, as far as it is written.
#[derive(Debug)]
pub(crate) struct Written {
    bytes: Vec<u8>,
    attributes: u32,
    dropped: u32,
    has_failed: bool,
}

impl Written {
    pub(crate) fn begin(
        context: &SpanContext,
        parent: Option<&SpanContext>,
        kind: SpanKind,
        name: &str,
        at: SystemTime,
    ) -> Self {
        let mut bytes = Vec::with_capacity(ROOM);
        let to = &mut bytes;
        put_bytes(to, field::TRACE_ID, &context.trace_id().to_bytes());
        put_bytes(to, field::SPAN_ID, &context.span_id().to_bytes());
        let state = context.trace_state().header();
        if !state.is_empty() {
            put_bytes(to, field::TRACE_STATE, state.as_bytes());
        }
        let mut flags = SpanFlags::ContextHasIsRemoteMask as u32;
        if let Some(parent) = parent {
            put_bytes(to, field::PARENT_SPAN_ID, &parent.span_id().to_bytes());
            if parent.is_remote() {
                flags |= SpanFlags::ContextIsRemoteMask as u32;
            }
        }
        put_key(to, field::FLAGS, Wire::Fixed32);
        flags |= u32::from(context.trace_flags().to_u8());
        to.extend_from_slice(&flags.to_le_bytes());
        put_bytes(to, field::NAME, cut(name).as_bytes());
        let kind = span::SpanKind::from(kind) as i32;
        put_whole(to, field::KIND, u64::from(kind.unsigned_abs()));
        put_moment(to, field::START, at);
        Self {
            bytes,
            attributes: 0,
            dropped: 0,
            has_failed: false,
        }
    }

    pub(crate) fn attribute(&mut self, name: &str, value: Value<'_>) {
        if let Some(to) = self.room_for_one() {
            let value_len = value.len();
            put_name(to, name, value_len);
            value.put(to);
        }
    }

    pub(crate) fn texts(&mut self, name: &str, texts: &[impl AsRef<str>]) {
        let Some(to) = self.room_for_one() else {
            return;
        };
        let values = || texts.iter().map(|text| Value::Text(text.as_ref()));
        let array_len = values()
            .map(|value| len_of_part(field::VALUES, value.len()))
            .sum();
        put_name(to, name, len_of_part(field::ARRAY, array_len));
        put_len(to, field::ARRAY, array_len);
        for value in values() {
            put_len(to, field::VALUES, value.len());
            value.put(to);
        }
    }

    pub(crate) fn fail(&mut self) {
        self.has_failed = true;
    }

    /// The whole of a `Span`.
    pub(crate) fn end(self, at: SystemTime) -> Vec<u8> {
        let mut bytes = self.bytes;
        let to = &mut bytes;
        put_moment(to, field::END, at);
        if self.dropped > 0 {
            put_whole(to, field::DROPPED_ATTRIBUTES, u64::from(self.dropped));
        }
        if self.has_failed {
            let code = u64::from((status::StatusCode::Error as i32).unsigned_abs());
            put_len(to, field::STATUS, len_of_whole(field::CODE, code));
            put_whole(to, field::CODE, code);
        }
        bytes
    }

    fn room_for_one(&mut self) -> Option<&mut Vec<u8>> {
        if self.attributes >= MAX_ATTRIBUTES {
            self.dropped = self.dropped.saturating_add(1);
            return None;
        }
        self.attributes = self.attributes.saturating_add(1);
        Some(&mut self.bytes)
    }
}

/// An `ExportTraceServiceRequest` with these spans, all of one `resource` and one `scope`: the fields of a `ResourceSpans`
/// and of a `ScopeSpans` that are not spans, written.
pub(crate) fn message(resource: &[u8], scope: &[u8], spans: &[Vec<u8>]) -> Vec<u8> {
    let spans_len: usize = spans
        .iter()
        .map(|span| len_of_part(field::SPANS, span.len()))
        .sum();
    let scope_len = scope.len().saturating_add(spans_len);
    let scope_part = len_of_part(field::SCOPE_SPANS, scope_len);
    let resource_len = resource.len().saturating_add(scope_part);
    let mut bytes = Vec::with_capacity(len_of_part(field::RESOURCE_SPANS, resource_len));
    let to = &mut bytes;
    put_len(to, field::RESOURCE_SPANS, resource_len);
    to.extend_from_slice(resource);
    put_len(to, field::SCOPE_SPANS, scope_len);
    to.extend_from_slice(scope);
    for span in spans {
        put_bytes(to, field::SPANS, span);
    }
    bytes
}

/// As much of a text as a span keeps, cut between characters.
fn cut(text: &str) -> &str {
    if text.len() <= crate::MAX_TEXT {
        return text;
    }
    text.get(..text.floor_char_boundary(crate::MAX_TEXT))
        .unwrap_or_default()
}

impl Value<'_> {
    /// Bytes of it as an `AnyValue`.
    fn len(self) -> usize {
        match self {
            Self::Bool(_) => len_of_whole(field::BOOL, 1),
            Self::Int(value) => len_of_whole(field::INT, value.cast_unsigned()),
            Self::Double(_) => len_of_key(field::DOUBLE).saturating_add(size_of::<f64>()),
            Self::Text(text) => len_of_part(field::STRING, cut(text).len()),
        }
    }

    fn put(self, to: &mut Vec<u8>) {
        match self {
            Self::Bool(value) => put_whole(to, field::BOOL, u64::from(value)),
            Self::Int(value) => put_whole(to, field::INT, value.cast_unsigned()),
            Self::Double(value) => {
                put_key(to, field::DOUBLE, Wire::Fixed64);
                to.extend_from_slice(&value.to_le_bytes());
            }
            Self::Text(text) => put_bytes(to, field::STRING, cut(text).as_bytes()),
        }
    }
}

/// The beginning of an attribute, up to a value of this length.
fn put_name(to: &mut Vec<u8>, name: &str, value_len: usize) {
    let key_part = len_of_part(field::KEY, name.len());
    let value_part = len_of_part(field::VALUE, value_len);
    put_len(to, field::ATTRIBUTES, key_part.saturating_add(value_part));
    put_bytes(to, field::KEY, name.as_bytes());
    put_len(to, field::VALUE, value_len);
}

#[cfg(test)]
mod tests;

//! The one thing a proxy must understand of a request's body: a few members of its outermost object.
//!
//! The bytes are kept. They are checked once (UTF-8, JSON, depth), then the outermost members are walked and
//! the spans of those that matter are remembered, so that one value can be replaced and everything else
//! stays byte for byte what the client sent.

mod edit;
mod walk;

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use tidegate_core::routing::body::{self, BodyFacts, MAX_DEPTH};

use edit::{Spans, move_up};
use walk::{Member, members};

pub(crate) use edit::{Changes, MaxOutput};

/// Longest model or combo name of a request, in bytes.
pub(crate) const MAX_MODEL_BYTES: usize = 512;

/// What is wrong with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyFault {
    #[error("the request body is not valid UTF-8")]
    InvalidUtf8,
    #[error("the request body is not valid JSON (line {line}, column {column})")]
    InvalidJson { line: usize, column: usize },
    #[error("the request body is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("the request body must be a JSON object")]
    NotAnObject,
    #[error("the member `{0}` is given more than once")]
    DuplicateMember(&'static str),
    #[error("the member `model` is missing")]
    MissingModel,
    #[error("the member `model` must be a text of 1 to {MAX_MODEL_BYTES} bytes")]
    InvalidModel,
    #[error("the member `stream` must be true or false")]
    InvalidStream,
    #[error("the member `background` must be true or false")]
    InvalidBackground,
}

impl BodyFault {
    /// The stable code clients get.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::InvalidUtf8 => "invalid_utf8",
            Self::InvalidJson { .. } => "invalid_json",
            Self::TooDeep => "json_too_deep",
            Self::NotAnObject => "body_not_an_object",
            Self::DuplicateMember(_) => "duplicate_member",
            Self::MissingModel => "missing_model",
            Self::InvalidModel => "invalid_model",
            Self::InvalidStream => "invalid_stream",
            Self::InvalidBackground => "invalid_background",
        }
    }
}

/// A checked body and what routing needs of it.
#[derive(Clone, Debug)]
pub(crate) struct RequestBody {
    bytes: Bytes,
    /// Span of the value of `model`, quotes included.
    model_span: Range<usize>,
    /// The model or combo the client named.
    pub(crate) model: String,
    /// The client asked for a stream.
    pub(crate) stream: bool,
    /// What else it says.
    pub(crate) facts: BodyFacts,
    spans: Spans,
    /// `background` as the client sent it; it is no longer in the bytes.
    pub(crate) background: Option<bool>,
}

impl RequestBody {
    /// Checks a body.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub(crate) fn parse(bytes: Bytes, takes_background: bool) -> Result<Self, BodyFault> {
        Self::read_by(body::read, bytes, takes_background)
    }

    /// Checks a body whose members may name a session.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub(crate) fn parse_with_session(
        bytes: Bytes,
        takes_background: bool,
    ) -> Result<Self, BodyFault> {
        Self::read_by(body::read_with_session, bytes, takes_background)
    }

    fn read_by(
        read: fn(&str) -> serde_json::Result<BodyFacts>,
        bytes: Bytes,
        takes_background: bool,
    ) -> Result<Self, BodyFault> {
        let text = std::str::from_utf8(&bytes).map_err(|_| BodyFault::InvalidUtf8)?;
        let facts = read(text).map_err(|error| BodyFault::InvalidJson {
            line: error.line(),
            column: error.column(),
        })?;
        let mut found = Found::default();
        members(text, MAX_DEPTH, |member| found.take(text, member))?;
        let model_span = found.model.ok_or(BodyFault::MissingModel)?.value;
        let model = model_of(text, &model_span)?;
        let stream = flag(text, found.stream.as_ref())
            .map_err(|NotAFlag| BodyFault::InvalidStream)?
            .unwrap_or(false);
        let mut body = Self {
            model_span,
            model,
            stream,
            facts,
            spans: found.spans,
            background: None,
            bytes: Bytes::new(),
        };
        if takes_background && let Some(member) = found.background {
            body.background =
                flag(text, Some(&member)).map_err(|NotAFlag| BodyFault::InvalidBackground)?;
            body.bytes = without(&bytes, &member.removed);
            move_up(&mut body.model_span, &member.removed);
            body.spans.move_up(&member.removed);
        } else {
            body.bytes = bytes;
        }
        Ok(body)
    }

    /// The body as it is.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// A chat's body with what the model has said so far, for it to go on from there; `None` for any other body.
    pub(crate) fn continued(&self, said: &str) -> Option<Self> {
        if said.is_empty() {
            return Some(self.clone());
        }
        let edit = self.spans.said(&self.bytes, said)?;
        let mut bytes = BytesMut::new();
        for piece in edit::apply(&self.bytes, vec![edit]) {
            bytes.extend_from_slice(&piece);
        }
        Self::parse(bytes.freeze(), false).ok()
    }

    /// The body with another model and some changes, as pieces to be sent one after the other.
    pub(crate) fn with(&self, model: &str, changes: Changes) -> Vec<Bytes> {
        let mut edits = self.spans.edits(&self.bytes, changes);
        if model != self.model {
            let written = serde_json::Value::from(model).to_string();
            edits.push((self.model_span.clone(), written));
        }
        edit::apply(&self.bytes, edits)
    }
}

/// The members that matter, while walking.
#[derive(Default)]
struct Found {
    model: Option<Member>,
    stream: Option<Member>,
    background: Option<Member>,
    spans: Spans,
}

impl Found {
    fn take(&mut self, text: &str, member: Member) -> Result<(), BodyFault> {
        let (name, place) = match member_name(text, &member).as_ref() {
            "model" => ("model", &mut self.model),
            "stream" => ("stream", &mut self.stream),
            "background" => ("background", &mut self.background),
            other => {
                self.spans.take(other, &member);
                return Ok(());
            }
        };
        // Readers differ in which of two equal members they believe; ours and the upstream's must not.
        if place.replace(member).is_some() {
            return Err(BodyFault::DuplicateMember(name));
        }
        Ok(())
    }
}

fn member_name<'a>(text: &'a str, member: &Member) -> Cow<'a, str> {
    let quoted = text.get(member.name.clone()).unwrap_or_default();
    match quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
    {
        Some(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
        // A name that cannot be decoded (a lone surrogate) is none of ours.
        _ => Cow::Owned(serde_json::from_str(quoted).unwrap_or_default()),
    }
}

fn model_of(text: &str, span: &Range<usize>) -> Result<String, BodyFault> {
    let written = text.get(span.clone()).unwrap_or_default();
    let model: String = serde_json::from_str(written).map_err(|_| BodyFault::InvalidModel)?;
    if model.is_empty() || model.len() > MAX_MODEL_BYTES {
        return Err(BodyFault::InvalidModel);
    }
    Ok(model)
}

struct NotAFlag;

/// `null` is as good as absent.
fn flag(text: &str, member: Option<&Member>) -> Result<Option<bool>, NotAFlag> {
    let Some(member) = member else {
        return Ok(None);
    };
    match text.get(member.value.clone()) {
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some("null") => Ok(None),
        _ => Err(NotAFlag),
    }
}

fn without(bytes: &Bytes, span: &Range<usize>) -> Bytes {
    let mut rest = BytesMut::with_capacity(bytes.len());
    rest.extend_from_slice(&bytes.slice(..span.start));
    rest.extend_from_slice(&bytes.slice(span.end..));
    rest.freeze()
}

#[cfg(test)]
mod tests;

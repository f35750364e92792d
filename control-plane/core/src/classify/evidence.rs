//! What of an upstream's error is looked at: its status, what its text says, its structured code and type, and
//! how long it asks to wait. Everything is bounded, and text is only ever compared, never followed.

use serde_json::Value;

use crate::outcome::{MAX_BODY_BYTES, UpstreamError};
use crate::settings::ProviderClass;

use super::hints::{self, Source};
use super::phrases::{self, Family, Marker};
use super::rules::{Reading, Restated};
use super::words::Found;
use super::{ClassifyContext, RetryHint};

/// What an error inside a 200 stream amounts to when nothing in it says so.
const UNKNOWN_EMBEDDED_STATUS: u16 = 502;

/// An error as the rules see it.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    /// The status it amounts to, after restatement.
    pub(super) status: u16,
    /// The restatement that set it, if one did.
    pub(super) restated: Option<Restated<'a>>,
    /// The texts of rules that it holds.
    pub(super) reading: Reading,
    /// The body in lower case (ASCII), at most [`MAX_BODY_BYTES`] and the decoded message.
    pub(super) text: String,
    /// The body as it was sent, so far as it is looked at.
    pub(super) body: &'a str,
    /// What the text says.
    pub(super) found: Found,
    /// `error.code`, in lower case.
    pub(super) code: String,
    /// `error.type`, in lower case.
    pub(super) kind: String,
    /// The headers, names in lower case.
    pub(super) headers: &'a [(String, String)],
    /// The wait asked for, whether or not it is trusted.
    pub(super) hint: Option<RetryHint>,
    /// Text about quotas is taken at its word (`failure-state.md` §3.3).
    pub(super) believed: bool,
    /// What is configured.
    pub(super) context: &'a ClassifyContext<'a>,
}

/// A body that is JSON.
#[derive(Debug)]
struct Parsed(Value);

/// The members of an error body that rules look at.
#[derive(Debug, Default)]
struct Structured {
    code: String,
    kind: String,
    number: Option<u16>,
    message: String,
}

impl<'a> Evidence<'a> {
    /// Reads an error. One inside a 200 stream gets the status it amounts to (decision 16).
    pub(super) fn of(error: &'a UpstreamError, context: &'a ClassifyContext<'a>) -> Self {
        let end = error.body.floor_char_boundary(MAX_BODY_BYTES);
        let body = error.body.get(..end).unwrap_or_default();
        let parsed = Parsed::of(body);
        let structured = parsed
            .as_ref()
            .map_or_else(Structured::default, |parsed| Structured::of(parsed.error()));
        let mut text = body.to_ascii_lowercase();
        if body.contains("\\u") && !structured.message.is_empty() {
            // Escaped characters hide words; the decoded message shows them.
            text.push('\n');
            text.push_str(&structured.message.to_ascii_lowercase());
        }
        let found = Found::of(&text);
        let sent = if error.embedded {
            embedded_status(&structured)
        } else {
            Some(error.status)
        };
        let reading = context
            .rules
            .read(&text, &structured.code, &structured.kind);
        let restated = context.rules.restate(sent, &reading);
        let status =
            restated.map_or_else(|| sent.unwrap_or(UNKNOWN_EMBEDDED_STATUS), |it| it.row.to);
        let believed = status != 429
            || context.class == ProviderClass::Oauth
            || found.has(Family::LongPeriodQuota)
            || structured
                .message
                .eq_ignore_ascii_case(phrases::BARE_USAGE_LIMIT);
        let source = Source {
            headers: &error.headers,
            json: parsed
                .as_ref()
                .map(|parsed| (parsed.body(), parsed.error())),
            text: &text,
            found: &found,
        };
        let hint = hints::find(source, context.now);
        Self {
            status,
            restated,
            reading,
            text,
            body,
            found,
            code: structured.code,
            kind: structured.kind,
            headers: &error.headers,
            hint,
            believed,
            context,
        }
    }

    /// A failure without an answer, under the status it is given.
    pub(super) fn without_answer(status: u16, context: &'a ClassifyContext<'a>) -> Self {
        Self {
            status,
            restated: None,
            reading: Reading::default(),
            text: String::new(),
            body: "",
            found: Found::default(),
            code: String::new(),
            kind: String::new(),
            headers: &[],
            hint: None,
            believed: true,
            context,
        }
    }

    /// The text says this.
    pub(super) fn says(&self, family: Family) -> bool {
        self.found.has(family)
    }

    /// How long until a quota begins anew, in ms, where the text says so.
    pub(super) fn reset_in_text_ms(&self) -> Option<u64> {
        hints::reset_ms(&self.text, &self.found, self.context.now)
    }

    /// What follows the first such marker, in the case it was written in where the body shows it.
    pub(super) fn after(&self, marker: Marker) -> Option<&str> {
        let (_, end) = self.found.markers.iter().find(|(one, _)| *one == marker)?;
        self.body.get(*end..).or_else(|| self.text.get(*end..))
    }

    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(header, _)| header == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether the code or the type is one of these.
    pub(super) fn has_code(&self, codes: &[&str]) -> bool {
        codes.contains(&self.code.as_str()) || codes.contains(&self.kind.as_str())
    }
}

impl Parsed {
    /// Reads a body. What is no JSON, is cut off, or is nested deeper than the reader goes, is text.
    fn of(body: &str) -> Option<Self> {
        serde_json::from_str(body).ok().map(Self)
    }

    /// The body, or the first of a list of them.
    fn body(&self) -> &Value {
        match &self.0 {
            Value::Array(items) => items.first().unwrap_or(&Value::Null),
            body => body,
        }
    }

    /// `{"error": …}`, the error of a failed `response`, or the body itself.
    fn error(&self) -> &Value {
        let body = self.body();
        body.get("error")
            .or_else(|| body.get("response")?.get("error"))
            .unwrap_or(body)
    }
}

impl Structured {
    /// Reads the error of a body, an object or a message.
    fn of(error: &Value) -> Self {
        if let Value::String(message) = error {
            return Self {
                message: message.clone(),
                ..Self::default()
            };
        }
        let text = |name: &str| {
            error
                .get(name)
                .and_then(Value::as_str)
                .map(str::to_ascii_lowercase)
                .unwrap_or_default()
        };
        let number = ["code", "status", "status_code"]
            .iter()
            .filter_map(|name| whole_number(error.get(*name)?))
            .find_map(|number| u16::try_from(number).ok())
            .filter(|number| (400..=599).contains(number));
        Self {
            code: text("code"),
            kind: text("type"),
            number,
            message: error
                .get("message")
                .and_then(Value::as_str)
                .map(str::to_owned)
                .unwrap_or_default(),
        }
    }
}

/// A number, also one written as text.
fn whole_number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// The status an error inside a 200 stream amounts to: its number, else by its type or code.
fn embedded_status(structured: &Structured) -> Option<u16> {
    structured.number.or_else(|| {
        phrases::EMBEDDED_STATUSES
            .iter()
            .find(|(word, _)| structured.kind == *word || structured.code == *word)
            .map(|(_, status)| *status)
    })
}

//! The few things that are changed in a body on its way upstream. Everything else stays byte for byte.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::walk::{Member, end_of_entries, skip_space};

/// Bodies up to this are sent upstream in one piece; longer ones in pieces that are not copied.
const COPIED_BELOW: usize = 32 * 1024;
/// Members that bound the length of an answer.
const OUTPUT_LIMITS: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];

/// What is changed besides the model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changes {
    /// Only so many of the tools are sent (decision 33).
    pub(crate) max_tools: Option<u32>,
    /// The answer may be no longer.
    pub(crate) max_output: Option<MaxOutput>,
}

/// A bound of an answer's length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxOutput {
    /// In tokens.
    pub(crate) tokens: u32,
    /// The member that says so where the client named none.
    pub(crate) member: &'static str,
}

/// Where in a body the members lie that may be changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans {
    /// Value of `tools`.
    tools: Option<Range<usize>>,
    /// Values of [`OUTPUT_LIMITS`].
    limits: Vec<Range<usize>>,
    /// Value of `messages`.
    messages: Option<Range<usize>>,
}

impl Spans {
    /// Remembers a member. Of equal ones the last is believed, but every limit counts.
    pub(super) fn take(&mut self, name: &str, member: &Member) {
        if name == "tools" {
            self.tools = Some(member.value.clone());
        } else if name == "messages" {
            self.messages = Some(member.value.clone());
        } else if OUTPUT_LIMITS.contains(&name) && self.limits.len() < OUTPUT_LIMITS.len() {
            self.limits.push(member.value.clone());
        }
    }

    /// Something was cut out of the body.
    pub(super) fn move_up(&mut self, removed: &Range<usize>) {
        let lists = self.tools.iter_mut().chain(&mut self.messages);
        for span in lists.chain(&mut self.limits) {
            move_up(span, removed);
        }
    }

    /// What stands where afterwards.
    pub(super) fn edits(&self, body: &[u8], changes: Changes) -> Vec<(Range<usize>, String)> {
        let mut edits = Vec::new();
        if let (Some(most), Some(tools)) = (changes.max_tools, &self.tools)
            && let Some(end) = end_of_entries(body, tools.start, most)
            && let Some(last) = tools.end.checked_sub(1).filter(|last| end < *last)
        {
            edits.push((end..last, String::new()));
        }
        if let Some(limit) = changes.max_output {
            edits.extend(self.limited(body, limit));
        }
        edits
    }

    /// One more message at the end of the list, with this text. `None` when there is no list.
    pub(super) fn said(&self, body: &[u8], text: &str) -> Option<(Range<usize>, String)> {
        let messages = self.messages.as_ref()?;
        let last = messages.end.checked_sub(1)?;
        if body.get(messages.start) != Some(&b'[') || body.get(last) != Some(&b']') {
            return None;
        }
        let is_empty = skip_space(body, messages.start.saturating_add(1)) == last;
        let comma = if is_empty { "" } else { "," };
        let text = serde_json::Value::from(text);
        let message = format!("{comma}{{\"role\":\"assistant\",\"content\":{text}}}");
        Some((last..last, message))
    }

    fn limited(&self, body: &[u8], limit: MaxOutput) -> Vec<(Range<usize>, String)> {
        if self.limits.is_empty() {
            let MaxOutput { tokens, member } = limit;
            // Behind the bracket; more members follow, since there is a model.
            let start = skip_space(body, 0).saturating_add(1);
            return vec![(start..start, format!("\"{member}\":{tokens},"))];
        }
        let is_within = |span: &&Range<usize>| {
            let written = body.get((*span).clone()).unwrap_or_default();
            let number: Option<u64> = serde_json::from_slice(written).ok();
            number.is_some_and(|number| number <= u64::from(limit.tokens))
        };
        let beyond = self.limits.iter().filter(|span| !is_within(span));
        beyond
            .map(|span| (span.clone(), limit.tokens.to_string()))
            .collect()
    }
}

/// A place moves up when something ahead of it was cut out.
pub(super) fn move_up(span: &mut Range<usize>, removed: &Range<usize>) {
    if removed.start < span.start {
        let length = removed.len();
        *span = span.start.saturating_sub(length)..span.end.saturating_sub(length);
    }
}

/// The body with other texts in some places, which do not overlap, as pieces.
pub(super) fn apply(body: &Bytes, mut edits: Vec<(Range<usize>, String)>) -> Vec<Bytes> {
    if edits.is_empty() {
        return vec![body.clone()];
    }
    edits.sort_by_key(|(span, _)| span.start);
    let mut pieces = Vec::with_capacity(edits.len().saturating_mul(2).saturating_add(1));
    let mut from = 0;
    for (span, written) in edits {
        pieces.push(body.slice(from..span.start));
        pieces.push(Bytes::from(written));
        from = span.end;
    }
    pieces.push(body.slice(from..));
    let length = pieces.iter().map(Bytes::len).fold(0, usize::saturating_add);
    if length > COPIED_BELOW {
        pieces.retain(|piece| !piece.is_empty());
        return pieces;
    }
    let mut whole = BytesMut::with_capacity(length);
    for piece in &pieces {
        whole.extend_from_slice(piece);
    }
    vec![whole.freeze()]
}

//! Continuing a chat stream that broke after its client had seen part of it (`sessions-and-streams.md` §4.5). Off unless
//! switched on.
//!
//! What was delivered cannot be taken back, so nothing is ever sent again. The model is asked to go on from the text it
//! wrote, and only what follows that text is appended. Whether it did go on is seen from the overlap: a model that
//! repeats the end of what it was shown has continued it; one that does not has probably begun anew, and its answer is
//! thrown away. So a good continuation that repeats fewer than [`MIN_OVERLAP_CHARS`] characters is lost; a wrong one is
//! never stitched in.
//!
//! Only plain text is safe. A tool call may have been acted on, of several choices nobody knows which broke, and a turn
//! that said why it ended is complete; the exception is a turn that reasoned, said `stop` and no word.

/// A turn is continued so often, in all.
pub const MAX_CONTINUATIONS: u32 = 4;
/// A turn with more text than this is not continued.
pub const MAX_CONTINUED_BYTES: usize = 256 * 1_024;
/// The longest overlap that is looked for.
pub const MAX_OVERLAP_CHARS: usize = 512;
/// A shorter overlap says that the model began anew.
pub const MIN_OVERLAP_CHARS: usize = 8;

/// The longest finish reason that is kept.
const MAX_REASON_BYTES: usize = 64;

/// What a client was given of a chat turn so far.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    text: String,
    /// It got longer than may be kept.
    is_too_long: bool,
    has_chunk: bool,
    has_tool_call: bool,
    has_reasoning: bool,
    has_choices: bool,
    ending: Option<Ending>,
    finish_reason: Option<String>,
}

/// How a turn said that it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// `finish_reason` is `stop`.
    Stop,
    /// Another finish reason, or `[DONE]` without any.
    Other,
}

impl Turn {
    /// A chat delta was understood, whatever it holds.
    pub fn chunk(&mut self) {
        self.has_chunk = true;
    }

    /// It holds text for the reader.
    pub fn text(&mut self, delta: &str) {
        if self.text.len().saturating_add(delta.len()) > MAX_CONTINUED_BYTES {
            self.is_too_long = true;
            self.text = String::new();
        }
        if !self.is_too_long {
            self.text.push_str(delta);
        }
    }

    /// It holds a part of a tool call. The turn is never continued.
    pub fn tool_call(&mut self) {
        self.has_tool_call = true;
    }

    /// It holds reasoning that is not empty.
    pub fn reasoning(&mut self) {
        self.has_reasoning = true;
    }

    /// It belongs to a further choice. The turn is never continued.
    pub fn further_choice(&mut self) {
        self.has_choices = true;
    }

    /// It holds a finish reason.
    pub fn finish(&mut self, reason: &str) {
        if reason.len() <= MAX_REASON_BYTES {
            self.finish_reason.get_or_insert_with(|| reason.to_owned());
        }
        let ending = if reason == "stop" {
            Ending::Stop
        } else {
            Ending::Other
        };
        // Of two, the first is as good as any, but `stop` must not hide another.
        if self.ending != Some(Ending::Other) {
            self.ending = Some(ending);
        }
    }

    /// `[DONE]` was seen.
    pub fn done(&mut self) {
        self.ending.get_or_insert(Ending::Other);
    }

    /// Whether the rest may be asked for after `continued` times.
    #[must_use]
    pub fn may_continue(&self, continued: u32) -> bool {
        let is_unfinished = match self.ending {
            None => !self.text.is_empty(),
            Some(Ending::Stop) => self.text.is_empty() && self.has_reasoning,
            Some(Ending::Other) => false,
        };
        continued < MAX_CONTINUATIONS && self.has_chunk && self.is_plain() && is_unfinished
    }

    /// Whether it holds nothing but text and reasoning of one choice, and not too much of it.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.has_tool_call && !self.has_choices && !self.is_too_long
    }

    /// Whether it said that it is complete.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ending.is_some()
    }

    /// The finish reason, if there was one that is not too long to be one.
    #[must_use]
    pub fn finish_reason(&self) -> Option<&str> {
        self.finish_reason.as_deref()
    }

    /// The text so far, as the model is shown it; empty once it is too long.
    #[must_use]
    pub fn delivered(&self) -> &str {
        &self.text
    }
}

/// What is to be made of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined<'a> {
    /// It goes on from what was delivered; this follows, which may be nothing.
    Suffix(&'a str),
    /// It seems to begin anew: none of it may be used.
    Restart,
}

/// What of a continuation follows the delivered text: `new` without the longest beginning of it, of at most
/// [`MAX_OVERLAP_CHARS`] characters, that the delivered text ends with. After no text all of it does.
#[must_use]
pub fn join<'a>(delivered: &str, new: &'a str) -> Joined<'a> {
    if delivered.is_empty() {
        return Joined::Suffix(new);
    }
    let ends = new
        .char_indices()
        .map(|(start, character)| start.saturating_add(character.len_utf8()));
    let longest = ends
        .take(MAX_OVERLAP_CHARS)
        .zip(1_usize..)
        .filter_map(|(end, characters)| Some((new.split_at_checked(end)?, characters)))
        .filter(|((repeated, _), _)| delivered.ends_with(*repeated))
        .last();
    match longest {
        Some(((_, suffix), characters)) if characters >= MIN_OVERLAP_CHARS => {
            Joined::Suffix(suffix)
        }
        Some(_) | None => Joined::Restart,
    }
}

#[cfg(test)]
mod tests;

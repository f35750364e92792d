//! The bodies of a plan's parts, in the client's own format, and the texts in their answers (`routing.md` §8.18, §8.19).
//!
//! A body is taken apart into its outermost members and the turns of its conversation. Whatever a part does not change
//! stays as the client wrote it, byte for byte within each member; only the order of the members is ours.
//!
//! | | turns | system | text of an answer |
//! |---|---|---|---|
//! | chat completions | `messages` | a turn with the role `system` | `choices[0].message.content` |
//! | responses | `input`, a list or a text | `instructions` | texts of the `message` items of `output` |
//! | messages | `messages` | `system`, a text or blocks | texts of `content` |

mod read;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tidegate_core::routing::relay;

use crate::endpoint::Endpoint;
use crate::refusal::Refusal;
use crate::request::RequestBody;

pub(crate) use read::{Unreadable, text};

/// Members that ask for tools. Answers that only feed another model must be texts.
const TOOLS: [&str; 6] = [
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "max_tool_calls",
];
/// Members that ask for a stream or for several answers; a part is read as one whole answer.
const MANNER: [&str; 3] = ["stream", "stream_options", "n"];
/// What a judge is told ahead of the answers.
const JUDGE: &str = "Several independent sources were given the conversation above. Their answers \
    follow. Write the best answer to its last message: keep what is right, correct what is wrong, \
    settle what they disagree on, and do not mention that there were sources.";

/// A request's body, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    endpoint: Endpoint,
    /// All members but the turns.
    members: BTreeMap<String, Box<RawValue>>,
    turns: Vec<Box<RawValue>>,
}

impl Conversation {
    /// Takes a body apart.
    ///
    /// # Errors
    /// [`Refusal::NoConversation`] when there is no turn where the endpoint has them: the member is missing, is something
    /// else, holds an empty list or nothing but blanks. What a turn of a list says is for the upstream to judge.
    pub(crate) fn of(endpoint: Endpoint, body: &RequestBody) -> Result<Self, Refusal> {
        let name = turns_member(endpoint).ok_or(Refusal::NoConversation)?;
        let mut members: BTreeMap<String, Box<RawValue>> =
            serde_json::from_slice(body.bytes()).map_err(|_| Refusal::NoConversation)?;
        let written = members.remove(name).ok_or(Refusal::NoConversation)?;
        let turns = turns(endpoint, &written)?;
        if turns.is_empty() {
            return Err(Refusal::NoConversation);
        }
        Ok(Self {
            endpoint,
            members,
            turns,
        })
    }

    /// Whether bodies for an endpoint hold one.
    pub(crate) fn is_held_at(endpoint: Endpoint) -> bool {
        turns_member(endpoint).is_some()
    }

    /// For a part whose answer feeds another model: whole, one, and without tools.
    #[must_use]
    pub(crate) fn silent(mut self) -> Self {
        for name in TOOLS.iter().chain(&MANNER) {
            self.members.remove(*name);
        }
        self
    }

    /// With a system turn ahead of what the client wrote.
    ///
    /// # Errors
    /// [`Refusal::Internal`], when a text cannot be written.
    pub(crate) fn with_prompt(mut self, prompt: &str) -> Result<Self, Refusal> {
        match self.endpoint {
            Endpoint::ChatCompletions => {
                let turn = raw(&json!({"role": "system", "content": prompt}))?;
                self.turns.insert(0, turn);
            }
            Endpoint::Responses => self.put_ahead("instructions", prompt)?,
            Endpoint::Messages => self.put_ahead("system", prompt)?,
            Endpoint::Completions
            | Endpoint::InputTokens
            | Endpoint::Embeddings
            | Endpoint::CountTokens => {}
        }
        Ok(self)
    }

    /// Its last turns as one text (`routing.md` §8.4); `None` when they say nothing.
    pub(crate) fn transcript(&self, max_messages: u32) -> Option<String> {
        let turns: Vec<&str> = self.turns.iter().map(|turn| turn.get()).collect();
        relay::transcript(&turns, max_messages)
    }

    /// With nothing but this as what the user says, and what belongs to the client's own conversation left out.
    ///
    /// # Errors
    /// As [`Self::with_prompt`].
    pub(crate) fn told(mut self, text: &str, prompt: Option<&str>) -> Result<Self, Refusal> {
        for name in [
            "system",
            "instructions",
            "prompt",
            "previous_response_id",
            "conversation",
        ] {
            self.members.remove(name);
        }
        self.turns = vec![user_turn(text)?];
        match prompt {
            Some(prompt) => self.with_prompt(prompt),
            None => Ok(self),
        }
    }

    /// With the answers of several sources behind the conversation, for a model that makes one answer of them. The
    /// sources are numbered and have no names.
    ///
    /// # Errors
    /// As [`Self::with_prompt`].
    pub(crate) fn judging(mut self, answers: &[&str]) -> Result<Self, Refusal> {
        let mut told = String::from(JUDGE);
        for (number, answer) in (1_usize..).zip(answers) {
            told.push_str(&format!("\n\nSource {number}:\n{answer}"));
        }
        self.turns.push(user_turn(&told)?);
        Ok(self)
    }

    /// The client's stream holds usage only where it asked for it.
    pub(crate) fn wants_usage(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct Options {
            include_usage: Option<bool>,
        }
        self.members
            .get("stream_options")
            .and_then(|options| serde_json::from_str::<Options>(options.get()).ok())
            .is_some_and(|options| options.include_usage == Some(true))
    }

    /// The body, checked like a client's.
    ///
    /// # Errors
    /// What is wrong with it, which can only be that it is nested too deep.
    pub(crate) fn into_body(mut self) -> Result<RequestBody, Refusal> {
        let name = turns_member(self.endpoint).ok_or(Refusal::NoConversation)?;
        self.members.insert(name.to_owned(), raw(&self.turns)?);
        let bytes = serde_json::to_vec(&self.members).map_err(|_| Refusal::Internal)?;
        Ok(RequestBody::parse(Bytes::from(bytes), false)?)
    }

    /// Puts a text ahead of a member that is a text, a list of blocks, or absent.
    fn put_ahead(&mut self, name: &str, prompt: &str) -> Result<(), Refusal> {
        let written = self.members.get(name).map(|written| written.get());
        let value = match written {
            None | Some("null") => raw(&prompt)?,
            Some(written) => match serde_json::from_str::<String>(written) {
                Ok(text) => raw(&format!("{prompt}\n\n{text}"))?,
                Err(_) => {
                    let mut blocks: Vec<Box<RawValue>> =
                        serde_json::from_str(written).map_err(|_| Refusal::NoConversation)?;
                    blocks.insert(0, raw(&json!({"type": "text", "text": prompt}))?);
                    raw(&blocks)?
                }
            },
        };
        self.members.insert(name.to_owned(), value);
        Ok(())
    }
}

/// The turns as they are written: a list, or for responses the text of a single one.
fn turns(endpoint: Endpoint, written: &RawValue) -> Result<Vec<Box<RawValue>>, Refusal> {
    if endpoint == Endpoint::Responses
        && let Ok(text) = serde_json::from_str::<String>(written.get())
    {
        return match text.trim() {
            "" => Ok(Vec::new()),
            _ => Ok(vec![raw(&json!({"role": "user", "content": written}))?]),
        };
    }
    serde_json::from_str(written.get()).map_err(|_| Refusal::NoConversation)
}

fn user_turn(text: &str) -> Result<Box<RawValue>, Refusal> {
    raw(&json!({"role": "user", "content": text}))
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>, Refusal> {
    to_raw_value(value).map_err(|_| Refusal::Internal)
}

fn turns_member(endpoint: Endpoint) -> Option<&'static str> {
    match endpoint {
        Endpoint::ChatCompletions | Endpoint::Messages => Some("messages"),
        Endpoint::Responses => Some("input"),
        Endpoint::Completions
        | Endpoint::InputTokens
        | Endpoint::Embeddings
        | Endpoint::CountTokens => None,
    }
}

#[cfg(test)]
mod tests;

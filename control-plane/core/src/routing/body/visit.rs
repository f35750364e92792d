//! The pass over a body. Where in the body a value stands decides what is done with it; everything else is skipped by the
//! JSON reader without being looked at.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::text::{BoundedHash, append};

use super::{BodyFacts, MAX_CACHE_KEY_CHARACTERS};
use crate::routing::intent;
use crate::session_key::{BodySession, MAX_SESSION_ID_CHARACTERS, SessionKey};

/// Most bytes of a first turn that are kept for its session.
const MAX_OPENING_BYTES: usize = 4 * MAX_SESSION_ID_CHARACTERS;
/// Contents may lie within contents (results of tools); deeper ones are passed over.
const MAX_NESTED_CONTENTS: u8 = 4;

/// Reads a body. Its facts are those that were found before the first fault.
///
/// # Errors
/// The text is not one JSON value.
pub fn read(text: &str) -> Result<BodyFacts, serde_json::Error> {
    pass(text, Found::default())
}

/// Reads a body, and the session that its members name as well.
///
/// # Errors
/// The text is not one JSON value.
pub fn read_with_session(text: &str) -> Result<BodyFacts, serde_json::Error> {
    pass(
        text,
        Found {
            session: Some(Box::default()),
            ..Found::default()
        },
    )
}

fn pass(text: &str, mut found: Found) -> Result<BodyFacts, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let walked = Value {
        place: Place::Body,
        found: &mut found,
    }
    .deserialize(&mut reader)
    .and_then(|()| reader.end());
    if walked.is_err() {
        // Numbers and escapes that cannot be represented are no fault of a body that is only handed on.
        serde_json::from_str::<IgnoredAny>(text)?;
    }
    Ok(found.into_facts())
}

/// Who wrote a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Role {
    #[default]
    Unknown,
    User,
    Model,
    /// `system` and `developer`.
    System,
    Other,
}

/// Where a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Body,
    /// `messages`, or `input`, which may also be a text of the user's.
    Messages,
    Message,
    Role,
    /// The content of the message at hand, so many contents deep.
    Content(u8),
    Part(u8),
    PartKind,
    /// `system` and `instructions`.
    System,
    SystemPart,
    /// Tools that are offered; calls of tools.
    Tools,
    Calls,
    ToolChoice,
    /// An object whose `type` may be `json_schema`, and one that holds such an object as `format`.
    Format,
    FormatKind,
    FormatHolder,
    /// `prompt_cache_key` itself, and an object that may hold it.
    CacheKey,
    Metadata,
    /// What names a session.
    Session(SessionMember),
}

/// A member that names a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionMember {
    /// `metadata.session_id`.
    Metadata,
    /// `metadata.sessionId`.
    MetadataCamel,
    /// `conversation_id`.
    Conversation,
    /// `session_id`.
    Session,
}

/// What names a session, of each text no more than tells whether it is too long.
#[derive(Default)]
struct SessionTexts {
    metadata: Option<String>,
    metadata_camel: Option<String>,
    conversation: Option<String>,
    session: Option<String>,
    prompt_cache: Option<String>,
    /// Of the first user turn.
    first: Option<String>,
    /// Of the message at hand.
    opening: String,
}

impl SessionTexts {
    fn key(&self) -> Option<SessionKey> {
        SessionKey::of_body(BodySession {
            metadata: self.metadata.as_deref().or(self.metadata_camel.as_deref()),
            conversation_id: self.conversation.as_deref(),
            session_id: self.session.as_deref(),
            prompt_cache_key: self.prompt_cache.as_deref(),
            first_user_text: self.first.as_deref(),
        })
    }
}

fn beginning(text: &str) -> String {
    let kept = MAX_SESSION_ID_CHARACTERS.saturating_add(1);
    text.chars().take(kept).collect()
}

#[derive(Default)]
struct Found {
    facts: BodyFacts,
    system: BoundedHash,
    tools: BoundedHash,
    message: Message,
    /// Only where it is asked for.
    session: Option<Box<SessionTexts>>,
}

/// The message at hand.
#[derive(Default)]
struct Message {
    role: Role,
    hash: BoundedHash,
    beginning: String,
}

impl Found {
    fn into_facts(self) -> BodyFacts {
        let preamble = match (self.system.finish(), self.tools.finish()) {
            (None, None) => None,
            (system, tools) => {
                let mut hash = Sha256::new();
                hash.update(system.unwrap_or_default());
                hash.update(tools.unwrap_or_default());
                Some(hash.finalize().into())
            }
        };
        BodyFacts {
            preamble,
            session_key: self.session.and_then(|texts| texts.key()),
            ..self.facts
        }
    }

    fn count(&mut self, text: &str) {
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        self.facts.prompt_bytes = self.facts.prompt_bytes.saturating_add(bytes);
    }

    /// A text of the message at hand.
    fn says(&mut self, text: &str) {
        self.count(text);
        let message = &mut self.message;
        let is_of_turn = match message.role {
            // The role may come after the content.
            Role::Unknown | Role::System => true,
            Role::User => self.facts.first_turn.is_none(),
            Role::Model | Role::Other => return,
        };
        if is_of_turn {
            message.hash.feed(text);
            if let Some(texts) = &mut self.session
                && message.role != Role::System
                && texts.first.is_none()
            {
                append(&mut texts.opening, text, MAX_OPENING_BYTES);
            }
        }
        if message.role != Role::System {
            append(&mut message.beginning, text, intent::LOOKED_AT_BYTES);
        }
    }

    /// The message at hand is over.
    fn end_message(&mut self) {
        let message = std::mem::take(&mut self.message);
        if let Some(texts) = &mut self.session {
            let opening = std::mem::take(&mut texts.opening);
            if message.role == Role::User && texts.first.is_none() && !opening.is_empty() {
                texts.first = Some(opening);
            }
        }
        match message.role {
            Role::User => {
                if self.facts.first_turn.is_none() {
                    self.facts.first_turn = message.hash.finish();
                }
                if !message.beginning.is_empty() {
                    self.facts.last_turn = message.beginning;
                }
            }
            Role::System => {
                if let Some(hash) = message.hash.finish() {
                    self.system.feed(&hex::encode(hash));
                }
            }
            Role::Model => self.facts.answered = true,
            Role::Unknown | Role::Other => {}
        }
    }
}

/// A value at a place.
struct Value<'f> {
    place: Place,
    found: &'f mut Found,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        let found = self.found;
        match self.place {
            Place::Role => {
                found.message.role = match text {
                    "user" => Role::User,
                    "assistant" => Role::Model,
                    "system" | "developer" => Role::System,
                    _ => Role::Other,
                }
            }
            // An entry of a list of inputs may be a text alone.
            Place::Content(_) | Place::Calls | Place::Message => found.says(text),
            // The input of a request may be a text alone.
            Place::Messages => {
                found.message.role = Role::User;
                found.says(text);
                found.end_message();
            }
            Place::PartKind => {
                found.facts.vision |= matches!(text, "image_url" | "input_image" | "image");
            }
            Place::System | Place::SystemPart => {
                found.count(text);
                found.system.feed(text);
            }
            Place::ToolChoice => found.facts.tools_forbidden = text == "none",
            Place::FormatKind => found.facts.structured_output |= text == "json_schema",
            Place::Session(member) => {
                if let Some(texts) = &mut found.session {
                    let slot = match member {
                        SessionMember::Metadata => &mut texts.metadata,
                        SessionMember::MetadataCamel => &mut texts.metadata_camel,
                        SessionMember::Conversation => &mut texts.conversation,
                        SessionMember::Session => &mut texts.session,
                    };
                    *slot = Some(beginning(text));
                }
            }
            Place::CacheKey => {
                if let Some(texts) = &mut found.session {
                    texts.prompt_cache = Some(beginning(text));
                }
                if text.len() <= MAX_CACHE_KEY_CHARACTERS {
                    found.facts.cache_key = (!text.is_empty()).then(|| text.to_owned());
                } else if text.chars().count() <= MAX_CACHE_KEY_CHARACTERS {
                    found.facts.cache_key = Some(hex::encode(Sha256::digest(text)));
                }
            }
            Place::Body
            | Place::Part(_)
            | Place::Tools
            | Place::Format
            | Place::FormatHolder
            | Place::Metadata => {}
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let found = self.found;
        let place = match self.place {
            Place::Messages => Place::Message,
            Place::Content(depth) => Place::Part(depth),
            Place::System => Place::SystemPart,
            Place::Tools => {
                let mut tools: u32 = 0;
                while let Some(tool) = list.next_element::<&RawValue>()? {
                    tools = tools.saturating_add(1);
                    found.count(tool.get());
                    found.tools.feed(tool.get());
                }
                found.facts.tools = found.facts.tools.saturating_add(tools);
                return Ok(());
            }
            Place::Calls => {
                while let Some(call) = list.next_element::<&RawValue>()? {
                    found.count(call.get());
                }
                return Ok(());
            }
            _ => {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(());
            }
        };
        while list
            .next_element_seed(Value {
                place,
                found: &mut *found,
            })?
            .is_some()
        {
            if place == Place::Message {
                found.end_message();
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let found = self.found;
        while let Some(inner) = members.next_key_seed(Name(self.place))? {
            match inner {
                Some(place) => members.next_value_seed(Value {
                    place,
                    found: &mut *found,
                })?,
                None => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// The name of a member, which decides where its value stands; `None`: nowhere.
struct Name(Place);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<Place>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<Place>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Option<Place>, E> {
        let place = match (self.0, name) {
            (Place::Body, "messages" | "input") => Place::Messages,
            (Place::Body, "system" | "instructions") => Place::System,
            (Place::Body, "tools" | "functions") => Place::Tools,
            (Place::Body, "tool_choice" | "function_call") => Place::ToolChoice,
            (Place::Body, "response_format" | "output_format")
            | (Place::FormatHolder, "format") => Place::Format,
            (Place::Body, "text" | "output_config") => Place::FormatHolder,
            (Place::Body, "metadata") => Place::Metadata,
            (Place::Body | Place::Metadata, "prompt_cache_key") => Place::CacheKey,
            (Place::Body, "conversation_id") => Place::Session(SessionMember::Conversation),
            (Place::Body, "session_id") => Place::Session(SessionMember::Session),
            (Place::Metadata, "session_id") => Place::Session(SessionMember::Metadata),
            (Place::Metadata, "sessionId") => Place::Session(SessionMember::MetadataCamel),
            (Place::Message, "role") => Place::Role,
            (Place::Message, "content" | "output") => Place::Content(0),
            (Place::Message, "tool_calls" | "arguments") => Place::Calls,
            // An item of the Responses API may be an image itself.
            (Place::Message | Place::Part(_), "type") => Place::PartKind,
            (Place::Part(depth), "text") => Place::Content(depth),
            (Place::Part(depth), "content") if depth < MAX_NESTED_CONTENTS => {
                Place::Content(depth.saturating_add(1))
            }
            (Place::SystemPart, "text") => Place::SystemPart,
            (Place::ToolChoice, "type") => Place::ToolChoice,
            (Place::Format, "type") => Place::FormatKind,
            _ => return Ok(None),
        };
        Ok(Some(place))
    }
}

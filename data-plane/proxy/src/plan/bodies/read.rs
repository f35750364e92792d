//! The text of a whole answer.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::endpoint::Endpoint;

/// An answer with more text than any model writes is not read, in bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 1024 * 1024;

/// Why an answer has no text to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Nothing but blanks.
    Empty,
    /// Not an answer of this endpoint, or longer than [`MAX_TEXT_BYTES`].
    Unparseable,
}

#[derive(Deserialize)]
struct Chat<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    message: ChatMessage<'a>,
}

#[derive(Deserialize)]
struct ChatMessage<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    output: Vec<Item<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    content: &'a RawValue,
}

/// One piece of a content that is a list.
#[derive(Deserialize)]
struct Piece {
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<String>,
}

/// What a whole answer says.
///
/// # Errors
/// [`Unreadable`].
pub(crate) fn text(endpoint: Endpoint, body: &[u8]) -> Result<String, Unreadable> {
    let text = match endpoint {
        Endpoint::ChatCompletions => {
            let chat: Chat<'_> = parse(body)?;
            let choice = chat.choices.first().ok_or(Unreadable::Empty)?;
            content(choice.message.content)?
        }
        Endpoint::Responses => {
            let response: Response<'_> = parse(body)?;
            let mut text = String::new();
            for item in &response.output {
                if item.kind.as_deref() == Some("message") {
                    text.push_str(&content(item.content)?);
                }
            }
            text
        }
        Endpoint::Messages => {
            let message: Message<'_> = parse(body)?;
            content(Some(message.content))?
        }
        Endpoint::Completions
        | Endpoint::InputTokens
        | Endpoint::Embeddings
        | Endpoint::CountTokens => {
            return Err(Unreadable::Unparseable);
        }
    };
    if text.trim().is_empty() {
        return Err(Unreadable::Empty);
    }
    if text.len() > MAX_TEXT_BYTES {
        return Err(Unreadable::Unparseable);
    }
    Ok(text)
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(body).map_err(|_| Unreadable::Unparseable)
}

/// A text, or a list of pieces of which those count that are texts.
fn content(written: Option<&RawValue>) -> Result<String, Unreadable> {
    let written = written.map_or("null", RawValue::get);
    if written == "null" {
        return Ok(String::new());
    }
    if written.starts_with('"') {
        return serde_json::from_str(written).map_err(|_| Unreadable::Unparseable);
    }
    let pieces: Vec<Piece> = serde_json::from_str(written).map_err(|_| Unreadable::Unparseable)?;
    Ok(pieces
        .into_iter()
        .filter(|piece| matches!(piece.kind.as_deref(), Some("text" | "output_text")))
        .filter_map(|piece| piece.text)
        .collect())
}

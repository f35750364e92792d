//! What of a conversation is summed up, as one text: the last messages, as many as fit.

use serde_json::Value;

use super::MESSAGES;

/// Most tokens of a transcript, by the same estimate as a request's: four bytes each.
pub const MAX_TRANSCRIPT_TOKENS: usize = 8_000;

const MAX_BYTES: usize = MAX_TRANSCRIPT_TOKENS * 4;
/// How deep contents may hold contents: a tool's result holds texts, and nothing deeper is read.
const MAX_DEPTH: u32 = 3;

/// The last of these turns, at most `max_messages` and [`MAX_TRANSCRIPT_TOKENS`], oldest first; `None` when they say
/// nothing. `turns` are the JSON values of `messages` or `input`, oldest first. What the client instructs (`system`,
/// `developer`) is left out, since it is sent with every turn; so are images, files and whatever is not understood. Of a
/// newest message that is longer by itself its beginning is kept.
#[must_use]
pub fn transcript(turns: &[&str], max_messages: u32) -> Option<String> {
    let most = usize::try_from(max_messages.clamp(*MESSAGES.start(), *MESSAGES.end())).ok()?;
    let mut kept: Vec<String> = Vec::new();
    let mut room = MAX_BYTES;
    for turn in turns.iter().rev() {
        if kept.len() >= most {
            break;
        }
        let Some(mut said) = say(turn) else {
            continue;
        };
        if said.len() > room {
            if !kept.is_empty() {
                break;
            }
            said.truncate(said.floor_char_boundary(room));
        }
        room = room.saturating_sub(said.len());
        kept.push(said);
    }
    kept.reverse();
    (!kept.is_empty()).then(|| kept.concat())
}

/// A turn as it stands in the transcript, its line end included.
fn say(turn: &str) -> Option<String> {
    let turn: Value = serde_json::from_str(turn).ok()?;
    let who = match (turn["role"].as_str(), turn["type"].as_str()) {
        (Some("system" | "developer"), _) => return None,
        (Some(role @ ("user" | "assistant" | "tool")), _) => role,
        (Some(_), _) => "other",
        (None, Some("function_call")) => "assistant",
        (None, Some("function_call_output")) => "tool",
        (None, _) => return None,
    };
    let mut text = String::new();
    add_content(&mut text, &turn["content"], 0);
    add_content(&mut text, &turn["output"], 0);
    add_call(&mut text, &turn);
    for call in turn["tool_calls"].as_array().into_iter().flatten() {
        add_call(&mut text, &call["function"]);
    }
    let text = text.trim();
    (!text.is_empty()).then(|| format!("[{who}] {text}\n\n"))
}

/// Texts of a content: a text, or a list of pieces.
fn add_content(text: &mut String, content: &Value, depth: u32) {
    if depth >= MAX_DEPTH {
        return;
    }
    match content {
        Value::String(said) => add(text, said),
        Value::Array(pieces) => {
            for piece in pieces {
                add_content(text, &piece["text"], depth.saturating_add(1));
                add_content(text, &piece["content"], depth.saturating_add(1));
                if piece["type"] == "tool_use" {
                    add_use(text, piece["name"].as_str(), &piece["input"].to_string());
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
    }
}

fn add_call(text: &mut String, call: &Value) {
    if let Some(arguments) = call["arguments"].as_str() {
        add_use(text, call["name"].as_str(), arguments);
    }
}

fn add_use(text: &mut String, name: Option<&str>, arguments: &str) {
    let name = name.unwrap_or("a tool");
    add(text, &format!("({name}: {arguments})"));
}

fn add(text: &mut String, said: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(said);
}

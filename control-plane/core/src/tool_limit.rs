//! How many tools a provider takes in one request (`routing.md` §13.3, decision 33).
//!
//! A limit is *known*, from the model's row of the catalogue or from the table here, or *learned* from a 400 that names
//! it. What is known wins. A provider of which neither is known is assumed to take any number: it says so once if it
//! does not, and from then on the limit is learned.
//!
//! **What a client wrote is not believed.** A learned limit holds for everybody who uses the provider, and upstreams
//! quote what they were sent. So nothing is learned from what stands in quotation marks, nor from an answer to a request
//! that offered no more tools than the number named.

use serde_json::Value;

use crate::catalogue::Catalogue;
use crate::ids::{ModelId, ProviderId};
use crate::telemetry::Telemetry;

/// Largest limit that is believed.
const MAX_LIMIT: u32 = 10_000;
/// Longest text that is read.
const MAX_TEXT_BYTES: usize = 2_048;
/// A number belongs to a word that limits when it begins at most so many bytes behind it.
const MAX_DISTANCE: usize = 40;

/// Limits that providers state.
const KNOWN: &[(&str, u32)] = &[("grok-cli", 200), ("nvidia", 1_536)];

/// Words behind which a limit stands.
const LIMITING: &[&str] = &[
    "maximum",
    "max ",
    "max:",
    "at most",
    "limit",
    "no more than",
    "up to",
    "fewer than",
];
/// Words of texts about something else that has a limit: the length of a tool's name, of a prompt.
const ABOUT_ELSE: &[&str] = &[
    "token",
    "context",
    "character",
    "string",
    "name",
    "description",
    "per minute",
    "per day",
];

/// The limit that holds for a model, `None` when there is none that anybody knows of.
#[must_use]
pub fn effective(
    catalogue: &Catalogue,
    telemetry: &dyn Telemetry,
    provider: &ProviderId,
    model: &ModelId,
) -> Option<u32> {
    catalogue
        .get(provider, model)
        .tool_limit
        .or_else(|| known(provider))
        .or_else(|| telemetry.tool_limit(provider))
}

fn known(provider: &ProviderId) -> Option<u32> {
    KNOWN
        .iter()
        .find(|(name, _)| *name == provider.as_str())
        .map(|(_, limit)| *limit)
}

/// The limit that an upstream's answer names: a 400 about the number of tools. Of several numbers the one that stands
/// closest behind a word that limits.
#[must_use]
pub fn named_tool_limit(status: u16, body: &str) -> Option<u32> {
    limit_in(status, body, Quote::Shortest)
}

/// The limit that is learned from an upstream's answer to a request that offered so many tools: what the answer names
/// beside everything that may be quoted, where the request offered more.
#[must_use]
pub fn learn_tool_limit(status: u16, body: &str, offered: u32) -> Option<u32> {
    limit_in(status, body, Quote::Longest).filter(|limit| *limit < offered)
}

fn limit_in(status: u16, body: &str, quote: Quote) -> Option<u32> {
    if status != 400 {
        return None;
    }
    let text = message_of(body).to_ascii_lowercase();
    let about_else = ABOUT_ELSE.iter().any(|word| text.contains(word));
    if about_else || !text.contains("tool") {
        return None;
    }
    let text = without_quotes(&text, quote);
    LIMITING
        .iter()
        .flat_map(|word| text.match_indices(word))
        .filter_map(|(at, word)| number_behind(&text, at.saturating_add(word.len())))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, number)| number)
        .filter(|number| (1..=MAX_LIMIT).contains(number))
}

/// Where what is quoted ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quote {
    /// At the next mark that closes.
    Shortest,
    /// At the last one: what is quoted may hold marks itself.
    Longest,
}

/// Marks that open and close a quotation.
const MARKS: [(char, char); 5] = [('\'', '\''), ('"', '"'), ('`', '`'), ('‘', '’'), ('“', '”')];

/// The text with a space for each quotation. A mark within a word is an apostrophe, and one that nothing closes opens
/// nothing.
fn without_quotes(text: &str, quote: Quote) -> String {
    let mut left = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_word = false;
    while let Some(first) = rest.chars().next() {
        let behind = rest.get(first.len_utf8()..).unwrap_or_default();
        let closing = MARKS
            .iter()
            .find(|(opens, _)| *opens == first && !in_word)
            .and_then(|(_, closes)| after_closing(behind, *closes, quote));
        rest = if let Some(after) = closing {
            left.push(' ');
            after
        } else {
            left.push(first);
            behind
        };
        in_word = closing.is_none() && first.is_alphanumeric();
    }
    left
}

/// What follows the mark that closes.
fn after_closing(text: &str, closes: char, quote: Quote) -> Option<&str> {
    let mut ends = text.match_indices(closes).filter_map(|(at, mark)| {
        let after = text.get(at.saturating_add(mark.len())..)?;
        let in_word = after.chars().next().is_some_and(char::is_alphanumeric);
        (!in_word).then_some(after)
    });
    match quote {
        Quote::Shortest => ends.next(),
        Quote::Longest => ends.next_back(),
    }
}

/// What is known of a provider after an answer named a limit: a learned limit only falls.
#[must_use]
pub fn lowered(current: Option<u32>, named: u32) -> u32 {
    current.map_or(named, |current| current.min(named))
}

/// The first whole number that begins close behind a place, and how far behind.
fn number_behind(text: &str, from: usize) -> Option<(usize, u32)> {
    let rest = text.get(from..)?;
    let distance = rest.find(|it: char| it.is_ascii_digit())?;
    if distance > MAX_DISTANCE {
        return None;
    }
    let digits = rest.get(distance..)?;
    let end = digits
        .find(|it: char| !it.is_ascii_digit())
        .unwrap_or(digits.len());
    let number = digits.get(..end)?.parse().ok()?;
    Some((distance, number))
}

/// The message of an error body; of one that is no JSON, the text itself.
fn message_of(body: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(body).ok();
    let message = parsed.as_ref().and_then(|body| {
        let error = body.get("error").unwrap_or(body);
        error
            .get("message")
            .or_else(|| body.get("message"))
            .or_else(|| body.get("detail"))
            .unwrap_or(error)
            .as_str()
    });
    let text = message.unwrap_or(body);
    let end = text.floor_char_boundary(MAX_TEXT_BYTES);
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::catalogue::ModelInfo;
    use crate::telemetry::NoTelemetry;

    const LONG_ARRAY: &str = r#"{"error":{"message":"Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 150 instead.","type":"invalid_request_error","param":"tools","code":"array_above_max_length"}}"#;
    const LONG_NAME: &str = r#"{"error":{"message":"Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a string with length 70 instead."}}"#;

    #[rstest]
    #[case::vector_routing_v_tl1(400, "'tools': maximum number of items is 100", Some(100))]
    #[case::vector_routing_v_tl3(500, "'tools': maximum number of items is 100", None)]
    #[case::vector_routing_v_tl4(400, "tool limit is 128", Some(128))]
    #[case::openai(400, LONG_ARRAY, Some(128))]
    #[case::what_was_sent_is_no_limit(400, "tool limit exceeded: got 150, maximum is 64", Some(64))]
    #[case::in_parentheses(400, "too many tools: 150 (max 128)", Some(128))]
    #[case::number_before_the_word(400, "150 tools given, at most 32 allowed", Some(32))]
    #[case::length_of_a_name(400, LONG_NAME, None)]
    #[case::context_window(400, "tools exceed the maximum context length of 8192 tokens", None)]
    #[case::no_number(400, "too many tools, the maximum is exceeded", None)]
    #[case::too_large(400, "the maximum number of tools is 10001", None)]
    #[case::zero(400, "the maximum number of tools is 0", None)]
    #[case::longer_than_a_number(400, "tool limit is 99999999999999999999", None)]
    #[case::something_else(400, "the maximum is 12", None)]
    #[case::far_away(
        400,
        "tool maximum reached, see https://x.example/very/long/address/of/the/page about it and its more than 12 rows",
        None
    )]
    #[case::not_ascii(400, "工具 tool limit é 12", Some(12))]
    #[case::empty(400, "", None)]
    fn an_answer_names_a_limit(
        #[case] status: u16,
        #[case] body: &str,
        #[case] expected: Option<u32>,
    ) {
        assert_eq!(named_tool_limit(status, body), expected);
        assert_eq!(learn_tool_limit(status, body, u32::MAX), expected);
    }

    #[rstest]
    #[case::more(101, Some(100))]
    #[case::as_many(100, None)]
    #[case::one(1, None)]
    fn a_request_within_the_limit_teaches_nothing(
        #[case] offered: u32,
        #[case] expected: Option<u32>,
    ) {
        let body = "'tools': maximum number of items is 100";
        assert_eq!(learn_tool_limit(400, body, offered), expected);
    }

    #[rstest]
    #[case::type_of_a_tool("invalid value: 'at most 1 tool'. supported values are: 'function'")]
    #[case::marks_of_its_own("invalid value: 'x' at most 1 tool 'y'. try 'function' as tool")]
    #[case::other_marks("tool “limit is 1” is unknown")]
    fn what_a_client_wrote_teaches_nothing(#[case] message: &str) {
        let body = serde_json::json!({"error": {"message": message}}).to_string();
        assert_eq!(learn_tool_limit(400, &body, 200), None);
    }

    #[rstest]
    #[case::quoted("'tools' may hold at most 5", "  may hold at most 5")]
    #[case::apostrophes("can't take it's 5", "can't take it's 5")]
    #[case::open("tools 'at most 5", "tools 'at most 5")]
    #[case::two("'a' and \"b\"", "  and  ")]
    fn quotations_are_left_out(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(without_quotes(text, Quote::Shortest), expected);
    }

    #[test]
    fn vector_routing_v_tl2() {
        let first = lowered(None, 100);
        assert_eq!(lowered(Some(first), 120), 100);
        assert_eq!(lowered(Some(first), 80), 80);
    }

    #[test]
    fn what_is_known_wins() {
        let provider = |name: &str| ProviderId::new(name).unwrap();
        let model = ModelId::new("m").unwrap();
        let row = ModelInfo {
            tool_limit: Some(7),
            ..ModelInfo::default()
        };
        let table = Catalogue::new([(provider("grok-cli"), model.clone(), row)]);
        let limit = |catalogue: &Catalogue, name: &str| {
            effective(catalogue, &NoTelemetry, &provider(name), &model)
        };
        assert_eq!(limit(&table, "grok-cli"), Some(7));
        assert_eq!(limit(&Catalogue::default(), "grok-cli"), Some(200));
        assert_eq!(limit(&Catalogue::default(), "nvidia"), Some(1_536));
        assert_eq!(limit(&Catalogue::default(), "openai"), None);
    }
}

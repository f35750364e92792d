//! Texts as they stand in JSON.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::shapes::Word;

/// How many UTF-8 bytes a JSON text has once it is read; 0 for absent values and for what is no text. Half a
/// surrogate pair counts as the replacement character, 3 bytes.
pub(super) fn utf8_bytes(value: Option<&RawValue>) -> u64 {
    let Some(text) = value.and_then(inside) else {
        return 0;
    };
    let mut bytes: usize = 0;
    let mut rest = text;
    while let Some((before, escape)) = rest.split_once('\\') {
        let (length, read) = match escape.strip_prefix('u') {
            Some(digits) => unit(digits),
            None => (1, escape.get(1..).unwrap_or_default()),
        };
        bytes = bytes.saturating_add(before.len()).saturating_add(length);
        rest = read;
    }
    u64::try_from(bytes.saturating_add(rest.len())).unwrap_or(u64::MAX)
}

/// The bytes that the escape with these digits stands for, and what follows it and, if it is the first half of a
/// pair, the second.
fn unit(digits: &str) -> (usize, &str) {
    let (first, rest) = hex(digits);
    let length = match first {
        0..0x80 => 1,
        0x80..0x800 => 2,
        0xd800..0xdc00 => {
            let second = rest.strip_prefix("\\u").map(hex);
            if let Some((0xdc00..0xe000, rest)) = second {
                return (4, rest);
            }
            3
        }
        _ => 3,
    };
    (length, rest)
}

fn hex(digits: &str) -> (u16, &str) {
    let (digits, rest) = digits.split_at_checked(4).unwrap_or((digits, ""));
    (u16::from_str_radix(digits, 16).unwrap_or_default(), rest)
}

/// Reads a JSON text. `None` for what is no text, and for half a surrogate pair.
pub(super) fn read(value: &RawValue) -> Option<Cow<'_, str>> {
    match inside(value) {
        Some(text) if !text.contains('\\') => Some(Cow::Borrowed(text)),
        _ => serde_json::from_str(value.get())
            .ok()
            .map(|Word(text)| text),
    }
}

fn inside(value: &RawValue) -> Option<&str> {
    value.get().strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[rstest]
    #[case::plain(r#""你好""#, 6)]
    #[case::escaped(r#""\u4f60\u597d""#, 6)]
    #[case::half_escaped(r#""\u4F60好""#, 6)]
    #[case::two_bytes(r#""\u00e9""#, 2)]
    #[case::pair(r#""\ud83d\ude00!""#, 5)]
    #[case::half_a_pair(r#""\ud83d!""#, 4)]
    #[case::two_first_halves(r#""\ud83d\ud83d\ude00""#, 7)]
    #[case::short_escapes(r#""\n\"\\u0041""#, 8)]
    #[case::empty(r#""""#, 0)]
    #[case::list(r#"["a"]"#, 0)]
    #[case::number("12", 0)]
    fn texts_are_measured_as_they_are_read(#[case] json: &str, #[case] bytes: u64) {
        assert_eq!(utf8_bytes(Some(&raw(json))), bytes);
    }

    #[test]
    fn half_a_pair_cannot_be_read() {
        assert_eq!(read(&raw(r#""\ud83d""#)), None);
    }

    proptest! {
        #[test]
        fn the_measure_is_that_of_the_text(characters in prop::collection::vec((any::<char>(), any::<bool>()), 0..40)) {
            let mut json = String::from('"');
            for (character, escaped) in &characters {
                if *escaped {
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        json.push_str(&format!("\\u{unit:04x}"));
                    }
                } else {
                    let text = serde_json::to_string(&character.to_string()).unwrap();
                    json.push_str(text.get(1..text.len() - 1).unwrap());
                }
            }
            json.push('"');
            let text: String = characters.iter().map(|(character, _)| character).collect();
            prop_assert_eq!(utf8_bytes(Some(&raw(&json))), text.len() as u64);
            let json = raw(&json);
            prop_assert_eq!(read(&json).unwrap(), text);
        }
    }
}

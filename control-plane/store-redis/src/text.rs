//! A value as text: `<schema> <incarnation> <revision> <expires_at>\n<payload>`. `scripts/write_v1.lua` writes it.

use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tidegate_store::hot::{Cell, Entry};

/// Largest end, in ms, that the server is asked to keep; beyond it a value has no end that anyone will see.
const MAX_SERVER_END_MS: u64 = (1 << 53) - 1;

/// When the server is to forget a value: its end, as far as the server can count. A moment at or before the epoch is
/// an error to the server, so it becomes the first one after.
pub(crate) fn server_end(expires_at: Timestamp) -> u64 {
    expires_at.0.clamp(1, MAX_SERVER_END_MS)
}

/// The version as the script compares it.
pub(crate) fn expected(version: Option<Version>) -> String {
    version.map_or_else(String::new, |version| {
        format!("{} {}", version.incarnation.0, version.revision.0)
    })
}

/// Reads a value back; `None` when it is not one.
pub(crate) fn parse(key: String, text: &[u8]) -> Option<Entry> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let (header, rest) = text.split_at_checked(end)?;
    let payload = rest.get(1..)?.to_vec();
    let mut numbers = std::str::from_utf8(header).ok()?.split(' ');
    let schema = numbers.next()?.parse().ok()?;
    let incarnation = numbers.next()?.parse().ok()?;
    let revision = numbers.next()?.parse().ok()?;
    let expires_at = Timestamp(numbers.next()?.parse().ok()?);
    if numbers.next().is_some() {
        return None;
    }
    Some(Entry {
        key,
        version: Version::new(incarnation, revision),
        schema,
        payload,
        expires_at,
    })
}

/// Reads a value outside the change stream back: `<schema> <version> <expires_at>\n<payload>`, as `scripts/swap_v1.lua`
/// writes it. `None` when it is not one.
pub(crate) fn parse_cell(text: &[u8]) -> Option<Cell> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let (header, rest) = text.split_at_checked(end)?;
    let payload = rest.get(1..)?.to_vec();
    let mut numbers = std::str::from_utf8(header).ok()?.split(' ');
    let cell = Cell {
        schema: numbers.next()?.parse().ok()?,
        version: numbers.next()?.parse().ok()?,
        expires_at: Timestamp(numbers.next()?.parse().ok()?),
        payload,
    };
    numbers.next().is_none().then_some(cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_back() {
        let entry = parse("k".to_owned(), b"3 17 4 99\n{\n \"a\": 1}").unwrap();
        assert_eq!(entry.schema, 3);
        assert_eq!(entry.version, Version::new(17, 4));
        assert_eq!(entry.expires_at, Timestamp(99));
        assert_eq!(entry.payload, b"{\n \"a\": 1}");
        assert_eq!(parse("k".to_owned(), b"1 1 1 1\n").unwrap().payload, b"");
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for text in [
            &b""[..],
            b"1 2 3 4",
            b"1 2 3\n",
            b"1 2 3 4 5\n",
            b"1 2 3 x\n",
            b"-1 2 3 4\n",
            b"99999999999 2 3 4\n",
            b"\xff 2 3 4\n",
            b"1  2 3 4\n",
        ] {
            assert_eq!(parse("k".to_owned(), text), None, "{text:?}");
        }
    }

    #[test]
    fn a_cell_is_read_back_and_nothing_else() {
        let cell = parse_cell(b"3 17 99\n{\n}").unwrap();
        assert_eq!((cell.schema, cell.version), (3, 17));
        assert_eq!(cell.expires_at, Timestamp(99));
        assert_eq!(cell.payload, b"{\n}");
        for text in [&b""[..], b"1 2 3", b"1 2\n", b"1 2 3 4\n", b"1 x 3\n"] {
            assert_eq!(parse_cell(text), None, "{text:?}");
        }
    }

    #[test]
    fn ends_stay_within_what_the_server_counts() {
        assert_eq!(server_end(Timestamp(0)), 1);
        assert_eq!(server_end(Timestamp(5)), 5);
        assert_eq!(server_end(Timestamp(u64::MAX)), MAX_SERVER_END_MS);
    }
}

//! The name of every key this crate uses.
//!
//! `tidegate:1:{s07}:...`: the product, the version of this layout, and the shard in braces. Redis Cluster hashes
//! only what is in the braces, so all keys of a shard are in one slot and one script can hold them.
//!
//! | key | type | what |
//! |---|---|---|
//! | `meta` | string | incarnation and run id of the server it began on |
//! | `rev` | string | last revision of the incarnation |
//! | `stream` | stream | one entry per write, id `<incarnation>-<revision>` |
//! | `index` | sorted set | names of values and marks by their end in ms |
//! | `v:<key>` | string | a value |
//! | `r:<plane>` | string | a report mark; the plane's incarnation as 16 hex digits |
//! | `o:<key>` | string | a value outside the change stream |
//! | `t:<key>` | string | the next number of a shared counter |
//!
//! Besides, `tidegate:1:{announce}:schemas` is a hash of announced schemas, `tidegate:1:{blobs}:index` one of the blobs
//! of replicas, and `tidegate:1:{blobs}:b:<replica>` such a blob.

use tidegate_core::ids::{PlaneIncarnation, Shard};

/// The schemas that replicas announced.
pub const ANNOUNCED: &str = "tidegate:1:{announce}:schemas";

/// The versions of the replicas' blobs. The scripts make the names of the blobs of it.
pub const BLOBS: &str = "tidegate:1:{blobs}:index";

/// What all keys of a shard begin with.
#[must_use]
pub fn prefix(shard: Shard) -> String {
    format!("tidegate:1:{{s{shard}}}:")
}

/// Incarnation and run id. The scripts cut the prefix of the shard out of it.
#[must_use]
pub fn meta(shard: Shard) -> String {
    named(shard, "meta")
}

/// The last revision.
#[must_use]
pub fn rev(shard: Shard) -> String {
    named(shard, "rev")
}

/// The change stream.
#[must_use]
pub fn stream(shard: Shard) -> String {
    named(shard, "stream")
}

/// The names of what the shard holds.
#[must_use]
pub fn index(shard: Shard) -> String {
    named(shard, "index")
}

/// A value.
#[must_use]
pub fn value(shard: Shard, key: &str) -> String {
    format!("{}{VALUE}{key}", prefix(shard))
}

/// A report mark.
#[must_use]
pub fn mark(shard: Shard, plane: PlaneIncarnation) -> String {
    format!("{}{MARK}{:016x}", prefix(shard), plane.0)
}

/// A value outside the change stream.
#[must_use]
pub fn cell(shard: Shard, key: &str) -> String {
    format!("{}o:{key}", prefix(shard))
}

/// A shared counter.
#[must_use]
pub fn turn(shard: Shard, key: &str) -> String {
    format!("{}t:{key}", prefix(shard))
}

const VALUE: &str = "v:";
const MARK: &str = "r:";

/// What a name in the index or in a stream entry stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// The value of this key.
    Value(String),
    /// The mark of this plane.
    Mark(PlaneIncarnation),
}

/// Reads a name of the index or of a stream entry; `None` when it is none of ours.
#[must_use]
pub fn parse_name(name: &[u8]) -> Option<Named> {
    let name = std::str::from_utf8(name).ok()?;
    if let Some(key) = name.strip_prefix(VALUE) {
        return Some(Named::Value(key.to_owned()));
    }
    let digits = name.strip_prefix(MARK)?;
    // `from_str_radix` alone would take a sign.
    if digits.len() != 16 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let plane = u64::from_str_radix(digits, 16).ok()?;
    Some(Named::Mark(PlaneIncarnation(plane)))
}

fn named(shard: Shard, name: &str) -> String {
    format!("{}{name}", prefix(shard))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_part_of_the_stored_format() {
        let shard = Shard::new(7).unwrap();
        assert_eq!(meta(shard), "tidegate:1:{s07}:meta");
        assert_eq!(rev(shard), "tidegate:1:{s07}:rev");
        assert_eq!(stream(shard), "tidegate:1:{s07}:stream");
        assert_eq!(index(shard), "tidegate:1:{s07}:index");
        assert_eq!(value(shard, "p:openai"), "tidegate:1:{s07}:v:p:openai");
        assert_eq!(
            mark(shard, PlaneIncarnation(0xab)),
            "tidegate:1:{s07}:r:00000000000000ab"
        );
        assert_eq!(cell(shard, "m:openai/a"), "tidegate:1:{s07}:o:m:openai/a");
        assert_eq!(turn(shard, "deck:c"), "tidegate:1:{s07}:t:deck:c");
    }

    #[test]
    fn names_are_read_back() {
        let shard = Shard::new(0).unwrap();
        for (key, named) in [
            (value(shard, "c:a/{b}"), Named::Value("c:a/{b}".to_owned())),
            (
                mark(shard, PlaneIncarnation(u64::MAX)),
                Named::Mark(PlaneIncarnation(u64::MAX)),
            ),
        ] {
            let name = key.strip_prefix(&prefix(shard)).unwrap();
            assert_eq!(parse_name(name.as_bytes()), Some(named));
        }
        for foreign in [
            "",
            "x:1",
            "r:ff",
            "r:zzzzzzzzzzzzzzzz",
            "r:+0000000000000ff",
        ] {
            assert_eq!(parse_name(foreign.as_bytes()), None, "{foreign}");
        }
        assert_eq!(parse_name(&[0xff, 0xfe]), None);
    }
}

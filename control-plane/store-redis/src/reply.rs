//! What the scripts and streams answer, read back. Anything else is [`HotStoreError::Protocol`].

use redis::Value;
use tidegate_core::ids::PlaneIncarnation;
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Revision, Version};
use tidegate_store::hot::{
    Announcement, Blob, Cell, Change, HotStoreError, Refusal, RefusalReason, ReportMark,
    ShardCheck, ShardImage, ShardWrite, SwapOutcome, SwapRefusal, WriteOutcome,
};

use crate::keys::{Named, parse_name};
use crate::text;

fn protocol(what: &str) -> HotStoreError {
    HotStoreError::Protocol(what.to_owned())
}

fn list(value: Value, what: &str) -> Result<std::vec::IntoIter<Value>, HotStoreError> {
    match value {
        Value::Array(values) => Ok(values.into_iter()),
        _ => Err(protocol(what)),
    }
}

fn bytes(value: Option<Value>) -> Option<Vec<u8>> {
    match value? {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        _ => None,
    }
}

fn number(value: Option<Value>, what: &str) -> Result<u64, HotStoreError> {
    let bytes = bytes(value).ok_or_else(|| protocol(what))?;
    parse_number(&bytes).ok_or_else(|| protocol(what))
}

fn parse_number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// A number, or nothing for an empty text.
fn incarnation(value: Option<Value>, what: &str) -> Result<Option<Incarnation>, HotStoreError> {
    let bytes = bytes(value).ok_or_else(|| protocol(what))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let number = parse_number(&bytes).ok_or_else(|| protocol(what))?;
    Ok(Some(Incarnation(number)))
}

/// The answer of `write_v1` to this write.
pub(crate) fn write_outcome(
    answer: Value,
    write: &ShardWrite,
) -> Result<WriteOutcome, HotStoreError> {
    let mut parts = list(answer, "answer of a write")?;
    match bytes(parts.next()).as_deref() {
        Some(b"written") => Ok(WriteOutcome::Written {
            revision: Revision(number(parts.next(), "revision of a write")?),
            now: Timestamp(number(parts.next(), "time of a write")?),
        }),
        Some(b"refused") => Ok(WriteOutcome::Refused(Box::new(refusal(parts, write)?))),
        _ => Err(protocol("outcome of a write")),
    }
}

fn refusal(
    mut parts: std::vec::IntoIter<Value>,
    write: &ShardWrite,
) -> Result<Refusal, HotStoreError> {
    let reason = match bytes(parts.next()).as_deref() {
        Some(b"empty") => RefusalReason::Empty,
        Some(b"other_server") => RefusalReason::OtherServer,
        Some(b"other_incarnation") => RefusalReason::OtherIncarnation,
        Some(b"late") => RefusalReason::Late,
        Some(b"already_applied") => RefusalReason::AlreadyApplied,
        Some(b"conflict") => RefusalReason::Conflict,
        _ => return Err(protocol("reason of a refusal")),
    };
    let incarnation = incarnation(parts.next(), "incarnation of a refusal")?;
    let now = Timestamp(number(parts.next(), "time of a refusal")?);
    let texts = list(parts.next().unwrap_or_default(), "values of a refusal")?;
    let numbers = list(parts.next().unwrap_or_default(), "marks of a refusal")?;
    if texts.len() != write.values.len() || numbers.len() != write.marks.len() {
        return Err(protocol("length of a refusal"));
    }
    let mut values = Vec::with_capacity(write.values.len());
    for (text, asked) in texts.zip(&write.values) {
        values.push(match text {
            Value::Nil => None,
            text => {
                let text = bytes(Some(text)).ok_or_else(|| protocol("value of a refusal"))?;
                let entry = text::parse(asked.key.clone(), &text);
                Some(entry.ok_or_else(|| protocol("text of a value"))?)
            }
        });
    }
    let mut marks = Vec::new();
    for (found, asked) in numbers.zip(&write.marks) {
        if found != Value::Nil {
            marks.push(ReportMark {
                plane: asked.plane,
                number: number(Some(found), "mark of a refusal")?,
            });
        }
    }
    Ok(Refusal {
        reason,
        incarnation,
        now,
        values,
        marks,
    })
}

/// The answer of `swap_v1`.
pub(crate) fn swap_outcome(answer: Value) -> Result<SwapOutcome, HotStoreError> {
    let mut parts = list(answer, "answer of a swap")?;
    match bytes(parts.next()).as_deref() {
        Some(b"swapped") => Ok(SwapOutcome::Swapped {
            version: number(parts.next(), "version of a swap")?,
            now: Timestamp(number(parts.next(), "time of a swap")?),
        }),
        Some(b"refused") => Ok(SwapOutcome::Refused {
            reason: match bytes(parts.next()).as_deref() {
                Some(b"late") => SwapRefusal::Late,
                Some(b"conflict") => SwapRefusal::Conflict,
                _ => return Err(protocol("reason of a refused swap")),
            },
            found: found_cell(parts.next())?,
            now: Timestamp(number(parts.next(), "time of a refused swap")?),
        }),
        _ => Err(protocol("outcome of a swap")),
    }
}

/// The answer of `cell_v1`.
pub(crate) fn cell(answer: Value) -> Result<(Option<Cell>, Timestamp), HotStoreError> {
    let mut parts = list(answer, "answer of a cell")?;
    let found = found_cell(parts.next())?;
    let now = Timestamp(number(parts.next(), "time of a cell")?);
    Ok((found, now))
}

/// The answer of `turn_v1`.
pub(crate) fn turn(answer: Value) -> Result<u64, HotStoreError> {
    number(Some(answer), "number of a turn")
}

fn found_cell(text: Option<Value>) -> Result<Option<Cell>, HotStoreError> {
    match text {
        None | Some(Value::Nil) => Ok(None),
        text => bytes(text)
            .and_then(|text| text::parse_cell(&text))
            .map(Some)
            .ok_or_else(|| protocol("text of a cell")),
    }
}

/// The answer of `check_v1`.
pub(crate) fn check(answer: Value) -> Result<ShardCheck, HotStoreError> {
    let mut parts = list(answer, "answer of a check")?;
    check_parts(&mut parts)
}

fn check_parts(parts: &mut std::vec::IntoIter<Value>) -> Result<ShardCheck, HotStoreError> {
    let found = incarnation(parts.next(), "incarnation of a shard")?;
    let stands = number(parts.next(), "server of a shard")? == 1;
    Ok(ShardCheck {
        incarnation: found.filter(|_| stands),
        found,
        revision: Revision(number(parts.next(), "revision of a shard")?),
        now: Timestamp(number(parts.next(), "time of a shard")?),
    })
}

/// The answer of `read_v1`.
pub(crate) fn image(answer: Value) -> Result<ShardImage, HotStoreError> {
    let mut parts = list(answer, "answer of a reading")?;
    let check = check_parts(&mut parts)?;
    let (entries, marks) = held(parts.next().unwrap_or_default())?;
    Ok(ShardImage {
        check,
        entries,
        marks,
    })
}

/// The answer of `begin_v1`.
pub(crate) fn begun(answer: Value) -> Result<Option<Incarnation>, HotStoreError> {
    incarnation(Some(answer), "answer of a beginning")
}

/// The answer of `announce_v1`.
pub(crate) fn announced(answer: Value) -> Result<Vec<Announcement>, HotStoreError> {
    let mut parts = list(answer, "answer of an announcement")?;
    let mut announced = Vec::with_capacity(parts.len() / 2);
    while let Some(replica) = parts.next() {
        let replica = bytes(Some(replica)).and_then(|name| String::from_utf8(name).ok());
        let schema = number(parts.next(), "schema of an announcement")?;
        announced.push(Announcement {
            replica: replica.ok_or_else(|| protocol("name of a replica"))?,
            schema: u32::try_from(schema).map_err(|_| protocol("schema of an announcement"))?,
        });
    }
    Ok(announced)
}

/// The answer of `put_blob_v1`.
pub(crate) fn blob_put(answer: Value) -> Result<u64, HotStoreError> {
    number(Some(answer), "version of a blob")
}

/// The answer of `blobs_v2`.
pub(crate) fn blobs(answer: Value) -> Result<Vec<Blob>, HotStoreError> {
    let mut parts = list(answer, "answer of a reading of blobs")?;
    let mut blobs = Vec::with_capacity(parts.len() / 3);
    while let Some(replica) = parts.next() {
        let replica = bytes(Some(replica)).and_then(|name| String::from_utf8(name).ok());
        blobs.push(Blob {
            replica: replica.ok_or_else(|| protocol("name of a replica"))?,
            version: number(parts.next(), "version of a blob")?,
            payload: match parts.next() {
                Some(Value::Nil | Value::Boolean(false)) => None,
                payload => Some(bytes(payload).ok_or_else(|| protocol("a blob"))?),
            },
        });
    }
    Ok(blobs)
}

type Held = (Vec<tidegate_store::hot::Entry>, Vec<ReportMark>);

/// Names and what stands under them: values and marks.
fn held(pairs: Value) -> Result<Held, HotStoreError> {
    let mut pairs = list(pairs, "names and values")?;
    let mut entries = Vec::with_capacity(pairs.len() / 2);
    let mut marks = Vec::new();
    while let Some(name) = pairs.next() {
        let name = bytes(Some(name)).ok_or_else(|| protocol("a name"))?;
        let text = bytes(pairs.next()).ok_or_else(|| protocol("what stands under a name"))?;
        match parse_name(&name) {
            Some(Named::Value(key)) => {
                let entry = text::parse(key, &text);
                entries.push(entry.ok_or_else(|| protocol("text of a value"))?);
            }
            Some(Named::Mark(plane)) => marks.push(mark(plane, &text)?),
            None => return Err(protocol("a name that is not ours")),
        }
    }
    Ok((entries, marks))
}

fn mark(plane: PlaneIncarnation, text: &[u8]) -> Result<ReportMark, HotStoreError> {
    Ok(ReportMark {
        plane,
        number: parse_number(text).ok_or_else(|| protocol("number of a mark"))?,
    })
}

/// One entry of a change stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamEntry {
    /// An incarnation begins.
    Begin(Incarnation),
    /// A write.
    Change(Change),
    /// Something was written under this version that is not understood.
    Unknown(Version),
}

/// The answer of `XREAD`: for each stream that has any, its key and its entries in order.
pub(crate) fn streams(answer: Value) -> Result<Vec<(String, Vec<StreamEntry>)>, HotStoreError> {
    let pairs: Vec<(Value, Value)> = match answer {
        Value::Nil => Vec::new(),
        Value::Map(pairs) => pairs,
        Value::Array(streams) => streams.into_iter().map(pair).collect::<Result<_, _>>()?,
        _ => return Err(protocol("answer of a stream")),
    };
    let mut read = Vec::with_capacity(pairs.len());
    for (key, entries) in pairs {
        let key = bytes(Some(key)).and_then(|key| String::from_utf8(key).ok());
        let entries = list(entries, "entries of a stream")?
            .map(stream_entry)
            .collect::<Result<_, _>>()?;
        read.push((key.ok_or_else(|| protocol("key of a stream"))?, entries));
    }
    Ok(read)
}

fn pair(value: Value) -> Result<(Value, Value), HotStoreError> {
    let mut parts = list(value, "a pair")?;
    match (parts.next(), parts.next(), parts.next()) {
        (Some(one), Some(two), None) => Ok((one, two)),
        _ => Err(protocol("a pair")),
    }
}

fn stream_entry(value: Value) -> Result<StreamEntry, HotStoreError> {
    let (id, fields) = pair(value)?;
    let id = bytes(Some(id)).and_then(|id| String::from_utf8(id).ok());
    let version = id
        .as_deref()
        .and_then(|id| id.split_once('-'))
        .and_then(|(incarnation, revision)| {
            Some(Version::new(
                incarnation.parse().ok()?,
                revision.parse().ok()?,
            ))
        })
        .ok_or_else(|| protocol("id of a stream entry"))?;
    if version.revision.0 == 0 {
        return Ok(StreamEntry::Begin(version.incarnation));
    }
    // A newer replica may write what this one does not know; that is no reason to stop following.
    Ok(
        held(fields).map_or(StreamEntry::Unknown(version), |(entries, marks)| {
            StreamEntry::Change(Change {
                version,
                entries,
                marks,
            })
        }),
    )
}

/// The answer of `MGET meta rev`: the version the shard stands at; the default when it has no incarnation.
pub(crate) fn position(answer: Value) -> Result<Version, HotStoreError> {
    let mut parts = list(answer, "answer of a position")?;
    let (meta, rev) = (parts.next(), parts.next());
    if matches!(meta, None | Some(Value::Nil)) {
        return Ok(Version::default());
    }
    let meta = bytes(meta).ok_or_else(|| protocol("meta of a shard"))?;
    let begun = std::str::from_utf8(&meta)
        .ok()
        .and_then(|meta| meta.split_once(' '))
        .and_then(|(begun, _)| begun.parse().ok())
        .ok_or_else(|| protocol("meta of a shard"))?;
    let revision = match rev {
        None | Some(Value::Nil) => 0,
        rev => number(rev, "revision of a shard")?,
    };
    Ok(Version::new(begun, revision))
}

#[cfg(test)]
mod tests;

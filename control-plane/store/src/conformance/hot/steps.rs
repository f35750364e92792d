//! The steps that rules are made of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt as _};
use tidegate_core::ids::{PlaneIncarnation, Shard};
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Revision, Version};
use tokio::time::{sleep, timeout};

use crate::codec::NEVER_LATE;
use crate::hot::{
    Change, Entry, Followed, HotStore, HotStoreError, MarkMove, Refusal, RefusalReason, ShardCheck,
    ShardWrite, VersionVector, WriteOutcome, WriteValue,
};

pub(super) type Fault = Box<dyn std::error::Error + Send + Sync>;

/// How long a rule waits for something that must happen. Never reached when the store is right.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at something that is waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Long enough that nothing expires within a rule.
pub(super) const LONG_MS: u64 = 600_000;

/// Where the rules write.
pub(super) fn shard() -> Shard {
    numbered(7)
}

/// Another shard.
pub(super) fn other_shard() -> Shard {
    numbered(11)
}

#[expect(
    clippy::expect_used,
    reason = "both numbers are below SHARDS, by sight"
)]
fn numbered(number: u8) -> Shard {
    Shard::new(number).expect("a shard's number")
}

/// Awaits what must end.
pub(super) async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T, Fault> {
    timeout(PATIENCE, future)
        .await
        .map_err(|_| Fault::from(format!("waited in vain for {what}")))
}

/// Looks until there is something.
pub(super) async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<Option<T>, Fault>>,
{
    within(what, async {
        loop {
            if let Some(seen) = look().await? {
                return Ok(seen);
            }
            sleep(LOOK_AGAIN).await;
        }
    })
    .await?
}

/// The state of one shard. Asks again while the store cannot be reached (a server that just came back).
pub(super) async fn check(store: &dyn HotStore, shard: Shard) -> Result<ShardCheck, Fault> {
    eventually("the store to answer", || async {
        match store.check().await {
            Ok(checks) => Ok(checks.get(shard.index()).copied()),
            Err(HotStoreError::Timeout | HotStoreError::Unreachable(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    })
    .await
}

/// Begins an incarnation on whatever is there.
pub(super) async fn begin(store: &dyn HotStore, shard: Shard) -> Result<Incarnation, Fault> {
    let found = check(store, shard).await?.found;
    store
        .begin_incarnation(shard, found, found.unwrap_or_default(), NEVER_LATE)
        .await?
        .ok_or_else(|| "no incarnation stands after one was begun".into())
}

/// A vector that says `version` for the shard of the rules and nothing for the others.
pub(super) fn vector(version: Version) -> VersionVector {
    let mut vector = VersionVector::default();
    if let Some(slot) = vector.get_mut(shard().index()) {
        *slot = version;
    }
    vector
}

/// A value of the rules' own schema.
pub(super) async fn value(
    store: &dyn HotStore,
    key: &str,
    expected: Option<Version>,
    payload: &str,
) -> Result<WriteValue, Fault> {
    let expires_at = store.time().await?.plus_ms(LONG_MS);
    Ok(WriteValue {
        key: key.to_owned(),
        expected,
        schema: 3,
        payload: payload.as_bytes().to_vec(),
        expires_at,
    })
}

/// A write to the shard of the rules that is never late.
pub(super) fn write_of(
    incarnation: Incarnation,
    values: Vec<WriteValue>,
    marks: Vec<MarkMove>,
) -> ShardWrite {
    ShardWrite {
        shard: shard(),
        incarnation,
        not_after: NEVER_LATE,
        values,
        marks,
    }
}

/// A run of reports.
pub(super) fn run(plane: u64, first: u64, last: u64) -> MarkMove {
    MarkMove {
        plane: PlaneIncarnation(plane),
        first,
        last,
    }
}

/// Writes what must be written.
pub(super) async fn written(store: &dyn HotStore, write: ShardWrite) -> Result<Revision, Fault> {
    match store.write(write).await? {
        WriteOutcome::Written { revision, .. } => Ok(revision),
        WriteOutcome::Refused(refusal) => Err(format!("refused: {refusal:?}").into()),
    }
}

/// Writes what must be refused.
pub(super) async fn refused(store: &dyn HotStore, write: ShardWrite) -> Result<Refusal, Fault> {
    match store.write(write).await? {
        WriteOutcome::Refused(refusal) => Ok(*refusal),
        WriteOutcome::Written { revision, .. } => {
            Err(format!("written under {revision:?}, should be refused").into())
        }
    }
}

/// What stands in the shard of the rules.
pub(super) async fn standing(store: &dyn HotStore) -> Result<BTreeMap<String, Entry>, Fault> {
    let image = store.read(shard()).await?;
    Ok(image
        .entries
        .into_iter()
        .map(|entry| (entry.key.clone(), entry))
        .collect())
}

/// The number that a counter's entry holds; 0 when there is none.
pub(super) fn count(entry: Option<&Entry>) -> Result<u64, Fault> {
    match entry {
        Some(entry) => Ok(std::str::from_utf8(&entry.payload)?.parse()?),
        None => Ok(0),
    }
}

/// A writer of counters that remembers what it saw last, as a replica does.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) store: Arc<dyn HotStore>,
    incarnation: Incarnation,
    key: String,
    expires_at: Timestamp,
    seen: Option<Entry>,
    /// Writes that were refused for a conflict.
    pub(super) conflicts: u64,
}

impl Counter {
    pub(super) async fn new(
        store: Arc<dyn HotStore>,
        incarnation: Incarnation,
        key: &str,
    ) -> Result<Self, Fault> {
        let expires_at = store.time().await?.plus_ms(LONG_MS);
        Ok(Self {
            store,
            incarnation,
            key: key.to_owned(),
            expires_at,
            seen: None,
            conflicts: 0,
        })
    }

    /// Adds one together with the marks; `false` when a mark was at or past its run.
    pub(super) async fn add_one(&mut self, marks: &[MarkMove]) -> Result<bool, Fault> {
        loop {
            let next = count(self.seen.as_ref())? + 1;
            let expected = self.seen.as_ref().map(|entry| entry.version);
            let value = WriteValue {
                key: self.key.clone(),
                expected,
                schema: 3,
                payload: next.to_string().into_bytes(),
                expires_at: self.expires_at,
            };
            let write = write_of(self.incarnation, vec![value.clone()], marks.to_vec());
            match self.store.write(write).await? {
                WriteOutcome::Written { revision, .. } => {
                    self.seen = Some(Entry {
                        key: value.key,
                        version: Version {
                            incarnation: self.incarnation,
                            revision,
                        },
                        schema: value.schema,
                        payload: value.payload,
                        expires_at: value.expires_at,
                    });
                    return Ok(true);
                }
                WriteOutcome::Refused(refusal) => match refusal.reason {
                    RefusalReason::Conflict => {
                        self.conflicts += 1;
                        self.seen = refusal.values.into_iter().next().flatten();
                    }
                    RefusalReason::AlreadyApplied => return Ok(false),
                    _ => return Err(format!("refused: {refusal:?}").into()),
                },
            }
        }
    }
}

/// A follower that keeps what it was told of the shard of the rules.
pub(super) struct Watcher {
    followed: BoxStream<'static, Followed>,
    pub(super) changes: Vec<Change>,
    pub(super) doubts: usize,
}

impl Watcher {
    pub(super) fn new(store: &dyn HotStore, from: VersionVector) -> Self {
        Self {
            followed: store.follow(from),
            changes: Vec::new(),
            doubts: 0,
        }
    }

    /// Follows until what was told is enough.
    pub(super) async fn until(
        &mut self,
        what: &str,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<(), Fault> {
        within(what, async {
            while !enough(self) {
                match self.followed.next().await {
                    Some(Followed::Changes(of, changes)) if of == shard() => {
                        self.changes.extend(changes);
                    }
                    Some(Followed::Doubt(of)) if of == shard() => self.doubts += 1,
                    Some(_) => {}
                    None => return Err(Fault::from("the stream of a follower ended")),
                }
            }
            Ok(())
        })
        .await?
    }

    /// Follows until it was told of this version, or that it may have missed it.
    pub(super) async fn until_version(&mut self, version: Version) -> Result<(), Fault> {
        self.until("a change to reach a follower", |watcher| {
            watcher
                .changes
                .last()
                .is_some_and(|change| change.version >= version)
        })
        .await
    }

    /// The revisions it was told of.
    pub(super) fn revisions(&self) -> Vec<u64> {
        self.changes
            .iter()
            .map(|change| change.version.revision.0)
            .collect()
    }
}

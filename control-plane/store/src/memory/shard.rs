//! The memory of one shard: what the script does elsewhere, as plain steps under a lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tidegate_core::ids::PlaneIncarnation;
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Revision, Version};

use crate::hot::{
    Change, Entry, MARK_TTL, Refusal, RefusalReason, ReportMark, ShardCheck, ShardWrite,
};

use super::cells::Cells;

/// The memory of one shard.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryShard {
    /// Counts the times this memory was replaced as a whole; followers doubt when it moved.
    pub(super) life: u64,
    meta: Option<Meta>,
    revision: Revision,
    values: BTreeMap<String, Entry>,
    marks: BTreeMap<PlaneIncarnation, KeptMark>,
    /// What ends when, so that the ended can be found without a search.
    expiry: BTreeSet<(Timestamp, Ends)>,
    /// The last writes of the incarnation, without gaps, up to `revision`.
    log: VecDeque<Arc<Change>>,
    /// What is outside the change stream. [`super::MemoryHotStore::lose_last_writes`] leaves it as it is.
    pub(super) cells: Cells,
}

/// Who began the incarnation, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meta {
    incarnation: Incarnation,
    server: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeptMark {
    number: u64,
    expires_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ends {
    Value(String),
    Mark(PlaneIncarnation),
}

/// What takes a change of the memory back.
#[derive(Debug)]
pub(super) enum Before {
    /// The values and marks that a write replaced.
    Write {
        values: Vec<(String, Option<Entry>)>,
        marks: Vec<(PlaneIncarnation, Option<u64>, Timestamp)>,
        revision: Revision,
    },
    /// What stood before an incarnation began.
    Begin(BeforeBegin),
}

/// What stood before an incarnation began.
#[derive(Debug)]
pub(super) struct BeforeBegin {
    meta: Option<Meta>,
    revision: Revision,
    log: VecDeque<Arc<Change>>,
}

/// What a follower finds after its position.
#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    Changes(Vec<Arc<Change>>),
    /// Its position does not lead here, or no longer.
    Lost,
}

impl MemoryShard {
    /// Forgets what has ended. A value is there up to and including its last millisecond.
    pub(super) fn prune(&mut self, now: Timestamp) {
        while self.expiry.first().is_some_and(|(end, _)| *end < now) {
            match self.expiry.pop_first() {
                Some((_, Ends::Value(key))) => {
                    self.values.remove(&key);
                }
                Some((_, Ends::Mark(plane))) => {
                    self.marks.remove(&plane);
                }
                None => break,
            }
        }
    }

    /// Its state.
    pub(super) fn check(&self, server: u64, now: Timestamp) -> ShardCheck {
        ShardCheck {
            incarnation: self.incarnation_on(server),
            found: self.meta.map(|meta| meta.incarnation),
            revision: self.revision,
            now,
        }
    }

    /// All values.
    pub(super) fn entries(&self) -> Vec<Entry> {
        self.values.values().cloned().collect()
    }

    /// All marks.
    pub(super) fn report_marks(&self) -> Vec<ReportMark> {
        self.marks
            .iter()
            .map(|(plane, kept)| ReportMark {
                plane: *plane,
                number: kept.number,
            })
            .collect()
    }

    /// The incarnation, if it was begun on this server.
    fn incarnation_on(&self, server: u64) -> Option<Incarnation> {
        self.meta
            .filter(|meta| meta.server == server)
            .map(|meta| meta.incarnation)
    }

    /// Why the write must not be done, with what stands.
    pub(super) fn refusal(
        &self,
        write: &ShardWrite,
        server: u64,
        now: Timestamp,
    ) -> Option<Refusal> {
        Some(Refusal {
            reason: self.refusal_reason(write, server, now)?,
            incarnation: self.incarnation_on(server),
            now,
            values: write
                .values
                .iter()
                .map(|value| self.values.get(&value.key).cloned())
                .collect(),
            marks: write
                .marks
                .iter()
                .filter_map(|run| {
                    let kept = self.marks.get(&run.plane)?;
                    Some(ReportMark {
                        plane: run.plane,
                        number: kept.number,
                    })
                })
                .collect(),
        })
    }

    fn refusal_reason(
        &self,
        write: &ShardWrite,
        server: u64,
        now: Timestamp,
    ) -> Option<RefusalReason> {
        let Some(meta) = self.meta else {
            return Some(RefusalReason::Empty);
        };
        if meta.server != server {
            return Some(RefusalReason::OtherServer);
        }
        if meta.incarnation != write.incarnation {
            return Some(RefusalReason::OtherIncarnation);
        }
        if now > write.not_after {
            return Some(RefusalReason::Late);
        }
        let applied = write.marks.iter().any(|run| {
            self.marks
                .get(&run.plane)
                .is_some_and(|kept| kept.number >= run.first)
        });
        if applied {
            return Some(RefusalReason::AlreadyApplied);
        }
        let differs = write
            .values
            .iter()
            .any(|value| self.values.get(&value.key).map(|entry| entry.version) != value.expected);
        differs.then_some(RefusalReason::Conflict)
    }

    /// Does a write that is not refused. Returns its revision and what takes it back.
    pub(super) fn write(
        &mut self,
        write: ShardWrite,
        now: Timestamp,
        log_entries: usize,
    ) -> (Revision, Before) {
        let before = self.revision;
        let revision = Revision(before.0.saturating_add(1));
        self.revision = revision;
        let version = Version {
            incarnation: write.incarnation,
            revision,
        };
        let mut replaced_values = Vec::with_capacity(write.values.len());
        let mut entries = Vec::with_capacity(write.values.len());
        for value in write.values {
            let entry = Entry {
                key: value.key,
                version,
                schema: value.schema,
                payload: value.payload,
                expires_at: value.expires_at,
            };
            replaced_values.push((entry.key.clone(), self.put(entry.clone())));
            entries.push(entry);
        }
        let mut replaced_marks = Vec::with_capacity(write.marks.len());
        let mut marks = Vec::with_capacity(write.marks.len());
        let mark_ttl_ms = u64::try_from(MARK_TTL.as_millis()).unwrap_or(u64::MAX);
        for run in write.marks {
            let kept = KeptMark {
                number: run.last,
                expires_at: now.plus_ms(mark_ttl_ms),
            };
            let old = self.set_mark(run.plane, Some(kept));
            replaced_marks.push((
                run.plane,
                old.map(|old| old.number),
                old.map_or(now, |old| old.expires_at),
            ));
            marks.push(ReportMark {
                plane: run.plane,
                number: run.last,
            });
        }
        while !self.log.is_empty() && self.log.len() >= log_entries {
            self.log.pop_front();
        }
        self.log.push_back(Arc::new(Change {
            version,
            entries,
            marks,
        }));
        let before = Before::Write {
            values: replaced_values,
            marks: replaced_marks,
            revision: before,
        };
        (revision, before)
    }

    /// Begins an incarnation if `found` is still what is found. Returns what takes it back.
    pub(super) fn begin(
        &mut self,
        found: Option<Incarnation>,
        known: Incarnation,
        server: u64,
        now: Timestamp,
    ) -> Option<Before> {
        if self.meta.map(|meta| meta.incarnation) != found {
            return None;
        }
        let larger = found.unwrap_or_default().max(known).0.saturating_add(1);
        let before = BeforeBegin {
            meta: self.meta,
            revision: self.revision,
            log: std::mem::take(&mut self.log),
        };
        self.meta = Some(Meta {
            incarnation: Incarnation(larger.max(now.0)),
            server,
        });
        self.revision = Revision(0);
        Some(Before::Begin(before))
    }

    /// Takes a change back. Changes are taken back in the reverse of their order.
    pub(super) fn take_back(&mut self, before: Before) {
        match before {
            Before::Write {
                values,
                marks,
                revision,
            } => {
                for (key, old) in values {
                    match old {
                        Some(entry) => {
                            self.put(entry);
                        }
                        None => self.remove(&key),
                    }
                }
                for (plane, number, expires_at) in marks {
                    self.set_mark(plane, number.map(|number| KeptMark { number, expires_at }));
                }
                self.revision = revision;
                self.log.pop_back();
            }
            Before::Begin(before) => {
                self.meta = before.meta;
                self.revision = before.revision;
                self.log = before.log;
            }
        }
    }

    /// Where a follower that has seen everything stands.
    pub(super) fn position(&self) -> Version {
        Version {
            incarnation: self
                .meta
                .map_or_else(Incarnation::default, |meta| meta.incarnation),
            revision: self.revision,
        }
    }

    /// What was written after `position`, at most `limit` writes.
    pub(super) fn after(&self, position: Version, limit: usize) -> Found {
        let current = self.position();
        if position == current {
            return Found::Nothing;
        }
        if position.incarnation != current.incarnation || position.revision > current.revision {
            return Found::Lost;
        }
        let next = position.revision.0.saturating_add(1);
        let Some(skipped) = self
            .log
            .front()
            .and_then(|first| next.checked_sub(first.version.revision.0))
        else {
            return Found::Lost;
        };
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        let changes: Vec<_> = self.log.iter().skip(skipped).take(limit).cloned().collect();
        if changes.is_empty() {
            return Found::Lost;
        }
        Found::Changes(changes)
    }

    fn put(&mut self, entry: Entry) -> Option<Entry> {
        let key = entry.key.clone();
        self.expiry
            .insert((entry.expires_at, Ends::Value(key.clone())));
        let expires_at = entry.expires_at;
        let old = self.values.insert(key.clone(), entry)?;
        if old.expires_at != expires_at {
            self.expiry.remove(&(old.expires_at, Ends::Value(key)));
        }
        Some(old)
    }

    fn remove(&mut self, key: &str) {
        if let Some(old) = self.values.remove(key) {
            self.expiry.remove(&(old.expires_at, Ends::Value(old.key)));
        }
    }

    fn set_mark(&mut self, plane: PlaneIncarnation, mark: Option<KeptMark>) -> Option<KeptMark> {
        let old = self.marks.remove(&plane);
        if let Some(old) = old {
            self.expiry.remove(&(old.expires_at, Ends::Mark(plane)));
        }
        if let Some(mark) = mark {
            self.marks.insert(plane, mark);
            self.expiry.insert((mark.expires_at, Ends::Mark(plane)));
        }
        old
    }
}

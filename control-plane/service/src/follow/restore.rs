//! Offers what this replica and the checkpoint remember to a new incarnation of a shard.
//!
//! An offer is one more compare-and-set like any other; what becomes of it is a rule
//! ([`tidegate_core::state::restore`]) that is commutative and idempotent, so that every replica offers
//! everything it has, in any order, at the same time. Marks of reports are offered too: a report that was
//! applied before the loss must not count again after it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::ids::{PlaneIncarnation, Shard};
use tidegate_core::state::restore::restore;
use tidegate_core::state::{StateKey, StoredValue};
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Version};
use tidegate_store::codec;
use tidegate_store::hot::{
    Entry, MAX_WRITE_MARKS, MAX_WRITE_VALUES, MarkMove, RefusalReason, ReportMark, ShardImage,
    ShardWrite, WriteOutcome, WriteValue,
};

use crate::hot::WRITE_LIMIT;

use super::{Follower, Unreconciled};

/// Limit of reading the checkpoint of a shard (decision 54).
const CHECKPOINT_LIMIT: Duration = Duration::from_millis(500);
/// Conflicts after which the whole restore begins again from a new reading.
const MAX_REFUSALS: u32 = 32;

type Offers = BTreeMap<StateKey, Vec<(StoredValue, Version)>>;
type Marks = BTreeMap<PlaneIncarnation, u64>;

/// What stands in the store under a key of the restore.
type Current = BTreeMap<StateKey, (StoredValue, Version)>;

/// Offers everything; returns how many values and marks were taken.
pub(super) async fn restore_into(
    follower: &Follower,
    shard: Shard,
    incarnation: Incarnation,
    image: ShardImage,
) -> Result<u64, Unreconciled> {
    let checkpoint = checkpoint(follower, shard).await;
    let is_whole = checkpoint.is_some();
    if !is_whole {
        // Without the durable store this replica's own memory has to do; the rest is offered when it is back.
        follower.owe_checkpoint(shard, true);
    }
    let (offers, marks) = offers(follower, shard, incarnation, checkpoint.unwrap_or_default());
    let taken = offer_all(follower, shard, incarnation, image, offers, marks).await?;
    if is_whole {
        // Only now: after a write that failed it must be offered again.
        follower.owe_checkpoint(shard, false);
    }
    Ok(taken)
}

async fn offer_all(
    follower: &Follower,
    shard: Shard,
    incarnation: Incarnation,
    image: ShardImage,
    mut offers: Offers,
    mut marks: Marks,
) -> Result<u64, Unreconciled> {
    for mark in &image.marks {
        if marks
            .get(&mark.plane)
            .is_some_and(|offered| *offered <= mark.number)
        {
            marks.remove(&mark.plane);
        }
    }
    let mut current = Current::new();
    for entry in &image.entries {
        stands(entry, &mut current, &mut offers);
    }
    let mut taken: u64 = 0;
    let mut refusals: u32 = 0;
    loop {
        let now = follower.clock.now();
        let write = next_write(shard, incarnation, &offers, &current, &marks, now);
        if write.values.is_empty() && write.marks.is_empty() {
            return Ok(taken);
        }
        let values = write.values.clone();
        let moved = write.marks.clone();
        match follower.hot.write(write, WRITE_LIMIT).await? {
            WriteOutcome::Written { revision, .. } => {
                let version = Version {
                    incarnation,
                    revision,
                };
                for value in &values {
                    current.extend(read(&written(value, version)));
                }
                for mark in &moved {
                    marks.remove(&mark.plane);
                }
                let count = values.len().saturating_add(moved.len());
                taken = taken.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
            }
            WriteOutcome::Refused(refusal) => {
                refusals = refusals.saturating_add(1);
                if refusals > MAX_REFUSALS {
                    return Err(Unreconciled::Moved);
                }
                match refusal.reason {
                    RefusalReason::Empty
                    | RefusalReason::OtherServer
                    | RefusalReason::OtherIncarnation => return Err(Unreconciled::Moved),
                    RefusalReason::Late => {}
                    RefusalReason::AlreadyApplied => {
                        for mark in &refusal.marks {
                            if marks
                                .get(&mark.plane)
                                .is_some_and(|own| *own <= mark.number)
                            {
                                marks.remove(&mark.plane);
                            }
                        }
                    }
                    RefusalReason::Conflict => {
                        for (value, found) in values.iter().zip(&refusal.values) {
                            if let Ok(key) = codec::parse_key(&value.key) {
                                current.remove(&key);
                            }
                            if let Some(entry) = found {
                                stands(entry, &mut current, &mut offers);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The checkpoint of a shard; `None` when the durable store does not answer.
pub(super) async fn checkpoint(
    follower: &Follower,
    shard: Shard,
) -> Option<(Vec<Entry>, Vec<ReportMark>)> {
    let now = follower.clock.now();
    let load = follower.durable.load_checkpoint(shard, now);
    match tokio::time::timeout(CHECKPOINT_LIMIT, load).await {
        Ok(Ok(checkpoint)) => Some(checkpoint),
        Ok(Err(error)) => {
            tracing::warn!(%shard, %error, "cannot read the checkpoint");
            None
        }
        Err(_elapsed) => {
            tracing::warn!(%shard, "the checkpoint was not read in time");
            None
        }
    }
}

/// What the view and the checkpoint hold of earlier incarnations.
fn offers(
    follower: &Follower,
    shard: Shard,
    incarnation: Incarnation,
    (entries, checkpoint_marks): (Vec<Entry>, Vec<ReportMark>),
) -> (Offers, Marks) {
    let mut offers = Offers::new();
    let mut marks = Marks::new();
    for entry in &entries {
        if let Some((key, offer)) = read(entry) {
            offers.entry(key).or_default().push(offer);
        }
    }
    for value in follower.view.held(shard) {
        let entry = value.entry();
        if let (Ok(key), Some(stored)) = (codec::parse_key(&entry.key), value.stored()) {
            let offer = (stored.clone(), entry.version);
            offers.entry(key).or_default().push(offer);
        }
    }
    for of_key in offers.values_mut() {
        of_key.retain(|(_, version)| version.incarnation < incarnation);
    }
    for mark in checkpoint_marks.iter().chain(&follower.view.marks(shard)) {
        let number = marks.entry(mark.plane).or_default();
        *number = (*number).max(mark.number);
    }
    (offers, marks)
}

/// As much as fits into one write of what the store does not have yet. Marks go with the last values or after them: a
/// mark says that what its reports changed is in the store.
fn next_write(
    shard: Shard,
    incarnation: Incarnation,
    offers: &Offers,
    current: &Current,
    marks: &Marks,
    now: Timestamp,
) -> ShardWrite {
    let mut values = Vec::new();
    let mut fits = true;
    for (key, offers) in offers {
        if values.len() == MAX_WRITE_VALUES {
            fits = false;
            break;
        }
        let stands = current.get(key);
        let expected = stands.map(|(_, version)| *version);
        let Some(value) = restored(stands, offers, incarnation, now) else {
            continue;
        };
        match codec::encode(key, expected, &value) {
            Ok(value) => values.push(value),
            Err(error) => tracing::error!(%error, "cannot write down a value to restore"),
        }
    }
    let marks = marks
        .iter()
        .take(if fits { MAX_WRITE_MARKS } else { 0 })
        .map(|(&plane, &number)| MarkMove {
            plane,
            first: number,
            last: number,
        })
        .collect();
    ShardWrite {
        shard,
        incarnation,
        not_after: now,
        values,
        marks,
    }
}

/// The value after all offers; `None` when they change nothing.
fn restored(
    stands: Option<&(StoredValue, Version)>,
    offers: &[(StoredValue, Version)],
    incarnation: Incarnation,
    now: Timestamp,
) -> Option<StoredValue> {
    // The newest offer replaces every older one, so it alone decides.
    let (value, version) = offers.iter().max_by_key(|(_, version)| *version)?;
    let stands = stands.map(|(value, version)| (value, *version));
    restore(stands, (value, *version), incarnation, now)
}

/// Takes what the store has under a key. What this build cannot read it cannot restore into either: a newer
/// replica does.
fn stands(entry: &Entry, current: &mut Current, offers: &mut Offers) {
    match read(entry) {
        Some((key, value)) => {
            current.insert(key, value);
        }
        None => {
            if let Ok(key) = codec::parse_key(&entry.key) {
                offers.remove(&key);
            }
        }
    }
}

fn read(entry: &Entry) -> Option<(StateKey, (StoredValue, Version))> {
    match codec::decode(entry) {
        Ok((key, mut value)) => {
            value.resolve_marks(entry.version);
            Some((key, (value, entry.version)))
        }
        Err(error) => {
            tracing::debug!(%error, "a value cannot be read for a restore");
            None
        }
    }
}

/// A value as it stands after it was written.
fn written(value: &WriteValue, version: Version) -> Entry {
    Entry {
        key: value.key.clone(),
        version,
        schema: value.schema,
        payload: value.payload.clone(),
        expires_at: value.expires_at,
    }
}

//! What the other replicas published, as far as it was read.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::telemetry::aggregate::{Aggregate, Bounds};
use tidegate_core::time::Timestamp;
use tidegate_store::hot::Blob;
use tidegate_store::hot::bounds::MAX_BLOBS;
use tidegate_wire as wire;
use tokio::time::Instant;

/// What was read of the other replicas, and of what this one's name had published.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// This replica knows what its own name had published before it started.
    pub(super) complete: bool,
    versions: BTreeMap<String, u64>,
    sums: BTreeMap<String, Aggregate>,
    published: Option<Instant>,
    /// Something was read, or somebody left, since the fleet was made of it.
    pub(super) is_new: bool,
    /// How often some had to leave what was published last ([`wire::telemetry::shortened`]).
    pub(super) times_shed: usize,
}

/// What an answer came to.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// What this replica's name had published before it started.
    pub(super) own: Option<Aggregate>,
    /// How many could not be read.
    pub(super) skipped: u64,
    /// Some are left for the next call.
    pub(super) more: bool,
}

impl Others {
    /// The sums that were read.
    pub(super) fn sums(&self) -> impl Iterator<Item = &Aggregate> {
        self.sums.values()
    }

    pub(super) fn count(&self) -> u64 {
        u64::try_from(self.sums.len()).unwrap_or(u64::MAX)
    }

    /// Notes that this replica published.
    pub(super) fn published(&mut self, own: &str, version: u64) {
        self.published = Some(Instant::now());
        self.versions.insert(own.to_owned(), version);
    }

    /// This replica did not publish for so long, or what it had published is lost.
    pub(super) fn published_before(&self, ago: Duration) -> bool {
        self.published
            .is_none_or(|published| published.elapsed() >= ago)
    }

    /// What need not be read again, no more than may be said. When this replica's own blob is one too many, the store has
    /// dropped another one; which one it says in its answer, and until then any is taken for it.
    pub(super) fn known(&self, own: &str) -> BTreeMap<String, u64> {
        let mut known = self.versions.clone();
        while known.len() > MAX_BLOBS {
            let Some(other) = known.keys().find(|it| *it != own).cloned() else {
                break;
            };
            known.remove(&other);
        }
        known
    }

    /// Takes in an answer of the store, which tells of every replica.
    pub(super) fn take(
        &mut self,
        blobs: Vec<Blob>,
        own: &str,
        now: Timestamp,
        bounds: &Bounds,
    ) -> Taken {
        if self.published.is_some() && blobs.iter().all(|it| it.replica != own) {
            // The store lost its memory.
            self.published = None;
        }
        let there = |replica: &String| blobs.iter().any(|blob| blob.replica == *replica);
        self.versions.retain(|replica, _| there(replica));
        let count = self.sums.len();
        self.sums.retain(|replica, _| there(replica));
        self.is_new |= self.sums.len() != count;
        let mut taken = Taken::default();
        let mut own_is_left = false;
        for blob in blobs {
            let Blob {
                replica,
                version,
                payload,
            } = blob;
            let is_own = replica == own;
            let Some(payload) = payload else {
                let is_left = self.versions.get(&replica) != Some(&version);
                taken.more |= is_left;
                own_is_left |= is_left && is_own;
                continue;
            };
            self.versions.insert(replica.clone(), version);
            if is_own && self.complete {
                continue;
            }
            match wire::telemetry::decode(&payload) {
                Ok(mut sum) => {
                    // The blob of a replica that is gone holds what nobody reads any more.
                    sum.prune(now, bounds);
                    if is_own {
                        taken.own = Some(sum);
                    } else {
                        self.sums.insert(replica, sum);
                        self.is_new = true;
                    }
                }
                Err(error) => {
                    tracing::warn!(replica, %error, "telemetry of a replica is not understood");
                    taken.skipped = taken.skipped.saturating_add(1);
                }
            }
        }
        self.complete |= !own_is_left;
        taken
    }
}

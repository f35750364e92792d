//! The hot store: breaker, cooldown and lockout values of the fleet, shared and fast.
//!
//! **Stance:** nothing here fails a request. A caller that gets an error goes on with its view; what it
//! could not write stays unacknowledged and is sent again (`architecture.md` §3). **Staleness:** a follower
//! of [`HotStore::follow`] sees a write within milliseconds, and learns by [`HotStore::check`], once a
//! second, of a store that lost its memory. **Repair:** whoever finds a new incarnation necessary begins
//! it and offers what it remembers.

pub mod bounds;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use tidegate_core::ids::{PlaneIncarnation, SHARDS, Shard};
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Revision, Version};

/// Most values in one [`ShardWrite`]: a provider and 64 connections (`architecture.md` §3, Writing).
pub const MAX_WRITE_VALUES: usize = 65;
/// Most marks in one [`ShardWrite`].
pub const MAX_WRITE_MARKS: usize = 256;
/// How long a report mark is kept after it last moved.
pub const MARK_TTL: Duration = Duration::from_secs(3_600);

/// A value as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name within the shard, see [`crate::codec::key_text`].
    pub key: String,
    /// The write that put it there.
    pub version: Version,
    /// Schema of the payload.
    pub schema: u32,
    /// The value, encoded.
    pub payload: Vec<u8>,
    /// When the store forgets it, in the store's time.
    pub expires_at: Timestamp,
}

/// How far the reports of one data-plane incarnation have been applied in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReportMark {
    /// Whose reports.
    pub plane: PlaneIncarnation,
    /// Highest number applied.
    pub number: u64,
}

/// A value to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteValue {
    /// Name within the shard.
    pub key: String,
    /// The version the caller based the new value on; `None` = the key was absent.
    pub expected: Option<Version>,
    /// Schema of the payload.
    pub schema: u32,
    /// The new value, encoded.
    pub payload: Vec<u8>,
    /// When it is to be forgotten.
    pub expires_at: Timestamp,
}

/// A run of reports that a write applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkMove {
    /// Whose reports.
    pub plane: PlaneIncarnation,
    /// Lowest number in the run; the write is refused unless the mark is below it.
    pub first: u64,
    /// Highest number in the run; the mark afterwards.
    pub last: u64,
}

/// One atomic change of a shard: all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardWrite {
    /// Where.
    pub shard: Shard,
    /// The incarnation the caller knows.
    pub incarnation: Incarnation,
    /// Refused when the store's time is past this, so that a call that hung cannot act late.
    pub not_after: Timestamp,
    /// At most [`MAX_WRITE_VALUES`].
    pub values: Vec<WriteValue>,
    /// At most [`MAX_WRITE_MARKS`].
    pub marks: Vec<MarkMove>,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Everything was written, under one revision.
    Written {
        /// The revision of all its values.
        revision: Revision,
        /// The store's time.
        now: Timestamp,
    },
    /// Nothing was written.
    Refused(Box<Refusal>),
}

/// Why nothing was written, with what the caller needs to try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The first reason found.
    pub reason: RefusalReason,
    /// The shard's incarnation, if it has one and it was made on this server.
    pub incarnation: Option<Incarnation>,
    /// The store's time.
    pub now: Timestamp,
    /// What stands under the keys of the write, in its order.
    pub values: Vec<Option<Entry>>,
    /// The marks of the write's planes that exist.
    pub marks: Vec<ReportMark>,
}

/// Why a write was refused, in the order in which it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The shard has no incarnation: the store is new or lost its memory.
    Empty,
    /// The incarnation was made on another server than this one.
    OtherServer,
    /// Another incarnation has begun.
    OtherIncarnation,
    /// The store's time is past `not_after`.
    Late,
    /// A mark is not below the first number of its run: some of it was applied before.
    AlreadyApplied,
    /// A value has another version than expected.
    Conflict,
}

/// State of a shard without its values; cheap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardCheck {
    /// The incarnation; `None` when there is none or it was made on another server.
    pub incarnation: Option<Incarnation>,
    /// The incarnation found, whichever server it was made on.
    pub found: Option<Incarnation>,
    /// The last revision handed out.
    pub revision: Revision,
    /// The store's time.
    pub now: Timestamp,
}

/// A shard whole, as one consistent reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardImage {
    /// Its state.
    pub check: ShardCheck,
    /// All values, in no particular order.
    pub entries: Vec<Entry>,
    /// All marks.
    pub marks: Vec<ReportMark>,
}

/// One write as followers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which write.
    pub version: Version,
    /// Its values.
    pub entries: Vec<Entry>,
    /// Marks after it.
    pub marks: Vec<ReportMark>,
}

/// What a follower gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// Writes of a shard, in order, directly after the last ones.
    Changes(Shard, Vec<Change>),
    /// Something may be missing (reconnect, gap, trimmed stream, revision that went back, other
    /// incarnation): read the shard whole. Changes after this continue from wherever the stream then is;
    /// the follower ignores those at or below the version of its reading.
    Doubt(Shard),
}

/// Where a follower stands in each shard.
pub type VersionVector = [Version; SHARDS as usize];

/// Why a call to the hot store failed.
#[derive(Debug, thiserror::Error)]
pub enum HotStoreError {
    /// No answer in time; the call may have run, or may still run until its `not_after`.
    #[error("the hot store did not answer in time")]
    Timeout,
    /// The store could not be reached; a write may have run.
    #[error("the hot store cannot be reached: {0}")]
    Unreachable(String),
    /// The store answered something that is not in the contract.
    #[error("the hot store answered what is not understood: {0}")]
    Protocol(String),
    /// The call itself breaks a bound of the contract and was not sent.
    #[error("the call exceeds a bound of the hot store: {0}")]
    Bounds(&'static str),
}

/// A value outside the change stream: shared and short-lived, seen only by who asks for it. It belongs to no
/// incarnation, so it simply is absent after a loss (`architecture.md` §3, `m:`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Which swap put it there. Later ones have larger versions, also after the value ended in between, unless the
    /// store's clock steps back then.
    pub version: u64,
    /// Schema of the payload.
    pub schema: u32,
    /// The value, encoded.
    pub payload: Vec<u8>,
    /// When the store forgets it, in the store's time.
    pub expires_at: Timestamp,
}

/// A replacement of one value outside the change stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Where.
    pub shard: Shard,
    /// Name within the shard's values of this kind.
    pub key: String,
    /// The version the caller based the new value on; `None` = the key was absent.
    pub expected: Option<u64>,
    /// Schema of the payload.
    pub schema: u32,
    /// The new value, encoded.
    pub payload: Vec<u8>,
    /// When it is to be forgotten; when that is past, it is at once, and nothing stands there.
    pub expires_at: Timestamp,
    /// Refused when the store's time is past this, so that a call that hung cannot act late.
    pub not_after: Timestamp,
    /// It is only a preference: a store that is short of room may forget it before its end.
    pub sheddable: bool,
}

/// What became of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapOutcome {
    /// The new value stands.
    Swapped {
        /// Its version.
        version: u64,
        /// The store's time.
        now: Timestamp,
    },
    /// The value is as it was.
    Refused {
        /// Why, in the order in which it is checked: late, conflict.
        reason: SwapRefusal,
        /// What stands.
        found: Option<Cell>,
        /// The store's time.
        now: Timestamp,
    },
}

/// Why a swap was refused, in the order in which it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapRefusal {
    /// The store's time is past `not_after`.
    Late,
    /// Another version stands than expected.
    Conflict,
}

/// A replica's announcement of the schema it can read and write (`architecture.md` §3, Schemas).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Which replica.
    pub replica: String,
    /// The highest value schema it speaks.
    pub schema: u32,
}

/// What one replica publishes for the others, whole and replaced whole. It is in no shard and no change stream, and who
/// wants the newest reads it now and then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Whose.
    pub replica: String,
    /// Differs each time it is published.
    pub version: u64,
    /// What it holds; `None` when the reader has this version.
    pub payload: Option<Vec<u8>>,
}

/// The port. Every method has a time limit of its own inside the adapter.
#[async_trait]
pub trait HotStore: Debug + Send + Sync + 'static {
    /// Writes all of it or nothing.
    async fn write(&self, write: ShardWrite) -> Result<WriteOutcome, HotStoreError>;

    /// Reads a shard whole.
    async fn read(&self, shard: Shard) -> Result<ShardImage, HotStoreError>;

    /// Reads the state of every shard, in shard order.
    async fn check(&self) -> Result<Vec<ShardCheck>, HotStoreError>;

    /// Begins a new incarnation of a shard unless someone else already did: acts only while what is found
    /// is still `found`. The new one is larger than `found` and `known` and at least the store's time in
    /// ms. Returns the incarnation that stands afterwards. Values that survived stay as they are.
    async fn begin_incarnation(
        &self,
        shard: Shard,
        found: Option<Incarnation>,
        known: Incarnation,
        not_after: Timestamp,
    ) -> Result<Option<Incarnation>, HotStoreError>;

    /// Follows the writes of all shards after the given versions. The stream reconnects by itself, says
    /// [`Followed::Doubt`] whenever something may be missing, and ends only when dropped. For adapters
    /// over a network it uses a connection of its own.
    fn follow(&self, from: VersionVector) -> BoxStream<'static, Followed>;

    /// Replaces one value outside the change stream if the expected version stands. Needs no incarnation.
    async fn swap(&self, swap: Swap) -> Result<SwapOutcome, HotStoreError>;

    /// Reads one value outside the change stream, and the store's time.
    async fn cell(
        &self,
        shard: Shard,
        key: &str,
    ) -> Result<(Option<Cell>, Timestamp), HotStoreError>;

    /// The next number of a counter that all replicas share, from 0; no number is given out twice. The counter begins
    /// anew when nobody took one for `ttl`, and after a loss.
    async fn next_turn(&self, shard: Shard, key: &str, ttl: Duration)
    -> Result<u64, HotStoreError>;

    /// Announces this replica's schema; forgotten after `ttl`.
    async fn announce(
        &self,
        announcement: Announcement,
        ttl: Duration,
    ) -> Result<(), HotStoreError>;

    /// Everything announced and not forgotten.
    async fn announced(&self) -> Result<Vec<Announcement>, HotStoreError>;

    /// Publishes a replica's blob in place of its last one; forgotten after `ttl`. When there are more than
    /// [`bounds::MAX_BLOBS`], the one that would be forgotten first is. Returns its version.
    async fn put_blob(
        &self,
        replica: &str,
        payload: Vec<u8>,
        ttl: Duration,
    ) -> Result<u64, HotStoreError>;

    /// Every replica's blob that is not forgotten, in no particular order. The payloads of those whose version is
    /// `known` already are left out, and when there are [`bounds::BLOB_PIECE_BYTES`] of others, those of the rest as
    /// well: who is told a version that it does not know, without a payload, asks again.
    async fn blobs(&self, known: &BTreeMap<String, u64>) -> Result<Vec<Blob>, HotStoreError>;

    /// The store's time.
    async fn time(&self) -> Result<Timestamp, HotStoreError>;
}

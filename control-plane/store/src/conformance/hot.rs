//! The rules of [`HotStore`].
//!
//! An adapter's tests give a *host*: a store of its own for each test, with what the suite must be able to
//! do to it. Then:
//!
//! ```text
//! async fn host() -> Result<MyHost, Box<dyn std::error::Error + Send + Sync>> { .. }
//! tidegate_store::hot_store_conformance!(host);
//! tidegate_store::hot_store_freeze_conformance!(host);
//! ```
//!
//! Rules wait for conditions with a limit and never for a time, except where time itself is the condition
//! (an expiry, a `not_after`).

pub mod announcements;
pub mod blobs;
pub mod bounds;
pub mod cells;
pub mod concurrency;
pub mod expiry;
pub mod following;
pub mod freezing;
pub mod incarnations;
pub mod marks;
mod steps;
pub mod time;
pub mod writes;

use std::sync::Arc;

use async_trait::async_trait;

use crate::hot::HotStore;

use super::Verdict;

/// A store under test.
#[async_trait]
pub trait HotStoreHost: Send + Sync {
    /// A store as one more replica sees it: for an adapter over a network, with connections of its own.
    async fn replica(&self) -> Result<Arc<dyn HotStore>, Box<dyn std::error::Error + Send + Sync>>;

    /// Makes the server forget everything; it goes on running.
    async fn flush(&self) -> Verdict;

    /// Puts the same memory on another server, at the same address.
    async fn swap_server(&self) -> Verdict;

    /// After this many more writes to a shard, its change log has certainly dropped what was in it. It keeps
    /// at least 200.
    fn log_entries(&self) -> usize;
}

/// A store under test that can stand still.
#[async_trait]
pub trait FreezableHost: HotStoreHost {
    /// The server takes calls and answers none.
    async fn freeze(&self) -> Verdict;

    /// It goes on where it stood.
    async fn thaw(&self) -> Verdict;
}

/// One test for each rule of [`HotStore`](crate::hot::HotStore). Takes the name of an async function without
/// arguments that returns a [`HotStoreHost`](crate::conformance::hot::HotStoreHost) or an error.
#[macro_export]
macro_rules! hot_store_conformance {
    ($host:path) => {
        $crate::hot_store_rules! { $host;
            writes::all_values_of_a_write_share_its_revision,
            writes::what_was_written_is_read_back_byte_for_byte,
            writes::a_conflict_answers_with_what_stands_and_writes_nothing,
            writes::refusals_come_in_the_order_of_their_list,
            writes::a_write_past_its_time_is_refused,
            writes::shards_do_not_touch_each_other,
            concurrency::sixteen_writers_lose_nothing,
            concurrency::a_far_writer_gets_its_turn,
            concurrency::a_reading_never_shows_half_a_write,
            expiry::what_has_expired_is_absent,
            expiry::a_key_that_returns_is_newer_for_every_follower,
            incarnations::a_flushed_store_is_noticed_without_a_write,
            incarnations::a_swapped_server_is_noticed_without_a_write,
            incarnations::sixteen_begin_one_incarnation,
            incarnations::an_incarnation_begins_only_on_what_was_found,
            incarnations::a_late_beginning_does_nothing,
            incarnations::a_new_incarnation_is_after_all_of_the_old_one,
            following::changes_come_in_order_and_once,
            following::a_follower_resumes_after_its_vector,
            following::a_follower_with_nothing_to_fear_gets_no_doubt,
            following::a_gap_is_doubted_and_reading_repairs_it,
            following::a_follower_is_told_of_a_new_incarnation,
            following::a_follower_of_another_life_is_told_at_once,
            marks::marks_move_together_with_values,
            marks::a_write_with_an_applied_report_is_refused_whole,
            marks::a_batch_replayed_by_two_replicas_counts_once,
            marks::marks_are_read_back_with_their_shard,
            bounds::a_write_is_bounded,
            bounds::a_write_at_its_bounds_is_done,
            cells::a_cell_is_swapped_only_by_who_knows_it,
            cells::a_late_swap_is_refused,
            cells::a_cell_that_ended_is_absent_and_not_confused,
            cells::a_swap_that_has_ended_takes_the_cell_away,
            cells::sixteen_swappers_lose_nothing,
            cells::turns_are_taken_once_by_sixteen,
            cells::turns_begin_anew_when_nobody_takes_one,
            cells::a_flush_takes_cells_and_turns_along,
            cells::cells_are_bounded,
            announcements::announcements_expire,
            announcements::an_announcement_replaces_the_last_of_its_replica,
            blobs::a_blob_replaces_the_last_of_its_replica,
            blobs::a_known_blob_comes_without_its_payload,
            blobs::no_blob_after_a_loss_is_taken_for_a_known_one,
            blobs::large_blobs_come_in_pieces,
            blobs::blobs_expire,
            blobs::blobs_are_bounded,
            time::time_in_answers_does_not_run_back,
            time::the_store_clock_shows_the_stores_time,
        }
    };
}

/// One test for each rule of [`HotStore`](crate::hot::HotStore) about a server that stands still. Takes the
/// name of an async function without arguments that returns a
/// [`FreezableHost`](crate::conformance::hot::FreezableHost) or an error.
#[macro_export]
macro_rules! hot_store_freeze_conformance {
    ($host:path) => {
        $crate::hot_store_rules! { $host;
            freezing::a_write_into_a_freeze_does_not_run_after_its_time,
            freezing::a_write_into_a_freeze_may_run_within_its_time,
            freezing::a_call_into_a_freeze_ends,
        }
    };
}

/// Makes the tests of [`hot_store_conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! hot_store_rules {
    ($host:path; $($room:ident :: $rule:ident),+ $(,)?) => {
        $(
            #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $rule() -> $crate::conformance::Verdict {
                let host = $host().await?;
                $crate::conformance::hot::$room::$rule(&host).await
            }
        )+
    };
}

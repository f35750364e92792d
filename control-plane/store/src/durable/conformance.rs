//! What every adapter of the durable store does alike, as tests that run against a real database.
//!
//! An adapter's test file names a [`Fixture`] and how to make it, and gets one test for each case:
//!
//! ```ignore
//! tidegate_store::durable_conformance!(fixture_on_postgres);
//! ```
//!
//! Cases fail by an assertion or by the error they return. None asserts a time.

mod checkpoint;
mod configuration;
mod handoffs;
mod history;
mod leases;
mod pins;
mod samples;
mod tokens;
mod usage;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::task::JoinSet;

use super::DurableStore;

pub use checkpoint::*;
pub use configuration::*;
pub use handoffs::*;
pub use history::*;
pub use leases::*;
pub use pins::*;
pub use tokens::*;
pub use usage::*;

/// Any failure of a case.
pub type CaseError = Box<dyn std::error::Error + Send + Sync>;
/// How a case ends.
pub type CaseResult = Result<(), CaseError>;

/// What to break behind the store's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The document becomes JSON of another shape.
    Document,
    /// The version of the document's row is gone: the row is deleted.
    DocumentRow,
    /// Every transition becomes JSON of another shape.
    Transitions,
    /// Every schema of the checkpoint's values becomes a number that is none.
    CheckpointSchemas,
    /// The name of every credential's connection becomes one that is not valid.
    CredentialNames,
}

/// What is stored of an attempt's usage, with every value as a query gives it. Absent numbers are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    /// Bits of the incarnation.
    pub plane: u64,
    /// Number of the attempt.
    pub number: u64,
    /// When it ended.
    pub at: u64,
    /// Prompt tokens.
    pub input: Option<u64>,
    /// Completion tokens.
    pub output: Option<u64>,
    /// Where the tokens come from.
    pub source: Option<String>,
}

impl UsageRow {
    /// What a fixture selects for a row, by column.
    pub const COLUMNS: &str = "plane, number, at, input_tokens, output_tokens, source";
}

/// An adapter on a fresh database of its own.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// The store.
    fn store(&self) -> Arc<dyn DurableStore>;

    /// Another store on the same data, as another process would open it; for an adapter that serves only one
    /// process, the same.
    async fn another(&self) -> Result<Arc<dyn DurableStore>, CaseError>;

    /// Breaks what is stored.
    async fn damage(&self, damage: Damage) -> CaseResult;

    /// The rows of usage, in the order of planes and numbers as stored.
    async fn usage(&self) -> Result<Vec<UsageRow>, CaseError>;

    /// How many attempts are stored as under way, and how many data planes as heard.
    async fn under_way(&self) -> Result<(u64, u64), CaseError>;
}

/// Makes one `#[tokio::test]` of each case, on a fixture from `$fixture().await`.
#[macro_export]
macro_rules! durable_conformance {
    ($fixture:path) => {
        $crate::durable_conformance! { @cases $fixture;
            a_new_store_has_the_default_document_at_version_0
            a_saved_document_comes_back_as_it_was
            of_concurrent_writers_exactly_one_wins_each_version
            a_refused_document_leaves_everything_as_it_was
            credentials_follow_the_document
            readers_see_document_and_credentials_of_one_version
            a_document_and_its_audit_entry_are_saved_together
            audit_texts_are_cut_to_their_bound
            a_document_that_does_not_decode_is_corrupt
            a_credential_that_does_not_decode_is_corrupt
            a_missing_document_row_is_an_error
            a_checkpoint_comes_back_as_it_was
            a_checkpoint_takes_only_what_is_newer
            a_repeated_checkpoint_changes_nothing
            the_newest_of_one_key_in_a_call_wins
            concurrent_checkpoints_leave_the_newest_of_all
            a_large_checkpoint_is_saved_in_one_call
            shards_do_not_see_each_other
            what_is_expired_is_not_loaded_and_then_deleted
            marks_only_rise_and_are_forgotten_after_their_time
            a_checkpoint_value_that_does_not_decode_is_corrupt
            transitions_are_appended_once_and_listed_newest_first
            a_repeated_batch_with_something_new_appends_only_that
            lists_are_bounded
            usage_of_an_attempt_is_recorded_once
            concurrent_duplicates_of_usage_count_once
            absurd_numbers_do_not_hold_up_the_rest
            old_history_is_deleted
            events_are_one_history_in_pages
            events_are_followed_by_marks
            an_event_that_does_not_decode_is_passed_over
            what_is_recorded_comes_with_its_source
            only_unknown_usage_is_replaced
            answers_of_a_silent_data_plane_are_recorded_as_unknown
            a_data_plane_that_is_heard_keeps_its_answers
            a_data_plane_that_ends_in_order_leaves_nothing
            what_is_recorded_is_not_opened_again
            answers_of_other_data_planes_are_refused
            a_data_plane_with_many_answers_is_recorded_in_parts
            of_concurrent_reapers_each_answer_is_counted_by_one
            concurrent_ends_and_reapers_count_each_answer_once
            grants_follow_the_document
            a_renewed_token_is_saved_with_its_credential
            of_concurrent_replicas_one_gets_the_lease
            a_lease_is_waited_out_and_then_lost
            what_rests_on_other_secrets_is_not_saved
            a_document_does_not_put_renewed_secrets_back
            failed_renewals_are_kept_until_forgotten
            new_secrets_begin_anew
            a_note_comes_back_as_it_was
            a_note_that_stands_is_not_replaced
            of_concurrent_notes_one_is_saved
            notes_past_their_end_are_deleted
            a_note_beyond_its_bound_is_refused
            vector_sessions_08_leases_are_acquired_renewed_and_given_back
            vector_sessions_10_a_lease_holds_until_it_is_over
            vector_sessions_13_what_is_not_eligible_is_not_given
            vector_sessions_14_another_key_changes_nothing
            vector_sessions_15_a_lease_moves
            vector_sessions_16_a_lease_without_a_connection_is_lost
            vector_sessions_22_owners_at_once_have_a_connection_each
            vector_sessions_23_one_of_two_owners_wins
            vector_sessions_59_attempts_in_flight_keep_their_connection
            vector_sessions_60_attempts_are_over_with_the_drain
            vector_sessions_62_a_renewed_lease_moves_the_horizon
            a_fence_is_registered
            a_registration_past_its_end_keeps_no_number_away
            a_busy_connection_stays_with_its_owner
            a_document_ends_leases_it_does_not_cover
            a_superseded_document_ends_no_leases
            swept_leases_leave_their_generation
            one_owner_at_once_has_one_lease
            a_lease_that_moves_is_renewed_all_the_same
            random_commands_give_a_connection_to_one_owner_at_a_time
            pins_come_back_in_the_order_of_their_keys
            the_later_of_two_pins_stands
            a_pin_that_went_leaves_a_newer_one
            concurrent_writers_leave_the_latest_pin
            pins_past_their_end_are_deleted
            pins_beyond_their_bound_are_refused
            a_claim_is_confirmed_and_given_back
            the_store_answers_a_ping
        }
    };
    (@cases $fixture:path; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fixture = $fixture().await;
                $crate::durable::conformance::$case(&fixture).await.unwrap();
            }
        )*
    };
}

/// Fails a case with a text.
fn failed(text: impl fmt::Display) -> CaseError {
    text.to_string().into()
}

/// Runs `work` once for each store, at once, and gives what they return, in no particular order.
async fn at_once<T, F>(
    stores: &[Arc<dyn DurableStore>],
    work: impl Fn(usize, Arc<dyn DurableStore>) -> F,
) -> Result<Vec<T>, CaseError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, CaseError>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for (index, store) in stores.iter().enumerate() {
        tasks.spawn(work(index, Arc::clone(store)));
    }
    let mut results = Vec::with_capacity(stores.len());
    while let Some(joined) = tasks.join_next().await {
        results.push(joined??);
    }
    Ok(results)
}

/// `count` stores on the same data, every second one as another process would have it.
async fn stores(
    fixture: &impl Fixture,
    count: usize,
) -> Result<Vec<Arc<dyn DurableStore>>, CaseError> {
    let (one, two) = (fixture.store(), fixture.another().await?);
    Ok([one, two].into_iter().cycle().take(count).collect())
}

/// The store answers.
///
/// # Errors
/// When it does not.
pub async fn the_store_answers_a_ping(fixture: &impl Fixture) -> CaseResult {
    Ok(fixture.store().ping().await?)
}

/// A claim is had, confirmed, given back and had again.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_claim_is_confirmed_and_given_back(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    for _ in 0..3 {
        assert!(store.try_lead("checkpoint").await?);
        assert!(store.try_lead("checkpoint").await?, "not confirmed");
        assert!(store.try_lead("sweep").await?, "a second task");
        store.resign("checkpoint").await?;
        store.resign("checkpoint").await?;
    }
    Ok(())
}

//! The final answer when nothing (more) can be sent (`routing.md` §6, §7, decision 27).
//!
//! | what happened | status | code |
//! |---|---|---|
//! | the name means nothing | 404 | `model_not_found` |
//! | the connection that the request names is none | 404 | `connection_not_found` |
//! | a `fusion` or `pipeline` has no step | 400 | `no_steps` |
//! | nothing was sent, all that could be used is leased | 429 with Retry-After | `lease-capacity-unavailable` |
//! | nothing was sent, something ends by itself | 503 with Retry-After | `all_targets_cooling_down` |
//! | nothing was sent, nothing does, but an account runs all it may | 429 with Retry-After | `concurrency_cap` |
//! | nothing was sent, nothing of this | 404 | `no_executable_targets` |
//! | attempts failed | from their outcomes | `all_models_failed` or `quota_exhausted` |
//! | nothing but executions that took too long | 504 | `RATE_LIMIT_EXECUTION_TIMEOUT` |
//! | no target takes what the request holds | 400 | `capability_mismatch` |
//! | no target's window is large enough | 404, `auto` 400 | `no_executable_targets`, `context_length_exceeded` |
//! | too many attempts | 503 | `max_attempts_exceeded` |
//! | the retry budget is spent | as the last failure | `retry_budget_spent`, body passed through |
//! | a rule of leases refuses | its own | its own, type `lease_error` |
//! | the time of the request is up | 504 | `COMBO_TIMEOUT` |
//! | a fault of the client's own | as the upstream said | `client_error`, body passed through |

mod failed;
mod leased;
mod status;
mod unsent;

use super::Input;

pub use failed::ALL_MODELS_FAILED;
pub(super) use failed::{
    after_emergency, all_failed, of_client, protected, retry_budget_spent, timed_out,
    too_many_attempts,
};
pub(super) use status::{OutcomeKind, error_type, is_expired, may_retry_after};
pub(super) use unsent::{filtered_out, no_steps, nothing_dispatched, unknown_model};

/// Attempts of the request, those of other parts of its plan included.
fn attempted(input: &Input<'_>) -> u32 {
    u32::try_from(input.so_far.spent()).unwrap_or(u32::MAX)
}

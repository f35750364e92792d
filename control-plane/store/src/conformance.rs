//! The suites that every adapter passes, so that a rule of a port is written down once and means the same
//! everywhere. A suite is a list of rules; its macro makes one test of each, so that an adapter's tests name
//! them.

#[expect(
    clippy::missing_panics_doc,
    reason = "a rule that is broken panics, as a test does"
)]
pub mod hot;

/// What a rule says of a store.
pub type Verdict = Result<(), Box<dyn std::error::Error + Send + Sync>>;

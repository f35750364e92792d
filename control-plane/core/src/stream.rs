//! What becomes of a stream that is on its way to a client (`sessions-and-streams.md` §4.2 to §4.5).
//!
//! | rule | when | what follows |
//! |---|---|---|
//! | [`Watchdog`] | the upstream sends, but no text worth the name | its attempt is over |
//! | [`Holdback`], [`may_reopen`] | an attempt fails before its client has seen a byte | the same account is asked again |
//! | [`Turn`], [`join`] | an attempt fails after its client has seen text | the rest is asked for, and stitched to it |
//!
//! All of it is state of one attempt or one answer and lives in the data plane that serves the client. Each attempt,
//! those of reopens and continuations included, has a watchdog of its own, made when it is sent.

mod continuation;
mod holdback;
mod watchdog;

pub use continuation::{
    Joined, MAX_CONTINUATIONS, MAX_CONTINUED_BYTES, MAX_OVERLAP_CHARS, MIN_OVERLAP_CHARS, Turn,
    join,
};
pub use holdback::{HOLD_BYTES, HOLD_MS, Holdback, MAX_REOPENS, may_reopen};
pub use watchdog::{Progress, TooSlow, Watchdog, WatchdogLimits};

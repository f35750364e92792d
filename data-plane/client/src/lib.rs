//! The only door of a data plane to the control plane.

mod port;

pub use port::{Answer, Ask, Credential, Deadlines, Dispatch, LastFailure, Snapshot, Step, Usage};

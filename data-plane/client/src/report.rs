//! Reports of how attempts ended: the queue, what is merged in it, and the stream that empties it.

mod coalesce;
pub(crate) mod queue;
pub(crate) mod stream;

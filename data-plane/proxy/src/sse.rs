//! Server-sent events, understood just enough: where an event ends, and what it means for readiness, idle
//! time, the end of the stream and usage. The bytes themselves are never changed.

mod judge;
mod repeated;
mod scan;
mod shapes;
mod text;
mod tokens;
mod written;

pub(crate) use judge::{Class, Dialect, End, Judge, bar};
pub(crate) use scan::{Event, MAX_EVENT_BYTES, Scanner};
pub(crate) use tokens::Tokens;

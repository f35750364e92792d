//! Streams end to end: what upstreams do wrong, seen through the official SDKs; the end of a process under load; memory.

mod chaos;
mod drain;
mod faults;
mod long_line;
mod matrix;
mod memory;

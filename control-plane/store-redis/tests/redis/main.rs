//! The hot store over real servers. One binary, because linking is what costs.

mod cluster;
mod conformance;
mod faults;
mod following;
mod host;
mod sentinel;
mod stored;

//! Ports to what remembers: the hot store and the durable store, their in-process forms, a decorator that
//! misbehaves on demand, and the conformance suite that every adapter passes.
//!
//! The store knows no rule. It keeps opaque values under versions and replaces them together or not at
//! all; what a value means is in `tidegate-core`, how it is written down in [`codec`].

pub mod clock;
pub mod codec;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod durable;
pub mod fault;
pub mod hot;
pub mod memory;
pub mod pacing;
pub mod seal;

//! The harness of the tests: real servers, real processes, faults between them.
//!
//! Everything starts in temporary directories on free ports of the loopback interface and is gone when its value is
//! dropped, or when the test process ends in any way. Nothing of the machine's own (a system Postgres, say) is touched.
//! How it is meant to be used is told in `tests/README.md`.

mod account;
mod child;
mod collector;
mod fault_proxy;
mod fleet;
mod http_probe;
mod lifeline;
mod local_tls;
mod port;
mod postgres;
mod process;
mod python;
mod redis;
mod scratch;
mod target_dir;
mod wait;

pub use collector::{CollectedSpan, Collector, CollectorMode};
pub use fault_proxy::{Direction, FaultProxy};
pub use fleet::{ADMIN_TOKEN, ControlPlane, DATA_PLANE_TOKEN, DataPlane, Fleet, FleetOptions};
pub use http_probe::http_status;
pub use local_tls::LocalTls;
pub use nix::sys::signal::Signal;
pub use port::{ReservedPort, free_port};
pub use postgres::{Postgres, PostgresOptions};
pub use process::{Finished, Process, ProcessBuilder};
pub use python::{ClientCall, ClientRun, PythonClients};
pub use redis::{Redis, RedisOptions, RespValue};
pub use scratch::ScratchDir;
pub use target_dir::bin_dir;
/// The fake LLM provider.
pub use tidegate_fake_upstream as upstream;
pub use wait::eventually;

//! The only door of a data plane to the control plane, and the one constructor of gRPC channels.
//!
//! | room | what it holds |
//! |---|---|
//! | [`endpoint`] | channels, with keep-alive |
//! | `replicas` | the control plane's replicas and which is asked |
//! | `watch`, `install`, `view`, `snapshot_file` | configuration and hot state as followed, and what is kept on disk |
//! | `decide` | a decision: asked for within a limit, or made here |
//! | `lease` | leases: what clients ask for, and the fence before each attempt under one |
//! | `admission`, `learned` | whether a request may go to a connection with a limited pace, and what upstreams tell of theirs |
//! | `handoff` | notes that follow conversations to another account |
//! | `management`, `availability` | requests to the contract's management endpoints; which models can be had |
//! | `ask` | a question that any replica can answer |
//! | `shadow` | our own failures that the control plane has not taken yet |
//! | `report`, `usage`, `telemetry`, `abandon` | what is told to the control plane |
//! | `clock` | the store's time |
//!
//! Stance: **the control plane is not in the failure path.** Nothing here fails because it is away. Decisions
//! are made here, reports and token records wait in bounded queues, and readiness asks for a configuration
//! only. What is lost then is said in [`ClientMetrics`].

mod abandon;
mod admission;
mod applied;
mod ask;
mod availability;
mod backoff;
mod client;
mod clock;
mod config;
mod decide;
pub mod endpoint;
mod handoff;
mod install;
mod learned;
mod lease;
mod management;
mod metrics;
mod notices;
mod permits;
mod port;
mod replicas;
mod report;
mod shadow;
mod snapshot_file;
mod telemetry;
mod usage;
mod view;
mod watch;

pub use client::{PlaneClient, PlaneStatus};
pub use config::{Limits, PlaneClientConfig};
pub use lease::{LeaseAnswer, LeasePlace, Leased};
pub use management::{ManagementAnswer, ManagementCall};
pub use metrics::ClientMetrics;
pub use port::{
    Admission, AdmissionAsk, Answer, Ask, Credential, Deadlines, Dispatch, LastFailure, Lesson,
    Observation, Origin, PermitWait, PermitWaited, PermitWaits, Running, Snapshot, Step, Success,
};
pub use replicas::{MAX_REPLICAS, ReplicaStatus, ReplicasError};

//! The whole proxy against fake providers, with a control plane that decides with the real rules in memory.

#[cfg(test)]
mod admin;
#[cfg(test)]
mod admission;
#[cfg(test)]
mod backpressure;
#[cfg(test)]
mod bad_http2;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod changes;
#[cfg(test)]
mod client;
#[cfg(test)]
mod compressed;
#[cfg(test)]
mod continuation;
#[cfg(test)]
mod continuation_ends;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod early;
#[cfg(test)]
mod fail_over;
#[cfg(test)]
mod fake_control;
#[cfg(test)]
mod fake_leases;
#[cfg(test)]
mod framing;
#[cfg(test)]
mod heartbeats;
#[cfg(test)]
mod holding;
#[cfg(test)]
mod http2_upstream;
#[cfg(test)]
mod lease_requests;
#[cfg(test)]
mod leased;
#[cfg(test)]
mod leaving;
#[cfg(test)]
mod management;
#[cfg(test)]
mod models_health;
#[cfg(test)]
mod once;
#[cfg(test)]
mod pass_through;
#[cfg(test)]
mod permits;
#[cfg(test)]
mod plans;
#[cfg(test)]
mod raw_upstream;
#[cfg(test)]
mod recovery;
#[cfg(test)]
mod recovery_ends;
#[cfg(test)]
mod relay;
#[cfg(test)]
mod repetitions;
#[cfg(test)]
mod resends;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod surface;
#[cfg(test)]
mod telemetry;
#[cfg(test)]
mod timers;
#[cfg(test)]
mod tls_upstream;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod upstream_faults;
#[cfg(test)]
mod usage;
#[cfg(test)]
mod watchdog;

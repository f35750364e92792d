//! The client against scripted control planes over in-process connections, with paused time: waits take no
//! time of ours, and limits are exact.

#[cfg(test)]
mod component {
    mod decide;
    mod fake;
    mod fake_leases;
    mod fences;
    mod leases;
    mod managed;
    mod management;
    mod network;
    mod permits;
    mod report;
    mod setting;
    mod slow;
    mod telemetry;
    mod under_way;
    mod watch;
}

//! Control planes over in-process connections, sharing a hot store in memory and a durable store in a file.

#[cfg(test)]
mod access;
#[cfg(test)]
mod admission;
#[cfg(test)]
mod apply;
#[cfg(test)]
mod changes;
#[cfg(test)]
mod decide;
#[cfg(test)]
mod events;
#[cfg(test)]
mod explain;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod lists;
#[cfg(test)]
mod loss;
#[cfg(test)]
mod names;
#[cfg(test)]
mod permits;
#[cfg(test)]
mod quotas;
mod report;
#[cfg(test)]
mod resets;
mod resources;
#[cfg(test)]
mod rest;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod status;
#[cfg(test)]
mod telemetry;
#[cfg(test)]
mod usage;
#[cfg(test)]
mod watch;

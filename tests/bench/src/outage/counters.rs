//! What processes count of themselves: control planes in `/metrics` and `/proc`, Redis in `INFO`.

use std::time::Instant;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_test_support::{ControlPlane, Fleet};

use crate::process::cpu_time;

/// All counters at a moment.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) at: Instant,
    pub(super) replicas: Vec<ReplicaCounters>,
    pub(super) redis_cpu_seconds: f64,
}

/// Counters of one control plane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplicaCounters {
    /// Calls that write to Redis and were answered, refused ones included.
    pub(super) writes: f64,
    /// Writes refused because a value had changed.
    pub(super) conflicts: f64,
    pub(super) cpu_seconds: f64,
}

impl ReplicaCounters {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            conflicts: self.conflicts - before.conflicts,
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.writes += other.writes;
        self.conflicts += other.conflicts;
        self.cpu_seconds += other.cpu_seconds;
    }

    async fn read(replica: &ControlPlane) -> Result<Self> {
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let uri = format!("http://{}/metrics", replica.http).parse()?;
        let body = client.get(uri).await?.into_body().collect().await?;
        let text = String::from_utf8(body.to_bytes().into())?;
        let calls = "tidegate_cp_hot_store_calls_total";
        // A replica that has never written has no such line.
        let written = counter(&text, &format!("{calls}{{call=\"write\",result=\"ok\"}}"));
        let conflicts = counter(&text, "tidegate_cp_write_conflicts_total");
        Ok(Self {
            writes: written.unwrap_or_default(),
            conflicts: conflicts.context("no conflicts in the metrics")?,
            cpu_seconds: cpu_time(replica.process.pid())?.as_secs_f64(),
        })
    }
}

impl Counters {
    pub(super) async fn read(fleet: &Fleet) -> Result<Self> {
        let mut replicas = Vec::with_capacity(fleet.control_planes.len());
        for replica in &fleet.control_planes {
            replicas.push(ReplicaCounters::read(replica).await?);
        }
        let info = fleet.redis.command(&["INFO", "cpu"]).await?;
        let info = info.as_text().context("INFO is no text")?;
        Ok(Self {
            at: Instant::now(),
            replicas,
            redis_cpu_seconds: redis_field(info, "used_cpu_user")?
                + redis_field(info, "used_cpu_sys")?,
        })
    }
}

/// The value of a series in the text format, named with its labels.
fn counter(text: &str, series: &str) -> Option<f64> {
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    values.next()?.trim().parse().ok()
}

fn redis_field(info: &str, name: &str) -> Result<f64> {
    let value = info
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .with_context(|| format!("INFO has no {name}"))?;
    Ok(value.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_found_by_its_whole_name() {
        let text = "# HELP calls Calls.\ncalls_total{call=\"read\"} 3\ncalls_total{call=\"write\"} 7\ncalls 1\n";
        assert_eq!(counter(text, "calls_total{call=\"write\"}"), Some(7.0));
        assert_eq!(counter(text, "calls_total"), None);
        assert_eq!(counter(text, "calls"), Some(1.0));
    }

    #[test]
    fn cpu_time_of_redis_is_read_to_its_name() {
        let info = "# CPU\r\nused_cpu_sys:1.5\r\nused_cpu_sys_children:9.0\r\n";
        assert_eq!(redis_field(info, "used_cpu_sys").unwrap(), 1.5);
        assert!(redis_field(info, "used_cpu_user").is_err());
    }
}

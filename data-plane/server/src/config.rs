//! Flags and environment as valid settings, read once, before any port opens.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use secrecy::SecretString;
use tidegate_core::ids::EgressId;
use tidegate_plane_client::PlaneClientConfig;
use tidegate_plane_client::endpoint::{Address, TlsSettings};
use tidegate_proxy::{Heartbeats, Limits, UpstreamAuthorities};
use tidegate_telemetry::TraceSettings;

use crate::cli::{Args, HeartbeatArgs, LimitArgs, TrustArgs};

/// Everything the process needs to know.
#[derive(Debug)]
pub(crate) struct ServerConfig {
    pub(crate) listen: SocketAddr,
    pub(crate) admin_listen: Option<SocketAddr>,
    pub(crate) ready_file: Option<PathBuf>,
    pub(crate) plane: PlaneClientConfig,
    pub(crate) limits: Limits,
    pub(crate) drain_delay: Duration,
    pub(crate) grace: Duration,
    pub(crate) traces: Option<TraceSettings>,
    pub(crate) propagate_trace_context: bool,
    pub(crate) validate_only: bool,
}

impl ServerConfig {
    /// # Errors
    /// What is wrong, for people; holds no secret.
    pub(crate) fn read(args: Args) -> Result<Self> {
        let Args {
            listen,
            admin_listen,
            control_planes,
            trust,
            name,
            egress_id,
            upstream_ca_file,
            snapshot_path,
            ready_without_configuration,
            ready_file,
            require_api_key,
            limits,
            heartbeats,
            otlp,
            propagate_trace_context,
            log: _,
            validate,
        } = args;
        let secure = control_planes
            .iter()
            .any(|address| address.scheme_str() == Some("https"));
        let addresses = control_planes.into_iter().map(Address::Tcp).collect();
        let mut plane = PlaneClientConfig::new(name, addresses);
        plane.snapshot_file = snapshot_path;
        plane.ready_without_configuration = ready_without_configuration;
        plane.token = token(&trust)?;
        plane.tls = secure.then(|| tls(&trust)).transpose()?;
        let egress = egress_id
            .map(EgressId::new)
            .transpose()
            .context("--egress-id")?;
        let upstream_authorities = upstream_ca_file
            .map(|path| authorities(&path))
            .transpose()?
            .unwrap_or_default();
        let LimitArgs {
            max_body_bytes,
            decide_limit,
            slow_decide_limit,
            max_connections,
            head_time,
            body_time,
            stall_time,
            drain_delay,
            grace,
        } = limits;
        let HeartbeatArgs {
            sse_heartbeat_interval_ms,
            sse_comments,
        } = heartbeats;
        ensure!(max_body_bytes > 0, "--max-body-bytes must not be 0");
        ensure!(max_connections > 0, "--max-connections must not be 0");
        ensure!(!decide_limit.is_zero(), "--decide-limit must not be 0");
        ensure!(
            decide_limit <= MAX_DECIDE_LIMIT,
            "--decide-limit must not exceed 10 s"
        );
        ensure!(
            slow_decide_limit <= MAX_SLOW_DECIDE_LIMIT,
            "--slow-decide-limit must not exceed 60 s"
        );
        plane.limits.decide = decide_limit;
        // A longer limit of all decisions is one of these, too.
        plane.limits.decide_slow = slow_decide_limit.max(decide_limit);
        for (flag, time) in [
            ("--head-time", head_time),
            ("--body-time", body_time),
            ("--stall-time", stall_time),
        ] {
            ensure!(!time.is_zero(), "{flag} must not be 0");
            ensure!(time <= MAX_TIME, "{flag} must not exceed one day");
        }
        Ok(Self {
            listen,
            admin_listen,
            ready_file,
            plane,
            limits: Limits {
                require_key: require_api_key,
                max_body_bytes,
                head_time,
                body_time,
                stall_time,
                max_connections,
                heartbeats: Heartbeats::every_ms(sse_heartbeat_interval_ms, sse_comments),
                egress,
                upstream_authorities,
                ..Limits::default()
            },
            drain_delay: drain_delay.min(MAX_TIME),
            grace: grace.min(MAX_TIME),
            traces: TraceSettings::from_environment(&otlp)?,
            propagate_trace_context,
            validate_only: validate,
        })
    }
}

/// Nobody waits longer for a decision.
const MAX_DECIDE_LIMIT: Duration = Duration::from_secs(10);
/// Nor for one that takes a permit, while the control plane is slow.
const MAX_SLOW_DECIDE_LIMIT: Duration = Duration::from_secs(60);
/// Longest time that is believed.
const MAX_TIME: Duration = Duration::from_secs(24 * 60 * 60);

fn token(trust: &TrustArgs) -> Result<Option<SecretString>> {
    let Some(path) = &trust.token_file else {
        return Ok(trust.token.clone());
    };
    let text = fs::read_to_string(path).with_context(|| reading(path))?;
    let text = text.trim();
    ensure!(!text.is_empty(), "{} is empty", path.display());
    Ok(Some(text.to_owned().into()))
}

fn authorities(path: &Path) -> Result<UpstreamAuthorities> {
    let text = fs::read(path).with_context(|| reading(path))?;
    UpstreamAuthorities::from_pem(&text)
        .with_context(|| format!("--upstream-ca-file {}", path.display()))
}

fn tls(trust: &TrustArgs) -> Result<TlsSettings> {
    let read = |path: &PathBuf| fs::read(path).with_context(|| reading(path));
    let identity = match (&trust.tls_cert_file, &trust.tls_key_file) {
        (Some(certificate), Some(key)) => {
            let key = fs::read_to_string(key).with_context(|| reading(key))?;
            Some((read(certificate)?, key.into()))
        }
        _ => None,
    };
    Ok(TlsSettings {
        ca_certificate: trust.tls_ca_file.as_ref().map(read).transpose()?,
        identity,
        domain: trust.tls_domain.clone(),
    })
}

fn reading(path: &Path) -> String {
    format!("{} cannot be read", path.display())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn read(more: &[&str]) -> Result<ServerConfig> {
        let always = ["x", "--control-plane", "http://127.0.0.1:1"];
        ServerConfig::read(Args::try_parse_from(always.iter().chain(more)).unwrap())
    }

    #[test]
    fn a_collector_has_a_url_or_is_none() {
        assert!(read(&[]).unwrap().traces.is_none());
        let good = read(&["--otlp-endpoint", "http://collector:4317"]);
        assert!(good.unwrap().traces.is_some());
        let bad = read(&["--otlp-endpoint", "collector:4317"]).unwrap_err();
        assert!(format!("{bad:#}").contains("--otlp-endpoint"));
    }

    #[test]
    fn authorities_of_upstreams_must_be_there_and_be_some() {
        assert!(read(&[]).is_ok());
        let missing = read(&["--upstream-ca-file", "/nowhere/ca.pem"]).unwrap_err();
        assert!(format!("{missing:#}").contains("/nowhere/ca.pem"));
        // Any file will do that holds no certificate.
        let none = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let none = read(&["--upstream-ca-file", none]).unwrap_err();
        assert!(format!("{none:#}").contains("no certificate"), "{none:#}");
    }
}

//! Flags and environment, as written. [`crate::config`] makes sense of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory as _, Parser};
use secrecy::SecretString;
use tidegate_plane_client::endpoint::parse_address;
use tidegate_telemetry::OtlpArgs;

/// Tidegate's data plane
#[derive(Debug, Parser)]
#[command(name = "tidegate-data-plane", version, about)]
pub(crate) struct Args {
    /// Where clients connect
    #[arg(long, env = "TIDEGATE_LISTEN", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,

    /// Where /livez, /readyz and /metrics are served; without it, where clients connect
    #[arg(long, env = "TIDEGATE_ADMIN_LISTEN")]
    pub(crate) admin_listen: Option<SocketAddr>,

    /// A replica of the control plane, http://host:port or https://host:port; repeat for more
    #[arg(
        long = "control-plane",
        env = "TIDEGATE_CONTROL_PLANE",
        value_delimiter = ',',
        required = true,
        value_name = "URL",
        value_parser = parse_address
    )]
    pub(crate) control_planes: Vec<http::Uri>,

    #[command(flatten)]
    pub(crate) trust: TrustArgs,

    /// This data plane's name, for people
    #[arg(long, env = "TIDEGATE_NAME", default_value = "data-plane")]
    pub(crate) name: String,

    /// Identity under which requests leave towards providers: the same for all that leave by one address
    #[arg(long, env = "TIDEGATE_EGRESS_ID")]
    pub(crate) egress_id: Option<String>,

    /// PEM file: who may sign upstreams' certificates besides the roots of the web
    #[arg(long, env = "TIDEGATE_UPSTREAM_CA_FILE")]
    pub(crate) upstream_ca_file: Option<PathBuf>,

    /// Keep the last configuration, credentials included, in this file, to start without a control plane
    #[arg(long, env = "TIDEGATE_SNAPSHOT_PATH")]
    pub(crate) snapshot_path: Option<PathBuf>,

    /// Be ready as soon as a control plane says that nothing was ever applied; until something is, requests get 503
    #[arg(long, env = "TIDEGATE_READY_WITHOUT_CONFIGURATION")]
    pub(crate) ready_without_configuration: bool,

    /// Write the bound addresses to this file once connections are accepted
    #[arg(long, env = "TIDEGATE_READY_FILE")]
    pub(crate) ready_file: Option<PathBuf>,

    /// Require an API key even when the configuration names none
    #[arg(long, env = "REQUIRE_API_KEY")]
    pub(crate) require_api_key: bool,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) heartbeats: HeartbeatArgs,

    #[command(flatten)]
    pub(crate) otlp: OtlpArgs,

    /// Tell upstreams which trace a request belongs to (W3C traceparent and tracestate)
    #[arg(long, env = "TIDEGATE_PROPAGATE_TRACE_CONTEXT")]
    pub(crate) propagate_trace_context: bool,

    /// Log filter, for example `info` or `info,tidegate::access=off`
    #[arg(long, env = "TIDEGATE_LOG", default_value = "info")]
    pub(crate) log: String,

    /// Check the settings and the files they name, and end
    #[arg(long)]
    pub(crate) validate: bool,
}

/// How the planes know each other
#[derive(Debug, clap::Args)]
pub(crate) struct TrustArgs {
    /// The token that planes share
    #[arg(
        long,
        env = "TIDEGATE_DATA_PLANE_TOKEN",
        hide_env_values = true,
        conflicts_with = "token_file"
    )]
    pub(crate) token: Option<SecretString>,

    /// A file with the token that planes share
    #[arg(long, env = "TIDEGATE_DATA_PLANE_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// PEM file: who signs the control plane's certificate; without it, the roots of the web
    #[arg(long, env = "TIDEGATE_TLS_CA_FILE")]
    pub(crate) tls_ca_file: Option<PathBuf>,

    /// PEM file: our certificate towards the control plane
    #[arg(long, env = "TIDEGATE_TLS_CERT_FILE", requires = "tls_key_file")]
    pub(crate) tls_cert_file: Option<PathBuf>,

    /// PEM file: the key of our certificate
    #[arg(long, env = "TIDEGATE_TLS_KEY_FILE", requires = "tls_cert_file")]
    pub(crate) tls_key_file: Option<PathBuf>,

    /// Name that the control plane's certificate must bear; without it, the host of its URL
    #[arg(long, env = "TIDEGATE_TLS_DOMAIN")]
    pub(crate) tls_domain: Option<String>,
}

/// What clients may do, and how the process ends
#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Longest request body in bytes
    #[arg(long, env = "TIDEGATE_MAX_BODY_BYTES", default_value_t = 10 * 1024 * 1024)]
    pub(crate) max_body_bytes: usize,

    /// How long a decision of the control plane is waited for before one is made here
    #[arg(long, env = "TIDEGATE_DECIDE_LIMIT", default_value = "50ms", value_parser = humantime::parse_duration)]
    pub(crate) decide_limit: Duration,

    /// The same for a decision that takes a permit of an account, while the control plane is slow, not gone
    #[arg(long, env = "TIDEGATE_SLOW_DECIDE_LIMIT", default_value = "1s", value_parser = humantime::parse_duration)]
    pub(crate) slow_decide_limit: Duration,

    /// Client connections at once
    #[arg(long, env = "TIDEGATE_MAX_CONNECTIONS", default_value_t = 10_000)]
    pub(crate) max_connections: usize,

    /// Time for a client to send its request head
    #[arg(long, env = "TIDEGATE_HEAD_TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) head_time: Duration,

    /// Time for a client to send its request body
    #[arg(long, env = "TIDEGATE_BODY_TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub(crate) body_time: Duration,

    /// How long a client may refuse to read its answer
    #[arg(long, env = "TIDEGATE_STALL_TIME", default_value = "120s", value_parser = humantime::parse_duration)]
    pub(crate) stall_time: Duration,

    /// On SIGTERM: time between readiness going off and the listener closing
    #[arg(long, env = "TIDEGATE_DRAIN_DELAY", default_value = "0s", value_parser = humantime::parse_duration)]
    pub(crate) drain_delay: Duration,

    /// On SIGTERM: time for running requests to finish
    #[arg(long, env = "TIDEGATE_GRACE", default_value = "25s", value_parser = humantime::parse_duration)]
    pub(crate) grace: Duration,
}

/// Signs of life in streams
#[derive(Debug, clap::Args)]
pub(crate) struct HeartbeatArgs {
    /// Milliseconds between two heartbeats of a stream; 0 or less sends none
    #[arg(
        long,
        env = "SSE_HEARTBEAT_INTERVAL_MS",
        default_value_t = 15_000,
        allow_negative_numbers = true
    )]
    pub(crate) sse_heartbeat_interval_ms: i64,

    /// Whether streams may hold comments, which some clients cannot read: on or off
    #[arg(
        long,
        env = "OMNIROUTE_SSE_COMMENTS",
        default_value = "on",
        value_parser = clap::builder::BoolishValueParser::new(),
        action = clap::ArgAction::Set
    )]
    pub(crate) sse_comments: bool,
}

impl Args {
    /// An error about the settings as a whole, shown as clap shows its own.
    pub(crate) fn refuse(error: impl std::fmt::Display) -> clap::Error {
        Self::command().error(clap::error::ErrorKind::InvalidValue, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn heartbeats_can_be_switched_off() {
        let read = |more: &[&str]| {
            let args = ["x", "--control-plane", "http://127.0.0.1:1"];
            let args = Args::try_parse_from(args.iter().chain(more)).unwrap();
            let HeartbeatArgs {
                sse_heartbeat_interval_ms,
                sse_comments,
            } = args.heartbeats;
            (sse_heartbeat_interval_ms, sse_comments)
        };
        assert_eq!(read(&[]), (15_000, true));
        let off = ["--sse-heartbeat-interval-ms", "-1", "--sse-comments", "off"];
        assert_eq!(read(&off), (-1, false));
    }

    #[test]
    fn an_address_that_no_call_could_use_is_refused() {
        for bad in ["control:7400", "ftp://control:7400", "http://control/path"] {
            assert!(
                Args::try_parse_from(["x", "--control-plane", bad]).is_err(),
                "{bad}"
            );
        }
        let two = ["x", "--control-plane", "http://a:1,https://b:2"];
        assert_eq!(Args::try_parse_from(two).unwrap().control_planes.len(), 2);
    }

    #[test]
    fn a_token_never_shows() {
        let args = [
            "x",
            "--control-plane",
            "http://127.0.0.1:1",
            "--token",
            "hush",
        ];
        let args = Args::try_parse_from(args).unwrap();
        assert!(!format!("{args:?}").contains("hush"));
    }
}

//! Definitions of the command line; nothing is done here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use secrecy::SecretString;
use tidegate_telemetry::OtlpArgs;

/// Keeps LLM traffic flowing: both planes in one process.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve what a configuration file describes.
    Run(RunArguments),
    /// Serve three fake providers that fail in different ways, and show what happens. Needs no key.
    Demo(DemoArguments),
    /// Check a configuration file and the secrets it refers to; start nothing.
    Validate {
        /// The file.
        #[arg(short, long)]
        config: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// YAML file with the whole configuration; replaces the stored one.
    #[arg(short, long, env = "TIDEGATE_CONFIG")]
    pub(crate) config: PathBuf,

    /// Where clients connect; also serves /livez, /readyz and /metrics.
    #[arg(long, env = "TIDEGATE_LISTEN", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,

    /// Where tidegatectl connects; a loopback address.
    #[arg(long, env = "TIDEGATE_GRPC_LISTEN", default_value = "127.0.0.1:7400")]
    pub(crate) grpc_listen: SocketAddr,

    /// Folder for the database and the key that seals credentials; made when missing.
    #[arg(long, env = "TIDEGATE_DATA", default_value = "tidegate-data")]
    pub(crate) data: PathBuf,

    /// What tidegatectl must show; without it, everybody on this machine may administer.
    #[arg(long, env = "TIDEGATE_ADMIN_TOKEN", hide_env_values = true)]
    pub(crate) admin_token: Option<SecretString>,

    /// PEM file: who may sign upstreams' certificates besides the roots of the web.
    #[arg(long, env = "TIDEGATE_UPSTREAM_CA_FILE")]
    pub(crate) upstream_ca_file: Option<PathBuf>,

    /// On SIGTERM: time between readiness going off and the listener closing.
    #[arg(
        long,
        env = "TIDEGATE_DRAIN_DELAY",
        default_value = "0s",
        value_parser = humantime::parse_duration
    )]
    pub(crate) drain_delay: Duration,

    /// How long open streams may take to finish after that.
    #[arg(
        long,
        env = "TIDEGATE_GRACE",
        default_value = "30s",
        value_parser = humantime::parse_duration
    )]
    pub(crate) grace: Duration,

    /// Milliseconds between two heartbeats of a stream; 0 or less sends none.
    #[arg(
        long,
        env = "SSE_HEARTBEAT_INTERVAL_MS",
        default_value_t = 15_000,
        allow_negative_numbers = true
    )]
    pub(crate) sse_heartbeat_interval_ms: i64,

    /// Whether streams may hold comments, which some clients cannot read: on or off.
    #[arg(
        long,
        env = "OMNIROUTE_SSE_COMMENTS",
        default_value = "on",
        value_parser = clap::builder::BoolishValueParser::new(),
        action = clap::ArgAction::Set
    )]
    pub(crate) sse_comments: bool,

    #[command(flatten)]
    pub(crate) otlp: OtlpArgs,

    /// Tell upstreams which trace a request belongs to (W3C traceparent and tracestate).
    #[arg(long, env = "TIDEGATE_PROPAGATE_TRACE_CONTEXT")]
    pub(crate) propagate_trace_context: bool,

    /// Log filter, for example `info` or `info,tidegate::access=off`; logs go to standard error.
    #[arg(long, env = "TIDEGATE_LOG", default_value = "info")]
    pub(crate) log: String,

    /// Written as JSON with the addresses in use once requests can be served.
    #[arg(long, env = "TIDEGATE_READY_FILE")]
    pub(crate) ready_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Where clients connect.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,

    /// Where tidegatectl connects.
    #[arg(long, default_value = "127.0.0.1:7400")]
    pub(crate) grpc_listen: SocketAddr,

    /// End after so many requests of the demo's own; 0 = run until interrupted.
    #[arg(long, default_value_t = 0)]
    pub(crate) requests: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn definitions_are_consistent() {
        Arguments::command().debug_assert();
    }
}

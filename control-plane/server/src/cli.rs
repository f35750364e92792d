//! Flags and environment, as written. [`crate::config`] makes sense of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use secrecy::SecretString;
use tidegate_telemetry::OtlpArgs;

/// Tidegate's control plane
#[derive(Debug, Parser)]
#[command(name = "tidegate-control-plane", version, about)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Where data planes and operators connect; port 0 takes any free one
    #[arg(
        long,
        env = "TIDEGATE_GRPC_LISTEN",
        default_value = "127.0.0.1:7400",
        global = true
    )]
    pub(crate) grpc_listen: SocketAddr,

    /// Where /livez, /readyz and /metrics are served; port 0 takes any free one
    #[arg(
        long,
        env = "TIDEGATE_HTTP_LISTEN",
        default_value = "127.0.0.1:7401",
        global = true
    )]
    pub(crate) http_listen: SocketAddr,

    /// Where the contract's management endpoints are served, /api/monitoring/health and /api/resilience; port 0 takes any
    /// free one. Without it they are served by data planes only
    #[arg(long, env = "TIDEGATE_API_LISTEN", global = true)]
    pub(crate) api_listen: Option<SocketAddr>,

    #[command(flatten)]
    pub(crate) database: DatabaseArgs,

    #[command(flatten)]
    pub(crate) redis: RedisArgs,

    #[command(flatten)]
    pub(crate) secrets: SecretArgs,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    /// This replica's name, for people; without it, one is made up
    #[arg(long, env = "TIDEGATE_NAME", global = true)]
    pub(crate) name: Option<String>,

    /// Write the bound addresses to this file once decisions can be served
    #[arg(long, env = "TIDEGATE_READY_FILE", global = true)]
    pub(crate) ready_file: Option<PathBuf>,

    /// On SIGTERM: time for what runs to finish
    #[arg(
        long,
        env = "TIDEGATE_GRACE",
        default_value = "25s",
        value_parser = humantime::parse_duration,
        global = true
    )]
    pub(crate) grace: Duration,

    /// Limit of a decision; data planes wait a little longer (their --decide-limit)
    #[arg(
        long,
        env = "TIDEGATE_DECISION_LIMIT",
        default_value = "35ms",
        value_parser = humantime::parse_duration,
        global = true
    )]
    pub(crate) decision_limit: Duration,

    /// Limit of each call to Redis within a decision
    #[arg(
        long,
        env = "TIDEGATE_DECISION_STORE_LIMIT",
        default_value = "15ms",
        value_parser = humantime::parse_duration,
        global = true
    )]
    pub(crate) decision_store_limit: Duration,

    #[command(flatten)]
    pub(crate) history: HistoryArgs,

    /// How long to wait for the database at start
    #[arg(
        long,
        env = "TIDEGATE_START_LIMIT",
        default_value = "60s",
        value_parser = humantime::parse_duration,
        global = true
    )]
    pub(crate) start_limit: Duration,

    #[command(flatten)]
    pub(crate) otlp: OtlpArgs,

    /// Log filter, for example `info` or `info,tidegate_control=debug`
    #[arg(long, env = "TIDEGATE_LOG", default_value = "info", global = true)]
    pub(crate) log: String,

    /// Check the settings and end
    #[arg(long)]
    pub(crate) validate: bool,
}

/// What to do
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum Command {
    /// Serve (the default)
    Run,
    /// Bring the database's schema up to date and end; safe to run twice at once
    Migrate,
}

/// What is kept of the past
#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// How long tokens of attempts are kept; 0s is for ever, less than a day is refused
    #[arg(
        long,
        env = "TIDEGATE_KEEP_USAGE",
        default_value = "90days",
        value_parser = humantime::parse_duration,
        global = true
    )]
    pub(crate) keep_usage: Duration,

    /// The same for changes of breakers, cooldowns, locks and terminal states
    #[arg(
        long,
        env = "TIDEGATE_KEEP_TRANSITIONS",
        default_value = "90days",
        value_parser = humantime::parse_duration,
        global = true
    )]
    pub(crate) keep_transitions: Duration,

    /// The same for what administrators did
    #[arg(
        long,
        env = "TIDEGATE_KEEP_AUDIT",
        default_value = "365days",
        value_parser = humantime::parse_duration,
        global = true
    )]
    pub(crate) keep_audit: Duration,

    /// A data plane with answers under way that is not heard of for so long is lost, and their tokens are recorded as
    /// unknown; from 15s to 1h, since data planes are heard every 10s
    #[arg(
        long,
        env = "TIDEGATE_SILENCE_LIMIT",
        default_value = "60s",
        value_parser = humantime::parse_duration,
        global = true
    )]
    pub(crate) silence_limit: Duration,
}

/// The durable store
#[derive(Debug, clap::Args)]
pub(crate) struct DatabaseArgs {
    /// URL of the Postgres database
    #[arg(
        long,
        env = "TIDEGATE_DATABASE_URL",
        hide_env_values = true,
        global = true
    )]
    pub(crate) database_url: Option<SecretString>,

    /// A file with the URL of the Postgres database
    #[arg(long, env = "TIDEGATE_DATABASE_URL_FILE", global = true)]
    pub(crate) database_url_file: Option<PathBuf>,

    /// Do not migrate at start; refuse a schema that is not this build's
    #[arg(long, env = "TIDEGATE_NO_MIGRATE", global = true)]
    pub(crate) no_migrate: bool,
}

/// How the Redis servers are organised
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RedisKind {
    /// One server
    Single,
    /// Sentinels name the server
    Sentinel,
    /// A cluster
    Cluster,
}

/// The hot store
#[derive(Debug, clap::Args)]
pub(crate) struct RedisArgs {
    /// URL of the Redis server; of sentinels or cluster nodes: several, separated by commas
    #[arg(
        long,
        env = "TIDEGATE_REDIS_URL",
        hide_env_values = true,
        global = true
    )]
    pub(crate) redis_url: Option<SecretString>,

    /// A file with the URL of the Redis server
    #[arg(long, env = "TIDEGATE_REDIS_URL_FILE", global = true)]
    pub(crate) redis_url_file: Option<PathBuf>,

    /// How the Redis servers are organised
    #[arg(
        long,
        env = "TIDEGATE_REDIS_MODE",
        default_value = "single",
        global = true
    )]
    pub(crate) redis_mode: RedisKind,

    /// Name under which sentinels watch the server
    #[arg(
        long,
        env = "TIDEGATE_REDIS_SERVICE",
        default_value = "mymaster",
        global = true
    )]
    pub(crate) redis_service: String,

    /// URL whose scheme, user, password and database are used for the server behind sentinels
    #[arg(
        long,
        env = "TIDEGATE_REDIS_NODE_URL",
        hide_env_values = true,
        global = true
    )]
    pub(crate) redis_node_url: Option<SecretString>,
}

/// What must not be seen
#[derive(Debug, clap::Args)]
pub(crate) struct SecretArgs {
    /// The key that credentials are sealed with: 32 bytes, hexadecimal or base64
    #[arg(
        long,
        env = "TIDEGATE_SEALING_KEY",
        hide_env_values = true,
        global = true
    )]
    pub(crate) sealing_key: Option<SecretString>,

    /// A file with the sealing key
    #[arg(long, env = "TIDEGATE_SEALING_KEY_FILE", global = true)]
    pub(crate) sealing_key_file: Option<PathBuf>,

    /// The token of data planes
    #[arg(
        long,
        env = "TIDEGATE_DATA_PLANE_TOKEN",
        hide_env_values = true,
        global = true
    )]
    pub(crate) data_plane_token: Option<SecretString>,

    /// A file with the token of data planes
    #[arg(long, env = "TIDEGATE_DATA_PLANE_TOKEN_FILE", global = true)]
    pub(crate) data_plane_token_file: Option<PathBuf>,

    /// The token of operators
    #[arg(
        long,
        env = "TIDEGATE_ADMIN_TOKEN",
        hide_env_values = true,
        global = true
    )]
    pub(crate) admin_token: Option<SecretString>,

    /// A file with the token of operators
    #[arg(long, env = "TIDEGATE_ADMIN_TOKEN_FILE", global = true)]
    pub(crate) admin_token_file: Option<PathBuf>,

    /// The token of those who may look, and change nothing; needs the token of operators as well
    #[arg(
        long,
        env = "TIDEGATE_ADMIN_READ_TOKEN",
        hide_env_values = true,
        global = true
    )]
    pub(crate) admin_read_token: Option<SecretString>,

    /// A file with the token of those who may look
    #[arg(long, env = "TIDEGATE_ADMIN_READ_TOKEN_FILE", global = true)]
    pub(crate) admin_read_token_file: Option<PathBuf>,
}

/// Certificates of the gRPC listener and of that for the contract
#[derive(Debug, clap::Args)]
pub(crate) struct TlsArgs {
    /// PEM file: our certificate
    #[arg(long, env = "TIDEGATE_TLS_CERT_FILE", global = true)]
    pub(crate) tls_cert_file: Option<PathBuf>,

    /// PEM file: the key of our certificate
    #[arg(long, env = "TIDEGATE_TLS_KEY_FILE", global = true)]
    pub(crate) tls_key_file: Option<PathBuf>,

    /// PEM file: who signs the certificates of callers, which are asked for then
    #[arg(long, env = "TIDEGATE_TLS_CLIENT_CA_FILE", global = true)]
    pub(crate) tls_client_ca_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_are_taken_before_and_after_the_command() {
        let args = Args::try_parse_from(["x", "migrate", "--database-url", "postgres://h/d"]);
        assert_eq!(args.unwrap().command, Some(Command::Migrate));
        let args = Args::try_parse_from(["x", "--grpc-listen", "127.0.0.1:0"]).unwrap();
        assert_eq!((args.command, args.grpc_listen.port()), (None, 0));
    }
}

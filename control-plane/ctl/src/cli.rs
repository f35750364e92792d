//! Definitions of the command line; nothing is done here.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::quota_window::QuotaWindow;

/// Administers Tidegate over its gRPC API.
#[derive(Debug, Parser)]
#[command(name = "tidegatectl", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,

    /// Form of the answer.
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct ConnectionArguments {
    /// Control plane, as http://host:port or https://host:port.
    #[arg(
        long,
        global = true,
        env = "TIDEGATE_CONTROL_PLANE",
        default_value = "http://127.0.0.1:7400"
    )]
    pub(crate) control_plane: http::Uri,

    /// File that holds the administrator's token; else the variable `TIDEGATE_ADMIN_TOKEN` is used.
    #[arg(long, global = true, env = "TIDEGATE_ADMIN_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// PEM file with who signed the control plane's certificate.
    #[arg(long, global = true, env = "TIDEGATE_CA_FILE")]
    pub(crate) ca_file: Option<PathBuf>,

    /// Give up a call after this long.
    #[arg(long, global = true, default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: std::time::Duration,
}

/// Form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For files.
    Yaml,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replace the configuration by a file; shows what differs.
    Apply(ApplyArguments),
    /// List configured things and their state.
    Get(GetArguments),
    /// Tell where a request would go, what is excluded, why and until when. Sends nothing.
    Explain(ExplainArguments),
    /// End breakers, cooldowns or model locks by hand.
    Reset(ResetArguments),
    /// Show or change settings.
    #[command(subcommand)]
    Settings(SettingsCommand),
    /// Show what is known of quotas, or tell what was fetched of them.
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Tell how the control plane is.
    Status,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Show what is known of the quotas of connections, who told it, and how old it is.
    Get(QuotaGetArguments),
    /// Tell what was fetched of a connection's quotas; windows that are not named stand until they begin anew.
    Set(QuotaSetArguments),
}

#[derive(Debug, Args)]
pub(crate) struct QuotaGetArguments {
    /// Only of this connection.
    pub(crate) connection: Option<String>,
}

/// A window is `USED` or `USED@RESET`: a share such as `0.4` or `40%`, and when the window begins anew, as a moment
/// (`2026-01-31T12:00:00Z`) or as a time from now (`2h30m`).
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct QuotaSetArguments {
    /// Connection.
    pub(crate) connection: String,

    /// The window of 5 hours.
    #[arg(long, value_name = "USED[@RESET]")]
    pub(crate) session: Option<QuotaWindow>,

    /// The window of 7 days.
    #[arg(long, value_name = "USED[@RESET]")]
    pub(crate) weekly: Option<QuotaWindow>,

    /// The window of 30 days.
    #[arg(long, value_name = "USED[@RESET]")]
    pub(crate) monthly: Option<QuotaWindow>,

    /// The window of 7 days of one model; may be given several times.
    #[arg(long, value_name = "MODEL=USED[@RESET]", value_parser = QuotaWindow::of_model)]
    pub(crate) model: Vec<(String, QuotaWindow)>,

    /// Everything together, where no window is known.
    #[arg(long, value_name = "USED[@RESET]")]
    pub(crate) used: Option<QuotaWindow>,

    /// The provider says that the limit is reached.
    #[arg(long)]
    pub(crate) limit_reached: bool,

    /// When this was true, such as `2026-01-31T12:00:00Z`; else now.
    #[arg(long, value_parser = humantime::parse_rfc3339_weak)]
    pub(crate) observed_at: Option<SystemTime>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SettingsCommand {
    /// Show settings as written, or what acts and who said so.
    Get(SettingsGetArguments),
    /// Change settings by a JSON merge patch; null clears a member.
    Patch(SettingsPatchArguments),
    /// Change single settings.
    Set(SettingsSetArguments),
    /// Print the JSON Schema of the settings; asks no control plane.
    Schema,
}

#[derive(Debug, Args)]
pub(crate) struct SettingsGetArguments {
    /// Only this section, or what is below this path, such as `providerBreaker.apikey`.
    pub(crate) section: Option<String>,

    /// What acts, with who said so: built in, environment or document.
    #[arg(long)]
    pub(crate) effective: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SettingsPatchArguments {
    /// File with the patch, as YAML or JSON; `-` reads standard input.
    #[arg(short, long)]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) change: SettingsChangeArguments,
}

#[derive(Debug, Args)]
pub(crate) struct SettingsSetArguments {
    /// `path=value`, such as `modelLockout.enabled=true`; the value is JSON, or else a text. null clears it.
    #[arg(required = true, value_name = "PATH=VALUE")]
    pub(crate) assignments: Vec<String>,

    #[command(flatten)]
    pub(crate) change: SettingsChangeArguments,
}

#[derive(Debug, Args)]
pub(crate) struct SettingsChangeArguments {
    /// Validate and show what differs, change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Refuse unless the stored configuration has this version.
    #[arg(long)]
    pub(crate) expected_version: Option<u64>,

    /// Who does it, for the audit trail.
    #[arg(long, env = "USER", default_value = "")]
    pub(crate) author: String,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArguments {
    /// YAML file with the whole configuration.
    #[arg(short, long)]
    pub(crate) file: PathBuf,

    /// Validate and show what differs, change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Replace credentials that were sealed with another key than this replica's: the old key is lost.
    #[arg(long)]
    pub(crate) reseal: bool,

    /// Refuse unless the stored configuration has this version.
    #[arg(long)]
    pub(crate) expected_version: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    /// What to list.
    #[arg(value_enum)]
    pub(crate) kind: Kind,

    /// Of transitions: only this provider's.
    #[arg(long)]
    pub(crate) provider: Option<String>,

    /// Of transitions: at most so many, the newest.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) limit: u32,
}

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Upstream families.
    Providers,
    /// Credentials and what excludes them.
    Connections,
    /// Named lists of steps.
    Combos,
    /// Clients' keys, without the keys.
    Keys,
    /// Provider breakers.
    Breakers,
    /// Model locks.
    Lockouts,
    /// The newest changes of state.
    Transitions,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// Combo or `provider/model`.
    pub(crate) model: String,

    /// Ask as this key (its id).
    #[arg(long)]
    pub(crate) key: Option<String>,

    /// Protocol the client would speak; else that of the first target.
    #[arg(long, value_parser = ["openai", "anthropic"])]
    pub(crate) protocol: Option<String>,

    /// Egress identity of the data plane that would send; without one, egress locks are left out.
    #[arg(long)]
    pub(crate) egress: Option<String>,

    /// Session of the request: the value of its header `X-Session-Id`. Shows where it is pinned.
    #[arg(long)]
    pub(crate) session: Option<String>,

    /// File with the body of a request: its tools, images, schema, length and cache key are looked at. Its model is not.
    #[arg(long)]
    pub(crate) body: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ResetArguments {
    /// What to end; breakers, or everything of a connection that is named.
    #[arg(value_enum)]
    pub(crate) scope: Option<Scope>,

    /// Only of this provider.
    #[arg(long)]
    pub(crate) provider: Option<String>,

    /// Only of this connection; also ends its terminal state.
    #[arg(long)]
    pub(crate) connection: Option<String>,

    /// Only locks of this model.
    #[arg(long)]
    pub(crate) model: Option<String>,
}

/// What a reset ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scope {
    /// Provider breakers.
    Breakers,
    /// Connection cooldowns, the cooldown gate and egress locks.
    Cooldowns,
    /// Model locks.
    Lockouts,
    /// All of them.
    All,
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

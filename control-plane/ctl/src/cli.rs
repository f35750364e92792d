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

    /// Form of the answer. Colours are for terminals only, and never where the variable `NO_COLOR` is set.
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct ConnectionArguments {
    /// Context of the configuration file to use, instead of its current one.
    #[arg(long, global = true, env = "TIDEGATE_CONTEXT")]
    pub(crate) context: Option<String>,

    /// Control plane, as http://host:port or https://host:port; else the context's, else http://127.0.0.1:7400.
    #[arg(long, global = true, env = "TIDEGATE_CONTROL_PLANE")]
    pub(crate) control_plane: Option<http::Uri>,

    /// File that holds the bearer token; else the file of a context that is named is used, else the variable
    /// `TIDEGATE_ADMIN_TOKEN`, else the file of the current context. A context's is only for the context's own address.
    #[arg(long, global = true, env = "TIDEGATE_ADMIN_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// PEM file with who signed the control plane's certificate; else the context's.
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
    /// For people with a wide window: all columns.
    Wide,
    /// For programs.
    Json,
    /// For files.
    Yaml,
}

impl Output {
    /// People read it.
    pub(crate) fn is_for_people(self) -> bool {
        match self {
            Self::Table | Self::Wide => true,
            Self::Json | Self::Yaml => false,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replace the configuration by a file; shows what differs.
    Apply(ApplyArguments),
    /// Show what `apply` would change; ends with 2 when something differs.
    Diff(DiffArguments),
    /// List configured things and their state.
    Get(GetArguments),
    /// Tell everything about one thing: how it is configured, how it stands, what happened to it.
    Describe(DescribeArguments),
    /// Take one thing out of the configuration.
    Delete(DeleteArguments),
    /// Switch a connection off in the configuration: nothing is sent on it any more.
    Ban(BanArguments),
    /// Switch a connection on again, and end whatever excludes it.
    Unban(BanArguments),
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
    /// Show exclusive leases of connections, or end one by hand.
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Show permits of connections with a limit, or forget who holds them.
    #[command(subcommand)]
    Permit(PermitCommand),
    /// Show events as they happen, until interrupted.
    Watch(WatchArguments),
    /// Tell how the control plane is.
    Status,
    /// Control planes by name, in a configuration file.
    #[command(subcommand)]
    Context(ContextCommand),
    /// Print completions for a shell.
    Completion {
        /// Which.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// YAML file with the whole configuration.
    #[arg(short, long)]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DescribeArguments {
    /// What kind of thing.
    #[arg(value_enum)]
    pub(crate) kind: ResourceKind,

    /// Its id, or name.
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArguments {
    /// What kind of thing.
    #[arg(value_enum)]
    pub(crate) kind: ResourceKind,

    /// Its id, or name.
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) change: SettingsChangeArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BanArguments {
    /// Connection.
    pub(crate) connection: String,

    #[command(flatten)]
    pub(crate) change: SettingsChangeArguments,
}

/// What a configuration consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResourceKind {
    /// An upstream family.
    Provider,
    /// A credential and what excludes it.
    Connection,
    /// A named list of steps.
    Combo,
    /// A client's key.
    Key,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// Show who has which connection to itself. Owners are shown by the first digits of their hash.
    List(OfProviderArguments),
    /// Take a lease from its owner; what is in flight on it may finish within the drain time.
    End {
        /// The leased connection.
        connection: String,

        /// Only if it is still this generation of its owner.
        #[arg(long, default_value_t = 0)]
        generation: u64,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PermitCommand {
    /// Show who holds permits, and how many wait.
    List(OfProviderArguments),
    /// Forget who holds permits of a connection. What runs goes on, beyond the limit for its time.
    Clear {
        /// The connection.
        connection: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct OfProviderArguments {
    /// Only of this provider.
    #[arg(long)]
    pub(crate) provider: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArguments {
    #[command(flatten)]
    pub(crate) filter: EventArguments,

    /// End after so many events.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct EventArguments {
    /// Only events of this kind, such as `breaker`, `terminal` or `configuration`; may be given several times.
    #[arg(long)]
    pub(crate) kind: Vec<String>,

    /// Only of this provider.
    #[arg(long)]
    pub(crate) provider: Option<String>,

    /// Only of this connection.
    #[arg(long)]
    pub(crate) connection: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// Show all contexts.
    List,
    /// Make a context, or change the members that are given.
    Set(ContextSetArguments),
    /// Make a context the current one.
    Use {
        /// Its name.
        name: String,
    },
    /// Forget a context.
    Delete {
        /// Its name.
        name: String,
    },
}

/// The control plane and files are those of `--control-plane`, `--token-file` and `--ca-file`.
#[derive(Debug, Args)]
pub(crate) struct ContextSetArguments {
    /// Its name.
    pub(crate) name: String,
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

    /// Only the one with this id or name; of state, only of this connection.
    pub(crate) name: Option<String>,

    /// Of state and history: only this provider's.
    #[arg(long)]
    pub(crate) provider: Option<String>,

    /// Of transitions and events: at most so many, the newest.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) limit: u32,

    /// Of events: only of this kind; may be given several times.
    #[arg(long = "kind")]
    pub(crate) kinds: Vec<String>,

    /// Of events: only those of the last time, such as `2h`.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) since: Option<std::time::Duration>,
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
    /// Everything that cools.
    Cooldowns,
    /// Model locks.
    Lockouts,
    /// Exclusive leases.
    Leases,
    /// Permits of connections with a limit of requests at once.
    Permits,
    /// The newest changes of state.
    Transitions,
    /// What happened: changes of state, and of the configuration.
    Events,
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

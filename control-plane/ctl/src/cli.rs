//! Definitions of the command line; nothing is done here.

mod change;
mod connection;
mod get;
mod quota;
mod settings;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use change::{
    ApplyArguments, BanArguments, ChangeArguments, DeleteArguments, DiffArguments,
};
pub(crate) use connection::{
    ConnectionArguments, ContextCommand, ContextSetArguments, TlsArguments,
};
pub(crate) use get::{GetArguments, Kind};
pub(crate) use quota::{QuotaCommand, QuotaGetArguments, QuotaSetArguments};
pub(crate) use settings::{SettingsCommand, SettingsGetArguments};

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
    /// Write what a file names into the configuration, or replace all of it; shows what differs.
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
pub(crate) struct DescribeArguments {
    /// What kind of thing.
    #[arg(value_enum)]
    pub(crate) kind: ResourceKind,

    /// Its id, or name.
    pub(crate) name: String,
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

//! `tidegatectl get`.

use clap::{Args, ValueEnum};

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

    /// Of transitions and events: at most so many, the newest; 100 if nothing is said.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) limit: Option<u32>,

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
    /// Pins of sessions to connections.
    Pins,
    /// Queues of connections, and in which data planes requests wait.
    Queues,
    /// The newest changes of state.
    Transitions,
    /// What happened: changes of state, and of the configuration.
    Events,
}

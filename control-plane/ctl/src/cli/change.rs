//! Commands that change the configuration.

use std::path::PathBuf;

use clap::Args;

use super::ResourceKind;

#[derive(Debug, Args)]
pub(crate) struct ApplyArguments {
    /// YAML file with the configuration, or a part of it.
    #[arg(short, long)]
    pub(crate) file: PathBuf,

    /// The file is the whole: what it does not name is taken out. Else that stays as it is.
    #[arg(long)]
    pub(crate) prune: bool,

    /// Validate and show what differs, change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Replace credentials that were sealed with another key than this replica's: the old key is lost.
    #[arg(long)]
    pub(crate) reseal: bool,

    /// Refuse unless the stored configuration has this version.
    #[arg(long)]
    pub(crate) expected_version: Option<u64>,

    /// Who does it, for the audit trail.
    #[arg(long, env = "USER", default_value = "")]
    pub(crate) author: String,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// YAML file with the configuration, or a part of it.
    #[arg(short, long)]
    pub(crate) file: PathBuf,

    /// The file is the whole, as for `apply --prune`.
    #[arg(long)]
    pub(crate) prune: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArguments {
    /// What kind of thing.
    #[arg(value_enum)]
    pub(crate) kind: ResourceKind,

    /// Its id, or name.
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) change: ChangeArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BanArguments {
    /// Connection.
    pub(crate) connection: String,

    #[command(flatten)]
    pub(crate) change: ChangeArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ChangeArguments {
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

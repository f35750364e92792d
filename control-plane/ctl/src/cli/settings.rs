//! `tidegatectl settings`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ChangeArguments;

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
    pub(crate) change: ChangeArguments,
}

#[derive(Debug, Args)]
pub(crate) struct SettingsSetArguments {
    /// `path=value`, such as `modelLockout.enabled=true`; the value is JSON, or else a text. null clears it.
    #[arg(required = true, value_name = "PATH=VALUE")]
    pub(crate) assignments: Vec<String>,

    #[command(flatten)]
    pub(crate) change: ChangeArguments,
}

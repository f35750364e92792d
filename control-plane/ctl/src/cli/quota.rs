//! `tidegatectl quota`.

use std::time::SystemTime;

use clap::{Args, Subcommand};

use crate::quota_window::QuotaWindow;

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

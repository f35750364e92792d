//! Logs: one JSON object a line, with the fields of the event beside its time, level and target.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOutput {
    /// Standard output, as of programs that print nothing else.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Whether a filter is one, for whoever checks settings and logs nothing.
///
/// # Errors
/// When it is none.
pub fn check_filter(filter: &str) -> Result<(), ParseError> {
    EnvFilter::try_new(filter).map(drop)
}

/// Starts logging what passes `filter`, for example `info` or `info,tidegate::access=off`.
///
/// # Errors
/// When the filter is none.
pub fn start_logging(filter: &str, output: LogOutput) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(filter)?;
    let lines = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_env_filter(filter);
    match output {
        LogOutput::Stdout => lines.with_writer(std::io::stdout).init(),
        LogOutput::Stderr => lines.with_writer(std::io::stderr).init(),
    }
    Ok(())
}

//! The data plane: an HTTP proxy that clients point their OpenAI or Anthropic SDK at.

mod cli;
mod config;
mod footprint;
mod ready_file;
mod run;

use std::process::ExitCode;

use clap::Parser as _;
use tidegate_telemetry::{LogOutput, start_logging};

use crate::cli::Args;
use crate::config::ServerConfig;
use crate::run::BadConfiguration;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Settings that cannot be used (`sysexits.h`, `EX_USAGE`).
const BAD_CONFIGURATION: u8 = 64;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return explain(&error),
    };
    if let Err(error) = start_logging(&args.log, LogOutput::Stdout) {
        return explain(&Args::refuse(error));
    }
    let config = match ServerConfig::read(args) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the settings cannot be used");
            return BAD_CONFIGURATION.into();
        }
    };
    if config.validate_only {
        return ExitCode::SUCCESS;
    }
    match run::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the data plane ended");
            if error.is::<BadConfiguration>() {
                BAD_CONFIGURATION.into()
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Help and version are no errors.
fn explain(error: &clap::Error) -> ExitCode {
    let shown = error.print();
    if error.use_stderr() || shown.is_err() {
        BAD_CONFIGURATION.into()
    } else {
        ExitCode::SUCCESS
    }
}

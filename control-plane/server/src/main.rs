//! `tidegate-control-plane`: the control plane of a fleet, over Postgres and Redis.
//!
//! Settings come from flags and `TIDEGATE_*` variables; what is wrong with them is told before a port opens, with exit
//! code 64. Everything else that ends it early is exit code 1. On SIGTERM or SIGINT it drains.

mod cli;
mod config;
mod ready_file;
mod run;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Args, Command};
use crate::config::Settings;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Bad settings (`EX_USAGE` of sysexits).
const EX_USAGE: u8 = 64;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version are asked for; everything else is a mistake.
            let code = if error.use_stderr() { EX_USAGE } else { 0 };
            return match error.print() {
                Ok(()) => ExitCode::from(code),
                Err(_unwritable) => ExitCode::FAILURE,
            };
        }
    };
    let command = args.command.unwrap_or(Command::Run);
    let settings = match Settings::read(args, std::env::vars_os()) {
        Ok(settings) => settings,
        Err(error) => return say(&format!("error: {error:#}"), ExitCode::from(EX_USAGE)),
    };
    if settings.validate_only {
        return ExitCode::SUCCESS;
    }
    match run::run(settings, command) {
        Ok(code) => code,
        Err(error) => say(&format!("error: {error:#}"), ExitCode::FAILURE),
    }
}

/// For what happens before and after there is a log.
fn say(message: &str, code: ExitCode) -> ExitCode {
    match writeln!(std::io::stderr(), "{message}") {
        Ok(()) => code,
        Err(_unwritable) => ExitCode::FAILURE,
    }
}

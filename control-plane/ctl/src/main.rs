//! `tidegatectl`: the operator's command line, a client of the public gRPC API and nothing else.
#![expect(clippy::print_stderr, reason = "a command line tool")]

mod cli;
mod commands;
mod connect;
mod failure;
mod output;
mod quota_window;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Arguments, Command, SettingsCommand};
use crate::failure::Failure;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers, not errors.
            let code = if error.use_stderr() {
                failure::USAGE
            } else {
                0
            };
            return match error.print() {
                Ok(()) => ExitCode::from(code),
                Err(_) => ExitCode::FAILURE,
            };
        }
    };
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments {
        connection,
        output,
        command,
    } = arguments;
    if let Command::Settings(SettingsCommand::Schema) = command {
        return commands::settings::schema(output);
    }
    let mut client = connect::connect(&connection)?;
    match command {
        Command::Apply(arguments) => commands::apply::run(&mut client, &arguments, output).await,
        Command::Get(arguments) => commands::get::run(&mut client, &arguments, output).await,
        Command::Explain(arguments) => commands::explain::run(&mut client, arguments, output).await,
        Command::Reset(arguments) => commands::reset::run(&mut client, arguments, output).await,
        Command::Settings(command) => commands::settings::run(&mut client, command, output).await,
        Command::Quota(command) => commands::quota::run(&mut client, command, output).await,
        Command::Status => commands::status::run(&mut client, output).await,
    }
}

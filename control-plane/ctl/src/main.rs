//! `tidegatectl`: the operator's command line, a client of the public gRPC API and nothing else.
#![expect(clippy::print_stderr, reason = "a command line tool")]

mod cli;
mod commands;
mod connect;
mod contexts;
mod failure;
mod output;
mod pages;
mod quota_window;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::cli::{Arguments, Command, Output, SettingsCommand};
use crate::connect::Client;
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
            let words = failure.to_string();
            if !words.is_empty() {
                eprintln!("error: {words}");
            }
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
    let command = match command {
        Command::Settings(SettingsCommand::Schema) => return commands::settings::schema(output),
        Command::Context(command) => return commands::context::run(connection, command, output),
        Command::Completion { shell } => return completion(shell),
        command => command,
    };
    let client = &mut connect::connect(connection)?;
    let done = call(client, command, output).await;
    done.map_err(|failure| failure.of_calling(client.address(), client.shows_certificate()))
}

async fn call(client: &mut Client, command: Command, output: Output) -> Result<(), Failure> {
    match command {
        Command::Apply(arguments) => commands::apply::run(client, &arguments, output).await,
        Command::Diff(arguments) => commands::apply::diff(client, arguments, output).await,
        Command::Get(arguments) => commands::get::run(client, &arguments, output).await,
        Command::Describe(arguments) => commands::describe::run(client, arguments, output).await,
        Command::Delete(arguments) => commands::delete::run(client, arguments, output).await,
        Command::Ban(arguments) => commands::ban::ban(client, arguments, output).await,
        Command::Unban(arguments) => commands::ban::unban(client, arguments, output).await,
        Command::Explain(arguments) => commands::explain::run(client, arguments, output).await,
        Command::Reset(arguments) => commands::reset::run(client, arguments, output).await,
        Command::Settings(command) => commands::settings::run(client, command, output).await,
        Command::Quota(command) => commands::quota::run(client, command, output).await,
        Command::Lease(command) => commands::lease::run(client, command, output).await,
        Command::Permit(command) => commands::permit::run(client, command, output).await,
        Command::Watch(arguments) => commands::watch::run(client, arguments, output).await,
        Command::Status => commands::status::run(client, output).await,
        // Asks no control plane.
        Command::Context(_) | Command::Completion { .. } => Ok(()),
    }
}

fn completion(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut written = Vec::new();
    let mut command = Arguments::command();
    clap_complete::generate(shell, &mut command, "tidegatectl", &mut written);
    let text = String::from_utf8(written).map_err(|error| Failure::Output(error.to_string()))?;
    output::write_line(text.trim_end())
}

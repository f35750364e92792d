//! `tidegate`: both planes in one process, with a database file and a hot store in memory. One binary, one YAML
//! file; enough for one machine. What it does is what the fleet does, over the same contract.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool; the demo is meant to be read"
)]

mod cli;
mod demo;
mod sealing_key;
mod standalone;

use std::process::ExitCode;

use clap::Parser as _;
use tidegate_proxy::Heartbeats;
use tidegate_telemetry::{LogOutput, TraceSettings, start_logging};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::{Arguments, Command, DemoArguments, RunArguments};
use crate::standalone::{Options, Standalone};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code for what is wrong with the command line (`EX_USAGE`), as of all our programs
/// (`docs/operations/command-line.md`).
const USAGE: u8 = 64;
/// Exit code for what is wrong with the configuration file (`EX_DATAERR`).
const DATA: u8 = 65;

/// What ends the program early.
enum Failure {
    /// The command line or the environment is wrong; nothing was started.
    Usage(anyhow::Error),
    /// The configuration is wrong; nothing was started.
    Configuration(anyhow::Error),
    /// Anything else.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers, not errors.
            let code = if error.use_stderr() { USAGE } else { 0 };
            return match error.print() {
                Ok(()) => ExitCode::from(code),
                Err(_unwritable) => ExitCode::FAILURE,
            };
        }
    };
    let ended = match arguments.command {
        Command::Run(arguments) => run(arguments).await,
        Command::Demo(arguments) => run_demo(arguments).await,
        Command::Validate { config } => validate(&config),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::from(USAGE)
        }
        Err(Failure::Configuration(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::from(DATA)
        }
        Err(Failure::Other(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: RunArguments) -> Result<(), Failure> {
    let RunArguments {
        config,
        listen,
        grpc_listen,
        data,
        admin_token,
        upstream_ca_file,
        drain_delay,
        grace,
        sse_heartbeat_interval_ms,
        sse_comments,
        otlp,
        propagate_trace_context,
        log,
        ready_file,
    } = arguments;
    start_logging(&log, LogOutput::Stderr).map_err(|error| Failure::Usage(error.into()))?;
    let traces = TraceSettings::from_environment(&otlp);
    let traces = traces.map_err(|error| Failure::Usage(error.into()))?;
    let loaded = standalone::load(&config).map_err(Failure::Configuration)?;
    let upstream_authorities = upstream_ca_file
        .map(|path| standalone::authorities(&path))
        .transpose()
        .map_err(Failure::Configuration)?
        .unwrap_or_default();
    let standalone = Standalone::start(
        Options {
            listen,
            grpc_listen,
            data,
            admin_token,
            require_key: standalone::key_is_required(),
            upstream_authorities,
            heartbeats: Heartbeats::every_ms(sse_heartbeat_interval_ms, sse_comments),
            traces,
            propagate_trace_context,
        },
        loaded,
    )
    .await?;
    if let Some(path) = ready_file {
        standalone.write_ready_file(&path)?;
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(anyhow::Error::from)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(anyhow::Error::from)?;
    tokio::select! {
        () = asked_to_end(&mut terminate, &mut interrupt) => {}
        failed = standalone.failed() => return Err(failed.into()),
    }
    tracing::info!(?drain_delay, ?grace, "draining");
    standalone.announce_drain();
    tokio::select! {
        () = tokio::time::sleep(drain_delay) => {}
        // Asked again: at once.
        () = asked_to_end(&mut terminate, &mut interrupt) => {}
        failed = standalone.failed() => return Err(failed.into()),
    }
    standalone.drain(grace).await;
    Ok(())
}

async fn asked_to_end(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

async fn run_demo(arguments: DemoArguments) -> Result<(), Failure> {
    start_logging("error", LogOutput::Stderr).map_err(|error| Failure::Usage(error.into()))?;
    Ok(demo::run(arguments).await?)
}

fn validate(config: &std::path::Path) -> Result<(), Failure> {
    standalone::load(config).map_err(Failure::Configuration)?;
    println!("{} is valid", config.display());
    Ok(())
}

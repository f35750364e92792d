//! Checks of the repository that no compiler does: which numbered vectors have a test, whether the crates
//! depend in the allowed directions, whether files stay small.
#![expect(
    clippy::print_stdout,
    reason = "a command line tool reports on standard output"
)]

mod files;
mod layers;
mod vectors;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <vectors|layers|files>

  vectors   per specification: how many of its numbered vectors have a test, and which do not
  layers    fail when a crate depends on one it must not know
  files     fail when a Rust file has more than 600 lines";

fn main() -> anyhow::Result<ExitCode> {
    let task = std::env::args().nth(1).unwrap_or_default();
    let passed = match task.as_str() {
        "vectors" => vectors::print()?,
        "layers" => layers::check()?,
        "files" => files::check()?,
        _ => {
            println!("{USAGE}");
            return Ok(ExitCode::from(64));
        }
    };
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

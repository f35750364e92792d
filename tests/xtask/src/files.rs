//! Files stay within one screenful of thought.

use std::process::Command;

use anyhow::{Context, ensure};

const MAX_LINES: usize = 600;

/// Fails when a Rust file under version control has more than [`MAX_LINES`] lines.
pub(crate) fn check() -> anyhow::Result<bool> {
    let output = Command::new("git")
        .args(["ls-files", "*.rs"])
        .output()
        .context("git ls-files")?;
    ensure!(output.status.success(), "git ls-files failed");
    let mut passed = true;
    for file in String::from_utf8_lossy(&output.stdout).lines() {
        // A file that was deleted and not yet committed is still listed.
        let Ok(text) = std::fs::read_to_string(file) else {
            continue;
        };
        let lines = text.lines().count();
        if lines > MAX_LINES {
            println!("{file}: {lines} lines, more than {MAX_LINES}");
            passed = false;
        }
    }
    Ok(passed)
}

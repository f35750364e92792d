//! Where Postgres is installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Debian keeps the servers of each version here, away from the PATH.
const VERSIONED: &str = "/usr/lib/postgresql";

/// The folder that holds `initdb` and `postgres`: of the newest Debian package, else from the PATH.
pub(super) fn find() -> Result<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(VERSIONED)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, folder)| is_complete(folder))
        .collect();
    versions.sort();
    if let Some((_, folder)) = versions.pop() {
        return Ok(folder);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).find(|folder| is_complete(folder)) {
        Some(folder) => Ok(folder),
        None => bail!("postgres is not installed: run tests/bootstrap/install.sh"),
    }
}

fn is_complete(folder: &Path) -> bool {
    folder.join("initdb").exists() && folder.join("postgres").exists()
}

//! Where cargo put us, and what we keep there between runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Where the workspace's binaries are, if not beside the test executable.
const BIN_DIR: &str = "TIDEGATE_BIN_DIR";

/// The folder with the workspace's binaries: `TIDEGATE_BIN_DIR`, else `target/<profile>` of the running executable.
///
/// # Errors
/// When the path of the running executable is not known.
pub fn bin_dir() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(BIN_DIR).filter(|value| !value.is_empty()) {
        return Ok(PathBuf::from(folder));
    }
    profile_dir()
}

fn profile_dir() -> Result<PathBuf> {
    let executable = std::env::current_exe().context("the path of this executable is not known")?;
    let folder = executable
        .parent()
        .context("this executable lies nowhere")?;
    // Tests lie in `deps`, examples in `examples`, binaries in the profile's folder itself.
    let inner = folder.ends_with("deps") || folder.ends_with("examples");
    let profile = if inner { folder.parent() } else { Some(folder) };
    Ok(profile
        .context("this executable is not in a target directory")?
        .to_owned())
}

/// `target/tidegate-test`, for what is dear to make: a Postgres template, a virtual environment.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let profile = profile_dir()?;
    let target = profile
        .parent()
        .context("this executable is not in a target directory")?;
    let folder = target.join("tidegate-test");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Waits for the lock `name` of the cache; it ends when the value is dropped, or with the process.
///
/// Blocks: call it where blocking is allowed.
pub(crate) fn lock_cache(folder: &Path, name: &str) -> Result<File> {
    let path = folder.join(format!("{name}.lock"));
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)?;
    file.lock()
        .with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

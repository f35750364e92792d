//! Temporary directories of a test process.
//!
//! All of them lie in roots of the process, which [`crate::lifeline`] removes after the process has gone, however it
//! went. Set `TIDEGATE_TEST_KEEP=1` to keep everything for a look at the logs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

use crate::lifeline::Lifeline;

static NEXT: AtomicU32 = AtomicU32::new(1);

/// Whether temporary directories survive, as the environment says.
pub(crate) fn keep_requested() -> bool {
    std::env::var_os("TIDEGATE_TEST_KEEP").is_some_and(|value| !value.is_empty() && value != "0")
}

/// A directory that goes when this value goes.
///
/// It may be entered by every user, since Postgres runs as another one when the tests run as root.
#[derive(Debug)]
pub struct ScratchDir {
    path: PathBuf,
}

impl ScratchDir {
    /// Makes `<root>/<purpose>-<number>`, in memory if the machine has room there.
    ///
    /// # Errors
    /// When the file system refuses, or the process has no lifeline.
    pub fn new(purpose: &str) -> Result<Self> {
        Self::below(Lifeline::of_process()?.fast_root(), purpose)
    }

    /// The same where the machine keeps temporary files: for what is to feel a disk.
    ///
    /// # Errors
    /// When the file system refuses, or the process has no lifeline.
    pub fn on_disk(purpose: &str) -> Result<Self> {
        Self::below(Lifeline::of_process()?.disk_root(), purpose)
    }

    fn below(root: &Path, purpose: &str) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("{purpose}-{number}"));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if !keep_requested() {
            // What cannot be removed now is removed with the root.
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

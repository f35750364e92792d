//! The lock that makes a database file belong to one process.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use tidegate_store::durable::DurableStoreError;

use super::beside;

/// Held as long as the value lives; the system frees it when the process ends in any way. The file stays, since
/// whoever deletes a lock file may delete another's lock.
#[derive(Debug)]
pub(super) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Takes the lock of the database at `path`, and makes an empty database if there is none. Both are readable by
    /// their owner alone: sealed or not, credentials are nobody else's.
    pub(super) fn take(path: &Path) -> Result<Self, DurableStoreError> {
        let file = open(&beside(path, ".lock"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DurableStoreError::Refused(format!(
                    "{} is in use by another process; a SQLite store serves one process only",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(unreachable(path, &error)),
        }
        open(path)?;
        Ok(Self { _file: file })
    }
}

fn open(path: &Path) -> Result<File, DurableStoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(path)
        .map_err(|error| unreachable(path, &error))
}

fn unreachable(path: &Path, error: &io::Error) -> DurableStoreError {
    DurableStoreError::Unreachable(format!("{}: {error}", path.display()))
}

//! The last snapshot on disk, so that a data plane can start while the control plane is away (decision 55).
//!
//! **The file holds credentials in the clear.** Sealing them would need a key on the same disk, so it is not
//! done; the file is readable for its owner only, and there is none unless a path is given. It is replaced
//! whole: written beside, synced, renamed. A file that cannot be read is no reason not to start.
//!
//! Hot state is not kept: when the process starts again it is older than what matters.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use prost::Message as _;
use tidegate_proto::config::v1::Snapshot;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::ClientMetrics;

/// First bytes of the file: what it is, and in which format.
const HEADER: &[u8] = b"tidegate snapshot 1\n";
/// Longest file that is read.
const MAX_BYTES: u64 = 256 * 1024 * 1024;
/// Readable and writable for the owner only.
const MODE: u32 = 0o600;

/// Why a file does not hold a snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not a snapshot in a format of this build")]
    Format,
    #[error("it is damaged: {0}")]
    Damaged(#[from] prost::DecodeError),
}

/// Reads a snapshot; `None` when there is no file.
pub(crate) fn read(path: &Path) -> Result<Option<Snapshot>, FileError> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let body = bytes.strip_prefix(HEADER).ok_or(FileError::Format)?;
    Ok(Some(Snapshot::decode(body)?))
}

/// Replaces the file.
pub(crate) fn write(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    // A file left over from a crash may have other rights.
    match std::fs::remove_file(&beside) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(&beside)?;
    file.write_all(HEADER)?;
    file.write_all(&snapshot.encode_to_vec())?;
    file.sync_all()?;
    drop(file);
    std::fs::rename(&beside, path)
}

/// Keeps the newest snapshot on disk until told to stop. What comes while a write lasts is written after it;
/// of several only the last.
pub(crate) async fn keep(
    path: PathBuf,
    mut newest: watch::Receiver<Option<Snapshot>>,
    metrics: ClientMetrics,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            changed = newest.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
        let Some(snapshot) = newest.borrow_and_update().clone() else {
            continue;
        };
        let target = path.clone();
        let written = tokio::task::spawn_blocking(move || write(&target, &snapshot)).await;
        let error = match written {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error,
            Err(error) => io::Error::other(error),
        };
        metrics.snapshot_file_errors.inc();
        tracing::error!(error = %error, path = %path.display(), "the snapshot is not kept on disk");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use tidegate_proto::config::v1::Credential;

    fn snapshot(version: u64) -> Snapshot {
        Snapshot {
            version,
            credentials: vec![Credential {
                connection: "main".to_owned(),
                version: 1,
                secret: b"hush".to_vec(),
            }],
            ..Snapshot::default()
        }
    }

    #[test]
    fn the_file_is_for_its_owner_only_and_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        assert!(read(&path).unwrap().is_none());
        // What a crash left behind, readable for all.
        std::fs::write(directory.path().join("snapshot.new"), "half").unwrap();
        for version in [1, 2] {
            write(&path, &snapshot(version)).unwrap();
            assert_eq!(read(&path).unwrap().unwrap(), snapshot(version));
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn foreign_and_damaged_files_are_told_apart_from_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        std::fs::write(&path, "something else").unwrap();
        assert!(matches!(read(&path), Err(FileError::Format)));
        let mut bytes = HEADER.to_vec();
        bytes.extend([0x0a, 0xff]);
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(read(&path), Err(FileError::Damaged(_))));
    }
}

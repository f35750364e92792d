//! The key that seals credentials: a file beside the database, made at the first start, readable by its owner.
//!
//! Losing the file means that stored credentials cannot be read any more; applying the configuration again stores
//! them anew. Keep it out of backups of the database.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use secrecy::SecretString;

/// Name of the file.
const FILE: &str = "sealing.key";

/// Reads the key of a data folder, or makes one.
pub(crate) fn load_or_make(folder: &Path) -> Result<SecretString> {
    let path = folder.join(FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(SecretString::from(text.trim())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => make(folder, &path),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn make(folder: &Path, path: &Path) -> Result<SecretString> {
    let mut key = [0_u8; 32];
    rand::fill(&mut key);
    let text = hex::encode(key);
    // Written whole before it has its name, so that a crash leaves no half key behind.
    let draft = folder.join(format!("{FILE}.{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)
        .with_context(|| draft.display().to_string())?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&draft, path).with_context(|| path.display().to_string())?;
    File::open(folder)?.sync_all()?;
    Ok(SecretString::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret as _;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_key_is_made_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = load_or_make(folder.path()).unwrap();
        let second = load_or_make(folder.path()).unwrap();
        assert_eq!(first.expose_secret(), second.expose_secret());
        assert_eq!(first.expose_secret().len(), 64);
        let mode = std::fs::metadata(folder.path().join(FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

//! The file that tells where this process listens, once it can serve.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Writes the addresses, whole or not at all.
pub(crate) fn write(path: &Path, addresses: &BTreeMap<&str, SocketAddr>) -> Result<()> {
    let text = serde_json::to_string(addresses).context("addresses as JSON")?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    std::fs::write(&beside, format!("{text}\n"))
        .and_then(|()| std::fs::rename(&beside, path))
        .with_context(|| format!("cannot write the ready file {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_holds_all_addresses_as_json() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ready.json");
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let addresses = [
            ("grpc", address(1)),
            ("http", address(2)),
            ("api", address(3)),
        ];
        write(&path, &BTreeMap::from(addresses)).unwrap();
        let read: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read["grpc"], "127.0.0.1:1");
        assert_eq!(read["http"], "127.0.0.1:2");
        assert_eq!(read["api"], "127.0.0.1:3");
    }
}

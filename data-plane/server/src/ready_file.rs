//! Tells whoever started the process where it listens, since a port of 0 means any.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Writes the addresses as a JSON object of name to address, whole or not at all.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(path: &Path, addresses: &BTreeMap<&str, SocketAddr>) -> Result<()> {
    let text = serde_json::to_vec(addresses).context("addresses as JSON")?;
    let unfinished = path.with_extension("unfinished");
    let what = || format!("the ready file {}", path.display());
    fs::write(&unfinished, text).with_context(what)?;
    fs::rename(&unfinished, path).with_context(what)
}

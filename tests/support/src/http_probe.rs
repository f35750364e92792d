//! The least HTTP client there is: one GET, its status.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A status line is not longer, in bytes.
const LONGEST_LINE: u64 = 1024;

/// The status of `GET path`. The caller sets the time limit.
///
/// # Errors
/// When nobody answers, or not in HTTP/1.
pub async fn http_status(addr: SocketAddr, path: &str) -> Result<u16> {
    let mut stream = TcpStream::connect(addr).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(stream)
        .take(LONGEST_LINE)
        .read_line(&mut line)
        .await?;
    let status = line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1));
    status
        .and_then(|status| status.parse().ok())
        .with_context(|| format!("not a status: {line:?}"))
}

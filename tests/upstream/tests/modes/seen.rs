//! A client that shows what is on the socket.

use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const MESSAGES: &str = "/v1/messages";
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// Long enough to see that nothing comes.
pub(crate) const QUIET: Duration = Duration::from_millis(150);

/// What a client sees on its socket.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The body came to the end that HTTP asks for.
    pub(crate) whole: bool,
}

impl Seen {
    pub(crate) fn status(&self) -> u16 {
        let code = self
            .head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok());
        code.unwrap_or_default()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(given, _)| *given == name)
            .map(|(_, value)| value)
    }
}

pub(crate) async fn send(addr: SocketAddr, path: &str, body: &Value) -> Result<TcpStream, Error> {
    let body = body.to_string();
    let method = if path == "/v1/models" { "GET" } else { "POST" };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: upstream\r\nauthorization: Bearer sk-test\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

pub(crate) async fn ask(addr: SocketAddr, path: &str, body: &Value) -> Result<Seen, Error> {
    let mut stream = send(addr, path, body).await?;
    let mut bytes = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut bytes)).await??;
    let cut = || Error::from(ErrorKind::UnexpectedEof);
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .ok_or_else(cut)?;
    let (head, body) = bytes.split_at(end + 4);
    let head = String::from_utf8_lossy(head).into_owned();
    let mut seen = Seen {
        head,
        body: body.to_vec(),
        whole: false,
    };
    if seen.header("transfer-encoding").is_some() {
        (seen.body, seen.whole) = dechunk(body);
    } else {
        let length = seen
            .header("content-length")
            .and_then(|length| length.parse().ok());
        seen.whole = length == Some(seen.body.len());
    }
    Ok(seen)
}

fn dechunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let (size, tail) = rest.split_at(end);
        let size = std::str::from_utf8(size)
            .ok()
            .and_then(|hex| usize::from_str_radix(hex, 16).ok());
        let data = tail.get(2..).unwrap_or_default();
        match size {
            Some(0) => return (body, true),
            Some(size) if size + 2 <= data.len() => {
                let (chunk, tail) = data.split_at(size);
                body.extend_from_slice(chunk);
                rest = tail.get(2..).unwrap_or_default();
            }
            _ => {
                body.extend_from_slice(data);
                break;
            }
        }
    }
    (body, false)
}

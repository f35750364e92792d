//! The Redis protocol (RESP2), as far as the harness itself needs it.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// No value that the harness asks for is longer, in bytes.
const LONGEST_VALUE: usize = 64 * 1024 * 1024;
/// Nor does an array have more members.
const LONGEST_ARRAY: usize = 1_000_000;

/// An answer of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RespValue {
    /// No value.
    Nil,
    /// A short text, such as `OK`.
    Status(String),
    /// The server refuses.
    Error(String),
    /// A whole number.
    Integer(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Several values.
    Array(Vec<Self>),
}

impl RespValue {
    /// A status or UTF-8 bytes as text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Status(text) => Some(text),
            Self::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Nil | Self::Error(_) | Self::Integer(_) | Self::Array(_) => None,
        }
    }

    /// A whole number, also when it comes as text.
    #[must_use]
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            other => other.as_text()?.parse().ok(),
        }
    }

    /// The members of an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(values) => Some(values),
            Self::Nil | Self::Status(_) | Self::Error(_) | Self::Integer(_) | Self::Bulk(_) => None,
        }
    }
}

/// One command on a connection of its own. The caller sets the time limit.
pub(super) async fn call(addr: SocketAddr, words: &[&str]) -> Result<RespValue> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes()).await?;
    read_value(&mut stream).await
}

type Reading<'a> = Pin<Box<dyn Future<Output = Result<RespValue>> + Send + 'a>>;

// Boxed because arrays hold values.
fn read_value(stream: &mut BufReader<TcpStream>) -> Reading<'_> {
    Box::pin(async move {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.strip_suffix("\r\n").context("the answer was cut")?;
        let mut characters = line.chars();
        let kind = characters.next().context("an empty answer")?;
        let rest = characters.as_str();
        Ok(match kind {
            '+' => RespValue::Status(rest.to_owned()),
            '-' => RespValue::Error(rest.to_owned()),
            ':' => RespValue::Integer(rest.parse()?),
            '$' => match length(rest, LONGEST_VALUE)? {
                None => RespValue::Nil,
                Some(length) => {
                    let mut bytes = vec![0; length];
                    stream.read_exact(&mut bytes).await?;
                    stream.read_exact(&mut [0; 2]).await?;
                    RespValue::Bulk(bytes)
                }
            },
            '*' => match length(rest, LONGEST_ARRAY)? {
                None => RespValue::Nil,
                Some(length) => {
                    let mut values = Vec::new();
                    for _ in 0..length {
                        values.push(read_value(stream).await?);
                    }
                    RespValue::Array(values)
                }
            },
            other => bail!("an answer of unknown kind {other:?}"),
        })
    })
}

/// A length; `None` for −1, which means "no value".
fn length(text: &str, limit: usize) -> Result<Option<usize>> {
    if text == "-1" {
        return Ok(None);
    }
    let length: usize = text.parse().context("a length that is no number")?;
    if length > limit {
        bail!("an answer of length {length}");
    }
    Ok(Some(length))
}

//! The few messages of the Postgres protocol that the harness itself needs: open a session, run SQL, read text rows.
//!
//! It keeps a database driver out of the harness, so that the tests of the driver's users are independent of it.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Protocol 3.0.
const PROTOCOL: i32 = 196_608;
/// No message that the harness asks for is longer, in bytes.
const LONGEST_MESSAGE: usize = 16 * 1024 * 1024;

/// A session with the server; it ends when dropped.
#[derive(Debug)]
pub(super) struct Session {
    stream: TcpStream,
}

/// Text columns of one row; `None` is NULL.
type Row = Vec<Option<String>>;

impl Session {
    /// Logs in without password. The caller sets the time limit.
    pub(super) async fn open(addr: SocketAddr, user: &str, database: &str) -> Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let mut session = Self { stream };
        let mut body = BytesMut::new();
        body.put_i32(PROTOCOL);
        for text in ["user", user, "database", database] {
            body.put_slice(text.as_bytes());
            body.put_u8(0);
        }
        body.put_u8(0);
        session.send(None, &body).await?;
        session.until_ready().await?;
        Ok(session)
    }

    /// Runs SQL (also several statements) and gives all rows.
    pub(super) async fn query(&mut self, sql: &str) -> Result<Vec<Row>> {
        let mut body = BytesMut::from(sql.as_bytes());
        body.put_u8(0);
        self.send(Some(b'Q'), &body).await?;
        self.until_ready().await
    }

    async fn send(&mut self, kind: Option<u8>, body: &[u8]) -> Result<()> {
        let mut message = BytesMut::with_capacity(body.len() + 5);
        message.extend(kind);
        message.put_i32(i32::try_from(body.len() + 4).context("the message is too long")?);
        message.put_slice(body);
        self.stream.write_all(&message).await?;
        Ok(())
    }

    async fn until_ready(&mut self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let mut refusal = None;
        loop {
            let (kind, mut body) = self.receive().await?;
            match kind {
                b'Z' => break,
                b'D' => rows.push(read_row(&mut body)?),
                b'E' => {
                    let text = read_error(&body);
                    // While it starts, the server says so and closes: there is no "ready" to wait for.
                    if text.contains("FATAL") {
                        bail!("{text}");
                    }
                    refusal = Some(text);
                }
                b'R' if body.try_get_i32().context("truncated message")? != 0 => {
                    bail!("the server asks for a password");
                }
                _ => {}
            }
        }
        match refusal {
            Some(text) => bail!("{text}"),
            None => Ok(rows),
        }
    }

    async fn receive(&mut self) -> Result<(u8, Bytes)> {
        let kind = self.stream.read_u8().await?;
        let length = usize::try_from(self.stream.read_i32().await?)?;
        let length = length.checked_sub(4).context("impossible length")?;
        if length > LONGEST_MESSAGE {
            bail!("a message of {length} bytes");
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok((kind, body.into()))
    }
}

fn read_row(body: &mut Bytes) -> Result<Row> {
    let columns = body.try_get_u16().context("truncated row")?;
    let mut row = Row::new();
    for _ in 0..columns {
        let length = body.try_get_i32().context("truncated row")?;
        let Ok(length) = usize::try_from(length) else {
            row.push(None);
            continue;
        };
        if length > body.remaining() {
            bail!("truncated row");
        }
        row.push(Some(
            String::from_utf8_lossy(&body.split_to(length)).into_owned(),
        ));
    }
    Ok(row)
}

/// Severity, SQLSTATE and message of an error.
fn read_error(body: &[u8]) -> String {
    let fields = body
        .split(|byte| *byte == 0)
        .filter_map(|field| field.split_first());
    let shown = fields.filter(|(code, _)| matches!(code, b'S' | b'C' | b'M'));
    let texts: Vec<_> = shown
        .map(|(_, text)| String::from_utf8_lossy(text))
        .collect();
    texts.join(" ")
}

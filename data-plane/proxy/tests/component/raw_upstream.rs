//! A provider that is only a socket, for what the fake one cannot do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::bench::LIMIT;

/// The head of a stream that ends when its connection does.
pub(crate) const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// Waits for one request at a time.
pub(crate) struct RawUpstream {
    listener: TcpListener,
}

/// A request that was read and is to be answered.
pub(crate) struct Asked {
    stream: TcpStream,
    /// What the kernel has taken of the answer, in bytes.
    pub(crate) written: Arc<AtomicU64>,
}

impl RawUpstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.addr())
    }

    /// The next request, head and body.
    pub(crate) async fn asked(&self) -> Asked {
        let accepted = tokio::time::timeout(LIMIT, self.listener.accept()).await;
        let (mut stream, _) = accepted.expect("a request in time").unwrap();
        stream.set_nodelay(true).unwrap();
        let mut read = Vec::new();
        loop {
            assert!(
                stream.read_buf(&mut read).await.unwrap() > 0,
                "a whole request"
            );
            let text = String::from_utf8_lossy(&read);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length")
                        .then(|| value.trim())
                });
                if body.len() >= length.unwrap_or("0").parse().unwrap() {
                    break;
                }
            }
        }
        Asked {
            stream,
            written: Arc::default(),
        }
    }
}

impl Asked {
    /// Writes, in whatever pieces the kernel takes. False when the other side is gone.
    pub(crate) async fn write(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.stream.write(bytes).await {
                Ok(length) if length > 0 => {
                    bytes = &bytes[length..];
                    let length = u64::try_from(length).unwrap();
                    self.written.fetch_add(length, Ordering::Relaxed);
                }
                _ => return false,
            }
        }
        true
    }
}

//! One direction of a connection: a reader that stamps what it reads, and a writer that passes it on when it is due.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::{Direction, Faults};

/// Read at once, in bytes.
const CHUNK: usize = 16 * 1024;
/// Chunks under way; when so many wait, the reader stops reading and the sender feels it.
const UNDER_WAY: usize = 64;

enum Piece {
    Data(Bytes),
    End,
    Broken(io::Error),
}

/// Passes bytes on until the end of `from`, then ends `to`.
///
/// The error is either side's; the caller then breaks the whole connection. Even an error waits while the direction is
/// frozen: a frozen network tells nobody anything.
pub(super) async fn pump(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    faults: watch::Receiver<Faults>,
    direction: Direction,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(UNDER_WAY);
    let reading = read(from, sender, faults.clone());
    let writing = write(to, receiver, faults, direction);
    tokio::join!(reading, writing).1
}

async fn read(
    mut from: impl AsyncRead + Unpin,
    pieces: mpsc::Sender<(Instant, Piece)>,
    faults: watch::Receiver<Faults>,
) {
    loop {
        let mut buffer = BytesMut::with_capacity(CHUNK);
        let piece = match from.read_buf(&mut buffer).await {
            Ok(0) => Piece::End,
            Ok(_) => Piece::Data(buffer.freeze()),
            Err(error) => Piece::Broken(error),
        };
        let last = !matches!(piece, Piece::Data(_));
        let due = Instant::now() + faults.borrow().delay;
        // The writer goes only after an error of its own.
        if pieces.send((due, piece)).await.is_err() || last {
            return;
        }
    }
}

async fn write(
    mut to: impl AsyncWrite + Unpin,
    mut pieces: mpsc::Receiver<(Instant, Piece)>,
    mut faults: watch::Receiver<Faults>,
    direction: Direction,
) -> io::Result<()> {
    while let Some((due, piece)) = pieces.recv().await {
        sleep_until(due).await;
        faults
            .wait_for(|faults| !faults.frozen(direction))
            .await
            .map_err(io::Error::other)?;
        match piece {
            Piece::Data(bytes) => to.write_all(&bytes).await?,
            Piece::End => return to.shutdown().await,
            Piece::Broken(error) => return Err(error),
        }
    }
    Ok(())
}

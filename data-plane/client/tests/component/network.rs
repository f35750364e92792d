//! Connections that can be cut. A connection made before a cut stays dead after the repair, as one of a peer
//! that vanished: nothing arrives, and nobody says so.

use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use tidegate_plane_client::endpoint::{Address, ByteStream, Dial};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// A network with one switch.
#[derive(Clone)]
pub(crate) struct Network {
    state: watch::Sender<State>,
}

#[derive(Clone, Copy)]
struct State {
    whole: bool,
    /// How often it was cut: a cut counts also when it is repaired before anybody looks.
    cuts: u64,
}

impl Network {
    pub(crate) fn new() -> Self {
        Self {
            state: watch::Sender::new(State {
                whole: true,
                cuts: 0,
            }),
        }
    }

    /// Nothing arrives any more.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| {
            state.whole = false;
            state.cuts += 1;
        });
    }

    /// New connections can be made again.
    pub(crate) fn repair(&self) {
        self.state.send_modify(|state| state.whole = true);
    }

    /// The same peer, reached over this network.
    pub(crate) fn over(&self, address: Address) -> Address {
        let Address::Dialled { name, dial } = address else {
            panic!("only dialled addresses go over a simulated network");
        };
        Address::Dialled {
            name,
            dial: Arc::new(Wire {
                network: self.clone(),
                dial,
            }),
        }
    }
}

struct Wire {
    network: Network,
    dial: Arc<dyn Dial>,
}

impl Dial for Wire {
    fn dial(&self) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let mut state = self.network.state.subscribe();
        let dialling = self.dial.dial();
        Box::pin(async move {
            let State { whole, cuts } = *state.borrow_and_update();
            if !whole {
                // Nobody answers, and the caller's time limit runs.
                std::future::pending::<()>().await;
            }
            let theirs = dialling.await?;
            let (ours, end) = tokio::io::duplex(64 * 1024);
            let (mut from_us, mut to_us) = tokio::io::split(end);
            let (mut from_them, mut to_them) = tokio::io::split(theirs);
            TaskTracker::new().spawn(async move {
                let carried = async {
                    tokio::join!(
                        carry(&mut from_us, &mut to_them),
                        carry(&mut from_them, &mut to_us)
                    );
                };
                let is_cut = tokio::select! {
                    () = carried => false,
                    cut = async { state.wait_for(|state| state.cuts != cuts).await.is_ok() } => cut,
                };
                if is_cut {
                    // Both ends stay open and hear nothing.
                    std::future::pending::<()>().await;
                }
                drop((from_us, to_us, from_them, to_them));
            });
            let ours: Box<dyn ByteStream> = Box::new(ours);
            Ok(ours)
        })
    }
}

async fn carry(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count) = from.read(&mut buffer).await {
        let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else {
            break;
        };
        if to.write_all(read).await.is_err() {
            break;
        }
    }
    // The other side learns of the end as over a real connection; an error means that it is gone already.
    drop(to.shutdown().await);
}

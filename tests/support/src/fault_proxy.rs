//! A TCP proxy that makes the network bad.
//!
//! It stands between a client and any server on the loopback interface and can
//! - **delay** each byte, each way, without limiting the throughput;
//! - **cut**: connections end with a reset, new ones are reset at once;
//! - **freeze**: nothing passes, not even the end of a connection, and nobody is told. That is what a vanished machine or
//!   a dropped route looks like. One direction alone may freeze: frozen answers are the case "the write ran, but nobody
//!   heard of it";
//! - **resume**: what was held passes, in order.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod pump;

use pump::pump;

/// Pause after a failed accept (mostly: no file descriptors), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One way through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// What is wrong with the network now.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    delay: Duration,
    cut: bool,
    frozen_to_server: bool,
    frozen_to_client: bool,
    /// Connections made under a lower number are to end.
    generation: u64,
}

impl Faults {
    fn frozen(&self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.frozen_to_server,
            Direction::ToClient => self.frozen_to_client,
        }
    }
}

#[derive(Debug)]
struct Shared {
    target: Mutex<SocketAddr>,
    faults: watch::Sender<Faults>,
    accepted: AtomicUsize,
    open: AtomicUsize,
}

/// A running proxy; it and its connections end when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

impl FaultProxy {
    /// Listens on a free loopback port and forwards to `target`.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            faults: watch::Sender::new(Faults::default()),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        });
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        tasks.spawn(accept(
            listener,
            Arc::clone(&shared),
            tasks.clone(),
            stop.clone(),
        ));
        Ok(Self { addr, shared, stop })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Forwards new connections to another server.
    pub fn retarget(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }

    /// Delays what is read from now on by this much, each way: the round trip grows by twice as much.
    pub fn set_delay(&self, each_way: Duration) {
        self.change(|faults| faults.delay = each_way);
    }

    /// Resets all connections, and each new one at once, until [`Self::resume`].
    pub fn cut(&self) {
        self.change(|faults| faults.cut = true);
    }

    /// Resets the connections of now; new ones work.
    pub fn reset_connections(&self) {
        self.change(|faults| faults.generation += 1);
    }

    /// Lets nothing pass either way, until [`Self::resume`]. New connections are accepted.
    pub fn freeze(&self) {
        self.change(|faults| {
            faults.frozen_to_server = true;
            faults.frozen_to_client = true;
        });
    }

    /// Lets nothing pass in this direction, until [`Self::resume`].
    pub fn freeze_direction(&self, direction: Direction) {
        self.change(|faults| match direction {
            Direction::ToServer => faults.frozen_to_server = true,
            Direction::ToClient => faults.frozen_to_client = true,
        });
    }

    /// Ends cut and freeze; a delay stays.
    pub fn resume(&self) {
        self.change(|faults| {
            faults.cut = false;
            faults.frozen_to_server = false;
            faults.frozen_to_client = false;
        });
    }

    /// Connections accepted since the start.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Connections open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    fn change(&self, change: impl FnOnce(&mut Faults)) {
        self.shared.faults.send_modify(change);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((client, _)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        let stop = stop.clone();
        tasks.spawn(async move {
            shared.open.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                () = stop.cancelled() => {}
                () = forward(client, &shared) => {}
            }
            shared.open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

async fn forward(mut client: TcpStream, shared: &Shared) {
    let mut faults = shared.faults.subscribe();
    let generation = faults.borrow().generation;
    let mut ends = shared.faults.subscribe();
    let ended = async {
        // The sender lives as long as `shared`, so this does not fail.
        drop(
            ends.wait_for(|faults| faults.cut || faults.generation != generation)
                .await,
        );
    };
    tokio::pin!(ended);
    // A connection made while frozen is open for the client, and the server knows nothing of it.
    let connecting = async {
        let thawed = faults
            .wait_for(|faults| !faults.frozen(Direction::ToServer))
            .await;
        thawed.map(drop).map_err(io::Error::other)?;
        let target = *shared.target.lock();
        TcpStream::connect(target).await
    };
    let server = tokio::select! {
        () = &mut ended => None,
        server = connecting => server.ok(),
    };
    let Some(mut server) = server else {
        return reset(client);
    };
    let orderly = tokio::select! {
        () = ended => false,
        result = tunnel(&mut client, &mut server, shared) => result.is_ok(),
    };
    if !orderly {
        reset(client);
        reset(server);
    }
}

fn reset(stream: TcpStream) {
    // With a lingering time of zero, close sends a reset. If it is refused, the peer sees an ordinary end.
    drop(stream.set_zero_linger());
    drop(stream);
}

async fn tunnel(client: &mut TcpStream, server: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    let up = pump(
        client_reads,
        server_writes,
        shared.faults.subscribe(),
        Direction::ToServer,
    );
    let down = pump(
        server_reads,
        client_writes,
        shared.faults.subscribe(),
        Direction::ToClient,
    );
    tokio::try_join!(up, down).map(drop)
}

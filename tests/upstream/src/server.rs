//! The listener: start, stop, and what can be changed while it runs.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use parking_lot::RwLock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::behaviour::{Behaviour, Rules};
use crate::connection::{ConnectionState, ObservedStream};
use crate::handle::{Shared, handle};
use crate::log::RequestLog;
use crate::mode::Mode;
use crate::reply::Reply;
use crate::selector::Selector;
use crate::window::Window;

/// Connections served at once; further ones wait in the kernel's queue.
const MOST_CONNECTIONS: usize = 8192;
/// Requests at once on a connection over HTTP/2: no fewer than any client has there.
const MOST_STREAMS: u32 = 4096;
/// Requests kept by default.
const USUAL_LOG: usize = 1024;
/// How long running answers may take to end after a stop.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// Pause after a failed accept (mostly: no file descriptors), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How to start a [`FakeUpstream`].
#[derive(Debug, Clone)]
pub struct FakeUpstreamBuilder {
    name: String,
    models: Vec<String>,
    only_known_models: bool,
    needs_credential: bool,
    log_capacity: usize,
    reply: Reply,
    bind: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
}

impl Default for FakeUpstreamBuilder {
    fn default() -> Self {
        Self {
            name: "fake".to_owned(),
            models: vec!["fake-model".to_owned()],
            only_known_models: false,
            needs_credential: true,
            log_capacity: USUAL_LOG,
            reply: Reply::default(),
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            tls: None,
        }
    }
}

impl FakeUpstreamBuilder {
    /// A name that shows in `system_fingerprint` and in the list of models. Default `fake`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The models it lists; requests for others get 404. By default it lists `fake-model` and takes any.
    #[must_use]
    pub fn models<S: Into<String>>(mut self, models: impl IntoIterator<Item = S>) -> Self {
        self.models = models.into_iter().map(Into::into).collect();
        self.only_known_models = true;
        self
    }

    /// Whether a request without credential gets 401. Default true.
    #[must_use]
    pub fn needs_credential(mut self, needs: bool) -> Self {
        self.needs_credential = needs;
        self
    }

    /// How many requests are kept (the counts are exact all the same). Default 1024; 0 keeps none.
    #[must_use]
    pub fn log_capacity(mut self, requests: usize) -> Self {
        self.log_capacity = requests;
        self
    }

    /// How good answers look.
    #[must_use]
    pub fn reply(mut self, reply: Reply) -> Self {
        self.reply = reply;
        self
    }

    /// Where to listen. Default 127.0.0.1, any free port.
    #[must_use]
    pub fn bind(mut self, addr: SocketAddr) -> Self {
        self.bind = addr;
        self
    }

    /// Behind TLS, as `localhost`; with clients that agree on it (ALPN) it speaks HTTP/2. There, what breaks a connection off
    /// in the middle of an answer resets that answer's stream and no other. [`Mode::Raw`] and [`Mode::Informational`] are
    /// for plain connections only.
    #[must_use]
    pub fn https(mut self, config: Arc<ServerConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// Starts listening.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(self) -> io::Result<FakeUpstream> {
        let listener = TcpListener::bind(self.bind).await?;
        let addr = listener.local_addr()?;
        let origin = match self.tls {
            Some(_) => format!("https://localhost:{}", addr.port()),
            None => format!("http://{addr}"),
        };
        let shared = Arc::new(Shared {
            name: self.name,
            models: self.models,
            only_known_models: self.only_known_models,
            needs_credential: self.needs_credential,
            rules: Rules::default(),
            log: Arc::new(RequestLog::new(self.log_capacity)),
            reply: RwLock::new(Arc::new(self.reply)),
            headers: RwLock::default(),
            window: RwLock::default(),
        });
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        tasks.spawn(accept(
            listener,
            self.tls.map(TlsAcceptor::from),
            Arc::clone(&shared),
            tasks.clone(),
            stop.clone(),
        ));
        tasks.close();
        Ok(FakeUpstream {
            addr,
            origin,
            shared,
            tasks,
            stop,
        })
    }
}

/// A running fake provider; it stops when dropped.
#[derive(Debug)]
pub struct FakeUpstream {
    addr: SocketAddr,
    origin: String,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl FakeUpstream {
    /// Starts one with the defaults of the builder.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start() -> io::Result<Self> {
        Self::builder().start().await
    }

    /// For another start than the usual one.
    #[must_use]
    pub fn builder() -> FakeUpstreamBuilder {
        FakeUpstreamBuilder::default()
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://127.0.0.1:PORT`, as the Anthropic SDK wants it; `https://localhost:PORT` behind TLS.
    #[must_use]
    pub fn origin(&self) -> String {
        self.origin.clone()
    }

    /// The same with `/v1`, as the OpenAI SDK wants it.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.origin)
    }

    /// From now on treats the requests that `selector` matches like this: a [`Mode`], a list of modes (a script) or a
    /// [`Behaviour`]. The most specific selector decides; the same selector again replaces.
    pub fn set(&self, selector: Selector, behaviour: impl Into<Behaviour>) {
        self.shared.rules.set(selector, behaviour.into());
    }

    /// [`Self::set`] for all requests that no more specific selector matches.
    pub fn set_default(&self, mode: Mode) {
        self.set(Selector::any(), mode);
    }

    /// Everything is well again.
    pub fn heal(&self) {
        self.shared.rules.clear();
    }

    /// How good answers look from now on.
    pub fn set_reply(&self, reply: Reply) {
        *self.shared.reply.write() = Arc::new(reply);
    }

    /// Headers on all answers but those to requests that nothing could be made of, such as `x-ratelimit-remaining-…`.
    pub fn set_headers(&self, headers: Vec<(String, String)>) {
        *self.shared.headers.write() = Arc::new(headers);
    }

    /// Keeps a limit on all requests from now on, over whatever else happens to them.
    pub fn set_window(&self, window: &Window) {
        *self.shared.window.write() = Some(window.clone());
    }

    /// What it was asked.
    #[must_use]
    pub fn log(&self) -> &RequestLog {
        &self.shared.log
    }

    /// Stops listening, lets running answers end (at most 2 s) and waits for that.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

impl Drop for FakeUpstream {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let next = async {
            // The semaphore is never closed.
            let permit = Arc::clone(&room).acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = stop.cancelled() => return,
            next = next => next,
        };
        let Ok((stream, _)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let connection = serve(stream, tls.clone(), Arc::clone(&shared), stop.clone());
        tasks.spawn(async move {
            connection.await;
            drop(permit);
        });
    }
}

async fn serve(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    stop: CancellationToken,
) {
    // Without it the pieces of a stream wait for acknowledgements. It fails only on a dead socket.
    drop(stream.set_nodelay(true));
    let state = Arc::new(ConnectionState::default());
    let service = {
        let state = Arc::clone(&state);
        service_fn(move |request| handle(Arc::clone(&shared), Arc::clone(&state), request))
    };
    let mut http1 = http1::Builder::new();
    http1.timer(TokioTimer::new()).header_read_timeout(None);
    let stream = ObservedStream::new(stream, Arc::clone(&state));
    let Some(tls) = tls else {
        let connection = http1.serve_connection(TokioIo::new(stream), service);
        return until_stopped(connection, &stop).await;
    };
    // Who does not agree has left.
    let Some(Ok(stream)) = stop.run_until_cancelled(tls.accept(stream)).await else {
        return;
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        state.multiplexes();
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MOST_STREAMS)
            .serve_connection(TokioIo::new(stream), service);
        until_stopped(connection, &stop).await;
    } else {
        let connection = http1.serve_connection(TokioIo::new(stream), service);
        until_stopped(connection, &stop).await;
    }
}

/// Serves a connection. How it ends is the client's or the mode's affair.
async fn until_stopped(connection: impl GracefulConnection, stop: &CancellationToken) {
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => drop(ended),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            drop(tokio::time::timeout(STOP_GRACE, connection).await);
        }
    }
}

//! An upstream behind TLS with HTTP/2, whose certificate is signed by an authority of its own. It writes frames by hand
//! (RFC 9113), since no server library refuses a stream or goes away in the middle of one on demand.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tidegate_proxy::UpstreamAuthorities;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

/// One useful event of a chat.
pub(crate) const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"ahoy\"}}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// A whole stream.
    Answer,
    /// An event, and then nothing.
    Begin,
    /// An event; the rest comes when the token is cancelled.
    AnswerLater(CancellationToken),
    /// The stream is refused: it was not processed.
    Refuse,
    /// The connection goes away before this stream: it was not processed.
    GoAwayBefore,
    /// An event, the connection goes away after this stream, and then the rest of the answer.
    GoAwayAfter,
    /// The stream is reset as an internal error before any answer.
    Fail,
    /// An event, and then a reset.
    Reset,
    /// The connection dies.
    Die,
}

/// What was asked of it: for each request the number of its connection, from 0.
#[derive(Debug, Default)]
struct Seen {
    requests: Vec<usize>,
    connections: usize,
}

/// See the module's documentation. Ends when dropped.
#[derive(Debug)]
pub(crate) struct TlsUpstream {
    addr: SocketAddr,
    pub(crate) authorities: UpstreamAuthorities,
    seen: Arc<Mutex<Seen>>,
    _stop: DropGuard,
}

/// A certificate for `localhost` and who signed it.
pub(crate) fn certificate(protocols: &[&[u8]]) -> (ServerConfig, UpstreamAuthorities) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let provider = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key.into())
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    (
        config,
        UpstreamAuthorities::from_pem(pem.as_bytes()).unwrap(),
    )
}

impl TlsUpstream {
    /// Each request, by its number from 0, is treated as `acts` says. Its connections allow so many streams.
    pub(crate) async fn start(
        max_streams: u32,
        acts: impl Fn(usize) -> Act + Send + Sync + 'static,
    ) -> Self {
        let (config, authorities) = certificate(&[b"h2"]);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let shared = (Arc::clone(&seen), Arc::new(acts));
        let (accepting, all) = (stop.clone(), tasks.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (seen, acts) = (Arc::clone(&shared.0), Arc::clone(&shared.1));
                let acceptor = acceptor.clone();
                let serving = async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let number = {
                        let mut seen = seen.lock();
                        seen.connections += 1;
                        seen.connections - 1
                    };
                    let connection = Connection { stream, seen, acts };
                    // The client may be gone at any moment.
                    let _gone = connection.serve(number, max_streams).await;
                };
                all.spawn(accepting.clone().run_until_cancelled_owned(serving));
            }
        }));
        Self {
            addr,
            authorities,
            seen,
            _stop: stop.drop_guard(),
        }
    }

    pub(crate) fn base_url(&self) -> String {
        format!("https://localhost:{}/v1", self.addr.port())
    }

    pub(crate) fn requests(&self) -> usize {
        self.seen.lock().requests.len()
    }

    /// The number of each request's connection.
    pub(crate) fn connections_of_requests(&self) -> Vec<usize> {
        self.seen.lock().requests.clone()
    }
}

struct Connection<F> {
    stream: TlsStream<TcpStream>,
    seen: Arc<Mutex<Seen>>,
    acts: Arc<F>,
}

impl<F: Fn(usize) -> Act> Connection<F> {
    async fn serve(mut self, number: usize, max_streams: u32) -> std::io::Result<()> {
        let mut preface = [0; 24];
        self.stream.read_exact(&mut preface).await?;
        let mut settings = vec![0, 3];
        settings.extend(max_streams.to_be_bytes());
        self.write(SETTINGS, 0, 0, &settings).await?;
        let mut later: Vec<(u32, CancellationToken)> = Vec::new();
        loop {
            let waiting = later.clone();
            let next = async {
                let waits = waiting.iter().map(|(_, token)| Box::pin(token.cancelled()));
                if waiting.is_empty() {
                    std::future::pending().await
                } else {
                    futures::future::select_all(waits).await.1
                }
            };
            let mut head = [0; 9];
            tokio::select! {
                place = next => {
                    let (stream, _) = later.remove(place);
                    self.write(DATA, END_STREAM, stream, DONE.as_bytes()).await?;
                    continue;
                }
                read = self.stream.read_exact(&mut head) => { read?; }
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let mut payload = vec![0; length];
            self.stream.read_exact(&mut payload).await?;
            match kind {
                SETTINGS if flags & ACK == 0 => self.write(SETTINGS, ACK, 0, &[]).await?,
                PING if flags & ACK == 0 => self.write(PING, ACK, 0, &payload).await?,
                HEADERS | DATA if flags & END_STREAM != 0 => {
                    let request = {
                        let mut seen = self.seen.lock();
                        seen.requests.push(number);
                        seen.requests.len() - 1
                    };
                    if kind == DATA {
                        // What was taken is given back, so that windows never end.
                        let taken = 16_384_u32.to_be_bytes();
                        self.write(WINDOW_UPDATE, 0, 0, &taken).await?;
                    }
                    match (self.acts)(request) {
                        Act::AnswerLater(token) => {
                            self.begin(stream).await?;
                            later.push((stream, token));
                        }
                        Act::Die => return Ok(()),
                        act => self.act(stream, act).await?,
                    }
                }
                _ => {}
            }
        }
    }

    async fn act(&mut self, stream: u32, act: Act) -> std::io::Result<()> {
        let reset = |code: u32| code.to_be_bytes();
        match act {
            Act::Answer => {
                self.begin(stream).await?;
                self.write(DATA, END_STREAM, stream, DONE.as_bytes()).await
            }
            Act::Begin => self.begin(stream).await,
            Act::Refuse => {
                self.write(RST_STREAM, 0, stream, &reset(REFUSED_STREAM))
                    .await
            }
            Act::Fail => {
                self.write(RST_STREAM, 0, stream, &reset(INTERNAL_ERROR))
                    .await
            }
            Act::Reset => {
                self.begin(stream).await?;
                self.write(RST_STREAM, 0, stream, &reset(INTERNAL_ERROR))
                    .await
            }
            Act::GoAwayBefore => self.go_away(stream.saturating_sub(2)).await,
            Act::GoAwayAfter => {
                self.begin(stream).await?;
                self.go_away(stream).await?;
                self.write(DATA, END_STREAM, stream, DONE.as_bytes()).await
            }
            Act::AnswerLater(_) | Act::Die => Ok(()),
        }
    }

    async fn begin(&mut self, stream: u32) -> std::io::Result<()> {
        // `:status: 200` by its place in the static table, and `content-type` written out (RFC 7541).
        let kind = b"text/event-stream";
        let mut block = vec![0x88, 0x0f, 0x10, u8::try_from(kind.len()).unwrap()];
        block.extend(kind);
        self.write(HEADERS, END_HEADERS, stream, &block).await?;
        self.write(DATA, 0, stream, EVENT.as_bytes()).await
    }

    async fn go_away(&mut self, last: u32) -> std::io::Result<()> {
        let mut payload = last.to_be_bytes().to_vec();
        payload.extend([0; 4]);
        self.write(GOAWAY, 0, 0, &payload).await
    }

    async fn write(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> std::io::Result<()> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.stream.write_all(&frame).await?;
        self.stream.flush().await
    }
}

//! The one place where a gRPC channel is made.
//!
//! A channel that keeps using a dead HTTP/2 connection never recovers: every later call times out, also long
//! after the network is whole again. Keep-alive pings, sent while idle too, notice it (decision 56). So every
//! channel of the product, `tidegatectl`'s included, is made by [`channel`], and nothing else may call
//! `Endpoint::connect`.
//!
//! Channels connect when they are first used and reconnect by themselves. They carry the token that planes
//! share, if there is one, with every call.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tower::service_fn;

/// Bytes in flight each way of an in-process connection.
const IN_PROCESS_BUFFER_BYTES: usize = 64 * 1024;
/// In-process connections that wait for being accepted.
const IN_PROCESS_BACKLOG: usize = 16;
/// What an in-process connection calls its peer.
const IN_PROCESS_AUTHORITY: &str = "http://in-process";

/// How channels behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSettings {
    /// Between two keep-alive pings.
    pub keep_alive_interval: Duration,
    /// How long a ping may go unanswered before the connection is given up.
    pub keep_alive_timeout: Duration,
    /// Name resolution, dialling and TLS together.
    pub connect_timeout: Duration,
}

impl Default for ChannelSettings {
    fn default() -> Self {
        Self {
            keep_alive_interval: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
        }
    }
}

/// Certificates for mutual TLS between the planes, all in PEM.
#[derive(Clone, Default)]
pub struct TlsSettings {
    /// Who may have signed the control plane's certificate. Unset: the roots of the web.
    pub ca_certificate: Option<Vec<u8>>,
    /// Our certificate and its key. Unset: we show none.
    pub identity: Option<(Vec<u8>, SecretString)>,
    /// Name the control plane's certificate must bear. Unset: the host of the address.
    pub domain: Option<String>,
}

impl fmt::Debug for TlsSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TlsSettings")
            .field("own_ca", &self.ca_certificate.is_some())
            .field("identity", &self.identity.is_some())
            .field("domain", &self.domain)
            .finish()
    }
}

/// A connection as bytes.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// Makes connections by other means than TCP: within the process, or over a simulated network.
pub trait Dial: Send + Sync + 'static {
    /// Makes one connection.
    fn dial(&self) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>>;
}

/// Where a control plane is.
#[derive(Clone)]
pub enum Address {
    /// `http://host:port`, or `https://host:port` with [`TlsSettings`].
    Tcp(Uri),
    /// Behind a dialler of our own.
    Dialled {
        /// For logs and metrics.
        name: String,
        /// Makes the connections.
        dial: Arc<dyn Dial>,
    },
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Address({self})")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(uri) => uri.fmt(formatter),
            Self::Dialled { name, .. } => formatter.write_str(name),
        }
    }
}

/// Reads an address: `http://host:port` or `https://host:port`. The port may be left out, and is then that of the scheme.
///
/// # Errors
/// What else it is. What calls would not use (a path, a query, a user) is refused, since whoever wrote it means something
/// by it.
pub fn parse_address(text: &str) -> Result<Uri, AddressError> {
    let address: Uri = text.parse().map_err(|_| AddressError)?;
    check_address(&address)?;
    Ok(address)
}

fn check_address(address: &Uri) -> Result<(), AddressError> {
    let is_known = matches!(address.scheme_str(), Some("http" | "https"));
    let is_host_and_port = address.authority().is_some_and(|authority| {
        let rest = authority.as_str().strip_prefix(authority.host());
        !authority.host().is_empty()
            && (rest == Some("") || authority.port_u16().is_some())
            && rest.is_some()
    });
    let is_bare = matches!(address.path(), "" | "/") && address.query().is_none();
    if is_known && is_host_and_port && is_bare {
        Ok(())
    } else {
        Err(AddressError)
    }
}

/// A text is no address of a control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be of the form http://host:port or https://host:port")]
pub struct AddressError;

/// Why a channel cannot be made. Only configuration can be wrong: an unreachable peer shows when it is called.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The address is not of the form `http://host:port` or `https://host:port`.
    #[error("the address {0} is not of the form http://host:port or https://host:port")]
    Address(Uri),
    /// The certificates cannot be used.
    #[error("the certificates cannot be used: {0}")]
    Tls(#[from] tonic::transport::Error),
    /// The shared token holds characters that a header cannot.
    #[error("the shared token holds characters that a header cannot")]
    Token,
}

/// A channel to a control plane that shows the shared token.
pub type PlaneChannel = InterceptedService<Channel, Bearer>;

/// Adds the shared token to every call.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl fmt::Debug for Bearer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("Bearer")
            .field(&self.0.is_some())
            .finish()
    }
}

impl Interceptor for Bearer {
    fn call(
        &mut self,
        mut request: tonic::Request<()>,
    ) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(token) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Makes a channel. It connects when it is first used.
///
/// # Errors
/// [`ChannelError`] when address, certificates or token cannot be used at all.
pub fn channel(
    address: &Address,
    settings: &ChannelSettings,
    tls: Option<&TlsSettings>,
    token: Option<&SecretString>,
) -> Result<PlaneChannel, ChannelError> {
    let channel = match address {
        Address::Tcp(uri) => tcp(uri, settings, tls)?,
        Address::Dialled { dial, .. } => dialled(Arc::clone(dial), settings),
    };
    Ok(InterceptedService::new(channel, bearer(token)?))
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one constructor of channels, and it sets keep-alive"
)]
fn tcp(
    uri: &Uri,
    settings: &ChannelSettings,
    tls: Option<&TlsSettings>,
) -> Result<Channel, ChannelError> {
    check_address(uri).map_err(|_| ChannelError::Address(uri.clone()))?;
    let secure = uri.scheme_str() == Some("https");
    let mut endpoint = configured(Endpoint::from(uri.clone()), settings).tcp_nodelay(true);
    if secure {
        endpoint = endpoint.tls_config(client_tls(tls))?;
    }
    Ok(endpoint.connect_lazy())
}

fn dialled(dial: Arc<dyn Dial>, settings: &ChannelSettings) -> Channel {
    let connector = service_fn(move |_: Uri| {
        let connecting = dial.dial();
        async move { connecting.await.map(TokioIo::new) }
    });
    configured(Endpoint::from_static(IN_PROCESS_AUTHORITY), settings)
        .connect_with_connector_lazy(connector)
}

fn configured(endpoint: Endpoint, settings: &ChannelSettings) -> Endpoint {
    endpoint
        .http2_keep_alive_interval(settings.keep_alive_interval)
        .keep_alive_timeout(settings.keep_alive_timeout)
        .keep_alive_while_idle(true)
        .connect_timeout(settings.connect_timeout)
}

fn client_tls(tls: Option<&TlsSettings>) -> ClientTlsConfig {
    let mut config = ClientTlsConfig::new();
    config = match tls.and_then(|tls| tls.ca_certificate.as_ref()) {
        Some(pem) => config.ca_certificate(Certificate::from_pem(pem)),
        None => config.with_webpki_roots(),
    };
    if let Some((certificate, key)) = tls.and_then(|tls| tls.identity.as_ref()) {
        config = config.identity(Identity::from_pem(certificate, key.expose_secret()));
    }
    if let Some(domain) = tls.and_then(|tls| tls.domain.as_ref()) {
        config = config.domain_name(domain);
    }
    config
}

fn bearer(token: Option<&SecretString>) -> Result<Bearer, ChannelError> {
    let Some(token) = token else {
        return Ok(Bearer(None));
    };
    let mut value = MetadataValue::try_from(format!("Bearer {}", token.expose_secret()))
        .map_err(|_| ChannelError::Token)?;
    value.set_sensitive(true);
    Ok(Bearer(Some(value)))
}

// === In process ===

/// Both planes in one process: what the dialler dials, the listener accepts. `name` is for logs and metrics.
#[must_use]
pub fn in_process(name: &str) -> (Address, ReceiverStream<io::Result<DuplexStream>>) {
    let (sender, receiver) = mpsc::channel(IN_PROCESS_BACKLOG);
    let address = Address::Dialled {
        name: name.to_owned(),
        dial: Arc::new(InProcess { sender }),
    };
    (address, ReceiverStream::new(receiver))
}

struct InProcess {
    sender: mpsc::Sender<io::Result<DuplexStream>>,
}

impl Dial for InProcess {
    fn dial(&self) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let sender = self.sender.clone();
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(IN_PROCESS_BUFFER_BYTES);
            sender
                .send(Ok(theirs))
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
            let ours: Box<dyn ByteStream> = Box::new(ours);
            Ok(ours)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(address: &'static str) -> ChannelError {
        let address = Address::Tcp(Uri::from_static(address));
        channel(&address, &ChannelSettings::default(), None, None).unwrap_err()
    }

    #[test]
    fn addresses_without_scheme_or_host_are_refused_at_once() {
        assert!(matches!(refused("control:7001"), ChannelError::Address(_)));
        assert!(matches!(
            refused("redis://control:7001"),
            ChannelError::Address(_)
        ));
    }

    #[test]
    fn an_address_is_a_scheme_a_host_and_a_port_and_nothing_else() {
        for good in [
            "http://127.0.0.1:7400",
            "https://control.example",
            "http://[::1]:7400/",
        ] {
            assert!(parse_address(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "control",
            "control:7400",
            "/path",
            "ftp://control:7400",
            "http://:7400",
            "http://user@control:7400",
            "http://control:7400/path",
            "http://control:7400?query",
            "not an address",
            "http://control:99999",
        ] {
            assert!(parse_address(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_token_that_no_header_can_hold_is_refused_and_none_is_shown() {
        let address = Address::Tcp(Uri::from_static("http://127.0.0.1:1"));
        let settings = ChannelSettings::default();
        let bad = SecretString::from("line\nbreak");
        assert!(matches!(
            channel(&address, &settings, None, Some(&bad)),
            Err(ChannelError::Token)
        ));
        let good = SecretString::from("hush-hush");
        let made = bearer(Some(&good)).unwrap();
        assert!(!format!("{made:?}").contains("hush"));
        assert!(channel(&address, &settings, None, Some(&good)).is_ok());
    }
}

//! The listener for the contract.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tidegate_core::management::MAX_MANAGEMENT_BYTES;
use tokio_rustls::TlsAcceptor;

use super::{Answer, Asked, Rest};

/// Limit of reading a request's body.
const BODY_LIMIT: Duration = Duration::from_secs(10);
/// A body that is too long is still read for this long and this many bytes.
const COURTESY_LIMIT: Duration = Duration::from_secs(2);
const COURTESY_BYTES: usize = 16 * 1024 * 1024;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer");
const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// Certificates of the listener for the contract.
#[derive(Clone)]
pub struct ApiTls(pub(crate) TlsAcceptor);

impl std::fmt::Debug for ApiTls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ApiTls")
    }
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ApiTlsError {
    /// A PEM file does not hold what it should.
    #[error("the {what} cannot be read: {source}")]
    Pem {
        /// What it should hold.
        what: &'static str,
        /// Why it does not.
        source: rustls::pki_types::pem::Error,
    },
    /// They do not fit together.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// Nobody could be verified by the authority of callers.
    #[error("the authority of callers cannot be used: {0}")]
    Authority(#[from] rustls::server::VerifierBuilderError),
}

impl ApiTls {
    /// Our certificate with its key, and who signs the certificates of callers, which are asked for then.
    ///
    /// # Errors
    /// [`ApiTlsError`]
    pub fn from_pem(
        certificate: &[u8],
        key: &[u8],
        client_authority: Option<&[u8]>,
    ) -> Result<Self, ApiTlsError> {
        let key = PrivateKeyDer::from_pem_reader(Cursor::new(key)).map_err(|source| {
            ApiTlsError::Pem {
                what: "key of our certificate",
                source,
            }
        })?;
        let chain = certificates("certificate of our own", certificate)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match client_authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for root in certificates("authority of callers", authority)? {
                    roots.add(root)?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build()?)
            }
        };
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

fn certificates(
    what: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, ApiTlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(Cursor::new(pem)).collect();
    let read = read.map_err(|source| ApiTlsError::Pem { what, source })?;
    if read.is_empty() {
        let source = rustls::pki_types::pem::Error::NoItemsFound;
        return Err(ApiTlsError::Pem { what, source });
    }
    Ok(read)
}

/// Reads a request, has it answered, and writes the answer.
pub(crate) async fn respond(rest: Rest, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let asked = Asked {
        method: head.method.as_str(),
        path: head.uri.path(),
        authorization: shown(&head.headers),
        remaining_ms: None,
        not_after: None,
    };
    let answer = rest.answer(asked, read(body)).await;
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, NO_STORE);
    if answer.status != StatusCode::NO_CONTENT {
        headers.insert(CONTENT_TYPE, JSON);
    }
    if answer.status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, CHALLENGE);
    }
    if let Some(allow) = answer.allow {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    if answer.closes {
        headers.insert(CONNECTION, CLOSE);
    }
    response
}

/// The one `Authorization` header, as text.
fn shown(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()
}

/// What a client is told whose body was not read.
fn refused(status: StatusCode, code: &str, message: &str) -> Answer {
    Answer {
        closes: true,
        ..Answer::refused(status, code, message)
    }
}

/// Why a body was not read.
enum Unread {
    TooLong,
    Broken,
}

/// The whole body, within its limits.
async fn read(mut body: Incoming) -> Result<Bytes, Answer> {
    let unread = match tokio::time::timeout(BODY_LIMIT, collect(&mut body)).await {
        Ok(Ok(whole)) => return Ok(whole),
        Ok(Err(unread)) => unread,
        Err(_elapsed) => {
            let message = "the body did not arrive in time";
            let status = StatusCode::REQUEST_TIMEOUT;
            return Err(refused(status, "body_timeout", message));
        }
    };
    Err(match unread {
        Unread::TooLong => {
            discard(body).await;
            let message = format!("the body is longer than {MAX_MANAGEMENT_BYTES} bytes");
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            refused(status, "body_too_large", &message)
        }
        Unread::Broken => {
            let message = "the body could not be read";
            refused(StatusCode::BAD_REQUEST, "body_broken", message)
        }
    })
}

async fn collect(body: &mut Incoming) -> Result<Bytes, Unread> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Unread::Broken)?;
        if let Ok(data) = frame.into_data() {
            if whole.len().saturating_add(data.len()) > MAX_MANAGEMENT_BYTES {
                return Err(Unread::TooLong);
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}

/// Reads on for a while: a client that is cut off while it writes may never read why.
async fn discard(mut body: Incoming) {
    let mut left = COURTESY_BYTES;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            left = left.saturating_sub(length);
            if left == 0 {
                break;
            }
        }
    };
    // Whether it ended or time was up, the answer is the same.
    let _courtesy = tokio::time::timeout(COURTESY_LIMIT, reading).await;
}

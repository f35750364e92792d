//! What modes are over HTTP/2, where a stream ends and not the connection.
#![expect(
    clippy::unwrap_used,
    reason = "what is set up here does not fail, and a test that cannot be set up should say where"
)]

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, KeyPair};
use tidegate_fake_upstream::{FakeUpstream, Mode, Selector};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto};
use tokio_util::task::TaskTracker;

use crate::seen::CHAT;

/// An upstream behind TLS, and a connection to it over HTTP/2.
async fn connected() -> (FakeUpstream, SendRequest<Full<Bytes>>) {
    let key = KeyPair::generate().unwrap();
    let names = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = names.self_signed(&key).unwrap().der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    let upstream = FakeUpstream::builder().https(Arc::new(server));
    let upstream = upstream.start().await.unwrap();
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(upstream.addr()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(client)).connect(name, stream);
    let io = TokioIo::new(stream.await.unwrap());
    let (sender, connection) = handshake(TokioExecutor::new(), io).await.unwrap();
    TaskTracker::new().spawn(connection);
    (upstream, sender)
}

async fn ask(
    sender: &SendRequest<Full<Bytes>>,
    addr: SocketAddr,
    model: &str,
) -> Result<Response<Incoming>, hyper::Error> {
    let body = format!(r#"{{"model":"{model}","stream":true,"messages":[]}}"#);
    let request = Request::post(format!("https://localhost:{}{CHAT}", addr.port()))
        .header("authorization", "Bearer sk-test")
        .body(Full::from(body))
        .unwrap();
    sender.clone().send_request(request).await
}

#[tokio::test]
async fn a_cut_resets_the_stream_behind_exactly_so_much_and_leaves_the_connection() {
    const CUT: usize = 700;
    let (upstream, sender) = connected().await;
    upstream.set(
        Selector::any().model("cut"),
        Mode::ResetAfter { bytes: CUT },
    );
    upstream.set(Selector::any().model("reset"), Mode::Reset);
    for _ in 0..20 {
        let mut body = ask(&sender, upstream.addr(), "cut")
            .await
            .unwrap()
            .into_body();
        let mut length = 0;
        let error = loop {
            match body.frame().await.expect("a reset") {
                Ok(frame) => length += frame.into_data().unwrap().len(),
                Err(error) => break error,
            }
        };
        assert_eq!(length, CUT, "{error:?}");
    }
    assert!(ask(&sender, upstream.addr(), "reset").await.is_err());
    let whole = ask(&sender, upstream.addr(), "well").await.unwrap();
    let whole = whole.into_body().collect().await.unwrap().to_bytes();
    assert!(whole.ends_with(b"data: [DONE]\n\n"));
    assert!(upstream.origin().starts_with("https://localhost:"));
    let requests = upstream.log().requests(&Selector::any());
    assert_eq!(requests.len(), 22);
}

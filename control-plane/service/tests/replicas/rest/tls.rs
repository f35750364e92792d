//! The listener behind TLS.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tidegate_control::plane::{ApiTls, ApiTlsError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::fleet::within;

use super::guarded;

/// An authority, and a certificate for `localhost` that it signed.
struct Signed {
    authority: rcgen::Certificate,
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Signed {
    fn new() -> Self {
        let authority_key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).unwrap();
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = leaf.signed_by(&key, &issuer).unwrap();
        Self {
            authority,
            certificate,
            key,
        }
    }

    fn listens(&self, client_authority: Option<&str>) -> Result<ApiTls, ApiTlsError> {
        ApiTls::from_pem(
            self.certificate.pem().as_bytes(),
            self.key.serialize_pem().as_bytes(),
            client_authority.map(str::as_bytes),
        )
    }

    fn connector(&self, shows_certificate: bool) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = if shows_certificate {
            let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
            let chain = vec![self.certificate.der().clone()];
            builder.with_client_auth_cert(chain, key.into()).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        TlsConnector::from(Arc::new(config))
    }
}

#[tokio::test]
async fn certificates_are_shown_and_those_of_callers_asked_for() {
    let (fleet, replica, _http) = guarded().await;
    let signed = Signed::new();
    let authority = signed.authority.pem();
    for (client_authority, shows, is_answered) in [
        (None, false, true),
        (Some(authority.as_str()), true, true),
        (Some(authority.as_str()), false, false),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = signed.listens(client_authority).unwrap();
        fleet.run(replica.plane.serve_api(listener, Some(tls)));
        let answer = within("an answer", async {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let mut stream = signed.connector(shows).connect(name, stream).await?;
            let request = b"GET /api/monitoring/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            stream.write_all(request).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        })
        .await;
        let is_200 = answer.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"));
        assert_eq!(is_200, is_answered, "{client_authority:?} {shows}");
    }
}

#[test]
fn files_that_hold_something_else_are_refused() {
    let (one, other) = (Signed::new(), Signed::new());
    let pem = |signed: &Signed| (signed.certificate.pem(), signed.key.serialize_pem());
    let ((certificate, key), (_, wrong_key)) = (pem(&one), pem(&other));
    for (certificate, key, authority, what) in [
        ("", key.as_str(), None, "certificate of our own"),
        (certificate.as_str(), "", None, "key of our certificate"),
        (key.as_str(), key.as_str(), None, "certificate of our own"),
        (
            certificate.as_str(),
            key.as_str(),
            Some("x"),
            "authority of callers",
        ),
        (certificate.as_str(), wrong_key.as_str(), None, ""),
    ] {
        let authority = authority.map(str::as_bytes);
        let refused = ApiTls::from_pem(certificate.as_bytes(), key.as_bytes(), authority);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(what), "{refused}");
        assert!(!refused.contains("PRIVATE"), "{refused}");
    }
}

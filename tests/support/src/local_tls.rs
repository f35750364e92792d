//! TLS for fake providers on this machine.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

use crate::scratch::ScratchDir;

/// A certificate for `localhost`, and in a file the authority that signed it, which is there as long as this value.
#[derive(Debug)]
pub struct LocalTls {
    server: Arc<ServerConfig>,
    folder: ScratchDir,
}

impl LocalTls {
    /// Makes both.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn new() -> Result<Self> {
        let authority_key = KeyPair::generate()?;
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate()?;
        let leaf = CertificateParams::new(vec!["localhost".to_owned()])?;
        let leaf = leaf.signed_by(&key, &issuer)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let mut server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key.into())?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let folder = ScratchDir::new("tls")?;
        let tls = Self {
            server: Arc::new(server),
            folder,
        };
        std::fs::write(tls.authority_file(), pem)?;
        Ok(tls)
    }

    /// For a server that speaks HTTP/2 and HTTP/1.1.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// The authority as PEM, for `--upstream-ca-file`.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The same as a variable of a fleet's environment.
    #[must_use]
    pub fn env(&self) -> (String, String) {
        let file = self.authority_file().display().to_string();
        ("TIDEGATE_UPSTREAM_CA_FILE".to_owned(), file)
    }
}

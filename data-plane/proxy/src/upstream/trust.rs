//! Whose certificates upstreams may show.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Certificate authorities that are trusted besides the roots of the web: a company's own, for models that it hosts or
/// where its proxies look into TLS.
#[derive(Clone, Debug, Default)]
pub struct UpstreamAuthorities(Vec<CertificateDer<'static>>);

/// Why authorities cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AuthoritiesError {
    /// The PEM text is broken.
    #[error("it is not valid PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// A certificate cannot be an authority.
    #[error("a certificate cannot be used: {0}")]
    Certificate(#[from] rustls::Error),
    /// There is none.
    #[error("it holds no certificate")]
    Empty,
}

impl UpstreamAuthorities {
    /// Reads all certificates of a PEM text.
    ///
    /// # Errors
    /// [`AuthoritiesError`]; each certificate must be usable.
    pub fn from_pem(text: &[u8]) -> Result<Self, AuthoritiesError> {
        let certificates: Vec<_> =
            CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>()?;
        if certificates.is_empty() {
            return Err(AuthoritiesError::Empty);
        }
        let authorities = Self(certificates);
        authorities.roots()?;
        Ok(authorities)
    }

    fn roots(&self) -> Result<RootCertStore, rustls::Error> {
        let mut roots = RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        };
        for certificate in &self.0 {
            roots.add(certificate.clone())?;
        }
        Ok(roots)
    }

    /// How TLS is spoken with upstreams.
    pub(super) fn tls(&self) -> Result<ClientConfig, rustls::Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        Ok(ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots()?)
            .with_no_client_auth())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_no_certificate_is_refused() {
        let read = |text: &str| UpstreamAuthorities::from_pem(text.as_bytes());
        assert!(matches!(read(""), Err(AuthoritiesError::Empty)));
        let cut = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        assert!(matches!(read(cut), Err(AuthoritiesError::Pem(_))));
        let other = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(read(other), Err(AuthoritiesError::Certificate(_))));
    }
}

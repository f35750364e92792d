//! Why a control plane was not reached, and what may help.
//!
//! A library says `transport error` whether nobody listens, a certificate is wrong or the scheme is; what it is stands in
//! the causes behind it.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError, InvalidMessage};

/// Most causes that are followed.
const MAX_CAUSES: usize = 16;
/// For a control plane that knows callers by their certificates.
const NO_CERTIFICATE: &str =
    "if it asks for a certificate of who calls, give one with --cert-file and --key-file";

/// All causes in one line, each once: what repeats the one before is left out.
pub(super) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut told: Vec<String> = Vec::new();
    for cause in chain(error) {
        let words = cause.to_string();
        if told.last().is_none_or(|last| !last.contains(&words)) {
            told.push(words);
        }
    }
    told.join(": ")
}

/// What may help a call of this address, which showed a certificate or none.
pub(super) fn hint(
    error: &(dyn Error + 'static),
    address: &http::Uri,
    shows_certificate: bool,
) -> Option<&'static str> {
    let is_secure = address.scheme_str() == Some("https");
    let found = chain(error).find_map(|cause| {
        let inner = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        inner.or_else(|| cause.downcast_ref::<rustls::Error>())
    });
    match found {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            Some("it does not speak TLS there: an address that begins with http:// may be meant")
        }
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            Some(NO_CERTIFICATE)
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            Some("name who signed its certificate with --ca-file")
        }
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Some("name whom its certificate is for with --tls-domain, if that is who is meant"),
        Some(_) => None,
        None if !broke_off(error) => None,
        None if !is_secure => Some("if it speaks TLS there, the address must begin with https://"),
        // The alert that says so is often lost with the connection.
        None if !shows_certificate => Some(NO_CERTIFICATE),
        None => None,
    }
}

/// Somebody took the connection, and ended it instead of answering. Once it stands, HTTP/2 keeps only the words of its end.
fn broke_off(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|cause| {
        let broken = cause.downcast_ref::<io::Error>().is_some_and(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof
            )
        });
        let words = cause.to_string();
        broken
            || cause.downcast_ref::<h2::Error>().is_some()
            || words.contains("connection closed")
            || words.contains("CertificateRequired")
    })
}

fn behind<'a>(error: &&'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let error: &'a (dyn Error + 'static) = *error;
    error.source()
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), behind).take(MAX_CAUSES)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn over_io(error: rustls::Error) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }

    #[rstest]
    #[case::plain_behind_https(
        over_io(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)),
        "https://a:1",
        Some("http://")
    )]
    #[case::no_certificate_shown(
        over_io(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)),
        "https://a:1",
        Some("--cert-file")
    )]
    #[case::an_authority_of_its_own(over_io(CertificateError::UnknownIssuer.into()), "https://a:1", Some("--ca-file"))]
    #[case::another_name(over_io(CertificateError::NotValidForName.into()), "https://a:1", Some("--tls-domain"))]
    #[case::expired(over_io(CertificateError::Expired.into()), "https://a:1", None)]
    #[case::tls_behind_http(
        h2::Error::from(h2::Reason::FRAME_SIZE_ERROR),
        "http://a:1",
        Some("https://")
    )]
    #[case::closed_at_once(
        io::Error::from(io::ErrorKind::ConnectionReset),
        "http://a:1",
        Some("https://")
    )]
    #[case::closed_within_tls(
        io::Error::from(io::ErrorKind::ConnectionReset),
        "https://a:1",
        Some("--cert-file")
    )]
    #[case::nobody_listens(io::Error::from(io::ErrorKind::ConnectionRefused), "http://a:1", None)]
    fn what_helps_depends_on_the_cause(
        #[case] error: impl Error + 'static,
        #[case] address: &'static str,
        #[case] expected: Option<&str>,
    ) {
        let found = hint(&error, &http::Uri::from_static(address), false);
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        assert!(
            found
                .unwrap_or_default()
                .contains(expected.unwrap_or_default())
        );
    }

    #[test]
    fn who_showed_a_certificate_is_not_asked_for_one() {
        let closed = io::Error::from(io::ErrorKind::BrokenPipe);
        let address = http::Uri::from_static("https://a:1");
        assert_eq!(hint(&closed, &address, true), None);
    }

    #[test]
    fn causes_are_told_once_each() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Outer(&'static str, #[source] io::Error);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(
            causes(&Outer("transport error", refused())),
            "transport error: connection refused"
        );
        assert_eq!(
            causes(&Outer("connection refused", refused())),
            "connection refused"
        );
    }
}

//! Bearer tokens.
//!
//! **Stance:** fail-closed. A service with a token answers nobody without it. Without any token configured the service is
//! open, which the server allows on loopback listeners only ([`crate::plane::ListenError`]).

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use secrecy::{ExposeSecret as _, SecretString};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use super::error::Refusal;

const SCHEME: &str = "bearer ";

/// Asks for a token.
#[derive(Clone)]
pub(super) struct Guard {
    /// Digest of the token, so that comparing takes the same time whatever is sent.
    digest: Option<Arc<[u8]>>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Guard")
            .field("asks", &self.digest.is_some())
            .finish()
    }
}

impl Guard {
    pub(super) fn new(token: Option<&SecretString>) -> Self {
        let digest = token
            .map(|token| Arc::from(digest(&SHA256, token.expose_secret().as_bytes()).as_ref()));
        Self { digest }
    }

    fn admits(&self, header: Option<&str>) -> bool {
        let Some(wanted) = &self.digest else {
            return true;
        };
        let token = header.and_then(|header| {
            let (scheme, token) = header.split_at_checked(SCHEME.len())?;
            scheme.eq_ignore_ascii_case(SCHEME).then_some(token.trim())
        });
        token.is_some_and(|token| {
            let given = digest(&SHA256, token.as_bytes());
            verify_slices_are_equal(wanted, given.as_ref()).is_ok()
        })
    }
}

impl Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let header = request
            .metadata()
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        if self.admits(header) {
            Ok(request)
        } else {
            Err(Refusal::Unauthenticated.status("a valid bearer token is needed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::right(Some("Bearer secret"), true)]
    #[case::scheme_in_any_case(Some("bEARER  secret "), true)]
    #[case::wrong(Some("Bearer secreT"), false)]
    #[case::prefix(Some("Bearer secre"), false)]
    #[case::without_scheme(Some("secret"), false)]
    #[case::other_scheme(Some("Basic secret"), false)]
    #[case::not_on_a_character_boundary(Some("Beare\u{20ac}secret"), false)]
    #[case::none(None, false)]
    fn only_the_token_is_admitted(#[case] header: Option<&str>, #[case] admitted: bool) {
        let guard = Guard::new(Some(&SecretString::from("secret")));
        assert_eq!(guard.admits(header), admitted);
    }

    #[test]
    fn without_a_token_everybody_is_admitted() {
        assert!(Guard::new(None).admits(None));
    }
}

//! One question to a quota endpoint.
//!
//! **Secrets:** the credential is in a header that is marked as sensitive; nothing that the endpoint says is logged.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use secrecy::{ExposeSecret as _, SecretString};
use tidegate_core::classify::retry_after_ms;
use tidegate_core::config::{Protocol, QuotaAuthentication, QuotaEndpoint};
use tidegate_core::telemetry::QuotaSnapshot;
use tidegate_core::telemetry::quota::{self, NotUnderstood};
use tidegate_core::time::Timestamp;

use crate::clock::local_now;
use crate::outbound::{Answer, Limits, NoAnswer, Outbound};
use crate::telemetry::metrics::QuotaPoll;

/// Longest answer that is read, in bytes.
const MAX_BODY_BYTES: usize = 256 * 1024;
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
/// Sent when the configuration names none; the API refuses requests without one.
const DEFAULT_ANTHROPIC_VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    pub(super) endpoint: &'a QuotaEndpoint,
    /// Of the provider.
    pub(super) protocol: Protocol,
    pub(super) credential: Option<&'a SecretString>,
}

/// Why nothing was told. Nothing of the answer is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotTold {
    #[error("TLS cannot be set up")]
    Tls,
    #[error("the question cannot be written: its URL or its credential is not usable")]
    Unsendable,
    #[error("the endpoint could not be reached")]
    Unreachable,
    #[error("the endpoint did not answer in time")]
    Timeout,
    #[error("the answer is too large")]
    TooLarge,
    #[error("the endpoint answered with status {status}")]
    Status {
        status: StatusCode,
        /// How long it wants to be left alone, in ms.
        wait_ms: Option<u64>,
    },
    #[error("the answer is not understood: {0}")]
    NotUnderstood(#[from] NotUnderstood),
    #[error("there is no room for what was told")]
    NoRoom,
}

impl From<NoAnswer> for NotTold {
    fn from(error: NoAnswer) -> Self {
        match error {
            NoAnswer::Tls => Self::Tls,
            NoAnswer::Unreachable => Self::Unreachable,
            NoAnswer::Timeout => Self::Timeout,
            NoAnswer::TooLarge => Self::TooLarge,
        }
    }
}

impl NotTold {
    pub(super) fn label(self) -> QuotaPoll {
        match self {
            Self::Tls | Self::Unsendable | Self::NoRoom => QuotaPoll::OwnFault,
            Self::Unreachable => QuotaPoll::Unreachable,
            Self::Timeout => QuotaPoll::Timeout,
            Self::TooLarge => QuotaPoll::TooLarge,
            Self::NotUnderstood(_) => QuotaPoll::NotUnderstood,
            Self::Status { status, .. } if status.is_redirection() => QuotaPoll::Redirected,
            Self::Status { status, .. } => match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => QuotaPoll::Refused,
                StatusCode::TOO_MANY_REQUESTS => QuotaPoll::Limited,
                _ => QuotaPoll::Status,
            },
        }
    }

    /// How long the endpoint wants to be left alone, in ms.
    pub(super) fn wait_ms(self) -> Option<u64> {
        match self {
            Self::Status { wait_ms, .. } => wait_ms,
            Self::Tls
            | Self::Unsendable
            | Self::Unreachable
            | Self::Timeout
            | Self::TooLarge
            | Self::NotUnderstood(_)
            | Self::NoRoom => None,
        }
    }
}

/// Asks once; `now` is the store's time.
pub(super) async fn ask(
    outbound: &Outbound,
    question: &Question<'_>,
    now: impl Fn() -> Timestamp,
) -> Result<QuotaSnapshot, NotTold> {
    let endpoint = question.endpoint;
    let uri: Uri = endpoint.url.parse().map_err(|_| NotTold::Unsendable)?;
    let request = request(question, &uri)?;
    let limits = Limits {
        deadline: local_now() + Duration::from_millis(endpoint.timeout_ms),
        grace: Duration::ZERO,
        body_bytes: MAX_BODY_BYTES,
    };
    let answer = outbound.ask(uri, request, limits).await?;
    read(endpoint, &answer, now())
}

fn request(question: &Question<'_>, uri: &Uri) -> Result<Request<Full<Bytes>>, NotTold> {
    let authority = uri.authority().ok_or(NotTold::Unsendable)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::get(path)
        .body(Full::default())
        .map_err(|_| NotTold::Unsendable)?;
    let unsendable = |_| NotTold::Unsendable;
    let headers = request.headers_mut();
    let host = HeaderValue::try_from(authority.as_str()).map_err(unsendable)?;
    headers.insert(HOST, host);
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    for (name, value) in &question.endpoint.headers {
        let name: HeaderName = name.parse().map_err(|_| NotTold::Unsendable)?;
        headers.insert(name, HeaderValue::try_from(value).map_err(unsendable)?);
    }
    show_credential(question, headers)?;
    Ok(request)
}

fn show_credential(question: &Question<'_>, headers: &mut HeaderMap) -> Result<(), NotTold> {
    let as_bearer = match question.endpoint.authentication {
        QuotaAuthentication::None => return Ok(()),
        QuotaAuthentication::Bearer => true,
        QuotaAuthentication::Provider => question.protocol == Protocol::Openai,
    };
    let secret = question.credential.ok_or(NotTold::Unsendable)?;
    let secret = secret.expose_secret();
    let (name, value) = if as_bearer {
        let value = HeaderValue::try_from(format!("Bearer {secret}"));
        (AUTHORIZATION, value)
    } else {
        headers
            .entry(ANTHROPIC_VERSION)
            .or_insert(DEFAULT_ANTHROPIC_VERSION);
        (X_API_KEY, HeaderValue::try_from(secret))
    };
    let mut value = value.map_err(|_| NotTold::Unsendable)?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(())
}

fn read(
    endpoint: &QuotaEndpoint,
    answer: &Answer,
    now: Timestamp,
) -> Result<QuotaSnapshot, NotTold> {
    let status = answer.status;
    if status == StatusCode::OK {
        return Ok(quota::of_answer(endpoint, &answer.body, now)?);
    }
    let retry_after = answer.headers.get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok());
    let wait_ms = retry_after.and_then(|value| retry_after_ms(value.trim(), now));
    Err(NotTold::Status { status, wait_ms })
}

#[cfg(test)]
mod tests;

//! The refresh-token grant of OAuth 2.0 at a token endpoint (RFC 6749 §6).
//!
//! One connection for each request, no redirect, no second try ([`crate::outbound`]): a refresh token may be good for one
//! use, so that who asks must know whether it was used. **Limits:** the deadline of the caller, until which the request must be on its
//! way; the answer is waited for until then too, and a moment longer ([`ANSWER_GRACE`]), since a process that was
//! stopped finds its timers and the answer ready at once, and the answer is worth more. **Secrets:** what an endpoint
//! says beyond the codes of the standard may repeat what it was sent, so it goes nowhere.

use std::time::{Duration, Instant};

use base64::Engine as _;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tidegate_core::config::{ClientAuthentication, OauthClient};

use crate::outbound::{Limits, NoAnswer, Outbound};

/// Longest answer that is read.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Longest token that is taken; an access token has to fit into a request header.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// How much longer than the deadline an answer is waited for whose request is on its way.
pub(super) const ANSWER_GRACE: Duration = Duration::from_millis(500);

/// What a token is asked for with.
#[derive(Debug)]
pub(super) struct Grant<'a> {
    pub(super) client: &'a OauthClient,
    /// The connection's own client, else the provider's.
    pub(super) client_id: Option<&'a str>,
    pub(super) client_secret: Option<&'a SecretString>,
    pub(super) refresh_token: &'a SecretString,
}

/// What came.
#[derive(Debug)]
pub(super) struct Issued {
    pub(super) access_token: SecretString,
    /// The refresh token from now on; none = the one that was used.
    pub(super) refresh_token: Option<SecretString>,
    /// How long the access token lives, in ms, if the endpoint said so.
    pub(super) life_ms: Option<u64>,
}

/// Why none came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotIssued {
    #[error("TLS cannot be set up")]
    Tls,
    #[error("the token endpoint could not be reached")]
    Unreachable,
    #[error("the token endpoint did not answer in time")]
    Timeout,
    #[error("the token endpoint refused: {0}")]
    Refused(&'static str),
    #[error("the token endpoint answered with status {0}")]
    Status(u16),
    #[error("the answer of the token endpoint is too large")]
    TooLarge,
    #[error("the answer of the token endpoint is not understood")]
    NotUnderstood,
}

impl NotIssued {
    /// As a fixed word, for history.
    pub(super) fn cause(self) -> String {
        match self {
            Self::Tls => "tls".to_owned(),
            Self::Unreachable => "unreachable".to_owned(),
            Self::Timeout => "timeout".to_owned(),
            Self::Refused(code) => code.to_owned(),
            Self::Status(status) => format!("status_{status}"),
            Self::TooLarge => "answer_too_large".to_owned(),
            Self::NotUnderstood => "answer_not_understood".to_owned(),
        }
    }
}

/// Errors of RFC 6749 §5.2.
const CODES: [&str; 6] = [
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
];

/// A good answer (RFC 6749 §5.1). Some endpoints write the life as text.
#[derive(Deserialize)]
struct Answer {
    access_token: SecretString,
    token_type: Option<String>,
    refresh_token: Option<SecretString>,
    expires_in: Option<Life>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Life {
    Number(f64),
    Text(String),
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

impl From<NoAnswer> for NotIssued {
    fn from(error: NoAnswer) -> Self {
        match error {
            NoAnswer::Tls => Self::Tls,
            NoAnswer::Unreachable => Self::Unreachable,
            NoAnswer::Timeout => Self::Timeout,
            NoAnswer::TooLarge => Self::TooLarge,
        }
    }
}

/// Asks once. The refresh token is on its way before `deadline`, or not at all.
pub(super) async fn ask(
    outbound: &Outbound,
    grant: &Grant<'_>,
    deadline: Instant,
) -> Result<Issued, NotIssued> {
    let uri: Uri = grant
        .client
        .token_endpoint
        .parse()
        .map_err(|_| NotIssued::Unreachable)?;
    let request = request(grant, &uri)?;
    let limits = Limits {
        deadline,
        grace: ANSWER_GRACE,
        body_bytes: MAX_BODY_BYTES,
    };
    let answer = outbound.ask(uri, request, limits).await?;
    read(answer.status, &answer.body)
}

fn request(grant: &Grant<'_>, uri: &Uri) -> Result<Request<Full<Bytes>>, NotIssued> {
    let authority = uri.authority().ok_or(NotIssued::Unreachable)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("grant_type", "refresh_token");
    form.append_pair("refresh_token", grant.refresh_token.expose_secret());
    if let Some(scope) = &grant.client.scope {
        form.append_pair("scope", scope);
    }
    let mut request = Request::post(path)
        .header(HOST, authority.as_str())
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let client_id = grant.client_id.unwrap_or_default();
    match (grant.client_secret, grant.client.client_authentication) {
        (Some(secret), ClientAuthentication::ClientSecretBasic) => {
            request = request.header(AUTHORIZATION, basic(client_id, secret)?);
        }
        (Some(secret), ClientAuthentication::ClientSecretPost) => {
            form.append_pair("client_id", client_id);
            form.append_pair("client_secret", secret.expose_secret());
        }
        (None, _) if grant.client_id.is_some() => {
            form.append_pair("client_id", client_id);
        }
        (None, _) => {}
    }
    request
        .body(Full::new(Bytes::from(form.finish())))
        .map_err(|_| NotIssued::Unreachable)
}

/// Both are form-encoded before they are joined (RFC 6749 §2.3.1).
fn basic(client_id: &str, secret: &SecretString) -> Result<HeaderValue, NotIssued> {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let pair = format!("{}:{}", encoded(client_id), encoded(secret.expose_secret()));
    let text = base64::engine::general_purpose::STANDARD.encode(pair);
    let mut value = HeaderValue::try_from(format!("Basic {text}"))
        .map_err(|_| NotIssued::Refused("invalid_client"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn read(status: StatusCode, body: &[u8]) -> Result<Issued, NotIssued> {
    if status != StatusCode::OK {
        let code = serde_json::from_slice::<Refusal>(body)
            .ok()
            .and_then(|refusal| CODES.into_iter().find(|code| *code == refusal.error));
        return Err(code.map_or(NotIssued::Status(status.as_u16()), NotIssued::Refused));
    }
    let answer: Answer = serde_json::from_slice(body).map_err(|_| NotIssued::NotUnderstood)?;
    let bearer = answer
        .token_type
        .is_none_or(|kind| kind.eq_ignore_ascii_case("bearer"));
    let refresh_token = answer
        .refresh_token
        .filter(|token| !token.expose_secret().is_empty());
    let usable = |token: &SecretString| {
        let text = token.expose_secret();
        !text.is_empty() && text.len() <= MAX_TOKEN_BYTES && !text.contains(char::is_control)
    };
    if !bearer || !usable(&answer.access_token) || !refresh_token.as_ref().is_none_or(usable) {
        return Err(NotIssued::NotUnderstood);
    }
    Ok(Issued {
        access_token: answer.access_token,
        refresh_token,
        life_ms: answer.expires_in.and_then(life_ms),
    })
}

/// In ms; none for what is no life.
fn life_ms(life: Life) -> Option<u64> {
    let seconds = match life {
        Life::Number(seconds) => seconds,
        Life::Text(text) => text.trim().parse().ok()?,
    };
    let length = Duration::try_from_secs_f64(seconds).ok()?;
    u64::try_from(length.as_millis())
        .ok()
        .filter(|length| *length > 0)
}

#[cfg(test)]
mod tests;

//! From a decision to a request for the upstream, with headers built from scratch (`architecture.md` §2, Dispatch).

use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use secrecy::ExposeSecret as _;
use tidegate_core::config::Protocol;
use tidegate_plane_client::{Dispatch, Snapshot};

use crate::endpoint::Endpoint;
use crate::event_stream::Reading;
use crate::reply::{EVENT_STREAM, JSON};
use crate::request::{Changes, MaxOutput, RequestBody};
use crate::upstream::Pieces;

/// Bodies are read here, so compression would cost more time than it saves; what comes compressed is decoded.
const PLAIN: HeaderValue = HeaderValue::from_static("identity");
const OURSELVES: HeaderValue =
    HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION")));
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
/// Sent when the client named none; the API refuses requests without one.
const DEFAULT_ANTHROPIC_VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// What of a client's headers reaches a provider of each protocol, and nothing else.
const ANTHROPIC_PASSED: [HeaderName; 2] =
    [ANTHROPIC_VERSION, HeaderName::from_static("anthropic-beta")];
const OPENAI_PASSED: [HeaderName; 1] = [HeaderName::from_static("openai-beta")];
/// Longest value that is passed, and most values of one header.
const MAX_PASSED_BYTES: usize = 1_024;
const MAX_PASSED_VALUES: usize = 8;

/// Why a decision cannot be carried out: this data plane's configuration is older or newer than the decision's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DispatchFault {
    #[error("there is no configuration here")]
    NotConfigured,
    #[error("the provider is not known here")]
    UnknownProvider,
    #[error("the connection has no credential here")]
    NoCredential,
    #[error("the credential or the address cannot be sent")]
    Unsendable,
}

/// What of the client's request goes upstream besides the body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passed {
    headers: HeaderMap,
    beta: bool,
}

impl Passed {
    /// Takes what is on the list from a client's request.
    pub(crate) fn take(endpoint: Endpoint, headers: &HeaderMap, uri: &Uri) -> Self {
        let names: &[HeaderName] = match endpoint.protocol() {
            Protocol::Openai => &OPENAI_PASSED,
            Protocol::Anthropic => &ANTHROPIC_PASSED,
        };
        let mut passed = HeaderMap::new();
        for name in names {
            for value in headers.get_all(name).iter().take(MAX_PASSED_VALUES) {
                if value.len() <= MAX_PASSED_BYTES {
                    passed.append(name.clone(), value.clone());
                }
            }
        }
        Self {
            headers: passed,
            // Anthropic's SDK asks for beta features with this query; nothing else of a query is sent.
            beta: endpoint.protocol() == Protocol::Anthropic
                && uri
                    .query()
                    .is_some_and(|query| query.split('&').any(|pair| pair == "beta=true")),
        }
    }
}

impl std::hash::Hash for Passed {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        for (name, value) in &self.headers {
            name.hash(state);
            value.hash(state);
        }
        self.beta.hash(state);
    }
}

/// A request ready to be sent, and the version of the credential in it.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) request: Request<Pieces>,
    pub(crate) credential_version: u64,
    /// How its answer is read if it is a stream, by the settings in force now.
    pub(crate) reading: Reading,
}

/// Builds the request for a decision.
///
/// # Errors
/// [`DispatchFault`]; our own fault, never the provider's.
pub(crate) fn prepare(
    snapshot: &Snapshot,
    endpoint: Endpoint,
    body: &RequestBody,
    passed: &Passed,
    dispatch: &Dispatch,
) -> Result<Prepared, DispatchFault> {
    let attempt = &dispatch.attempt;
    let provider = snapshot
        .config
        .provider(&attempt.provider)
        .ok_or(DispatchFault::UnknownProvider)?;
    let credential = snapshot
        .credentials
        .get(&attempt.connection)
        .ok_or(DispatchFault::NoCredential)?;
    let query = if passed.beta { "?beta=true" } else { "" };
    let target = format!("{}{}{query}", provider.provider.base_url, endpoint.path());
    let target = Uri::try_from(target).map_err(|_| DispatchFault::Unsendable)?;

    let mut headers = passed.headers.clone();
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(ACCEPT, if body.stream { EVENT_STREAM } else { JSON });
    headers.insert(ACCEPT_ENCODING, PLAIN);
    headers.insert(USER_AGENT, OURSELVES);
    let secret = credential.secret.expose_secret();
    let (name, value) = match provider.provider.protocol {
        Protocol::Openai => (
            AUTHORIZATION,
            HeaderValue::try_from(format!("Bearer {secret}")),
        ),
        Protocol::Anthropic => {
            headers
                .entry(ANTHROPIC_VERSION)
                .or_insert(DEFAULT_ANTHROPIC_VERSION);
            (X_API_KEY, HeaderValue::try_from(secret))
        }
    };
    let mut value = value.map_err(|_| DispatchFault::Unsendable)?;
    value.set_sensitive(true);
    headers.insert(name, value);

    let changes = Changes {
        max_tools: dispatch.max_tools,
        max_output: max_output(endpoint, dispatch),
    };
    let mut request = Request::new(Pieces::new(body.with(attempt.model.as_str(), changes)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = target;
    *request.headers_mut() = headers;
    Ok(Prepared {
        request,
        credential_version: credential.version,
        reading: Reading::of(endpoint, &snapshot.config),
    })
}

/// The last resort answers at limited length.
fn max_output(endpoint: Endpoint, dispatch: &Dispatch) -> Option<MaxOutput> {
    let tokens = dispatch.emergency_max_tokens?;
    let member = match endpoint {
        Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Messages => "max_tokens",
        Endpoint::Responses => "max_output_tokens",
        Endpoint::InputTokens | Endpoint::Embeddings | Endpoint::CountTokens => return None,
    };
    Some(MaxOutput { tokens, member })
}

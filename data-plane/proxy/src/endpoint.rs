//! Paths, and what follows from them: the client's protocol, its error format, the upstream's path.

use std::sync::LazyLock;

use http::{HeaderMap, Method};
use tidegate_core::config::Protocol;
use tidegate_core::management::{RESOURCES, Resource};

/// An endpoint that names a model and is sent upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Endpoint {
    ChatCompletions,
    /// Legacy completions of a prompt.
    Completions,
    Responses,
    /// How many tokens a request for a response has.
    InputTokens,
    Embeddings,
    Messages,
    /// How many tokens a request for a message has.
    CountTokens,
}

/// What a path is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Sent upstream.
    Model(Endpoint),
    /// The list of models.
    Models,
    /// The same, and whether they can be had now.
    ModelsHealth,
    /// Leases of sessions.
    SessionLeases,
    /// The contract's management endpoints, which the control plane answers.
    Management(&'static Resource),
    /// The process lives.
    Livez,
    /// Requests can be served.
    Readyz,
    /// Metrics as text.
    Metrics,
}

/// Who gets an answer on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Who has an API key, where the configuration has any or one is always required.
    Key,
    /// Who has an API key, always.
    LeaseKey,
    /// Who may, as the control plane says by what they show.
    ControlPlane,
    /// Everybody: nobody asks. It names no account, and belongs where clients are not (`--admin-listen`).
    Nobody,
}

/// The shape of errors and lists that a client understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Openai,
    Anthropic,
}

impl Route {
    /// What is at a path.
    pub(crate) fn find(path: &str) -> Option<Self> {
        let mut routes = ROUTES.iter();
        routes
            .find(|(known, _)| known == path)
            .map(|(_, route)| *route)
    }

    /// Whether it answers a method, apart from OPTIONS.
    pub(crate) fn answers(self, method: &Method) -> bool {
        match self {
            Self::Model(_) | Self::SessionLeases => method == Method::POST,
            Self::Management(resource) => resource.operation(method.as_str()).is_some(),
            Self::Models | Self::ModelsHealth | Self::Livez | Self::Readyz | Self::Metrics => {
                method == Method::GET || method == Method::HEAD
            }
        }
    }

    /// The methods for an `Allow` header.
    pub(crate) fn allow(self) -> &'static str {
        match self {
            Self::Model(_) | Self::SessionLeases => "POST, OPTIONS",
            Self::Management(resource) => resource.allow,
            Self::Models | Self::ModelsHealth | Self::Livez | Self::Readyz | Self::Metrics => {
                "GET, HEAD, OPTIONS"
            }
        }
    }

    /// Who gets an answer.
    pub(crate) fn guard(self) -> Guard {
        match self {
            Self::Model(_) | Self::Models | Self::ModelsHealth => Guard::Key,
            Self::SessionLeases => Guard::LeaseKey,
            Self::Management(_) => Guard::ControlPlane,
            Self::Livez | Self::Readyz | Self::Metrics => Guard::Nobody,
        }
    }

    /// Every path there is. `/v1/*` and `/api/v1/*` are the same (`sessions-and-streams.md` §5.1).
    pub(crate) fn all() -> &'static [(String, Self)] {
        &ROUTES
    }

    fn table() -> Vec<(String, Self)> {
        let endpoints = Endpoint::ALL.into_iter();
        let ours = [
            ("/models", Self::Models),
            ("/models/health", Self::ModelsHealth),
            ("/session-leases", Self::SessionLeases),
        ];
        let clients: Vec<(&str, Self)> = endpoints
            .map(|endpoint| (endpoint.path(), Self::Model(endpoint)))
            .chain(ours)
            .collect();
        let mut all = Vec::new();
        for prefix in ["/v1", "/api/v1"] {
            let paths = clients.iter();
            all.extend(paths.map(|(path, route)| (format!("{prefix}{path}"), *route)));
        }
        let managed = RESOURCES.iter();
        all.extend(managed.map(|it| (it.path.to_owned(), Self::Management(it))));
        for (path, route) in [
            ("/livez", Self::Livez),
            ("/readyz", Self::Readyz),
            ("/metrics", Self::Metrics),
        ] {
            all.push((path.to_owned(), route));
        }
        all
    }
}

/// What is served. Nothing else is, so that what is not in here need not be guarded.
static ROUTES: LazyLock<Vec<(String, Route)>> = LazyLock::new(Route::table);

impl Endpoint {
    /// Every endpoint.
    pub(crate) const ALL: [Self; 7] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Responses,
        Self::InputTokens,
        Self::Embeddings,
        Self::Messages,
        Self::CountTokens,
    ];

    /// What is appended to a provider's base URL, and the client's path behind the version.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/chat/completions",
            Self::Completions => "/completions",
            Self::Responses => "/responses",
            Self::InputTokens => "/responses/input_tokens",
            Self::Embeddings => "/embeddings",
            Self::Messages => "/messages",
            Self::CountTokens => "/messages/count_tokens",
        }
    }

    /// Whether its answer may be a stream.
    pub(crate) fn streams(self) -> bool {
        match self {
            Self::ChatCompletions | Self::Completions | Self::Responses | Self::Messages => true,
            Self::InputTokens | Self::Embeddings | Self::CountTokens => false,
        }
    }

    /// Whether a model answers, so that tokens are used.
    pub(crate) fn uses_tokens(self) -> bool {
        !matches!(self, Self::InputTokens | Self::CountTokens)
    }

    /// What the client speaks (decision 48).
    pub(crate) fn protocol(self) -> Protocol {
        match self {
            Self::ChatCompletions
            | Self::Completions
            | Self::Responses
            | Self::InputTokens
            | Self::Embeddings => Protocol::Openai,
            Self::Messages | Self::CountTokens => Protocol::Anthropic,
        }
    }

    /// How its errors look.
    pub(crate) fn format(self) -> Format {
        match self.protocol() {
            Protocol::Openai => Format::Openai,
            Protocol::Anthropic => Format::Anthropic,
        }
    }

    /// The client's path.
    pub(crate) fn route(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::InputTokens => "/v1/responses/input_tokens",
            Self::Embeddings => "/v1/embeddings",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
        }
    }

    /// What a span of a client's request is called.
    pub(crate) fn span_name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "POST /v1/chat/completions",
            Self::Completions => "POST /v1/completions",
            Self::Responses => "POST /v1/responses",
            Self::InputTokens => "POST /v1/responses/input_tokens",
            Self::Embeddings => "POST /v1/embeddings",
            Self::Messages => "POST /v1/messages",
            Self::CountTokens => "POST /v1/messages/count_tokens",
        }
    }

    /// `gen_ai.operation.name` of OpenTelemetry's conventions, which leave room for operations that they do not name.
    pub(crate) fn operation(self) -> &'static str {
        match self {
            Self::ChatCompletions | Self::Responses | Self::Messages => "chat",
            Self::Completions => "text_completion",
            Self::Embeddings => "embeddings",
            Self::InputTokens | Self::CountTokens => "count_tokens",
        }
    }

    /// Its name in logs and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::InputTokens => "input_tokens",
            Self::Embeddings => "embeddings",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
        }
    }
}

impl Format {
    /// The format for paths that belong to no protocol: Anthropic's SDKs name their version in every request.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Self {
        if headers.contains_key("anthropic-version") {
            Self::Anthropic
        } else {
            Self::Openai
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_prefixes_lead_to_the_same_route() {
        for (path, endpoint) in [
            ("chat/completions", Endpoint::ChatCompletions),
            ("completions", Endpoint::Completions),
            ("responses", Endpoint::Responses),
            ("responses/input_tokens", Endpoint::InputTokens),
            ("embeddings", Endpoint::Embeddings),
            ("messages", Endpoint::Messages),
            ("messages/count_tokens", Endpoint::CountTokens),
        ] {
            for prefix in ["/v1/", "/api/v1/"] {
                let found = Route::find(&format!("{prefix}{path}"));
                assert_eq!(found, Some(Route::Model(endpoint)), "{prefix}{path}");
            }
        }
        assert_eq!(Route::find("/v1/models"), Some(Route::Models));
        let health = Some(Route::ModelsHealth);
        assert_eq!(Route::find("/api/v1/models/health"), health);
        let leases = Route::find("/api/v1/session-leases");
        assert_eq!(leases, Some(Route::SessionLeases));
    }

    #[test]
    fn spans_name_the_path_that_leads_to_their_endpoint() {
        for endpoint in Endpoint::ALL {
            assert_eq!(Route::find(endpoint.route()), Some(Route::Model(endpoint)));
            let name = format!("POST {}", endpoint.route());
            assert_eq!(endpoint.span_name(), name);
        }
    }

    #[test]
    fn near_misses_lead_nowhere() {
        for path in [
            "/",
            "/v1",
            "/v1/",
            "/v2/models",
            "/api/models",
            "/v1/models/",
            "/v1/completions/",
            "/v1//messages",
            "v1/models",
            "/api/livez",
            "/v1/api/resilience",
            "/api/v1/resilience",
        ] {
            assert_eq!(Route::find(path), None, "{path}");
        }
    }
}

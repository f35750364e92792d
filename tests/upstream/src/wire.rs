//! The wire formats. Each API has a module that builds good answers; errors depend on the family only.

pub(crate) mod anthropic;
pub(crate) mod embeddings;
pub(crate) mod openai_chat;
pub(crate) mod openai_completions;
pub(crate) mod openai_models;
pub(crate) mod openai_responses;
pub(crate) mod token_counts;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::answer::Content;
use crate::reply::Reply;

/// An API that is spoken here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    OpenAiChat,
    OpenAiCompletions,
    OpenAiResponses,
    OpenAiInputTokens,
    OpenAiEmbeddings,
    OpenAiModels,
    AnthropicMessages,
    AnthropicCountTokens,
}

/// What an API needs to know to answer.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    /// Makes ids unique.
    pub(crate) number: u64,
    pub(crate) name: &'a str,
    pub(crate) model: &'a str,
    pub(crate) body: &'a Value,
    pub(crate) reply: &'a Reply,
    pub(crate) models: &'a [String],
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// A quarter of the body's length, at least 1: good enough for a fake.
    pub(crate) input_tokens: u64,
}

impl Ask<'_> {
    pub(crate) fn wants_stream(&self) -> bool {
        self.body
            .get("stream")
            .and_then(Value::as_bool)
            .unwrap_or(false)
    }

    /// One token per piece.
    pub(crate) fn output_tokens(&self) -> u64 {
        u64::try_from(self.reply.chunks.max(1)).unwrap_or(u64::MAX)
    }
}

impl Api {
    /// The API at `path`, whatever the method.
    pub(crate) fn at(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::OpenAiChat),
            "/v1/completions" => Some(Self::OpenAiCompletions),
            "/v1/responses" => Some(Self::OpenAiResponses),
            "/v1/responses/input_tokens" => Some(Self::OpenAiInputTokens),
            "/v1/embeddings" => Some(Self::OpenAiEmbeddings),
            "/v1/models" => Some(Self::OpenAiModels),
            "/v1/messages" => Some(Self::AnthropicMessages),
            "/v1/messages/count_tokens" => Some(Self::AnthropicCountTokens),
            _ => None,
        }
    }

    pub(crate) fn method(self) -> Method {
        match self {
            Self::OpenAiModels => Method::GET,
            _ => Method::POST,
        }
    }

    pub(crate) fn good(self, ask: &Ask<'_>) -> Content {
        match self {
            Self::OpenAiChat => openai_chat::good(ask),
            Self::OpenAiCompletions => openai_completions::good(ask),
            Self::OpenAiResponses => openai_responses::good(ask),
            Self::OpenAiInputTokens => token_counts::openai(ask),
            Self::OpenAiEmbeddings => embeddings::good(ask),
            Self::OpenAiModels => openai_models::good(ask),
            Self::AnthropicMessages => anthropic::good(ask),
            Self::AnthropicCountTokens => token_counts::anthropic(ask),
        }
    }

    /// The body of an error status.
    pub(crate) fn error(self, status: u16, number: u64) -> Value {
        let message = format!("the fake upstream answers {status}");
        match self {
            Self::AnthropicMessages | Self::AnthropicCountTokens => json!({
                "type": "error",
                "error": { "type": anthropic::error_type(status), "message": message },
                "request_id": format!("req_{number}"),
            }),
            _ => json!({ "error": openai_error(status, &message) }),
        }
    }

    /// An error in a body that began with 200: the object and, in a stream, its event. `error` is the inner object.
    pub(crate) fn error_in_body(self, error: Option<&Value>) -> (Value, Bytes) {
        let object = match self {
            Self::AnthropicMessages | Self::AnthropicCountTokens => {
                let overloaded = json!({ "type": "overloaded_error", "message": "Overloaded" });
                json!({ "type": "error", "error": error.cloned().unwrap_or(overloaded) })
            }
            _ => {
                let message = "the server is overloaded";
                let overloaded = openai_error(503, message);
                json!({ "error": error.cloned().unwrap_or(overloaded) })
            }
        };
        let event = match self {
            Self::AnthropicMessages | Self::AnthropicCountTokens => named_event("error", &object),
            Self::OpenAiResponses => {
                let inner = object.get("error").cloned().unwrap_or_default();
                named_event("error", &openai_responses::error_event(&inner))
            }
            _ => event(&object),
        };
        (object, event)
    }

    /// What a stream sends to stay alive.
    pub(crate) fn heartbeat(self) -> Bytes {
        match self {
            Self::AnthropicMessages | Self::AnthropicCountTokens => {
                named_event("ping", &json!({ "type": "ping" }))
            }
            _ => Bytes::from_static(b": keepalive\n\n"),
        }
    }
}

fn openai_error(status: u16, message: &str) -> Value {
    let (kind, code) = match status {
        400 | 413 | 422 => ("invalid_request_error", Value::Null),
        401 => ("invalid_request_error", json!("invalid_api_key")),
        403 => (
            "invalid_request_error",
            json!("unsupported_country_region_territory"),
        ),
        404 => ("invalid_request_error", json!("model_not_found")),
        429 => ("requests", json!("rate_limit_exceeded")),
        _ => ("server_error", json!("server_error")),
    };
    json!({ "message": message, "type": kind, "param": null, "code": code })
}

/// One SSE event without name.
pub(crate) fn event(data: &Value) -> Bytes {
    format!("data: {data}\n\n").into()
}

/// One SSE event with a name.
pub(crate) fn named_event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

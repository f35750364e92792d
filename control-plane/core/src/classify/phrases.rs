//! The words of upstreams, as data (`failure-state.md` §3.3, §3.6, §3.7 and §7.3).
//!
//! Everything is in lower case and compared with lower-case text of bounded size. A [`Pattern`] costs at most
//! the length of the text times a constant, so no text of an upstream can make matching slow.

use super::Reason;
use super::status::RowLength;

/// How far apart the two parts of a phrase written "a … b" may be, in bytes.
const GAP: usize = 80;

/// Something to find in a text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern {
    /// These very words.
    Words(&'static str),
    /// The first, and the second at most so many bytes after it.
    Then(&'static str, &'static str, usize),
    /// Both, in either order, at most so many bytes between them.
    Near(&'static str, &'static str, usize),
}

use Pattern::{Near, Then, Words};

impl Pattern {
    fn matches(self, text: &str) -> bool {
        match self {
            Words(words) => text.contains(words),
            Then(first, second, gap) => follows(text, first, second, gap),
            Near(one, other, gap) => {
                follows(text, one, other, gap) || follows(text, other, one, gap)
            }
        }
    }
}

/// Whether one of the patterns is in the text.
pub(super) fn any(patterns: &[Pattern], text: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(text))
}

fn follows(text: &str, first: &str, second: &str, gap: usize) -> bool {
    text.match_indices(first).any(|(start, _)| {
        let from = start.saturating_add(first.len());
        let to = text.floor_char_boundary(from.saturating_add(gap).saturating_add(second.len()));
        text.get(from..to)
            .is_some_and(|window| window.contains(second))
    })
}

/// A text that settles length and reason of a cooldown (`failure-state.md` §3.3-5).
#[derive(Debug)]
pub(super) struct TextRow {
    /// One of these.
    pub(super) patterns: &'static [Pattern],
    /// How long the connection cools.
    pub(super) length: RowLength,
    /// Why.
    pub(super) reason: Reason,
}

/// Generic texts, first match first (§3.3-5).
pub(super) const GENERIC: &[TextRow] = &[
    TextRow {
        patterns: &[Words("no credentials")],
        length: RowLength::Flat(120_000),
        reason: Reason::AuthError,
    },
    TextRow {
        patterns: &[Words("request not allowed")],
        length: RowLength::Flat(5_000),
        reason: Reason::RateLimitExceeded,
    },
    TextRow {
        patterns: &[Words("improperly formed request")],
        length: RowLength::Flat(0),
        reason: Reason::ModelCapacity,
    },
    TextRow {
        patterns: &[Words("rate limit"), Words("too many requests")],
        length: RowLength::Backoff,
        reason: Reason::RateLimitExceeded,
    },
    TextRow {
        patterns: &[
            Words("hour quota"),
            Words("quota has been exceeded"),
            Words("quota exceeded"),
            Words("quota will reset"),
            Words("exhausted your capacity"),
            Words("quota exhausted"),
            Words("free tier"),
        ],
        length: RowLength::Backoff,
        reason: Reason::QuotaExhausted,
    },
    TextRow {
        patterns: &[Words("capacity"), Words("overloaded")],
        length: RowLength::Backoff,
        reason: Reason::ModelCapacity,
    },
];

/// The account is banned or deactivated (§3.7).
pub(super) const DEACTIVATED: &[Pattern] = &[
    Words("account_deactivated"),
    Words("account has been deactivated"),
    Words("account has been disabled"),
    Words("your account has been suspended"),
    Words("this account is deactivated"),
    Words("verify your account to continue"),
    Words("this service has been disabled in this account"),
];

/// The model is gone for good (§3.3-4b).
pub(super) const RETIRED_MODEL: &[Pattern] = &[
    Words("no longer available"),
    Words("no longer supported"),
    Words("end of life"),
    Words("end-of-life"),
    Then("model", "deprecated", GAP),
    Then("model", "retired", GAP),
    Then("model", "discontinued", GAP),
    Then("model", "decommissioned", GAP),
];

/// The provider serves elsewhere now (§3.3-4c).
pub(super) const ENDPOINT_MOVED: &[Pattern] = &[
    Words("endpoint has moved"),
    Then("endpoint", "no longer works", GAP),
    Words("update your base url"),
];

/// Suspended for money (§3.3-4d).
pub(super) const SUSPENDED_FOR_BILLING: &[Pattern] = &[
    Near("suspended", "spending limit", 120),
    Near("suspended", "billing", 120),
    Near("suspended", "invoice", 120),
    Near("suspended", "payment", 120),
];

/// Out of credits (§3.7).
pub(super) const OUT_OF_CREDITS: &[Pattern] = &[
    Words("insufficient_quota"),
    Words("billing_hard_limit_reached"),
    Words("exceeded your current quota"),
    Words("exceeded your current usage quota"),
    Words("credit_balance_too_low"),
    Words("credit balance is too low"),
    Words("credits exhausted"),
    Words("out of credits"),
    Words("payment required"),
    Words("free tier of the model has been exhausted"),
    Words("tier has been exhausted"),
    Words("insufficient credit"),
];

/// Out of credits, said of the account's wallet and so of every model (§3.3-4f, §3.7).
pub(super) const WALLET_EMPTY: &[Pattern] = &[
    Words("insufficient balance"),
    Words("insufficient_balance"),
    Words("insufficient account balance"),
    Words("insufficient credit balance"),
    Words("credit balance is too low"),
    Words("credit_balance_too_low"),
];

/// What makes a 429 of an API key be taken at its word (§3.6).
pub(super) const LONG_PERIOD_QUOTA: &[Pattern] = &[
    Then("daily", "limit", GAP),
    Then("daily", "quota", GAP),
    Then("monthly", "limit", GAP),
    Then("monthly", "quota", GAP),
    Then("per day", "limit", GAP),
    Then("per-day", "limit", GAP),
    Then("per month", "limit", GAP),
    Then("per-month", "limit", GAP),
    Near("quota", "exceed", GAP),
    Then("insufficient", "quota", GAP),
    Then("billing", "cap", GAP),
    Then("credit", "exhaust", GAP),
    Words("out of credits"),
    Words("hard limit"),
    Then("plan", "limit", GAP),
    Words("individual quota reached"),
    Words("enable overages"),
    Words("insufficient_g1_credits_balance"),
    Then("resource has been exhausted", "reset after", GAP),
    Words("daily free allocation"),
    Words("have exhausted their quota"),
    Words("tpd rate limit"),
    Words("insufficient balance"),
    Then("限额将在", "重置", GAP),
    Words("使用上限"),
    Words("调用上限"),
    Words("额度已用尽"),
    Words("额度已用完"),
];

/// Believed when it is the whole message (§3.6).
pub(super) const BARE_USAGE_LIMIT: &str = "usage limit reached";

/// The token of an OAuth account is stale; a refresh decides (§3.7, decision 14).
pub(super) const OAUTH_TOKEN_INVALID: &[Pattern] = &[
    Words("invalid authentication credentials"),
    Words("oauth 2"),
    Words("login cookie"),
    Words("valid authentication credential"),
    Words("invalid credentials"),
];

/// The key is fine, the route is not (§3.3-4k).
pub(super) const ROUTE_NOT_AUTHORIZED: &[Pattern] = &[Words("not authorized for this route")];

/// A 403 of an API key that is about something else than the key (§3.3-4m).
pub(super) const FORBIDDEN_BY_PROJECT: &[Pattern] = &[Words("has not been used in project")];

/// A 403 about a quota (§3.3-4m): the generic rows judge it.
pub(super) const FORBIDDEN_BY_QUOTA: &[Pattern] =
    &[Words("hour quota"), Words("quota has been exceeded")];

/// A filter refused our fingerprint; trying again with the same one is vain (§3.3-4m).
pub(super) const SIGNATURE_BANNED: &[Pattern] = &[
    Words("error code: 1010"),
    Words("error 1010"),
    Then("\"error_code\"", "1010", 4),
    Words("browser_signature_banned"),
];

/// Blocks that mean a ban whatever the class (§3.9).
pub(super) const ANTI_BOT_BAN: &[Pattern] = &[Words("turnstile"), Words("sentinel")];

/// A 403 that says nothing against the account (§3.9: project, region, challenge, fingerprint).
pub(super) const FORBIDDEN_RECOVERABLE: &[Pattern] = &[
    Words("has not been used in project"),
    Words("cloud code"),
    Words("cloudcode"),
    Words("cloudaicompanion"),
    Words("location is not supported"),
    Then("not available in your", "country", GAP),
    Then("not available in your", "region", GAP),
    Words("unsupported_country_region_territory"),
    Words("region, or territory not supported"),
    Words("just a moment"),
    Words("challenge-platform"),
    Words("cf-challenge"),
    Words("fingerprint"),
];

/// Providers whose OAuth accounts are refused as such (§3.9, request_rejected).
pub(super) const REFUSING_PROVIDERS: &[&str] = &["claude", "anthropic"];

/// How they say it.
pub(super) const REQUEST_REFUSED: &[Pattern] = &[Words("request not allowed")];

/// Codes of failures that concern one request only (§1.6).
pub(super) const REQUEST_SCOPED_CODES: &[&str] = &[
    "context_length_exceeded",
    "upstream_empty_response",
    "upstream_response_failed",
];

/// The response that a request continues belongs to another account (§3.3-2).
pub(super) const FOREIGN_RESPONSE_CODE: &str = "invalid_previous_response_binding";

/// The same in words, with status 409.
pub(super) const FOREIGN_RESPONSE: &[Pattern] = &[Words("previous_response_id does not belong")];

/// A 404 about something the request names, not about the model (§3.8-2).
pub(super) const MISSING_RESOURCE: &[Pattern] = &[
    Words("previous_response_not_found"),
    Words("no such file"),
    Words("file not found"),
    Then("response with id", "not found", GAP),
    Then("item with id", "not found", GAP),
];

/// A refusal of content (decision 50).
pub(super) const CONTENT_POLICY_CODES: &[&str] = &[
    "content_policy_violation",
    "content_filter",
    "content_policy",
];

/// The header of an embedded-service supervisor and its value (§1.6).
pub(super) const SUPERVISOR_HINT: (&str, &str) = ("x-omni-fallback-hint", "connection_cooldown");

/// The request does not fit the model's context (§7.3).
pub(super) const CONTEXT_OVERFLOW: &[Pattern] = &[
    Words("input is too long"),
    Words("input too long"),
    Then("context", "too long", GAP),
    Then("context", "exceeded", GAP),
    Then("context", "overflow", GAP),
    Then("context", "limit", GAP),
    Words("too many tokens"),
    Words("prompt is too long"),
    Words("context window"),
    Words("maximum context"),
    Then("max", "token", 40),
    Words("token limit"),
    Words("request too large"),
];

/// The key is bad; text about models is then not taken as model access (§7.3).
pub(super) const BAD_CREDENTIAL: &[Pattern] = &[
    Then("invalid", "api key", 20),
    Then("expired", "api key", 20),
    Then("incorrect", "api key", 20),
    Words("authentication failed"),
    Words("invalid token"),
    Words("unauthorized"),
    Words("not authenticated"),
];

/// Codes and types that mean: this model is not served to this account (§7.3).
pub(super) const MODEL_ACCESS_CODES: &[&str] =
    &["model_not_found", "deployment_not_found", "not_found_error"];

/// The provider does not serve the model, so no other account of it will (§3.8-7, §7.3).
pub(super) const MODEL_NOT_SERVED: &[Pattern] = &[
    Words("invalid model"),
    Then("model", "not available", GAP),
    Then("model", "not found", GAP),
    Then("model", "not supported", GAP),
    Then("model", "does not exist", GAP),
    Near("model", "does not support", GAP),
    Near("model", "unsupported", GAP),
];

/// This account may not use the model; another one might (§7.3).
pub(super) const MODEL_ACCESS_DENIED: &[Pattern] = &[
    Then("model", "not accessible", GAP),
    Near("access denied", "model", GAP),
    Words("select a different model"),
    Near("access", "model", 60),
    Near("permission", "model", 60),
];

/// The request is malformed for this provider (§7.3).
pub(super) const MALFORMED: &[Pattern] = &[
    Words("improperly formed request"),
    Words("invalid message format"),
    Words("messages must alternate"),
    Words("empty message"),
    Words("empty content"),
    Words("blank function name"),
    Words("blank tool name"),
];

/// A parameter is out of this provider's range (§7.3).
pub(super) const BAD_PARAMETER: &[Pattern] = &[
    Then("max_tokens", "illegal", GAP),
    Then("max_tokens", "must be", GAP),
    Then("max_tokens", "range", GAP),
    Words("parameter is illegal"),
];

/// A 400 that means: slower (§7.3).
pub(super) const THROTTLED: &[Pattern] = &[
    Words("high-frequency"),
    Words("high frequency"),
    Words("non-compliant"),
    Words("too many requests"),
    Words("rate limit"),
    Words("频繁"),
    Words("频率"),
];

/// What an error inside a 200 stream amounts to, by its type or code.
pub(super) const EMBEDDED_STATUSES: &[(&str, u16)] = &[
    ("invalid_request_error", 400),
    ("authentication_error", 401),
    ("invalid_api_key", 401),
    ("billing_error", 402),
    ("permission_error", 403),
    ("not_found_error", 404),
    ("model_not_found", 404),
    ("timeout_error", 504),
    ("request_too_large", 413),
    ("rate_limit_error", 429),
    ("rate_limit_exceeded", 429),
    ("insufficient_quota", 429),
    ("api_error", 500),
    ("server_error", 500),
    ("overloaded_error", 529),
];

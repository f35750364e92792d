//! The words of upstreams, as data (`failure-state.md` §3.3, §3.5 to §3.7, §7).
//!
//! [`PHRASES`] is the table: what a text means, and the ways of saying it. Everything is in lower case and
//! compared without regard to ASCII case. To teach a wording, add a line; `words` finds all of them in one
//! pass, so a line costs nothing at run time.

use super::Reason;
use super::verdict::RowLength;

/// How far apart the two parts of a phrase written "a … b" may be, in bytes.
const GAP: usize = 80;

/// Something to find in a text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern {
    /// These very words.
    Words(&'static str),
    /// The first, and the second beginning at most so many bytes after its end.
    Then(&'static str, &'static str, usize),
    /// Both, in either order, at most so many bytes between them.
    Near(&'static str, &'static str, usize),
    /// All of them, anywhere.
    All(&'static [&'static str]),
}

use Pattern::{All, Near, Then, Words};

/// What a text means. At most 64, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Generic rows (§3.3-5): our side has no credential.
    NoCredentials,
    /// Generic rows, and a refusal of an account as such (§3.9, request_rejected).
    RequestNotAllowed,
    /// Generic rows.
    ImproperlyFormed,
    /// Generic rows: too many requests.
    RateLimited,
    /// Generic rows: a quota is used up.
    QuotaUsedUp,
    /// Generic rows: the model has no room.
    NoCapacity,
    /// The account is banned or deactivated (§3.7).
    Deactivated,
    /// The model is gone for good (§3.3-4b).
    RetiredModel,
    /// The provider serves elsewhere now (§3.3-4c).
    EndpointMoved,
    /// Suspended for money (§3.3-4d).
    SuspendedForBilling,
    /// A quota counted per day (§3.3-4e).
    PerDayMetric,
    /// A quota counted per minute (§3.3-4e).
    PerMinuteMetric,
    /// Out of credits (§3.7).
    OutOfCredits,
    /// Out of credits, said of the account's wallet and so of every model (§3.3-4f, §3.7).
    WalletEmpty,
    /// What makes a 429 of an API key be taken at its word (§3.6).
    LongPeriodQuota,
    /// A quota that begins anew with the day (§7.2).
    DailyQuota,
    /// Tokens per day; not until midnight unless somebody says when the day ends (§7.2).
    TokensPerDay,
    /// A subscription's limit, believed only (§7.1).
    SubscriptionLimit,
    /// The same, where the provider is `claude` (§7.1).
    ClaudeAccountLimit,
    /// A limit per week (§7.1).
    WeeklyLimit,
    /// A limit per session of some hours (§7.1).
    SessionLimit,
    /// The token of an OAuth account is stale; a refresh decides (§3.7, decision 14).
    OauthTokenInvalid,
    /// The key is fine, the route is not (§3.3-4k).
    RouteNotAuthorized,
    /// A 403 of an API key that is about something else than the key (§3.3-4m).
    ForbiddenByProject,
    /// A 403 about a quota (§3.3-4m): the generic rows judge it.
    ForbiddenByQuota,
    /// A filter refused our fingerprint; trying again with the same one is vain (§3.3-4m).
    SignatureBanned,
    /// Blocks that mean a ban whatever the class (§3.9).
    AntiBotBan,
    /// A 403 that says nothing against the account (§3.9: project, region, challenge, fingerprint).
    ForbiddenRecoverable,
    /// The response that a request continues belongs to another account (§3.3-2).
    ForeignResponse,
    /// A 404 about something the request names, not about the model (§3.8-2).
    MissingResource,
    /// The request does not fit the model's context (§7.3).
    ContextOverflow,
    /// The key is bad; text about models is then not taken as model access (§7.3).
    BadCredential,
    /// The provider does not serve the model, so no other account of it will (§3.8-7, §7.3).
    ModelNotServed,
    /// This account may not use the model; another one might (§7.3).
    ModelAccessDenied,
    /// The request is malformed for this provider (§7.3).
    Malformed,
    /// A parameter is out of this provider's range (§7.3).
    BadParameter,
    /// A 400 that means: slower (§7.3).
    Throttled,
}

/// Every family and the ways of saying it.
pub(super) const PHRASES: &[(Family, &[Pattern])] = &[
    (Family::NoCredentials, &[Words("no credentials")]),
    (Family::RequestNotAllowed, &[Words("request not allowed")]),
    (
        Family::ImproperlyFormed,
        &[Words("improperly formed request")],
    ),
    (
        Family::RateLimited,
        &[Words("rate limit"), Words("too many requests")],
    ),
    (
        Family::QuotaUsedUp,
        &[
            Words("hour quota"),
            Words("quota has been exceeded"),
            Words("quota exceeded"),
            Words("quota will reset"),
            Words("exhausted your capacity"),
            Words("quota exhausted"),
            Words("free tier"),
        ],
    ),
    (
        Family::NoCapacity,
        &[Words("capacity"), Words("overloaded")],
    ),
    (
        Family::Deactivated,
        &[
            Words("account_deactivated"),
            Words("account has been deactivated"),
            Words("account has been disabled"),
            Words("your account has been suspended"),
            Words("this account is deactivated"),
            Words("verify your account to continue"),
            Words("this service has been disabled in this account"),
        ],
    ),
    (
        Family::RetiredModel,
        &[
            Words("no longer available"),
            Words("no longer supported"),
            Words("end of life"),
            Words("end-of-life"),
            Then("model", "deprecated", GAP),
            Then("model", "retired", GAP),
            Then("model", "discontinued", GAP),
            Then("model", "decommissioned", GAP),
        ],
    ),
    (
        Family::EndpointMoved,
        &[
            Words("endpoint has moved"),
            Then("endpoint", "no longer works", GAP),
            Words("update your base url"),
        ],
    ),
    (
        Family::SuspendedForBilling,
        &[
            Near("suspended", "spending limit", 120),
            Near("suspended", "billing", 120),
            Near("suspended", "invoice", 120),
            Near("suspended", "payment", 120),
        ],
    ),
    (
        Family::PerDayMetric,
        &[
            Words("perday"),
            Words("per_day"),
            Words("per-day"),
            Words("per day"),
        ],
    ),
    (
        Family::PerMinuteMetric,
        &[
            Words("perminute"),
            Words("per_minute"),
            Words("per-minute"),
            Words("per minute"),
        ],
    ),
    (
        Family::OutOfCredits,
        &[
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
        ],
    ),
    (
        Family::WalletEmpty,
        &[
            Words("insufficient balance"),
            Words("insufficient_balance"),
            Words("insufficient account balance"),
            Words("insufficient credit balance"),
            Words("credit balance is too low"),
            Words("credit_balance_too_low"),
        ],
    ),
    (
        Family::LongPeriodQuota,
        &[
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
        ],
    ),
    (
        Family::DailyQuota,
        &[
            Words("today's quota"),
            Words("today’s quota"),
            Words("daily quota"),
            Words("try again tomorrow"),
        ],
    ),
    (Family::TokensPerDay, &[Words("tpd rate limit")]),
    (
        Family::SubscriptionLimit,
        &[
            Words("usage limit reached"),
            Words("usage limit has been"),
            Words("claude pro usage limit"),
            Words("you've reached your usage limit"),
            Words("you’ve reached your usage limit"),
            Words("you have reached your usage limit"),
        ],
    ),
    (
        Family::ClaudeAccountLimit,
        &[
            Words("this request would exceed your account's rate limit"),
            Words("this request would exceed your account’s rate limit"),
        ],
    ),
    (
        Family::WeeklyLimit,
        &[
            Words("weekly usage limit"),
            Words("weekly limit reached"),
            Words("reached your weekly"),
            Words("week quota"),
            Words("weekly/monthly limit"),
            All(&["weekly", "quota", "exhaust"]),
        ],
    ),
    (
        Family::SessionLimit,
        &[
            Words("session usage limit"),
            Words("session limit reached"),
            Then("reached your session", "usage limit", GAP),
        ],
    ),
    (
        Family::OauthTokenInvalid,
        &[
            Words("invalid authentication credentials"),
            Words("oauth 2"),
            Words("login cookie"),
            Words("valid authentication credential"),
            Words("invalid credentials"),
        ],
    ),
    (
        Family::RouteNotAuthorized,
        &[Words("not authorized for this route")],
    ),
    (
        Family::ForbiddenByProject,
        &[Words("has not been used in project")],
    ),
    (
        Family::ForbiddenByQuota,
        &[Words("hour quota"), Words("quota has been exceeded")],
    ),
    (
        Family::SignatureBanned,
        &[
            Words("error code: 1010"),
            Words("error 1010"),
            Then("\"error_code\"", "1010", 4),
            Words("browser_signature_banned"),
        ],
    ),
    (Family::AntiBotBan, &[Words("turnstile"), Words("sentinel")]),
    (
        Family::ForbiddenRecoverable,
        &[
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
        ],
    ),
    (
        Family::ForeignResponse,
        &[Words("previous_response_id does not belong")],
    ),
    (
        Family::MissingResource,
        &[
            Words("previous_response_not_found"),
            Words("no such file"),
            Words("file not found"),
            Then("response with id", "not found", GAP),
            Then("item with id", "not found", GAP),
        ],
    ),
    (
        Family::ContextOverflow,
        &[
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
        ],
    ),
    (
        Family::BadCredential,
        &[
            Then("invalid", "api key", 20),
            Then("expired", "api key", 20),
            Then("incorrect", "api key", 20),
            Words("authentication failed"),
            Words("invalid token"),
            Words("unauthorized"),
            Words("not authenticated"),
        ],
    ),
    (
        Family::ModelNotServed,
        &[
            Words("invalid model"),
            Then("model", "not available", GAP),
            Then("model", "not found", GAP),
            Then("model", "not supported", GAP),
            Then("model", "does not exist", GAP),
            Near("model", "does not support", GAP),
            Near("model", "unsupported", GAP),
        ],
    ),
    (
        Family::ModelAccessDenied,
        &[
            Then("model", "not accessible", GAP),
            Near("access denied", "model", GAP),
            Words("select a different model"),
            Near("access", "model", 60),
            Near("permission", "model", 60),
        ],
    ),
    (
        Family::Malformed,
        &[
            Words("improperly formed request"),
            Words("invalid message format"),
            Words("messages must alternate"),
            Words("empty message"),
            Words("empty content"),
            Words("blank function name"),
            Words("blank tool name"),
        ],
    ),
    (
        Family::BadParameter,
        &[
            Then("max_tokens", "illegal", GAP),
            Then("max_tokens", "must be", GAP),
            Then("max_tokens", "range", GAP),
            Words("parameter is illegal"),
        ],
    ),
    (
        Family::Throttled,
        &[
            Words("high-frequency"),
            Words("high frequency"),
            Words("non-compliant"),
            Words("too many requests"),
            Words("rate limit"),
            Words("频繁"),
            Words("频率"),
        ],
    ),
];

/// What stands after a marker (§3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    /// A length of time; google's wording, cut at 24 hours.
    RetryIn,
    /// A length of time.
    AgainIn,
    /// A moment.
    AgainAt,
    /// A length of time or a moment.
    RetryAfter,
    /// A length of time until a quota begins anew.
    ResetIn,
    /// The moment at which a quota begins anew.
    ResetAt,
    /// The model whose quota is used up (§7.2).
    QuotaForModel,
}

/// Words after which a text says how long to wait (§3.5), and of which model it speaks.
pub(super) const MARKERS: &[(&str, Marker)] = &[
    ("please retry in", Marker::RetryIn),
    ("try again in", Marker::AgainIn),
    ("try again at", Marker::AgainAt),
    ("wait until", Marker::AgainAt),
    ("available at", Marker::AgainAt),
    ("retry after", Marker::RetryAfter),
    ("reset after", Marker::ResetIn),
    ("resets after", Marker::ResetIn),
    ("reset in", Marker::ResetIn),
    ("resets in", Marker::ResetIn),
    ("reset at", Marker::ResetAt),
    ("resets at", Marker::ResetAt),
    ("quota for model", Marker::QuotaForModel),
];

/// A text that settles length and reason of a cooldown (§3.3-5).
#[derive(Debug)]
pub(super) struct TextRow {
    /// Any of these.
    pub(super) family: Family,
    /// How long the connection cools.
    pub(super) length: RowLength,
    /// Why.
    pub(super) reason: Reason,
}

const fn row(family: Family, length: RowLength, reason: Reason) -> TextRow {
    TextRow {
        family,
        length,
        reason,
    }
}

/// Generic texts, first match first (§3.3-5).
pub(super) const GENERIC: &[TextRow] = &[
    row(
        Family::NoCredentials,
        RowLength::Flat(120_000),
        Reason::AuthError,
    ),
    row(
        Family::RequestNotAllowed,
        RowLength::Flat(5_000),
        Reason::RateLimitExceeded,
    ),
    row(
        Family::ImproperlyFormed,
        RowLength::Flat(0),
        Reason::ModelCapacity,
    ),
    row(
        Family::RateLimited,
        RowLength::Backoff,
        Reason::RateLimitExceeded,
    ),
    row(
        Family::QuotaUsedUp,
        RowLength::Backoff,
        Reason::QuotaExhausted,
    ),
    row(
        Family::NoCapacity,
        RowLength::Backoff,
        Reason::ModelCapacity,
    ),
];

/// Believed when it is the whole message (§3.6).
pub(super) const BARE_USAGE_LIMIT: &str = "usage limit reached";

/// Providers whose OAuth accounts are refused as such (§3.9, request_rejected).
pub(super) const REFUSING_PROVIDERS: &[&str] = &["claude", "anthropic"];

/// Codes of failures that concern one request only (§1.6).
pub(super) const REQUEST_SCOPED_CODES: &[&str] = &[
    "context_length_exceeded",
    "upstream_empty_response",
    "upstream_response_failed",
];

/// The response that a request continues belongs to another account (§3.3-2).
pub(super) const FOREIGN_RESPONSE_CODE: &str = "invalid_previous_response_binding";

/// A refusal of content (decision 50).
pub(super) const CONTENT_POLICY_CODES: &[&str] = &[
    "content_policy_violation",
    "content_filter",
    "content_policy",
];

/// The header of an embedded-service supervisor and its value (§1.6).
pub(super) const SUPERVISOR_HINT: (&str, &str) = ("x-omni-fallback-hint", "connection_cooldown");

/// Codes and types that mean: this model is not served to this account (§7.3).
pub(super) const MODEL_ACCESS_CODES: &[&str] =
    &["model_not_found", "deployment_not_found", "not_found_error"];

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
    // Where the type says nothing.
    ("content_policy_violation", 400),
    ("content_filter", 400),
    ("content_policy", 400),
];

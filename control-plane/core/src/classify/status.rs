//! The rules that judge an error, in their order (`failure-state.md` §3.3, §3.4, §3.9 and §7.3).
//!
//! Each rule looks at the evidence and answers or passes; the first answer stands. To add a rule, add a
//! function to [`RULES`] at its place; to add a wording, add it to `phrases`. Rules about quotas are in `quota`.

use crate::settings::ProviderClass;
use crate::tool_limit;

use super::evidence::Evidence;
use super::phrases::{self, Family};
use super::verdict::{RowLength, Verdict, cooldown_length, lock_length, locks_model};
use super::{Consequence, CooldownLength, LockLength, Reason, TerminalKind, quota, rules};

/// Cooldown of a path that does not exist, in ms (§3.3-5).
const NOT_FOUND_MS: u64 = 120_000;
/// Cooldown when an account that is out of credits may still serve other models, in ms (§3.3-4f).
const CREDITS_MS: u64 = 120_000;
/// How long a retired model or a moved endpoint is left alone, in ms (§3.3-4b and c).
const GONE_MS: u64 = 86_400_000;
/// Cooldown of a plan limit without a hint, in ms (§3.3-6).
const PLAN_LIMIT_MS: u64 = 3_600_000;

type Rule = fn(&Evidence<'_>) -> Option<Verdict>;

/// The rules, first answer first. Texts that end a connection come before anything a status says; a status
/// that ends it comes before texts that only cool.
const RULES: &[Rule] = &[
    client_gone,
    foreign_response,
    supervised_outage,
    deactivated,
    rules::banned_by_phrase,
    retired_model,
    endpoint_moved,
    suspended_for_billing,
    rules::provider_rule,
    too_many_tools,
    quota::metric_of_gemini,
    out_of_credits,
    request_scoped,
    missing_resource,
    content_refused,
    unprocessable,
    unauthorized,
    payment_required,
    quota::per_day,
    quota::per_subscription,
    quota::per_week,
    quota::per_session,
    quota::with_hint,
    route_not_authorized,
    request_refused,
    forbidden_key,
    generic_text,
    forbidden_account,
    bad_request,
    by_status,
];

/// Judges an error.
pub(super) fn judge(evidence: &Evidence<'_>) -> Verdict {
    RULES
        .iter()
        .find_map(|rule| rule(evidence))
        .unwrap_or_else(|| anything_else(evidence))
}

fn is_oauth(evidence: &Evidence<'_>) -> bool {
    evidence.context.class == ProviderClass::Oauth
}

/// A real 499 is the client that left (§1.6).
fn client_gone(evidence: &Evidence<'_>) -> Option<Verdict> {
    (evidence.status == 499).then(|| Verdict::nothing(Reason::Unknown))
}

fn foreign_response(evidence: &Evidence<'_>) -> Option<Verdict> {
    let foreign = evidence.has_code(&[phrases::FOREIGN_RESPONSE_CODE])
        || (evidence.status == 409 && evidence.says(Family::ForeignResponse));
    foreign.then(|| Verdict::nothing(Reason::Unknown))
}

fn supervised_outage(evidence: &Evidence<'_>) -> Option<Verdict> {
    let (header, value) = phrases::SUPERVISOR_HINT;
    (evidence.header(header) == Some(value)).then(|| {
        Verdict::with(
            Reason::ServerError,
            Consequence::CoolConnection(cooldown_length(evidence, RowLength::Backoff)),
        )
        .without_breaker()
    })
}

fn deactivated(evidence: &Evidence<'_>) -> Option<Verdict> {
    evidence
        .says(Family::Deactivated)
        .then(|| Verdict::end(TerminalKind::Banned, Reason::AuthError))
}

/// A retired model says nothing about the account, so only the model is locked.
fn retired_model(evidence: &Evidence<'_>) -> Option<Verdict> {
    (matches!(evidence.status, 404 | 410) && evidence.says(Family::RetiredModel)).then(|| {
        Verdict::lock(
            LockLength::Exact {
                ms: GONE_MS,
                authoritative: true,
            },
            Reason::NotFound,
        )
    })
}

fn endpoint_moved(evidence: &Evidence<'_>) -> Option<Verdict> {
    evidence.says(Family::EndpointMoved).then(|| {
        Verdict::with(
            Reason::NotFound,
            Consequence::CoolConnection(CooldownLength::Flat(GONE_MS)),
        )
    })
}

fn suspended_for_billing(evidence: &Evidence<'_>) -> Option<Verdict> {
    evidence
        .says(Family::SuspendedForBilling)
        .then(|| Verdict::end(TerminalKind::CreditsExhausted, Reason::QuotaExhausted))
}

/// The request offers more tools than the provider takes, which says nothing about the account: another target may take
/// them (`routing.md` §13.3).
fn too_many_tools(evidence: &Evidence<'_>) -> Option<Verdict> {
    tool_limit::named_tool_limit(evidence.status, evidence.body).map(|_| {
        Verdict::record(Reason::ModelCapacity)
            .without_breaker()
            .without_account_fallback()
    })
}

/// Where quotas are per model, only an empty wallet ends the account (§3.3-4f).
pub(super) fn out_of_credits(evidence: &Evidence<'_>) -> Option<Verdict> {
    if !evidence.believed {
        return None;
    }
    let wallet = evidence.says(Family::WalletEmpty);
    if !wallet && !evidence.says(Family::OutOfCredits) {
        return None;
    }
    if evidence.context.per_model_quota && !wallet {
        if evidence.status == 402 {
            return payment_required(evidence);
        }
        return Some(Verdict::cool_account(
            evidence,
            RowLength::Flat(CREDITS_MS),
            Reason::QuotaExhausted,
        ));
    }
    Some(Verdict::end(
        TerminalKind::CreditsExhausted,
        Reason::QuotaExhausted,
    ))
}

/// A 400 of this kind is judged with the other ones (§7.3).
fn request_scoped(evidence: &Evidence<'_>) -> Option<Verdict> {
    if evidence.status == 400 || !evidence.has_code(phrases::REQUEST_SCOPED_CODES) {
        return None;
    }
    Some(Verdict::record(Reason::ModelCapacity).of_this_request())
}

fn missing_resource(evidence: &Evidence<'_>) -> Option<Verdict> {
    (evidence.status == 404 && evidence.says(Family::MissingResource))
        .then(|| Verdict::nothing(Reason::NotFound))
}

fn content_refused(evidence: &Evidence<'_>) -> Option<Verdict> {
    ((400..=499).contains(&evidence.status) && evidence.has_code(phrases::CONTENT_POLICY_CODES))
        .then(|| Verdict::nothing(Reason::ClientFault))
}

/// A refused credential has expired, unless it is a token that a refresh may renew (decision 14). Where nothing
/// renews tokens, waiting for it would use the dead one again and again.
fn unauthorized(evidence: &Evidence<'_>) -> Option<Verdict> {
    if evidence.status != 401 {
        return None;
    }
    let renewable = is_oauth(evidence) && evidence.context.renews_tokens;
    if renewable && evidence.says(Family::OauthTokenInvalid) {
        return Some(Verdict::record(Reason::AuthError));
    }
    Some(Verdict::end(TerminalKind::Expired, Reason::AuthError))
}

fn payment_required(evidence: &Evidence<'_>) -> Option<Verdict> {
    if evidence.status != 402 {
        return None;
    }
    if evidence.context.per_model_quota {
        return Some(Verdict::lock(
            lock_length(evidence, RowLength::Backoff),
            Reason::Credits,
        ));
    }
    Some(Verdict::end(
        TerminalKind::CreditsExhausted,
        Reason::QuotaExhausted,
    ))
}

fn route_not_authorized(evidence: &Evidence<'_>) -> Option<Verdict> {
    (evidence.status == 403 && evidence.says(Family::RouteNotAuthorized))
        .then(|| Verdict::nothing(Reason::AuthError).of_the_target())
}

/// A provider refuses an OAuth account as such; a streak of it is a ban (§3.9).
fn request_refused(evidence: &Evidence<'_>) -> Option<Verdict> {
    let refusing = phrases::REFUSING_PROVIDERS.contains(&evidence.context.provider.as_str())
        && is_oauth(evidence);
    (evidence.status == 403 && refusing && evidence.says(Family::RequestNotAllowed))
        .then(|| Verdict::with(Reason::RequestRejected, Consequence::CountRefusal))
}

/// A 403 of a connection that is not OAuth never ends it, except a block of bots (§3.3-4m, §3.9).
fn forbidden_key(evidence: &Evidence<'_>) -> Option<Verdict> {
    if evidence.status != 403 || is_oauth(evidence) || evidence.says(Family::ForbiddenByQuota) {
        return None;
    }
    if evidence.says(Family::AntiBotBan) {
        return Some(Verdict::end(TerminalKind::Banned, Reason::AuthError));
    }
    if evidence.says(Family::SignatureBanned) || evidence.says(Family::ForbiddenByProject) {
        return Some(Verdict::record(Reason::AuthError));
    }
    if evidence.context.per_model_quota {
        return Some(Verdict::lock(
            lock_length(evidence, RowLength::Backoff),
            Reason::Forbidden,
        ));
    }
    Some(Verdict::cool(
        evidence,
        RowLength::Backoff,
        Reason::AuthError,
    ))
}

/// A 403 of an OAuth account that no text explains is a ban (§3.4).
fn forbidden_account(evidence: &Evidence<'_>) -> Option<Verdict> {
    if evidence.status != 403 || !is_oauth(evidence) {
        return None;
    }
    let recoverable = !evidence.says(Family::AntiBotBan)
        && (evidence.says(Family::ForbiddenRecoverable) || evidence.says(Family::SignatureBanned));
    if recoverable {
        return Some(Verdict::cool(
            evidence,
            RowLength::Backoff,
            Reason::AuthError,
        ));
    }
    Some(Verdict::end(TerminalKind::Banned, Reason::AuthError))
}

/// What the client sent is at fault (decision 50).
fn unprocessable(evidence: &Evidence<'_>) -> Option<Verdict> {
    matches!(evidence.status, 413 | 422).then(|| Verdict::nothing(Reason::ClientFault))
}

/// The generic text rows, for every status; not for a 429 whose text about quotas is not believed.
fn generic_text(evidence: &Evidence<'_>) -> Option<Verdict> {
    if !evidence.believed {
        return None;
    }
    phrases::GENERIC
        .iter()
        .find(|row| evidence.says(row.family))
        .map(|row| rules::labelled(evidence, Verdict::cool(evidence, row.length, row.reason)))
}

/// A 400 that nothing above claimed (§7.3, decision 50).
fn bad_request(evidence: &Evidence<'_>) -> Option<Verdict> {
    if evidence.status != 400 {
        return None;
    }
    let other_model = Verdict::record(Reason::ModelCapacity).of_this_request();
    if evidence.has_code(&["context_length_exceeded"]) || evidence.says(Family::ContextOverflow) {
        // Another account serves the same model with the same window.
        return Some(other_model.without_account_fallback());
    }
    if let Some(verdict) = model_access(evidence) {
        return Some(verdict);
    }
    if evidence.says(Family::Malformed) || evidence.says(Family::BadParameter) {
        return Some(other_model);
    }
    if evidence.says(Family::Throttled) {
        return Some(Verdict::cool(
            evidence,
            RowLength::Backoff,
            Reason::RateLimitExceeded,
        ));
    }
    Some(Verdict::nothing(Reason::ClientFault))
}

/// A 400 about access to the model: the account is fine. Where the provider does not serve the model at all,
/// no other account of it is tried (§3.8-7).
fn model_access(evidence: &Evidence<'_>) -> Option<Verdict> {
    let verdict = Verdict::record(Reason::ModelCapacity).without_breaker();
    let bad_credential = evidence.says(Family::BadCredential);
    let denied = !bad_credential && evidence.says(Family::ModelAccessDenied);
    let not_served = !bad_credential && evidence.says(Family::ModelNotServed);
    if denied {
        return Some(verdict);
    }
    if not_served {
        return Some(verdict.without_account_fallback());
    }
    evidence
        .has_code(phrases::MODEL_ACCESS_CODES)
        .then_some(verdict)
}

/// The status rows (§3.3-5 and 6).
fn by_status(evidence: &Evidence<'_>) -> Option<Verdict> {
    let verdict = match evidence.status {
        404 if locks_model(evidence) || evidence.context.class == ProviderClass::Local => {
            Verdict::lock(lock_length(evidence, RowLength::Backoff), Reason::NotFound)
        }
        404 => Verdict::cool(evidence, RowLength::Flat(NOT_FOUND_MS), Reason::Unknown),
        429 => Verdict::cool(evidence, RowLength::Backoff, Reason::RateLimitExceeded),
        432 => Verdict::cool(
            evidence,
            RowLength::HintOr(PLAN_LIMIT_MS),
            Reason::QuotaExhausted,
        ),
        500 if locks_model(evidence) => Verdict::record(Reason::ServerError),
        406 | 408 | 500 | 502 | 503 | 504 => {
            Verdict::cool(evidence, RowLength::Backoff, Reason::ServerError)
        }
        _ => return None,
    };
    Some(rules::labelled(evidence, verdict))
}

/// Whatever is left cools for the base and does not grow (§3.3-8).
fn anything_else(evidence: &Evidence<'_>) -> Verdict {
    Verdict::cool(evidence, RowLength::Base, Reason::Unknown)
}

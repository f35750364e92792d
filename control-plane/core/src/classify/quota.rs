//! Rules about quotas that last longer than a minute (`failure-state.md` §3.3-4e and 4g to 4j, §7.1, §7.2).
//!
//! None of them ends a connection, and a length that nobody stated leaves the level as it is.

use crate::ids::ModelId;

use super::evidence::Evidence;
use super::phrases::{Family, Marker};
use super::verdict::{RowLength, Verdict, trusted_hint};
use super::{HintSource, Reason};

/// Cooldown of a subscription's limit without a hint, in ms.
const SUBSCRIPTION_MS: u64 = 3_600_000;
/// Cooldown of a weekly limit whose text names no reset, in ms.
const WEEK_MS: u64 = 86_400_000;
/// Cooldown of a session's limit, in ms.
const SESSION_MS: u64 = 18_000_000;

/// Google names the metric that ran out; the day's outweighs the minute's (§3.3-4e).
pub(super) fn metric_of_gemini(evidence: &Evidence<'_>) -> Option<Verdict> {
    if evidence.context.provider.as_str() != "gemini" || evidence.status != 429 {
        return None;
    }
    let reason = if evidence.says(Family::PerDayMetric) {
        Reason::QuotaExhausted
    } else if evidence.says(Family::PerMinuteMetric) {
        Reason::RateLimitExceeded
    } else {
        return None;
    };
    Some(Verdict::cool(evidence, RowLength::Backoff, reason))
}

/// A quota of the day lasts until the day's reset (§3.3-4g, §7.2).
pub(super) fn per_day(evidence: &Evidence<'_>) -> Option<Verdict> {
    if !evidence.believed {
        return None;
    }
    let until_reset = || {
        let ms = evidence.context.daily_reset.ms_until(evidence.context.now);
        let verdict = exhausted(evidence, RowLength::Flat(ms));
        if evidence.status == 429 {
            verdict.of_the_day(spent_model(evidence))
        } else {
            verdict
        }
    };
    if evidence.says(Family::DailyQuota) {
        return Some(until_reset());
    }
    if !evidence.says(Family::TokensPerDay) {
        return None;
    }
    // These are often given back little by little, so a midnight that nobody stated would be a guess.
    if trusted_hint(evidence).is_some_and(|hint| hint.source == HintSource::Header) {
        return Some(exhausted(evidence, RowLength::Backoff));
    }
    evidence.context.daily_reset.is_stated().then(until_reset)
}

/// A subscription's limit (§3.3-4h).
pub(super) fn per_subscription(evidence: &Evidence<'_>) -> Option<Verdict> {
    let of_claude =
        evidence.context.provider.as_str() == "claude" && evidence.says(Family::ClaudeAccountLimit);
    let says = of_claude || evidence.says(Family::SubscriptionLimit);
    (evidence.believed && says).then(|| exhausted(evidence, RowLength::HintOr(SUBSCRIPTION_MS)))
}

/// A weekly limit, believed of anyone (§3.3-4i). Only a reset that the text names makes it another length.
pub(super) fn per_week(evidence: &Evidence<'_>) -> Option<Verdict> {
    evidence.says(Family::WeeklyLimit).then(|| {
        let ms = evidence.reset_in_text_ms().unwrap_or(WEEK_MS);
        exhausted(evidence, RowLength::Flat(ms))
    })
}

/// A session's limit, believed of anyone (§3.3-4i).
pub(super) fn per_session(evidence: &Evidence<'_>) -> Option<Verdict> {
    evidence
        .says(Family::SessionLimit)
        .then(|| exhausted(evidence, RowLength::Flat(SESSION_MS)))
}

/// A quota with a stated wait (§3.3-4j). Wordings of long periods count for a 429 only: elsewhere they are too
/// near to what is said of contexts and parameters.
pub(super) fn with_hint(evidence: &Evidence<'_>) -> Option<Verdict> {
    let says = evidence.says(Family::QuotaUsedUp)
        || (evidence.status == 429 && evidence.says(Family::LongPeriodQuota));
    (evidence.believed && evidence.hint.is_some() && says)
        .then(|| exhausted(evidence, RowLength::Backoff))
}

/// The model that the text names, else the one asked for.
fn spent_model(evidence: &Evidence<'_>) -> ModelId {
    let asked = evidence.context.model;
    evidence
        .after(Marker::QuotaForModel)
        .and_then(model_name)
        .filter(|name| !name.eq_ignore_ascii_case(asked.as_str()))
        .and_then(|name| ModelId::new(name).ok())
        .unwrap_or_else(|| asked.clone())
}

/// The name of a model at the beginning of a text. A point at the end belongs to the sentence.
fn model_name(text: &str) -> Option<&str> {
    let text = text.trim_start_matches([' ', ':', '"', '\'', '`', '\\']);
    let is_part = |part: char| {
        part.is_ascii_alphanumeric() || matches!(part, '.' | '-' | '_' | '/' | ':' | '@')
    };
    let end = text.find(|part| !is_part(part)).unwrap_or(text.len());
    let name = text.get(..end)?.trim_end_matches(['.', ':']);
    (!name.is_empty()).then_some(name)
}

fn exhausted(evidence: &Evidence<'_>, length: RowLength) -> Verdict {
    Verdict::cool(evidence, length, Reason::QuotaExhausted)
}

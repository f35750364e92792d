//! What a rule answers, and how long what it answers lasts on the connection it is about.

use crate::ids::{ModelId, RuleId};
use crate::settings::RuleScope;

use super::evidence::Evidence;
use super::{
    Classification, Consequence, CooldownLength, HintSource, LockLength, Origin, Reason, RetryHint,
    TRIP_STATUSES, TerminalKind,
};

/// Cooldown of a limit of the address where the text would set none, in ms (§6).
const EGRESS_MS: u64 = 120_000;

/// How long a row cools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowLength {
    /// The hint if hints are trusted and there is one, else the ladder.
    Backoff,
    /// So many ms; 0 records the error only.
    Flat(u64),
    /// The hint if hints are trusted and there is one, else so many ms.
    HintOr(u64),
    /// The class's base.
    Base,
}

/// What a rule answers.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    reason: Reason,
    consequence: Consequence,
    account_fallback: bool,
    request_scoped: bool,
    skip_breaker: bool,
    rule: Option<RuleId>,
    scope: Option<RuleScope>,
    spent_model: Option<ModelId>,
}

impl Verdict {
    /// Nobody's state changes and no other account is tried.
    pub(super) fn nothing(reason: Reason) -> Self {
        Self {
            reason,
            consequence: Consequence::Nothing,
            account_fallback: false,
            request_scoped: true,
            skip_breaker: true,
            rule: None,
            scope: None,
            spent_model: None,
        }
    }

    /// Only the error is recorded, and another account is tried.
    pub(super) fn record(reason: Reason) -> Self {
        Self::with(reason, Consequence::RecordError)
    }

    pub(super) fn with(reason: Reason, consequence: Consequence) -> Self {
        Self {
            reason,
            consequence,
            account_fallback: true,
            request_scoped: false,
            skip_breaker: false,
            rule: None,
            scope: None,
            spent_model: None,
        }
    }

    /// The connection needs a human or a new credential.
    pub(super) fn ends_connection(&self) -> bool {
        matches!(self.consequence, Consequence::EndConnection(_))
    }

    /// A rule spoke.
    pub(super) fn by_rule(self, id: &RuleId) -> Self {
        Self {
            rule: Some(id.clone()),
            ..self
        }
    }

    /// An honoured rule acts on this. Where a whole provider is left alone no account of it can do better.
    pub(super) fn of_scope(self, scope: RuleScope) -> Self {
        Self {
            scope: Some(scope),
            account_fallback: scope != RuleScope::Provider,
            ..self
        }
    }

    /// The same for another reason and, if something is left alone, for so many ms.
    pub(super) fn relabelled(self, reason: Reason, ms: Option<u64>) -> Self {
        let consequence = match (self.consequence, ms) {
            (Consequence::CoolConnection(_), Some(ms)) => {
                Consequence::CoolConnection(CooldownLength::Flat(ms))
            }
            (Consequence::LockModel(_), Some(ms)) => Consequence::LockModel(LockLength::Exact {
                ms,
                authoritative: false,
            }),
            (unchanged, _) => unchanged,
        };
        Self {
            reason,
            consequence,
            ..self
        }
    }

    pub(super) fn end(kind: TerminalKind, reason: Reason) -> Self {
        Self::with(reason, Consequence::EndConnection(kind))
    }

    /// A cooldown of the connection, or of the model where the provider keeps quotas per model; a limit of the
    /// address comes first and always cools (`failure-state.md` §6).
    pub(super) fn cool(evidence: &Evidence<'_>, length: RowLength, reason: Reason) -> Self {
        let of_address = is_bucketed(evidence) && reason.is_a_limit();
        if !of_address {
            return Self::cool_account(evidence, length, reason);
        }
        let length = match length {
            RowLength::Flat(0) => RowLength::Flat(EGRESS_MS),
            length => length,
        };
        let length = cooldown_length(evidence, length);
        Self::with(reason, Consequence::CoolConnection(length))
    }

    /// The same where the account is meant, whatever the address.
    pub(super) fn cool_account(evidence: &Evidence<'_>, length: RowLength, reason: Reason) -> Self {
        let consequence = if length == RowLength::Flat(0) {
            Consequence::RecordError
        } else if locks_model(evidence) {
            Consequence::LockModel(lock_length(evidence, length))
        } else {
            Consequence::CoolConnection(cooldown_length(evidence, length))
        };
        Self::with(reason, consequence)
    }

    pub(super) fn lock(length: LockLength, reason: Reason) -> Self {
        Self::with(reason, Consequence::LockModel(length))
    }

    /// The quota of the day of this model is used up.
    pub(super) fn of_the_day(self, model: ModelId) -> Self {
        Self {
            spent_model: Some(model),
            ..self
        }
    }

    /// The breaker does not count it whatever the status.
    pub(super) fn without_breaker(self) -> Self {
        Self {
            skip_breaker: true,
            ..self
        }
    }

    pub(super) fn of_this_request(self) -> Self {
        Self {
            request_scoped: true,
            skip_breaker: true,
            ..self
        }
    }

    /// Another target may fare better, whatever became of this request here.
    pub(super) fn of_the_target(self) -> Self {
        Self {
            request_scoped: false,
            ..self
        }
    }

    pub(super) fn without_account_fallback(self) -> Self {
        Self {
            account_fallback: false,
            ..self
        }
    }

    /// The verdict on a failure with this status and hint.
    pub(super) fn into_classification(
        self,
        status: u16,
        hint: Option<RetryHint>,
    ) -> Classification {
        let overloaded = self.reason == Reason::ModelCapacity;
        Classification {
            status,
            reason: self.reason,
            success: false,
            account_fallback: self.account_fallback,
            consequence: self.consequence,
            counts_for_breaker: TRIP_STATUSES.contains(&status)
                && !self.skip_breaker
                && !overloaded,
            network: false,
            request_scoped: self.request_scoped,
            hint,
            advertised_ms: None,
            scope: self.scope,
            spent_model: self.spent_model,
            over_budget: false,
            origin: self.rule.map(|rule| Origin {
                rule,
                original_status: None,
            }),
        }
    }
}

fn is_codex(evidence: &Evidence<'_>) -> bool {
    evidence.context.provider.as_str() == "codex"
}

/// Where quotas are per model, these statuses say nothing about the account (§3.4, §3.8-16). Of codex only the 429.
pub(super) fn locks_model(evidence: &Evidence<'_>) -> bool {
    if is_codex(evidence) {
        return evidence.status == 429;
    }
    evidence.context.per_model_quota && matches!(evidence.status, 402..=404 | 429 | 500..=599)
}

/// A 429 of a provider that limits by address, as the upstream sent it.
fn is_bucketed(evidence: &Evidence<'_>) -> bool {
    evidence.status == 429 && evidence.restated.is_none() && evidence.context.egress_bucketed
}

pub(super) fn trusted_hint(evidence: &Evidence<'_>) -> Option<RetryHint> {
    evidence.hint.filter(|_| evidence.context.trust_hints)
}

pub(super) fn cooldown_length(evidence: &Evidence<'_>, length: RowLength) -> CooldownLength {
    match length {
        RowLength::Backoff => trusted_hint(evidence).map_or(CooldownLength::Ladder, |hint| {
            CooldownLength::Hint(hint.wait_ms)
        }),
        RowLength::HintOr(ms) => trusted_hint(evidence).map_or(CooldownLength::Flat(ms), |hint| {
            CooldownLength::Hint(hint.wait_ms)
        }),
        RowLength::Flat(ms) => CooldownLength::Flat(ms),
        RowLength::Base => CooldownLength::Base,
    }
}

pub(super) fn lock_length(evidence: &Evidence<'_>, length: RowLength) -> LockLength {
    let ladder = LockLength::Ladder {
        base_ms: evidence.context.base_cooldown_ms,
    };
    let flat = |ms| LockLength::Exact {
        ms,
        authoritative: false,
    };
    let hint_or = |otherwise| {
        trusted_hint(evidence).map_or(otherwise, |hint| LockLength::Exact {
            ms: hint.wait_ms,
            authoritative: hint.source != HintSource::Body,
        })
    };
    match length {
        RowLength::Backoff => hint_or(ladder),
        RowLength::HintOr(ms) => hint_or(flat(ms)),
        RowLength::Flat(ms) => flat(ms),
        RowLength::Base => ladder,
    }
}

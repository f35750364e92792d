//! How a request ends that `auto` may send nowhere (`routing.md` §7.4).

use crate::routing::{Exclusion, ExclusionReason, MAX_EXCLUSIONS, Rejection};

use super::super::Halt;
use super::Contest;

/// These accounts are all that could be used, and each is below the quota cut-off: 429, to be asked again when the first
/// of them has enough left in all its windows.
pub(super) fn below_quota(contest: &Contest<'_>, accounts: &[usize]) -> Halt {
    let now = contest.question.now;
    let returns_at = accounts
        .iter()
        .filter_map(|index| {
            contest
                .assessments
                .get(*index)?
                .reading
                .allowance
                .returns_at
        })
        .filter(|end| *end > now)
        .min();
    Halt::Reject(Box::new(Rejection {
        error_type: "rate_limit_error".to_owned(),
        message: "every account of the combo is below its quota cut-off".to_owned(),
        retry_after_secs: returns_at.map(|end| end.remaining_ms(now).div_ceil(1_000)),
        ..refusal(contest, 429, "quota_cutoff")
    }))
}

/// No target is within a strict budget: 402.
/// `dear` are those that would be used but for it.
pub(super) fn over_budget(contest: &Contest<'_>, dear: &[usize]) -> Halt {
    let excluded = dear
        .iter()
        .filter_map(|index| contest.question.candidates.get(*index))
        .take(MAX_EXCLUSIONS)
        .map(|candidate| Exclusion {
            provider: candidate.provider.clone(),
            connection: candidate.connection.cloned(),
            model: candidate.model.clone(),
            reason: ExclusionReason::OverBudget,
            until: None,
            cause: None,
            origin: None,
        })
        .collect();
    Halt::Reject(Box::new(Rejection {
        excluded,
        message: "every target of the combo would cost more than the budget".to_owned(),
        ..refusal(contest, 402, "budget_exceeded")
    }))
}

fn refusal(contest: &Contest<'_>, status: u16, code: &str) -> Rejection {
    Rejection {
        status,
        code: code.to_owned(),
        error_type: "invalid_request_error".to_owned(),
        message: String::new(),
        retry_after_secs: None,
        pass_through: false,
        terminal_reason: code.to_owned(),
        pool_size: u32::try_from(contest.assessments.len()).unwrap_or(u32::MAX),
        attempted: 0,
        excluded: Vec::new(),
        lease: None,
    }
}

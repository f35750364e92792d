//! What a rule that matches does.

use crate::classify::evidence::Evidence;
use crate::classify::status::out_of_credits;
use crate::classify::verdict::{RowLength, Verdict, cooldown_length, lock_length};
use crate::classify::{Consequence, CooldownLength, LockLength, Reason, TerminalKind};
use crate::settings::RuleScope;

use super::Matched;

/// Cooldown where the status alone would set none, in ms (`failure-state.md` §5.4a).
const FLAT_MS: u64 = 120_000;

/// A phrase that the operator takes for a ban, whatever the status (`failure-state.md` §3.7).
pub(in crate::classify) fn banned_by_phrase(evidence: &Evidence<'_>) -> Option<Verdict> {
    let id = evidence.context.rules.ban_phrase(&evidence.reading)?;
    let verdict = Verdict::with(
        Reason::AuthError,
        Consequence::EndConnection(TerminalKind::Banned),
    );
    Some(verdict.by_rule(id))
}

/// A rule whose scope is honoured, for every status (decisions 17 and 18). A 400 is claimed also where the scope is a
/// label, since no table of the status would come to it. An account that is out of credits stays out of credits
/// (§5.4).
pub(in crate::classify) fn provider_rule(evidence: &Evidence<'_>) -> Option<Verdict> {
    let book = evidence.context.rules;
    if !book.honours_scope && evidence.status != 400 {
        return None;
    }
    let matched = book.matching(evidence)?;
    if out_of_credits(evidence).is_some_and(|verdict| verdict.ends_connection()) {
        return None;
    }
    let verdict = if book.honours_scope {
        acting(evidence, matched)
    } else {
        let length = matched.ms.map_or(RowLength::Backoff, RowLength::Flat);
        Verdict::cool(evidence, length, matched.rule.reason)
    };
    Some(verdict.by_rule(&matched.rule.id))
}

/// A verdict of the tables about a status, with the reason and the number of a rule whose scope is a label
/// (`failure-state.md` §3.3-5).
pub(in crate::classify) fn labelled(evidence: &Evidence<'_>, verdict: Verdict) -> Verdict {
    match evidence.context.rules.matching(evidence) {
        None => verdict,
        Some(matched) => verdict
            .relabelled(matched.rule.reason, matched.ms)
            .by_rule(&matched.rule.id),
    }
}

fn acting(evidence: &Evidence<'_>, matched: Matched<'_>) -> Verdict {
    let consequence = match matched.rule.scope {
        RuleScope::Model => Consequence::LockModel(match matched.ms {
            Some(ms) => LockLength::Exact {
                ms,
                authoritative: false,
            },
            None => lock_length(evidence, RowLength::Backoff),
        }),
        RuleScope::Connection => Consequence::CoolConnection(match (matched.ms, evidence.status) {
            (Some(ms), _) => CooldownLength::Flat(ms),
            (None, 401 | 402 | 404) => CooldownLength::Flat(FLAT_MS),
            (None, _) => cooldown_length(evidence, RowLength::Backoff),
        }),
        RuleScope::Provider => Consequence::HoldProvider(matched.ms),
    };
    Verdict::with(matched.rule.reason, consequence).of_scope(matched.rule.scope)
}

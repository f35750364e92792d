//! What an outcome does to its connection: cooldown, terminal state, refusal streak, last error and model
//! locks (`failure-state.md` §3.8 to §3.10 and §4).

use crate::classify::{
    Classification, Consequence, CooldownLength, HintSource, LockLength, Reason, TerminalKind,
};
use crate::config::Connection;
use crate::cooldown::{Cooldown, CooldownChange, CoolingFailure, LastError, Refusal};
use crate::gate::ConnectionGate;
use crate::ids::ModelId;
use crate::lockout::{self, LockingFailure};
use crate::settings::ProviderPolicy;
use crate::state::{ConnectionState, TransitionKind};
use crate::version::Mark;

use super::{Judged, Log};

/// The same error again is written at most this often, in ms, so that a client that repeats a bad request does
/// not write with each one.
const REPEATED_ERROR_MS: u64 = 5_000;

/// Applies a judged outcome to the value of the connection it happened on.
pub(super) fn outcome(
    state: &mut ConnectionState,
    config: &Connection,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) {
    if judged.classification.success {
        success(state, judged, log);
    } else if judged.classification.consequence != Consequence::Nothing {
        failure(state, config, judged, policy, log);
    }
}

/// Clears what the old credential caused and takes note of the new one. Says whether there was something to
/// clear. A version that is not newer changes nothing.
pub(super) fn adopt_credential(state: &mut ConnectionState, credential_version: u64) -> bool {
    if credential_version <= state.credential_version {
        return false;
    }
    let cleared = clear_faults(state, true);
    state.gate = ConnectionGate::default();
    state.credential_version = credential_version;
    cleared
}

/// Takes note of a renewed access token. It ends `expired`, and with it everything (`failure-state.md` §3.9); of an
/// account that is otherwise well or only cools, it ends what the old token was refused for. Says whether there was
/// something to clear.
pub(super) fn adopt_refreshed_token(state: &mut ConnectionState, credential_version: u64) -> bool {
    if credential_version <= state.credential_version {
        return false;
    }
    state.credential_version = credential_version;
    match &state.terminal {
        Some(terminal) if terminal.kind == TerminalKind::Expired => clear_faults(state, true),
        Some(_) => false,
        None => {
            let refused = |error: &LastError| error.reason == Reason::AuthError;
            state.last_error.take_if(|error| refused(error)).is_some()
        }
    }
}

/// An operator's reset; after one that cleared something, a failure of an attempt decided before it cools nothing
/// (decisions 9 and 24). Says whether there was something to clear.
pub(super) fn reset(state: &mut ConnectionState, terminal_too: bool) -> bool {
    if state.terminal.is_some() && !terminal_too {
        return false;
    }
    let gate_cleared = !state.gate.is_clean();
    if !clear_faults(state, true) && !gate_cleared {
        return false;
    }
    state.gate = ConnectionGate {
        escalated: Mark::ThisWrite,
        ..ConnectionGate::default()
    };
    state.cooldown.escalated = Mark::ThisWrite;
    state.cooldown.changed = Mark::ThisWrite;
    true
}

/// Ends cooldown, last error, refusal streak and, if asked, the terminal state. Where there is none of them the marks
/// of a reset stay.
fn clear_faults(state: &mut ConnectionState, terminal_too: bool) -> bool {
    let something = !state.cooldown.is_clean()
        || state.last_error.is_some()
        || state.refusals.count > 0
        || (terminal_too && state.terminal.is_some());
    if !something {
        return false;
    }
    state.cooldown = Cooldown::default();
    state.last_error = None;
    state.refusals = crate::cooldown::RefusalStreak::default();
    if terminal_too {
        state.terminal = None;
    }
    true
}

fn success(state: &mut ConnectionState, judged: &Judged<'_>, log: &mut Log<'_>) {
    let attempt = judged.attempt;
    if judged.combo {
        lockout::decay(
            &mut state.locks,
            &attempt.provider,
            &attempt.model,
            attempt.decided_on,
            judged.count,
        );
    }
    if attempt.credential_version < state.credential_version {
        return;
    }
    let mut cleared = false;
    if attempt.credential_version > state.credential_version && !state.is_clean() {
        cleared = adopt_credential(state, attempt.credential_version);
    } else if state.terminal.is_none() && state.cooldown.changed.seen_by(attempt.decided_on) {
        cleared = clear_faults(state, false);
    }
    if cleared {
        log.connection(&attempt.connection, TransitionKind::Cleared);
    }
}

fn failure(
    state: &mut ConnectionState,
    config: &Connection,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) {
    let attempt = judged.attempt;
    let classification = judged.classification;
    if attempt.credential_version < state.credential_version && concerns_credential(classification)
    {
        return;
    }
    if adopt_credential(state, attempt.credential_version) {
        log.connection(&attempt.connection, TransitionKind::Cleared);
    }
    if state.terminal.is_some() {
        return;
    }
    match classification.consequence {
        Consequence::Nothing => return,
        Consequence::RecordError => {
            if !state.cooldown.is_running(judged.at) {
                record_error(state, judged);
            }
        }
        Consequence::CoolConnection(length) => {
            cool(state, config, length, judged, policy, log);
        }
        Consequence::EndConnection(kind) => end(state, kind, judged, policy, log),
        Consequence::LockModel(_) | Consequence::HoldProvider(_) => record_error(state, judged),
        Consequence::CountRefusal => match state.refusals.refuse(judged.at, attempt.decided_on) {
            Refusal::SameEpisode => {}
            Refusal::Cool(ms) => {
                state.cooldown.changed = Mark::ThisWrite;
                cool(state, config, CooldownLength::Flat(ms), judged, policy, log);
            }
            Refusal::Ban => end(state, TerminalKind::Banned, judged, policy, log),
        },
    }
    lock_model(state, judged, policy, log);
}

/// Verdicts about the credential count for the credential that was used (decision 9).
fn concerns_credential(classification: &Classification) -> bool {
    matches!(
        classification.consequence,
        Consequence::EndConnection(_) | Consequence::CountRefusal
    ) || classification.reason == Reason::AuthError
}

fn record_error(state: &mut ConnectionState, judged: &Judged<'_>) {
    let error = LastError {
        status: judged.classification.status,
        reason: judged.classification.reason,
        at: judged.at,
        origin: judged.classification.origin.clone(),
    };
    if let Some(last) = &state.last_error {
        let same = last.status == error.status
            && last.reason == error.reason
            && last.origin == error.origin;
        let repeated = same && error.at.ms_since(last.at) < REPEATED_ERROR_MS;
        if last.at > error.at || repeated {
            return;
        }
    }
    state.last_error = Some(error);
    state.cooldown.changed = Mark::ThisWrite;
}

fn cool(
    state: &mut ConnectionState,
    config: &Connection,
    length: CooldownLength,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) {
    let failure = CoolingFailure {
        length,
        reason: judged.classification.reason,
        origin: judged.classification.origin.clone(),
        at: judged.at,
        decided_on: judged.attempt.decided_on,
    };
    let before = state.cooldown.until;
    let change = state
        .cooldown
        .fail(&failure, &policy.cooldown, config.disable_cooling);
    match change {
        CooldownChange::SameEpisode => return,
        CooldownChange::Extended | CooldownChange::Started => record_error(state, judged),
    }
    if let Some(until) = state.cooldown.until
        && before != Some(until)
    {
        log.connection(
            &judged.attempt.connection,
            TransitionKind::Cooldown {
                until,
                backoff_level: state.cooldown.backoff_level,
                reason: failure.reason,
            },
        );
    }
}

/// Makes the connection terminal, also while it cools; a terminal state has no end by time. A ban may switch the
/// connection off as well (`failure-state.md` §3.8-20).
fn end(
    state: &mut ConnectionState,
    kind: TerminalKind,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) {
    state.terminal = Some(crate::cooldown::Terminal {
        kind,
        since: judged.at,
        credential_version: judged.attempt.credential_version,
        switched_off: kind == TerminalKind::Banned && policy.rules.auto_disable(),
    });
    state.cooldown.until = None;
    state.cooldown.reason = None;
    state.cooldown.origin = None;
    state.cooldown.changed = Mark::ThisWrite;
    record_error(state, judged);
    log.connection(
        &judged.attempt.connection,
        TransitionKind::Terminal { kind },
    );
}

fn lock_model(
    state: &mut ConnectionState,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) {
    if state.terminal.is_some() {
        return;
    }
    let asked = &judged.attempt.model;
    let length = lock_length(judged, policy);
    if let Some(length) = length {
        lock(state, asked, length, judged, policy, log);
    }
    if let Some(spent) = spent_model(judged, policy)
        && (length.is_none() || spent != asked)
    {
        // Without a number, a used-up quota lasts until the day's reset (§4.3).
        let base_ms = policy.lockout.base_ms;
        lock(
            state,
            spent,
            LockLength::Ladder { base_ms },
            judged,
            policy,
            log,
        );
    }
}

/// The model that the lockout switch locks for its used-up quota of the day, when no combo was named
/// (`failure-state.md` §7.2). Combos have the switch's ordinary lock.
fn spent_model<'a>(judged: &Judged<'a>, policy: &ProviderPolicy) -> Option<&'a ModelId> {
    let classification = judged.classification;
    let switched =
        policy.lockout.enabled && policy.lockout.error_codes.contains(&classification.status);
    classification
        .spent_model
        .as_ref()
        .filter(|_| switched && !judged.combo && classification.scope.is_none())
}

fn lock(
    state: &mut ConnectionState,
    model: &ModelId,
    length: LockLength,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) {
    let attempt = judged.attempt;
    let classification = judged.classification;
    let failure = LockingFailure {
        key: lockout::key_for(classification.status, &attempt.provider, model),
        length,
        reason: classification.reason,
        origin: classification.origin.clone(),
        at: judged.at,
        decided_on: attempt.decided_on,
    };
    if let Some(until) = lockout::lock(&mut state.locks, &failure, &policy.lockout) {
        log.connection(
            &attempt.connection,
            TransitionKind::Lock {
                key: failure.key,
                until,
                reason: failure.reason,
            },
        );
    }
}

/// How long the model is locked, if it is: as classified, or by the lockout switch when the request named a
/// combo (`failure-state.md` §4.1 and §4.3). One failure counts once; of the two the combo's length is taken,
/// unless the other is authoritative.
fn lock_length(judged: &Judged<'_>, policy: &ProviderPolicy) -> Option<LockLength> {
    let classification = judged.classification;
    let classified = match classification.consequence {
        Consequence::LockModel(length) => Some(length),
        Consequence::Nothing
        | Consequence::RecordError
        | Consequence::CoolConnection(_)
        | Consequence::EndConnection(_)
        | Consequence::HoldProvider(_)
        | Consequence::CountRefusal => None,
    };
    if classification.scope.is_some() {
        // The rule says what is locked and how long; the switch adds nothing (decisions 18 and 21).
        return classified;
    }
    let switched = judged.combo
        && policy.lockout.enabled
        && !classification.request_scoped
        && policy.lockout.error_codes.contains(&classification.status);
    let authoritative = matches!(
        classified,
        Some(LockLength::Exact {
            authoritative: true,
            ..
        })
    );
    if !switched || authoritative {
        return classified;
    }
    Some(combo_length(classification, policy))
}

/// A trusted hint longer than the base, else the ladder, or the base where locks do not grow.
fn combo_length(classification: &Classification, policy: &ProviderPolicy) -> LockLength {
    let base_ms = policy.lockout.base_ms;
    match classification.hint {
        Some(hint) if policy.cooldown.trust_hints && hint.wait_ms > base_ms => LockLength::Exact {
            ms: hint.wait_ms,
            authoritative: hint.source != HintSource::Body,
        },
        _ if policy.lockout.exponential => LockLength::Ladder { base_ms },
        _ => LockLength::Exact {
            ms: base_ms,
            authoritative: false,
        },
    }
}

//! `reset-window`: the quota that begins anew soonest first (`routing.md` §8.11).
//!
//! How much of it is left does not count. Accounts of which no end is known, and those whose limit is reached, come
//! last. Those whose ends are close to the first one take turns.

use crate::config::{ComboConfig, ResetWindow};
use crate::telemetry::{QuotaSnapshot, QuotaWindow};
use crate::time::Timestamp;

use super::{Candidate, Halt, Order, Ordered, Question, quota, tie};

/// `resetWindowTieBandMs` where nothing is configured.
const DEFAULT_BAND_MS: u64 = 60_000;

/// Ascending by the end of the window, near equals in turn.
#[derive(Debug)]
pub(super) struct ResetWindows;

impl Order for ResetWindows {
    fn expands_accounts(&self) -> bool {
        true
    }

    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let band_ms = question
            .config
            .reset_window_tie_band_ms
            .unwrap_or(DEFAULT_BAND_MS);
        let order = tie::sorted_with_turns(
            question,
            |candidate| {
                let left_ms = left_ms(question, &candidate);
                (left_ms.is_none(), left_ms)
            },
            |(_, first), (_, other)| match (first, other) {
                (Some(first), Some(other)) => {
                    band_ms > 0 && other.saturating_sub(*first) <= band_ms
                }
                _ => false,
            },
        )?;
        Ok(order.into())
    }
}

/// How long until the first of the windows that count begins anew, in ms; 0 where one did since it was seen.
fn left_ms(question: &Question<'_>, candidate: &Candidate<'_>) -> Option<u64> {
    let quota = quota::of(question, candidate)?;
    if quota::limit_stands(&quota, question.now) {
        return None;
    }
    let end = named(&quota, question.config)
        .or_else(|| any(&quota, candidate))
        .or(quota.resets_at)?;
    Some(end.remaining_ms(question.now))
}

/// The earliest end of the configured windows.
fn named(quota: &QuotaSnapshot, config: &ComboConfig) -> Option<Timestamp> {
    let counts = |window: ResetWindow| match &config.reset_windows {
        Some(windows) => windows.contains(&window),
        None => window == ResetWindow::Weekly,
    };
    let session = counts(ResetWindow::Session) || config.reset_window_include_session == Some(true);
    let end = |counts: bool, window: Option<QuotaWindow>| window.filter(|_| counts)?.resets_at;
    [
        end(session, quota.session),
        end(counts(ResetWindow::Weekly), quota.weekly),
        end(counts(ResetWindow::Monthly), quota.monthly),
    ]
    .into_iter()
    .flatten()
    .min()
}

/// The earliest end of any window, that of the candidate's model too.
fn any(quota: &QuotaSnapshot, candidate: &Candidate<'_>) -> Option<Timestamp> {
    let of_model = quota
        .weekly_by_model
        .iter()
        .filter(|(model, _)| model == candidate.model)
        .map(|(_, window)| window);
    [&quota.session, &quota.weekly, &quota.monthly]
        .into_iter()
        .flatten()
        .chain(of_model)
        .filter_map(|window| window.resets_at)
        .min()
}

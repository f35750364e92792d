//! When the answers of a panel go to its judge (`routing.md` §8.18, decision 32).
//!
//! The panel proceeds when everybody has answered or failed, or when its time is up; and once enough have answered, when
//! the grace for the others has passed. Times are ms since the panel was asked, and never go back.

use std::fmt::Write as _;

use crate::outcome::{Outcome, StreamFault, TransportFault};

use super::exclusion::MAX_EXCLUSIONS;
use super::plan::FusionPlan;
use super::terminal::{error_type, may_retry_after};
use super::{ExclusionReason, Rejection};

/// Why a member contributes no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shortfall {
    /// Its request ended with this status.
    Status(u16),
    /// Nothing was sent, for this reason.
    Excluded(ExclusionReason),
    /// It took too long.
    Timeout,
    /// The others were enough.
    StragglerDropped,
    /// No answer came at all.
    Threw,
    /// Its answer holds no text.
    EmptyContent,
    /// Its answer is no answer.
    Unparseable,
}

/// What the panel came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PanelResult {
    /// These members' answers are judged, in the order of the panel.
    Judge(Vec<usize>),
    /// The one answer there is, which is returned as it is.
    Single(usize),
    /// No member answered.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    Open,
    Answered,
    Failed(Shortfall),
}

/// A panel while it is asked.
#[derive(Clone, Debug)]
pub struct Panel {
    min_answers: usize,
    straggler_grace_ms: u64,
    hard_timeout_ms: u64,
    seats: Vec<Seat>,
    /// When the answer came that made them enough.
    enough_at_ms: Option<u64>,
}

impl Panel {
    /// A panel that was just asked.
    #[must_use]
    pub fn new(plan: &FusionPlan) -> Self {
        Self {
            min_answers: usize::try_from(plan.min_panel).unwrap_or(usize::MAX),
            straggler_grace_ms: plan.straggler_grace_ms,
            hard_timeout_ms: plan.panel_hard_timeout_ms,
            seats: vec![Seat::Open; plan.panel.len()],
            enough_at_ms: None,
        }
    }

    /// A member answered. What is said of it later counts no more.
    pub fn answers(&mut self, member: usize, at_ms: u64) {
        if self.settle(member, Seat::Answered)
            && self.enough_at_ms.is_none()
            && self.answered().count() >= self.min_answers
        {
            self.enough_at_ms = Some(at_ms);
        }
    }

    /// A member will not answer.
    pub fn fails(&mut self, member: usize, shortfall: Shortfall) {
        self.settle(member, Seat::Failed(shortfall));
    }

    /// Until when the others are waited for; `None` when there is nobody to wait for.
    #[must_use]
    pub fn waits_until_ms(&self) -> Option<u64> {
        if !self.seats.contains(&Seat::Open) {
            return None;
        }
        let grace_ends = self
            .enough_at_ms
            .map(|at| at.saturating_add(self.straggler_grace_ms));
        Some(grace_ends.map_or(self.hard_timeout_ms, |end| end.min(self.hard_timeout_ms)))
    }

    /// Nobody is waited for any more.
    pub fn close(&mut self) -> PanelResult {
        let late = if self.enough_at_ms.is_some() {
            Shortfall::StragglerDropped
        } else {
            Shortfall::Timeout
        };
        for seat in &mut self.seats {
            if *seat == Seat::Open {
                *seat = Seat::Failed(late);
            }
        }
        let answered: Vec<usize> = self.answered().collect();
        match answered.as_slice() {
            [] => PanelResult::Nothing,
            [only] => PanelResult::Single(*only),
            _ => PanelResult::Judge(answered),
        }
    }

    /// The answer when no member answered, with each one's reason. `rejections` are those that members ended with;
    /// `attempted` is how many attempts they sent together.
    ///
    /// It is 503 `panel_failed`, but 504 when the time of the whole request is up. When nothing was sent it is what
    /// decision 27 says: as all members were refused if they were refused alike, else 503 while any of them cools down,
    /// else 404.
    #[must_use]
    pub fn failure(
        &self,
        plan: &FusionPlan,
        rejections: &[Rejection],
        attempted: u32,
    ) -> Rejection {
        let mut message = String::from("no member of the panel answered");
        let mut separator = ": ";
        for (seat, member) in self.seats.iter().zip(&plan.panel) {
            if let Seat::Failed(shortfall) = seat {
                // Writing to a text cannot fail.
                _ = write!(message, "{separator}{} {}", member.name, shortfall.word());
                separator = "; ";
            }
        }
        let nothing_sent = attempted == 0 && rejections.len() == self.seats.len();
        let verdict = if rejections.iter().any(is_timeout) {
            Verdict::new(504, "COMBO_TIMEOUT", "combo_timeout")
        } else if nothing_sent {
            Verdict::of_unsent(rejections)
        } else {
            Verdict::new(503, "panel_failed", "panel_failed")
        };
        let excluded = rejections.iter().flat_map(|rejection| &rejection.excluded);
        let retry_after = rejections
            .iter()
            .filter_map(|rejection| rejection.retry_after_secs);
        Rejection {
            status: verdict.status,
            code: verdict.code,
            error_type: verdict.error_type,
            message,
            retry_after_secs: retry_after
                .min()
                .filter(|_| may_retry_after(verdict.status)),
            pass_through: false,
            terminal_reason: verdict.terminal_reason,
            pool_size: plan.pool_size,
            attempted,
            excluded: excluded.take(MAX_EXCLUSIONS).cloned().collect(),
            lease: None,
        }
    }

    fn answered(&self) -> impl Iterator<Item = usize> {
        self.seats
            .iter()
            .enumerate()
            .filter(|(_, seat)| **seat == Seat::Answered)
            .map(|(member, _)| member)
    }

    fn settle(&mut self, member: usize, to: Seat) -> bool {
        match self.seats.get_mut(member) {
            Some(seat) if *seat == Seat::Open => {
                *seat = to;
                true
            }
            Some(_) | None => false,
        }
    }
}

/// The status of a panel without any answer, and the words that go with it.
struct Verdict {
    status: u16,
    code: String,
    error_type: String,
    terminal_reason: String,
}

impl Verdict {
    fn new(status: u16, code: &str, terminal_reason: &str) -> Self {
        Self {
            status,
            code: code.to_owned(),
            error_type: error_type(status).to_owned(),
            terminal_reason: terminal_reason.to_owned(),
        }
    }

    /// Of members none of which sent anything.
    fn of_unsent(rejections: &[Rejection]) -> Self {
        let cools = |rejection: &&Rejection| rejection.retry_after_secs.is_some();
        let stands = |rejection: &&Rejection| rejection.code == "no_executable_targets";
        let all_alike = rejections.iter().all(|rejection| {
            rejections
                .first()
                .is_some_and(|first| rejection.code == first.code)
        });
        let stands_for_all = if all_alike {
            rejections.first()
        } else {
            let soonest = rejections.iter().find(cools);
            soonest.or_else(|| rejections.iter().find(stands))
        };
        match stands_for_all {
            Some(rejection) => Self {
                status: rejection.status,
                code: rejection.code.clone(),
                error_type: rejection.error_type.clone(),
                terminal_reason: rejection.terminal_reason.clone(),
            },
            None => Self::new(503, "panel_failed", "panel_failed"),
        }
    }
}

fn is_timeout(rejection: &Rejection) -> bool {
    rejection.terminal_reason == "combo_timeout"
}

impl Shortfall {
    /// Why a member whose request was refused has no answer; `last` is how its last attempt failed.
    #[must_use]
    pub fn of(rejection: &Rejection, last: Option<&Outcome>) -> Self {
        if is_timeout(rejection) {
            return Self::Timeout;
        }
        match last {
            Some(
                Outcome::Transport(TransportFault::HeadersTimeout)
                | Outcome::Stream(
                    StreamFault::ReadinessTimeout
                    | StreamFault::IdleTimeout
                    | StreamFault::DeadlineExceeded
                    | StreamFault::ThroughputTooLow,
                ),
            ) => Self::Timeout,
            Some(Outcome::Transport(_) | Outcome::Stream(_)) => Self::Threw,
            Some(
                Outcome::Success | Outcome::Response(_) | Outcome::Local(_) | Outcome::ClientAbort,
            ) => Self::Status(rejection.status),
            None => {
                let reasons = || rejection.excluded.iter().map(|exclusion| exclusion.reason);
                // What ends by itself tells when to come back.
                let reason = reasons().find(|reason| reason.is_timer());
                let reason = reason.or_else(|| reasons().next());
                reason.map_or(Self::Status(rejection.status), Self::Excluded)
            }
        }
    }

    /// Its word in messages and logs.
    #[must_use]
    pub fn word(self) -> String {
        match self {
            Self::Status(status) => format!("status_{status}"),
            Self::Excluded(reason) => reason.as_str().to_owned(),
            Self::Timeout => "timeout".to_owned(),
            Self::StragglerDropped => "straggler_dropped".to_owned(),
            Self::Threw => "threw".to_owned(),
            Self::EmptyContent => "empty_content".to_owned(),
            Self::Unparseable => "unparseable".to_owned(),
        }
    }
}

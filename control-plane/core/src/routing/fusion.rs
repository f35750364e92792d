//! When the answers of a panel go to its judge (`routing.md` §8.18, decision 32).
//!
//! The panel proceeds when everybody has answered or failed, or when its time is up; and once enough have answered, when
//! the grace for the others has passed. Times are ms since the panel was asked, and never go back.

use std::fmt::Write as _;

use super::Rejection;
use super::plan::{FusionPlan, PlanMember};
use super::terminal::error_type;

/// Why a member contributes no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shortfall {
    /// Its request ended with this status.
    Status(u16),
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

    /// The answer when no member answered: 503 with each one's reason. `retry_after_secs` is the soonest of what the
    /// members were told.
    #[must_use]
    pub fn failure(&self, members: &[PlanMember], retry_after_secs: Option<u64>) -> Rejection {
        let mut message = String::from("no member of the panel answered");
        let mut separator = ": ";
        for (seat, member) in self.seats.iter().zip(members) {
            if let Seat::Failed(shortfall) = seat {
                // Writing to a text cannot fail.
                _ = write!(message, "{separator}{} {}", member.name, shortfall.word());
                separator = "; ";
            }
        }
        let seats = u32::try_from(self.seats.len()).unwrap_or(u32::MAX);
        Rejection {
            status: 503,
            code: "panel_failed".to_owned(),
            error_type: error_type(503).to_owned(),
            message,
            retry_after_secs,
            pass_through: false,
            terminal_reason: "panel_failed".to_owned(),
            pool_size: seats,
            attempted: seats,
            excluded: Vec::new(),
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

impl Shortfall {
    /// Its word in messages and logs.
    #[must_use]
    pub fn word(self) -> String {
        match self {
            Self::Status(status) => format!("status_{status}"),
            Self::Timeout => "timeout".to_owned(),
            Self::StragglerDropped => "straggler_dropped".to_owned(),
            Self::Threw => "threw".to_owned(),
            Self::EmptyContent => "empty_content".to_owned(),
            Self::Unparseable => "unparseable".to_owned(),
        }
    }
}

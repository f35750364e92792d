//! What was excluded, kept short: a provider may have thousands of accounts that all cool down.

use std::collections::BTreeSet;

use crate::classify::{Reason, TerminalKind};
use crate::ids::ConnectionId;
use crate::time::Timestamp;

use super::{Exclusion, ExclusionReason};

/// Most exclusions that are told with a decision (`sessions-and-streams.md` §5.2).
pub const MAX_EXCLUSIONS: usize = 64;

impl ExclusionReason {
    /// Every reason, in the order of the gates.
    pub const ALL: [Self; 22] = [
        Self::TagMismatch,
        Self::CapabilityMismatch,
        Self::ContextWindow,
        Self::NotAllowed,
        Self::ProtocolMismatch,
        Self::Terminal(TerminalKind::Expired),
        Self::Terminal(TerminalKind::CreditsExhausted),
        Self::Terminal(TerminalKind::Banned),
        Self::Disabled,
        Self::CircuitOpen,
        Self::ProviderCooldown,
        Self::EgressLocked,
        Self::ConnectionCooldown,
        Self::Reserved,
        Self::Leased,
        Self::RequestExhaustion,
        Self::RetryBudget,
        Self::ModelLockout,
        Self::QuotaCutoff,
        Self::Unavailable,
        Self::ConcurrencyCap,
        Self::OverBudget,
    ];

    /// The reason that a word of the wire stands for.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }

    /// The word on the wire (`routing.md` §3).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TagMismatch => "tag_mismatch",
            Self::CapabilityMismatch => "capability_mismatch",
            Self::ContextWindow => "context_window",
            Self::NotAllowed => "not_allowed",
            Self::ProtocolMismatch => "protocol_mismatch",
            Self::Terminal(TerminalKind::Expired) => "terminal:expired",
            Self::Terminal(TerminalKind::CreditsExhausted) => "terminal:credits_exhausted",
            Self::Terminal(TerminalKind::Banned) => "terminal:banned",
            Self::Disabled => "disabled",
            Self::CircuitOpen => "circuit_open",
            Self::ProviderCooldown => "provider_cooldown",
            Self::EgressLocked => "egress_locked",
            Self::ConnectionCooldown => "connection_cooldown",
            Self::Reserved => "reserved",
            Self::Leased => "leased",
            Self::RequestExhaustion => "request_exhaustion",
            Self::RetryBudget => "retry_budget",
            Self::ModelLockout => "model_lockout",
            Self::QuotaCutoff => "quota_cutoff",
            Self::Unavailable => "unavailable",
            Self::ConcurrencyCap => "concurrency_cap",
            Self::OverBudget => "over_budget",
        }
    }

    /// Whether it ends by itself, so that a client may come back (decision 27).
    #[must_use]
    pub fn is_timer(self) -> bool {
        match self {
            Self::CircuitOpen
            | Self::ProviderCooldown
            | Self::EgressLocked
            | Self::ConnectionCooldown
            | Self::Leased
            | Self::ModelLockout
            | Self::QuotaCutoff => true,
            Self::TagMismatch
            | Self::CapabilityMismatch
            | Self::ContextWindow
            | Self::NotAllowed
            | Self::ProtocolMismatch
            | Self::Terminal(_)
            | Self::Disabled
            | Self::Reserved
            | Self::RequestExhaustion
            | Self::RetryBudget
            | Self::Unavailable
            | Self::ConcurrencyCap
            | Self::OverBudget => false,
        }
    }
}

/// Everything excluded on the way: the first [`MAX_EXCLUSIONS`] whole, of all of them what the final answer
/// needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Exclusions {
    list: Vec<Exclusion>,
    timers: usize,
    full: usize,
    leased: BTreeSet<ConnectionId>,
    leases: usize,
    any_reserved: bool,
    any_budget: bool,
    any_other_timer: bool,
    soonest_end: Option<Timestamp>,
}

impl Exclusions {
    /// Adds one.
    pub(super) fn push(&mut self, exclusion: Exclusion) {
        if is_budget(&exclusion) {
            self.any_budget = true;
        } else if exclusion.reason.is_timer() {
            self.any_other_timer = true;
        }
        if exclusion.reason.is_timer() {
            self.timers = self.timers.saturating_add(1);
            self.soonest_end = match (self.soonest_end, exclusion.until) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        match exclusion.reason {
            ExclusionReason::ConcurrencyCap => self.full = self.full.saturating_add(1),
            ExclusionReason::Leased => {
                self.leases = self.leases.saturating_add(1);
                self.leased.extend(exclusion.connection.clone());
            }
            ExclusionReason::Reserved => self.any_reserved = true,
            _ => {}
        }
        if self.list.len() < MAX_EXCLUSIONS {
            self.list.push(exclusion);
        }
    }

    /// Adds all of another.
    pub(super) fn append(&mut self, other: Self) {
        self.timers = self.timers.saturating_add(other.timers);
        self.full = self.full.saturating_add(other.full);
        self.leases = self.leases.saturating_add(other.leases);
        self.leased.extend(other.leased);
        self.any_reserved |= other.any_reserved;
        self.any_budget |= other.any_budget;
        self.any_other_timer |= other.any_other_timer;
        self.soonest_end = match (self.soonest_end, other.soonest_end) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let room = MAX_EXCLUSIONS.saturating_sub(self.list.len());
        self.list.extend(other.list.into_iter().take(room));
    }

    /// Some exclusion ends by itself.
    pub(super) fn any_timer(&self) -> bool {
        self.timers > 0
    }

    /// Some account runs as many requests as it may, which ends when any of them does.
    pub(super) fn any_full(&self) -> bool {
        self.full > 0
    }

    /// More of them are full than end by themselves.
    pub(super) fn are_mostly_full(&self) -> bool {
        self.full > self.timers
    }

    /// How many connections are leased, if that is all that keeps the request from being sent. What never ends, such as
    /// an account that the key may not use, says nothing either way.
    pub(super) fn only_leased(&self) -> Option<usize> {
        let only = self.leases > 0 && self.leases == self.timers && self.full == 0;
        only.then_some(self.leased.len())
    }

    /// Something is kept for requests with a lease.
    pub(super) fn any_reserved(&self) -> bool {
        self.any_reserved
    }

    /// Money or quota is used up, and nothing is excluded for anything else that ends by itself. What never ends, such as
    /// an account that the key may not use, says nothing either way.
    pub(super) fn is_out_of_budget(&self) -> bool {
        self.any_budget && !self.any_other_timer
    }

    /// The earliest known end of one that ends by itself.
    pub(super) fn soonest_end(&self) -> Option<Timestamp> {
        self.soonest_end
    }

    /// The first ones, in order.
    pub(super) fn into_list(self) -> Vec<Exclusion> {
        self.list
    }

    /// The first ones, in order.
    pub(super) fn list(&self) -> &[Exclusion] {
        &self.list
    }
}

/// Money or quota is used up.
fn is_budget(exclusion: &Exclusion) -> bool {
    match exclusion.reason {
        ExclusionReason::Terminal(kind) => kind == TerminalKind::CreditsExhausted,
        ExclusionReason::ConnectionCooldown
        | ExclusionReason::ModelLockout
        | ExclusionReason::QuotaCutoff => matches!(
            exclusion.cause,
            Some(Reason::QuotaExhausted | Reason::Credits)
        ),
        _ => false,
    }
}

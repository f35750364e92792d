//! What the labels of the metrics may say.

use prometheus_client::encoding::EncodeLabelSet;

labels! {
    /// What a decision said.
    pub(crate) enum Step {
        Dispatch = "dispatch",
        Wait = "wait",
        Reject = "reject",
        Plan = "plan",
        Invalid = "invalid",
    }

    /// A call to the hot store.
    pub(crate) enum StoreCall {
        Write = "write",
        Read = "read",
        Check = "check",
        Begin = "begin",
        Announce = "announce",
        Swap = "swap",
        Cell = "cell",
        Blob = "blob",
        Turn = "turn",
        Time = "time",
    }

    /// How a store call ended.
    pub(super) enum CallResult {
        Ok = "ok",
        Failed = "failed",
    }

    /// What became of a report.
    pub(crate) enum ReportFate {
        /// Written to the hot store.
        Applied = "applied",
        /// It changed nothing.
        Unchanged = "unchanged",
        /// It was applied before, here or by another replica.
        Duplicate = "duplicate",
        /// Older than the limit.
        TooOld = "too_old",
        /// Not understood, or of something that is not configured.
        Invalid = "invalid",
    }

    /// Who counted a turn that all replicas take together.
    pub(crate) enum TurnTaken {
        /// The hot store: exact over the fleet.
        Shared = "shared",
        /// This replica alone, the store being away.
        Local = "local",
    }

    /// Who took a half-open probe.
    pub(crate) enum ProbeGrant {
        /// Through the hot store: one in the fleet.
        Shared = "shared",
        /// By this replica alone, the store being away.
        Local = "local",
        /// Another attempt has it.
        Refused = "refused",
    }

    /// What became of a wish for a permit.
    pub(crate) enum PermitGrant {
        /// Granted through the hot store: counted in the fleet.
        Shared = "shared",
        /// Granted out of a local share, the store being away.
        Local = "local",
        /// All permits are out.
        Refused = "refused",
        /// All are out and as many wait as may.
        QueueFull = "queue_full",
        /// Waited for in vain.
        TimedOut = "timed_out",
        /// A request of a quota pool went on without one.
        Unheld = "unheld",
    }

    /// What was answered about the pace of a connection; looks do not count.
    pub(crate) enum AdmissionAnswer {
        /// The request went.
        Now = "now",
        /// Too soon.
        NotBefore = "not_before",
        /// Too soon, since the upstream told that little or nothing is left.
        Spent = "spent",
        /// As many are under way as may.
        Full = "full",
        /// Nobody counts, the store being away.
        Nobody = "nobody",
        /// It could not be found out in time.
        Unknown = "unknown",
    }

    /// What happened to the renewal of an access token.
    pub(crate) enum TokenRefresh {
        /// A token endpoint was asked.
        Attempt = "attempt",
        /// A new token is stored.
        Refreshed = "refreshed",
        /// The token endpoint gave none.
        Failed = "failed",
        /// Another refresh token stood by then.
        Superseded = "superseded",
        /// A lease had to be waited out whose holder did not finish.
        LeaseWaitedOut = "lease_waited_out",
        /// The durable store or sealing failed.
        OwnFault = "own_fault",
    }

    /// Why something that should be kept was not.
    pub(crate) enum Dropped {
        /// A transition, because the queue to the durable store was full.
        HistoryQueueFull = "history_queue_full",
        /// A transition, because the durable store refused it for good.
        HistoryRefused = "history_refused",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StepLabel {
    pub(super) step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CallLabel {
    pub(super) call: StoreCall,
    pub(super) result: CallResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FateLabel {
    pub(super) fate: ReportFate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct GrantLabel {
    pub(super) grant: ProbeGrant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TurnLabel {
    pub(super) taken: TurnTaken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PermitLabel {
    pub(super) grant: PermitGrant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AdmissionLabel {
    pub(super) answer: AdmissionAnswer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DroppedLabel {
    pub(super) reason: Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TokenLabel {
    pub(super) event: TokenRefresh,
}

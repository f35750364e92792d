//! Metrics of streams that are watched, held back, opened again and continued (`sessions-and-streams.md` §4.2 to §4.5).

use std::fmt::Write as _;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidegate_telemetry::FamilyRegistry;

use crate::again::Denied;

/// One proxy's.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecoveryMetrics {
    pub(crate) watchdog_aborts: Family<AbortLabels, Counter>,
    reopens: Family<ReopenLabels, Counter>,
    continuations: Family<ContinuationLabels, Counter>,
}

/// What became of sending a request again to where it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Resent {
    /// There is an answer.
    Ready,
    /// It failed as well.
    Failed,
    /// It was not sent: the time of the request is up.
    Late,
    /// It was not sent: the retry budget is spent.
    Budget,
    /// It was not sent: the configuration has changed.
    Configuration,
    /// It was not sent: the pace of the connection does not allow it in time.
    Pace,
    /// It was not sent: its lease does not allow it.
    Lease,
}

label_words!(Resent {
    Ready => "ready",
    Failed => "failed",
    Late => "late",
    Budget => "budget",
    Configuration => "configuration",
    Pace => "pace",
    Lease => "lease",
});

impl From<Denied> for Resent {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Budget => Self::Budget,
            Denied::Configuration(_) => Self::Configuration,
            Denied::Pace => Self::Pace,
            Denied::Lease(_) => Self::Lease,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReopenLabels {
    end: Resent,
}

/// What became of a request for the rest of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Continued {
    /// The turn is complete.
    Joined,
    /// It does not go on from what the client has.
    BeganAnew,
    /// It broke as well.
    Broke,
    /// It holds what cannot be appended.
    Unusable,
    /// There was none.
    Failed,
    /// The time for it is up: it was not sent, or given up.
    Late,
    /// It was not sent: the retry budget is spent.
    Budget,
    /// It was not sent: the configuration has changed.
    Configuration,
    /// It was not sent: the pace of the connection does not allow it in time.
    Pace,
    /// It was not sent: its lease does not allow it.
    Lease,
}

label_words!(Continued {
    Joined => "joined",
    BeganAnew => "began_anew",
    Broke => "broke",
    Unusable => "unusable",
    Failed => "failed",
    Late => "late",
    Budget => "budget",
    Configuration => "configuration",
    Pace => "pace",
    Lease => "lease",
});

impl From<Denied> for Continued {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Budget => Self::Budget,
            Denied::Configuration(_) => Self::Configuration,
            Denied::Pace => Self::Pace,
            Denied::Lease(_) => Self::Lease,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ContinuationLabels {
    end: Continued,
}

/// When a stream was found too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AbortMoment {
    /// Before its first ready event.
    Readiness,
    /// Its client had seen nothing of it.
    Held,
    /// Its client was reading it.
    Committed,
}

label_words!(AbortMoment {
    Readiness => "readiness",
    Held => "held",
    Committed => "committed",
});

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct AbortLabels {
    pub(crate) moment: AbortMoment,
}

impl RecoveryMetrics {
    /// A stream was opened again, or was to be.
    pub(crate) fn reopens(&self, end: Resent) {
        self.reopens.get_or_create(&ReopenLabels { end }).inc();
    }

    /// The rest of a turn was asked for, or was to be.
    pub(crate) fn continues(&self, end: Continued) {
        let labels = ContinuationLabels { end };
        self.continuations.get_or_create(&labels).inc();
    }

    pub(super) fn begin_at_zero(&self) {
        for &moment in AbortMoment::ALL {
            drop(self.watchdog_aborts.get_or_create(&AbortLabels { moment }));
        }
        for &end in Continued::ALL {
            drop(
                self.continuations
                    .get_or_create(&ContinuationLabels { end }),
            );
        }
        for &end in Resent::ALL {
            drop(self.reopens.get_or_create(&ReopenLabels { end }));
        }
    }

    pub(super) fn name_in(&self, registry: &mut FamilyRegistry<'_>) {
        registry.register(
            "watchdog_aborts",
            "Streams that were ended because they were too slow, by moment",
            self.watchdog_aborts.clone(),
        );
        registry.register(
            "reopens",
            "Streams that broke while they were held back, by what became of opening them again",
            self.reopens.clone(),
        );
        registry.register(
            "continuations",
            "Requests for the rest of a turn that broke, by what became of them",
            self.continuations.clone(),
        );
    }
}

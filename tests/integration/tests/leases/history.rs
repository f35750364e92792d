//! What happened, as it was seen from outside: what owners asked and were answered, what reached the upstream, and what
//! was done to the fleet meanwhile. All moments are of one clock, since the beginning of the run.

use std::collections::BTreeMap;
use std::time::Duration;

/// A moment that never comes.
pub(crate) const NEVER: Duration = Duration::MAX;
/// Longer than a request takes that stands in no line.
const WAITED: Duration = Duration::from_millis(300);

/// A lease as clients know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseName {
    pub(crate) owner: u8,
    pub(crate) generation: u64,
}

/// From one moment until another, which is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) from: Duration,
    pub(crate) until: Duration,
}

impl Span {
    pub(crate) fn new(from: Duration, until: Duration) -> Self {
        Self { from, until }
    }

    /// What is in both; `None` when that is nothing.
    pub(crate) fn and(self, other: Self) -> Option<Self> {
        let both = Self::new(self.from.max(other.from), self.until.min(other.until));
        (both.from < both.until).then_some(both)
    }

    pub(crate) fn contains(self, other: Self) -> bool {
        self.from <= other.from && other.until <= self.until
    }
}

/// What an owner asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asked {
    Acquire {
        ttl: Duration,
    },
    Renew {
        generation: u64,
        ttl: Duration,
    },
    Release {
        generation: u64,
    },
    Status {
        generation: u64,
    },
    /// Inference through a data plane.
    Send {
        generation: u64,
        number: u64,
        plane: usize,
    },
}

impl Asked {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Acquire { .. } => "acquire",
            Self::Renew { .. } => "renew",
            Self::Release { .. } => "release",
            Self::Status { .. } => "status",
            Self::Send { .. } => "send",
        }
    }
}

/// What it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// The lease stands; a release: it is given back.
    Lease { generation: u64 },
    /// The lease that was named is not the one of now.
    Over,
    /// Others have everything.
    Busy,
    /// A request was answered by the upstream, to the end.
    Served,
    /// A request was answered in part.
    Cut,
    /// A request was turned away by the upstream.
    Failed,
    /// A request found too many in line for a permit, or stood there for too long.
    Full,
    /// No answer, or one that says that nobody knows: it may have happened, then or later.
    Unknown,
}

impl Answer {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Lease { .. } => "granted",
            Self::Over => "over",
            Self::Busy => "busy",
            Self::Served => "served",
            Self::Cut => "cut",
            Self::Failed => "failed",
            Self::Full => "full",
            Self::Unknown => "unknown",
        }
    }
}

/// One question of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) owner: u8,
    pub(crate) asked: Asked,
    /// From just before it was sent until just after it was answered.
    pub(crate) span: Span,
    pub(crate) answer: Answer,
}

/// A request at the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Of its [`Asked::Send`].
    pub(crate) number: u64,
    pub(crate) lease: LeaseName,
    pub(crate) connection: String,
    /// The data plane it came through.
    pub(crate) plane: usize,
    /// When it was there, until when.
    pub(crate) span: Span,
    /// Its end was noticed, not brought about, by the upstream.
    pub(crate) aborted: bool,
}

/// A row of the table of leases, read when all was over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) lease: LeaseName,
    pub(crate) connection: String,
    /// When it held, by the clock of the database.
    pub(crate) held: Span,
    /// Why it ended, if that was written down.
    pub(crate) ended: Option<String>,
}

impl Row {
    /// Its owner gave it back.
    pub(crate) fn is_released(&self) -> bool {
        matches!(
            self.ended.as_deref(),
            Some("OWNER_EXIT" | "CLIENT_CANCELLED")
        )
    }
}

/// What was done to the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A data plane stood still.
    Pause { plane: usize },
    /// A control plane stood still.
    Stop { replica: usize },
    /// A control plane was killed; it was started again.
    Kill { replica: usize },
    /// The database ended all its processes at once and recovered.
    Restart,
    /// The upstream turned a connection away, counted from 1. It cooled down if anybody was there, until the end of this
    /// at the latest.
    Cool { connection: usize },
}

impl Fault {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pause { .. } => "pause",
            Self::Stop { .. } => "stop",
            Self::Kill { .. } => "kill",
            Self::Restart => "restart",
            Self::Cool { .. } => "cool",
        }
    }

    /// Whether leases on a connection may move or end by it.
    pub(crate) fn cools(self, connection: &str) -> bool {
        match self {
            Self::Cool { connection: number } => connection == format!("c{number}"),
            Self::Pause { .. } | Self::Stop { .. } | Self::Kill { .. } | Self::Restart => false,
        }
    }

    /// Whether a data plane may be without an answer of the authority for it, so that it goes on by what it was granted.
    pub(crate) fn silences(self, plane: usize) -> bool {
        match self {
            Self::Pause { plane: paused } => paused == plane,
            Self::Stop { .. } | Self::Kill { .. } | Self::Restart => true,
            Self::Cool { .. } => false,
        }
    }
}

/// A run.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) operations: Vec<Operation>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) rows: Vec<Row>,
    pub(crate) faults: Vec<(Fault, Span)>,
    /// When the upstream did not get to run, so that it noticed nothing.
    pub(crate) asleep: Vec<Span>,
}

impl History {
    /// How much of a time the upstream did not get to run.
    pub(crate) fn asleep_in(&self, span: Span) -> Duration {
        let mut asleep = Duration::ZERO;
        let mut counted = Duration::ZERO;
        for gap in &self.asleep {
            if let Some(both) = gap.and(span) {
                asleep += both.until.saturating_sub(both.from.max(counted));
                counted = both.until;
            }
        }
        asleep
    }

    /// The moment before this one since when the upstream ran for so long.
    pub(crate) fn ran_since(&self, moment: Duration, long: Duration) -> Duration {
        let mut since = moment.saturating_sub(long);
        for gap in self.asleep.iter().rev() {
            if gap.from < moment && since < gap.until {
                let asleep = gap.until.min(moment).saturating_sub(gap.from);
                since = since.saturating_sub(asleep);
            }
        }
        since
    }

    /// How often each kind of operation had each kind of answer, and what else happened.
    pub(crate) fn counts(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        let mut counts = BTreeMap::new();
        let mut count = |kind, answer| *counts.entry((kind, answer)).or_default() += 1;
        for operation in &self.operations {
            count(operation.asked.word(), operation.answer.word());
        }
        for arrival in &self.arrivals {
            let end = if arrival.aborted {
                "aborted"
            } else {
                "answered"
            };
            count("dispatch", end);
            if self.waited(arrival) {
                count("dispatch", "waited");
            }
        }
        for (fault, _) in &self.faults {
            count("fault", fault.word());
        }
        for _ in self.moves() {
            count("lease", "moved");
        }
        counts
    }

    /// Whether a request was under way to the upstream for so long that it stood in line for a permit.
    fn waited(&self, arrival: &Arrival) -> bool {
        self.sent(arrival).is_some_and(|sent| {
            let under_way = Span::new(sent.span.from, arrival.span.from);
            let took = under_way.until.saturating_sub(under_way.from);
            took.saturating_sub(self.asleep_in(under_way)) >= WAITED
        })
    }

    /// What became a request at the upstream.
    pub(crate) fn sent(&self, arrival: &Arrival) -> Option<&Operation> {
        self.operations.iter().find(|operation| {
            matches!(operation.asked, Asked::Send { number, .. } if number == arrival.number)
        })
    }

    /// Rows of leases that went elsewhere, each with the next one of its lease.
    pub(crate) fn moves(&self) -> Vec<(&Row, &Row)> {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|row| (row.lease, row.held));
        let pairs = rows.iter().zip(rows.iter().skip(1));
        pairs
            .filter(|(row, next)| row.lease == next.lease && row.connection != next.connection)
            .map(|(row, next)| (*row, *next))
            .collect()
    }
}

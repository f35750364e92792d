//! Metrics of tokens, and of history as it goes.

use std::collections::BTreeSet;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidegate_core::ids::AttemptId;
use tidegate_core::usage::{UsageRecord, UsageSource};
use tidegate_store::durable::History;
use tidegate_telemetry::FamilyRegistry;
use tidegate_wire::WireError;

labels! {
    enum Source {
        Provider = "provider",
        Estimated = "estimated",
        Unknown = "unknown",
    }

    enum Direction {
        Input = "input",
        Output = "output",
    }

    enum Fault {
        Missing = "missing",
        Name = "name",
        Value = "value",
    }

    enum Kind {
        Usage = "usage",
        Transitions = "transitions",
        Audit = "audit",
    }
}

impl From<UsageSource> for Source {
    fn from(source: UsageSource) -> Self {
        match source {
            UsageSource::Provider => Self::Provider,
            UsageSource::Estimated => Self::Estimated,
            UsageSource::Unknown => Self::Unknown,
        }
    }
}

impl From<&WireError> for Fault {
    fn from(error: &WireError) -> Self {
        match error {
            WireError::Missing(_) => Self::Missing,
            WireError::Name { .. } => Self::Name,
            WireError::Invalid { .. } => Self::Value,
        }
    }
}

impl From<History> for Kind {
    fn from(history: History) -> Self {
        match history {
            History::Usage => Self::Usage,
            History::Transitions => Self::Transitions,
            History::Audit => Self::Audit,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RecordLabel {
    source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabel {
    source: Source,
    direction: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FaultLabel {
    reason: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HistoryLabel {
    history: Kind,
}

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct UsageMetrics {
    records: Family<RecordLabel, Counter>,
    tokens: Family<TokenLabel, Counter>,
    repeated: Counter,
    refused: Family<FaultLabel, Counter>,
    failed_looks: Counter,
    deleted: Family<HistoryLabel, Counter>,
}

impl UsageMetrics {
    pub(super) fn register(&self, registry: &mut FamilyRegistry<'_>) {
        registry.register(
            "usage_records",
            "Attempts recorded by where their tokens come from; one that was unknown and is told after all is in both",
            self.records.clone(),
        );
        registry.register(
            "usage_tokens",
            "Tokens of attempts recorded here, each attempt once in the fleet",
            self.tokens.clone(),
        );
        registry.register(
            "usage_records_repeated",
            "Records of attempts that counted already, here or elsewhere",
            self.repeated.clone(),
        );
        registry.register(
            "usage_records_refused",
            "Records, and answers under way, that could not be read, by what was wrong with a member",
            self.refused.clone(),
        );
        registry.register(
            "lost_data_plane_look_failures",
            "Times that lost data planes could not be looked for",
            self.failed_looks.clone(),
        );
        registry.register(
            "history_deleted",
            "Rows of history that were deleted because of their age",
            self.deleted.clone(),
        );
        for source in UsageSource::ALL {
            let source = Source::from(source);
            self.records
                .get_or_create(&RecordLabel { source })
                .inc_by(0);
            for direction in [Direction::Input, Direction::Output] {
                let label = TokenLabel { source, direction };
                self.tokens.get_or_create(&label).inc_by(0);
            }
        }
        for reason in [Fault::Missing, Fault::Name, Fault::Value] {
            self.refused.get_or_create(&FaultLabel { reason }).inc_by(0);
        }
        for history in History::ALL {
            let history = Kind::from(history);
            self.deleted
                .get_or_create(&HistoryLabel { history })
                .inc_by(0);
        }
    }

    /// Of these records, those of `counted` attempts count because they were recorded here and now.
    pub(crate) fn recorded(&self, records: &[UsageRecord], counted: &[AttemptId]) {
        let repeated = records.len().saturating_sub(counted.len());
        self.repeated
            .inc_by(u64::try_from(repeated).unwrap_or(u64::MAX));
        let mut counted: BTreeSet<AttemptId> = counted.iter().copied().collect();
        // Of several records of an attempt the one that is known was recorded, and of those the first.
        let known = |record: &&UsageRecord| record.tokens.source != UsageSource::Unknown;
        let unknown = |record: &&UsageRecord| !known(record);
        for record in records
            .iter()
            .filter(known)
            .chain(records.iter().filter(unknown))
        {
            if counted.remove(&record.attempt) {
                self.count(record);
            }
        }
    }

    fn count(&self, record: &UsageRecord) {
        let source = Source::from(record.tokens.source);
        self.records.get_or_create(&RecordLabel { source }).inc();
        for (direction, tokens) in [
            (Direction::Input, record.tokens.input),
            (Direction::Output, record.tokens.output),
        ] {
            let label = TokenLabel { source, direction };
            self.tokens
                .get_or_create(&label)
                .inc_by(tokens.unwrap_or(0));
        }
    }

    /// A record, or an answer under way, cannot be read.
    pub(crate) fn refused(&self, error: &WireError) {
        let reason = Fault::from(error);
        self.refused.get_or_create(&FaultLabel { reason }).inc();
    }

    /// So many answers of a lost data plane are recorded as unknown.
    pub(crate) fn lost(&self, unknown: u64) {
        let source = Source::Unknown;
        self.records
            .get_or_create(&RecordLabel { source })
            .inc_by(unknown);
    }

    /// Lost data planes could not be looked for.
    pub(crate) fn look_failed(&self) {
        self.failed_looks.inc();
    }

    /// So many old rows are gone.
    pub(crate) fn deleted(&self, history: History, rows: u64) {
        let history = Kind::from(history);
        self.deleted
            .get_or_create(&HistoryLabel { history })
            .inc_by(rows);
    }
}

//! Which reports that have not been sent stand for one another (`architecture.md` §2, Report).
//!
//! Successes of one connection and model are one report with a count, as long as no failure of the connection
//! came in between, since the order of the two matters.
//!
//! Of equal failures of one connection the first is kept as it is and every later one replaces the one before
//! it. The first is the one that counts, at its own time; all others lie within its de-duplication window and
//! can only move an end later, which the last one does for all of them.
//!
//! Only what happened within 5 s of the first is merged, and a probe's verdict never is.

use std::collections::BTreeMap;

use tidegate_core::ids::{ConnectionId, EgressId, ModelId};
use tidegate_core::outcome::{AttemptOutcome, LocalFault, Outcome, StreamFault, TransportFault};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;

/// Reports further apart than this are never merged, in ms.
const WINDOW_MS: u64 = 5_000;
/// Kinds that are kept open per connection.
const MAX_KINDS: usize = 64;

/// What two reports must agree on to be merged, besides their connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    ending: Ending,
    model: ModelId,
    epoch: Version,
    credential_version: u64,
    egress: Option<EgressId>,
    next_target_same_provider: bool,
    combo: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Success,
    Response { status: u16, embedded: bool },
    Transport(TransportFault),
    Stream(StreamFault),
    Local(LocalFault),
    ClientAbort,
}

/// Where a report goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is one more of this waiting success.
    CountInto(u64),
    /// It takes the place of this waiting failure.
    Replace(u64),
    /// It stands by itself.
    New,
}

/// What may still be merged into, per connection. Entries are sequence numbers of waiting reports.
#[derive(Debug, Default)]
pub(super) struct Open {
    connections: BTreeMap<ConnectionId, Vec<OpenKind>>,
}

#[derive(Debug)]
struct OpenKind {
    kind: Kind,
    first: u64,
    first_at: Timestamp,
    /// The last of the equal failures, if there is more than one.
    last: Option<u64>,
}

impl Kind {
    /// `None` for what is never merged.
    pub(super) fn of(report: &AttemptOutcome) -> Option<Self> {
        let attempt = &report.attempt;
        if attempt.probe {
            return None;
        }
        let ending = match &report.outcome {
            Outcome::Success => Ending::Success,
            Outcome::Response(error) => Ending::Response {
                status: error.status,
                embedded: error.embedded,
            },
            Outcome::Transport(fault) => Ending::Transport(*fault),
            Outcome::Stream(fault) => Ending::Stream(*fault),
            Outcome::Local(fault) => Ending::Local(*fault),
            Outcome::ClientAbort => Ending::ClientAbort,
        };
        Some(Self {
            ending,
            model: attempt.model.clone(),
            epoch: attempt.epoch,
            credential_version: attempt.credential_version,
            egress: attempt.egress.clone(),
            next_target_same_provider: report.next_target_same_provider,
            combo: report.combo,
        })
    }

    fn is_success(&self) -> bool {
        self.ending == Ending::Success
    }
}

impl Open {
    /// Finds the place of a report that would get the number `seq` if it stood by itself. `waits` says whether
    /// a sequence number is still waiting.
    pub(super) fn place(
        &mut self,
        report: &AttemptOutcome,
        seq: u64,
        waits: impl Fn(u64) -> bool,
    ) -> Place {
        let connection = &report.attempt.connection;
        let Some(kind) = Kind::of(report) else {
            self.connections.remove(connection);
            return Place::New;
        };
        let kinds = self.connections.entry(connection.clone()).or_default();
        // Successes must not be moved past failures, nor failures past successes.
        kinds.retain(|open| open.kind.is_success() == kind.is_success());
        let within = |open: &OpenKind| {
            let apart_ms = report
                .occurred_at
                .ms_since(open.first_at)
                .max(open.first_at.ms_since(report.occurred_at));
            apart_ms < WINDOW_MS
        };
        let position = kinds.iter().position(|open| open.kind == kind);
        if let Some(open) = position.and_then(|position| kinds.get_mut(position))
            && within(open)
            && waits(open.first)
        {
            if kind.is_success() {
                return Place::CountInto(open.first);
            }
            return match open.last {
                Some(last) if waits(last) => Place::Replace(last),
                Some(_) | None => {
                    open.last = Some(seq);
                    Place::New
                }
            };
        }
        if let Some(position) = position {
            kinds.swap_remove(position);
        }
        if kinds.len() >= MAX_KINDS {
            kinds.clear();
        }
        kinds.push(OpenKind {
            kind,
            first: seq,
            first_at: report.occurred_at,
            last: None,
        });
        Place::New
    }

    /// Nothing of this connection waits to be merged into any more.
    pub(super) fn close(&mut self, connection: &ConnectionId) {
        self.connections.remove(connection);
    }

    /// Nothing waits at all.
    pub(super) fn close_all(&mut self) {
        self.connections.clear();
    }
}

//! Whether a history is one that leases allow (`sessions-and-streams.md` §1, decision 42, promise 4 of the architecture).
//!
//! Nobody outside sees the moment at which something is committed, only that it lies between a question and its answer.
//! So of every lease two bounds are known. It *certainly* holds from an answer that grants or extends it until the
//! earliest end that this answer allows, or until its release is asked for. It *possibly* holds until the latest end that
//! any answer allows, or until an answer says that it is over. A question without an answer may or may not be carried out,
//! also for some time after its asker gave up. A violation is what no choice between the bounds explains.
//!
//! A lease stays where it is unless its connection cools down. Then nobody knows whether it has moved, ended or stayed
//! until an answer after that time tells; where it went, and when, is on record.

mod leases;
mod silence;
mod strength;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use super::history::{Answer, Arrival, Asked, Fault, History, LeaseName, Operation, Row, Span};
use leases::{Bounds, Leases};
use silence::{is_hurt, is_silenced, undisturbed};
pub(crate) use strength::strength;

/// What the fleet was told, and what a busy machine is allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// `leases.horizonMs`: a data plane that hears late of a release goes on to what it was granted before.
    pub(crate) horizon: Duration,
    /// `leases.guardMs`.
    pub(crate) guard: Duration,
    /// `leases.drainMs`.
    pub(crate) drain: Duration,
    /// How late after its end, or after a data plane wakes, what runs may be cut.
    pub(crate) cut_late: Duration,
    /// How late the upstream may notice that somebody has gone.
    pub(crate) noticed_late: Duration,
    /// How long after its asker gave up a question may still be carried out: every call has a limit.
    pub(crate) unheard_late: Duration,
    /// How long a data plane waits for an answer of the authority.
    pub(crate) question: Duration,
    /// How long after a fault of the authority a data plane may go on by what it was granted.
    pub(crate) recovery: Duration,
    /// How far the clock of the record may be from that of everything else.
    pub(crate) clocks: Duration,
}

/// What must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Two leases certainly held one connection at the same time.
    TwoHolders,
    /// Requests of two leases were at one connection at the same time.
    TwoSenders,
    /// A request was at a connection that another lease certainly held.
    BesideHolder,
    /// A request arrived under a lease that nobody was granted, or before it was asked for, or after its last possible
    /// expiry.
    OutsideLease,
    /// A request that was sent after its lease was certainly over arrived all the same; or, where nobody may have said so to
    /// its data plane, one that was sent beyond every horizon granted before.
    SentAfterEnd,
    /// A request went on beyond end and drain of its lease, and beyond every horizon granted before.
    NotCut,
    /// A request was cut while its lease certainly held.
    CutEarly,
    /// A later generation of an owner was lower.
    GenerationFell,
    /// A lease that was over held again.
    Revived,
    /// A lease that certainly held was denied.
    Lost,
    /// A lease was on two connections at once, or moved without a reason.
    TwoConnections,
    /// Two rows of a connection, or of an owner, held at the same time.
    TwoRows,
    /// A lease that was granted has no row.
    NoRow,
    /// A row is on record as given back, though its owner had not asked for that.
    ReleasedUnasked,
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    pub(crate) what: String,
}

/// How many requests were served and count for all that is promised of them.
pub(crate) fn undisturbed_requests(history: &History, rules: &Rules) -> usize {
    let requests = undisturbed(history, rules).into_iter();
    requests
        .filter_map(|index| history.operations.get(index))
        .filter(|request| request.answer == Answer::Served)
        .count()
}

/// All violations.
pub(crate) fn check(history: &History, rules: &Rules) -> Vec<Violation> {
    let mut checker = Checker {
        history,
        rules,
        leases: Leases::of(history, rules.unheard_late),
        found: Vec::new(),
    };
    checker.connections();
    checker.rows();
    checker.holders();
    checker.generations();
    checker.denials();
    checker.cuts();
    checker.arrivals();
    checker.senders();
    checker.found
}

struct Checker<'a> {
    history: &'a History,
    rules: &'a Rules,
    leases: Leases,
    found: Vec<Violation>,
}

impl Checker<'_> {
    fn found(&mut self, kind: Kind, what: String) {
        self.found.push(Violation { kind, what });
    }

    fn connections(&mut self) {
        let nowhere: Vec<String> = self
            .leases
            .all()
            .filter(|(_, bounds)| !bounds.is_on_record())
            .map(|(name, bounds)| format!("{name:?}: {:?}", bounds.connections))
            .collect();
        let history = self.history;
        let without_a_reason = history.moves().into_iter().filter(|(row, next)| {
            let at_once = row.held.until > next.held.from;
            at_once || !self.is_cooled(&row.connection, next.held.from)
        });
        let without_a_reason: Vec<String> = without_a_reason
            .map(|(row, next)| format!("{row:?}, {next:?}"))
            .collect();
        for what in nowhere.into_iter().chain(without_a_reason) {
            self.found(Kind::TwoConnections, what);
        }
    }

    fn is_cooled(&self, connection: &str, at: Duration) -> bool {
        self.history.faults.iter().any(|(fault, span)| {
            let from = span.from.saturating_sub(self.rules.clocks);
            fault.cools(connection) && from <= at && at < span.until
        })
    }

    /// What the authority itself has on record.
    fn rows(&mut self) {
        let history = self.history;
        let mut by_connection: BTreeMap<&str, Vec<(Span, LeaseName)>> = BTreeMap::new();
        let mut by_owner: BTreeMap<u8, Vec<(Span, LeaseName)>> = BTreeMap::new();
        for row in &history.rows {
            let held = (row.held, row.lease);
            by_connection.entry(&row.connection).or_default().push(held);
            by_owner.entry(row.lease.owner).or_default().push(held);
        }
        for held in by_connection.into_values().chain(by_owner.into_values()) {
            for what in overlaps(held) {
                self.found(Kind::TwoRows, what);
            }
        }
        let missing: Vec<LeaseName> = self
            .leases
            .all()
            .map(|(name, _)| name)
            .filter(|name| !history.rows.iter().any(|row| row.lease == *name))
            .collect();
        for name in missing {
            self.found(Kind::NoRow, format!("{name:?}"));
        }
        for row in &history.rows {
            if row.is_released() && !self.may_be_released(row) {
                self.found(Kind::ReleasedUnasked, format!("{row:?}"));
            }
        }
    }

    fn may_be_released(&self, row: &Row) -> bool {
        let release = Asked::Release {
            generation: row.lease.generation,
        };
        let by = row.held.until + self.rules.clocks;
        let operations = &self.history.operations;
        operations
            .iter()
            .any(|it| it.owner == row.lease.owner && it.asked == release && it.span.from <= by)
    }

    fn holders(&mut self) {
        let mut by_connection: BTreeMap<&str, Vec<(Span, LeaseName)>> = BTreeMap::new();
        for (name, bounds) in self.leases.all() {
            for connection in &bounds.connections {
                let held = by_connection.entry(connection).or_default();
                let certain = bounds.certain_at(connection, self.rules.clocks);
                held.extend(certain.into_iter().map(|span| (span, name)));
            }
        }
        let several: Vec<String> = by_connection
            .into_iter()
            .flat_map(|(connection, held)| {
                let several = overlaps(held).into_iter();
                several.map(move |what| format!("{connection}: {what}"))
            })
            .collect();
        for what in several {
            self.found(Kind::TwoHolders, what);
        }
    }

    fn generations(&mut self) {
        let mut highest: BTreeMap<u8, Vec<(Duration, u64)>> = BTreeMap::new();
        for operation in &self.history.operations {
            if let (Asked::Acquire { .. }, Answer::Lease { generation }) =
                (operation.asked, operation.answer)
            {
                let of_owner = highest.entry(operation.owner).or_default();
                of_owner.push((operation.span.until, generation));
            }
        }
        for operation in &self.history.operations {
            let Some(generation) = shows_live(operation) else {
                continue;
            };
            let before = highest.get(&operation.owner).into_iter().flatten();
            let before = before
                .filter(|(until, _)| *until <= operation.span.from)
                .map(|(_, generation)| *generation)
                .max();
            if before.is_some_and(|before| before > generation) {
                self.found(
                    Kind::GenerationFell,
                    format!("{before:?}, then {operation:?}"),
                );
            }
            let name = LeaseName {
                owner: operation.owner,
                generation,
            };
            let over_by = self.leases.get(name).map(|bounds| bounds.over_by);
            if over_by.is_some_and(|over_by| over_by <= operation.span.from) {
                self.found(Kind::Revived, format!("over {over_by:?}: {operation:?}"));
            }
        }
    }

    /// What was granted holds, whatever dies.
    fn denials(&mut self) {
        for operation in &self.history.operations {
            let denied: Vec<LeaseName> = match (operation.asked, operation.answer) {
                (Asked::Acquire { .. }, Answer::Lease { generation }) => self
                    .leases
                    .of_owner(operation.owner)
                    .filter(|name| name.generation < generation)
                    .collect(),
                (Asked::Acquire { .. }, Answer::Busy | Answer::Over) => {
                    self.leases.of_owner(operation.owner).collect()
                }
                (
                    Asked::Renew { generation, .. }
                    | Asked::Release { generation }
                    | Asked::Status { generation },
                    Answer::Over | Answer::Busy,
                ) => vec![LeaseName {
                    owner: operation.owner,
                    generation,
                }],
                (Asked::Send { generation, .. }, Answer::Over | Answer::Busy) => {
                    if is_silenced(self.history, self.rules, operation, operation.span) {
                        continue;
                    }
                    vec![LeaseName {
                        owner: operation.owner,
                        generation,
                    }]
                }
                _ => continue,
            };
            // A data plane starts nothing in the last part of a lease, whose time it counts from before it asked.
            let took = operation.span.until.saturating_sub(operation.span.from);
            let asking = took.min(self.rules.question);
            let last_part = match operation.asked {
                Asked::Send { .. } => self.rules.guard.saturating_add(asking),
                _ => Duration::ZERO,
            };
            let held = Span::new(operation.span.from, operation.span.until + last_part);
            let lost = denied.into_iter().find(|name| {
                let bounds = self.leases.get(*name);
                bounds.is_some_and(|bounds| match operation.asked {
                    // What extended the lease in its last part came after the data plane had looked.
                    Asked::Send { .. } => bounds.was_told_to_hold(held),
                    _ => bounds.holds_throughout(held),
                })
            });
            if let Some(name) = lost {
                self.found(Kind::Lost, format!("{name:?}: {operation:?}"));
            }
        }
    }

    /// What is in flight goes on as long as its lease holds.
    fn cuts(&mut self) {
        for operation in &self.history.operations {
            let (Asked::Send { generation, .. }, Answer::Cut) = (operation.asked, operation.answer)
            else {
                continue;
            };
            let name = LeaseName {
                owner: operation.owner,
                generation,
            };
            let bounds = self.leases.get(name);
            if bounds.is_some_and(|bounds| bounds.holds_throughout(operation.span))
                && !is_silenced(self.history, self.rules, operation, operation.span)
            {
                self.found(Kind::CutEarly, format!("{name:?}: {operation:?}"));
            }
        }
    }

    fn arrivals(&mut self) {
        let history = self.history;
        for arrival in &history.arrivals {
            let Some(bounds) = self.leases.get(arrival.lease).cloned() else {
                self.found(
                    Kind::OutsideLease,
                    format!("nobody was granted: {arrival:?}"),
                );
                continue;
            };
            self.arrives_in_time(arrival, &bounds);
            let drained = bounds.latest_expiry.saturating_add(self.rules.drain);
            let promised = self.rules.drain.max(self.rules.horizon);
            let left = bounds.left(&arrival.connection, self.rules.clocks);
            let end = drained.min(bounds.over_by.min(left).saturating_add(promised));
            // What was cut while the upstream did not run it noticed when it woke.
            let unnoticed = history.asleep_in(Span::new(end, arrival.span.until));
            let allowed = (end.saturating_add(self.rules.cut_late)).saturating_add(unnoticed);
            if arrival.span.until > allowed
                && !self.excuses(arrival, Span::new(allowed, arrival.span.until))
            {
                self.found(
                    Kind::NotCut,
                    format!("over at {:?}: {arrival:?}", bounds.over_at()),
                );
            }
            let beside = self.leases.all().find_map(|(name, other)| {
                if name == arrival.lease {
                    return None;
                }
                let held = other.certain_at(&arrival.connection, self.rules.clocks);
                let both = held
                    .into_iter()
                    .filter_map(|held| held.and(self.certainly_there(arrival)));
                both.map(|both| (name, both))
                    .find(|(_, both)| !self.excuses(arrival, *both))
            });
            if let Some((name, both)) = beside {
                self.found(
                    Kind::BesideHolder,
                    format!("{name:?} held during {both:?}: {arrival:?}"),
                );
            }
        }
    }

    fn arrives_in_time(&mut self, arrival: &Arrival, bounds: &Bounds) {
        let at = arrival.span.from;
        let late = Span::new(bounds.latest_expiry, at);
        let unnoticed = self.history.asleep_in(late);
        let is_late = at.saturating_sub(unnoticed) > bounds.latest_expiry;
        if at < bounds.begun || (is_late && !self.excuses(arrival, late)) {
            self.found(
                Kind::OutsideLease,
                format!(
                    "{:?} to {:?}: {arrival:?}",
                    bounds.begun, bounds.latest_expiry
                ),
            );
        }
        let Some(sent) = self.history.sent(arrival) else {
            return;
        };
        let until_then = Span::new(sent.span.from, at);
        let excused = if is_hurt(self.history, self.rules, sent, until_then) {
            self.rules.horizon
        } else {
            self.history.asleep_in(until_then)
        };
        if sent.span.from >= bounds.over_at().saturating_add(excused) {
            self.found(
                Kind::SentAfterEnd,
                format!("over at {:?}: {sent:?}, {arrival:?}", bounds.over_at()),
            );
        }
    }

    fn senders(&mut self) {
        let history = self.history;
        let mut by_connection: BTreeMap<&str, Vec<&Arrival>> = BTreeMap::new();
        for arrival in &history.arrivals {
            by_connection
                .entry(&arrival.connection)
                .or_default()
                .push(arrival);
        }
        for arrivals in by_connection.values_mut() {
            arrivals.sort_by_key(|arrival| arrival.span);
            for (index, first) in arrivals.iter().enumerate() {
                let there = self.certainly_there(first);
                let beside = arrivals
                    .iter()
                    .skip(index.saturating_add(1))
                    .take_while(|second| second.span.from < there.until)
                    .filter(|second| second.lease != first.lease);
                for second in beside {
                    let Some(both) = there.and(self.certainly_there(second)) else {
                        continue;
                    };
                    // The one whose lease is older should have gone.
                    let older = self.older(first, second);
                    if !self.excuses(older, both) {
                        self.found(Kind::TwoSenders, format!("{first:?}, {second:?}"));
                    }
                }
            }
        }
    }

    fn older<'h>(&self, first: &'h Arrival, second: &'h Arrival) -> &'h Arrival {
        let begun = |arrival: &Arrival| self.leases.get(arrival.lease).map(|bounds| bounds.begun);
        if begun(second) < begun(first) {
            second
        } else {
            first
        }
    }

    /// When a request was at the upstream for sure: one that left had left some time before that was noticed.
    fn certainly_there(&self, arrival: &Arrival) -> Span {
        let late = if arrival.aborted {
            self.rules.noticed_late
        } else {
            Duration::ZERO
        };
        let until = self.history.ran_since(arrival.span.until, late);
        Span::new(arrival.span.from, until.max(arrival.span.from))
    }

    /// Only a stop of the data plane longer than the guard excuses, until it has woken and cut.
    fn excuses(&self, arrival: &Arrival, wrong: Span) -> bool {
        self.history.faults.iter().any(|(fault, span)| {
            let long = span.until.saturating_sub(span.from) > self.rules.guard;
            let woken = Span::new(span.from, span.until.saturating_add(self.rules.cut_late));
            *fault
                == Fault::Pause {
                    plane: arrival.plane,
                }
                && long
                && woken.contains(wrong)
        })
    }
}

/// The generation that an answer shows to hold.
fn shows_live(operation: &Operation) -> Option<u64> {
    match (operation.asked, operation.answer) {
        (
            Asked::Acquire { .. } | Asked::Renew { .. } | Asked::Status { .. },
            Answer::Lease { generation },
        ) => Some(generation),
        _ => None,
    }
}

/// Those of different leases that overlap.
fn overlaps(mut held: Vec<(Span, LeaseName)>) -> Vec<String> {
    held.sort();
    let mut found = Vec::new();
    // The one that lasts longest of those before it, so that a short one between hides nothing.
    let mut longest: Option<(Span, LeaseName)> = None;
    for (span, name) in held {
        if let Some((before, other)) = longest
            && other != name
            && span.and(before).is_some()
        {
            found.push(format!("{other:?} {before:?}, {name:?} {span:?}"));
        }
        if longest.is_none_or(|(before, _)| span.until > before.until) {
            longest = Some((span, name));
        }
    }
    found
}

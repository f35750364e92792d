//! What is known of each lease from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::history::{Answer, Asked, History, LeaseName, NEVER, Operation, Span};

/// When a lease held.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// When it was first asked for, of those questions whose answer named it.
    pub(super) begun: Duration,
    /// When it certainly held: in order, none touches another.
    pub(super) certain: Vec<Span>,
    /// The same as each answer told it, by itself.
    told: Vec<Span>,
    /// The last end that any answer allows, were it never released.
    pub(super) latest_expiry: Duration,
    /// An answer said by then that it was over.
    pub(super) over_by: Duration,
    /// Where it was seen.
    pub(super) connections: BTreeSet<String>,
    /// Where it was and when, as its rows have it, in order.
    places: Vec<(Span, String)>,
}

impl Bounds {
    /// It certainly holds no longer.
    pub(super) fn over_at(&self) -> Duration {
        self.latest_expiry.min(self.over_by)
    }

    pub(super) fn holds_throughout(&self, span: Span) -> bool {
        self.certain.iter().any(|certain| certain.contains(span))
    }

    /// Also to somebody who knew nothing of what was granted later.
    pub(super) fn was_told_to_hold(&self, span: Span) -> bool {
        self.told.iter().any(|told| told.contains(span))
    }

    /// Wherever it was seen, there is a row of it, if there are rows of it at all.
    pub(super) fn is_on_record(&self) -> bool {
        self.places.is_empty() && self.connections.len() < 2
            || self.connections.iter().all(|seen| self.is_placed_at(seen))
    }

    fn is_placed_at(&self, connection: &str) -> bool {
        self.places.iter().any(|(_, place)| place == connection)
    }

    /// When it certainly held a connection. Rows say where a lease that moved was when, within so much.
    pub(super) fn certain_at(&self, connection: &str, clocks: Duration) -> Vec<Span> {
        if !self.connections.contains(connection) {
            return Vec::new();
        }
        if self.connections.len() == 1 {
            return self.certain.clone();
        }
        let there = self.places.iter().filter(|(_, place)| place == connection);
        let there = there.map(|(held, _)| {
            let from = held.from.saturating_add(clocks);
            Span::new(from, held.until.saturating_sub(clocks))
        });
        there
            .flat_map(|there| self.certain.iter().filter_map(move |span| span.and(there)))
            .collect()
    }

    /// When it had left a connection for another one for good, at the latest.
    pub(super) fn left(&self, connection: &str, clocks: Duration) -> Duration {
        let last = self
            .places
            .iter()
            .rposition(|(_, place)| place == connection);
        let stays = last.is_none_or(|last| last.saturating_add(1) == self.places.len());
        match last.and_then(|last| self.places.get(last)) {
            Some((held, _)) if !stays => held.until.saturating_add(clocks),
            _ => NEVER,
        }
    }
}

/// All leases that somebody was told to have.
#[derive(Debug)]
pub(super) struct Leases(BTreeMap<LeaseName, Bounds>);

impl Leases {
    /// `unheard_late` after its asker has given up, a question is not carried out any more.
    pub(super) fn of(history: &History, unheard_late: Duration) -> Self {
        let mut by_owner: BTreeMap<u8, Vec<&Operation>> = BTreeMap::new();
        for operation in &history.operations {
            by_owner.entry(operation.owner).or_default().push(operation);
        }
        let mut places: BTreeMap<LeaseName, Vec<(Span, String)>> = BTreeMap::new();
        for row in &history.rows {
            let of_lease = places.entry(row.lease).or_default();
            of_lease.push((row.held, row.connection.clone()));
        }
        let mut leases = BTreeMap::new();
        for (owner, operations) in &by_owner {
            let granted: BTreeSet<u64> = operations
                .iter()
                .filter_map(|operation| match (operation.asked, &operation.answer) {
                    (Asked::Acquire { .. }, Answer::Lease { generation }) => Some(*generation),
                    _ => None,
                })
                .collect();
            for generation in granted {
                let name = LeaseName {
                    owner: *owner,
                    generation,
                };
                let mut places = places.remove(&name).unwrap_or_default();
                places.sort();
                let doubts = doubts(history, &places);
                let mut bounds = bounds(generation, operations, &doubts, unheard_late);
                bounds.places = places;
                leases.insert(name, bounds);
            }
        }
        let arrivals = history
            .arrivals
            .iter()
            .map(|arrival| (arrival.lease, &arrival.connection));
        let rows = history.rows.iter().map(|row| (row.lease, &row.connection));
        for (name, connection) in arrivals.chain(rows) {
            if let Some(bounds) = leases.get_mut(&name) {
                bounds.connections.insert(connection.clone());
            }
        }
        Self(leases)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (LeaseName, &Bounds)> {
        self.0.iter().map(|(name, bounds)| (*name, bounds))
    }

    pub(super) fn get(&self, name: LeaseName) -> Option<&Bounds> {
        self.0.get(&name)
    }

    pub(super) fn of_owner(&self, owner: u8) -> impl Iterator<Item = LeaseName> {
        self.0
            .keys()
            .copied()
            .filter(move |name| name.owner == owner)
    }
}

/// When a lease may have moved or ended for its connection's sake.
fn doubts(history: &History, places: &[(Span, String)]) -> Vec<Span> {
    let cooled = history.faults.iter().filter(|(fault, _)| {
        let mut places = places.iter();
        places.any(|(_, place)| fault.cools(place))
    });
    cooled.map(|(_, span)| *span).collect()
}

/// What its owner's operations say of one generation.
fn bounds(
    generation: u64,
    operations: &[&Operation],
    doubts: &[Span],
    unheard_late: Duration,
) -> Bounds {
    let mut bounds = Bounds {
        begun: NEVER,
        certain: Vec::new(),
        told: Vec::new(),
        latest_expiry: Duration::ZERO,
        over_by: NEVER,
        connections: BTreeSet::new(),
        places: Vec::new(),
    };
    let mut release_asked = NEVER;
    let mut extensions = Vec::new();
    for operation in operations {
        let Operation { span, answer, .. } = operation;
        let mut extends = |ttl| extensions.push(Extension::of(operation, ttl, unheard_late));
        match (operation.asked, answer) {
            (Asked::Acquire { ttl }, Answer::Lease { generation: given }) => {
                if *given == generation {
                    bounds.begun = bounds.begun.min(span.from);
                    extends(ttl);
                } else if *given > generation {
                    bounds.over_by = bounds.over_by.min(span.until);
                }
            }
            (Asked::Acquire { ttl }, Answer::Unknown) => extends(ttl),
            (
                Asked::Renew {
                    generation: named,
                    ttl,
                },
                answer,
            ) if named == generation => match answer {
                Answer::Over => bounds.over_by = bounds.over_by.min(span.until),
                _ => extends(ttl),
            },
            (Asked::Release { generation: named }, answer) if named == generation => {
                release_asked = release_asked.min(span.from);
                if matches!(answer, Answer::Lease { .. } | Answer::Over) {
                    bounds.over_by = bounds.over_by.min(span.until);
                }
            }
            (Asked::Status { generation: named }, Answer::Over) if named == generation => {
                bounds.over_by = bounds.over_by.min(span.until);
            }
            _ => {}
        }
    }
    extensions.sort_by_key(|extension| extension.from);
    // A later one may also shorten; whatever happens of it, the end is not before the least of theirs.
    let mut least_end = release_asked;
    for extension in extensions.iter().rev() {
        if extension.carried_out_by <= bounds.begun {
            continue;
        }
        least_end = least_end.min(extension.from.saturating_add(extension.ttl));
        let latest = extension.carried_out_by.saturating_add(extension.ttl);
        bounds.latest_expiry = bounds.latest_expiry.max(latest);
        if let Some(answered) = extension.answered {
            // What an answer says holds until the next doubt; in the middle of one it says nothing.
            let doubts = doubts.iter().filter(|doubt| doubt.until > answered);
            let doubted = doubts.map(|doubt| doubt.from).min().unwrap_or(NEVER);
            let end = least_end.min(doubted);
            if answered < end {
                bounds.told.push(Span::new(answered, end));
            }
        }
    }
    bounds.certain = merged(bounds.told.clone());
    bounds
}

/// A question that makes the lease last from when it is carried out, if it is.
struct Extension {
    from: Duration,
    carried_out_by: Duration,
    /// It was carried out before that.
    answered: Option<Duration>,
    ttl: Duration,
}

impl Extension {
    fn of(operation: &Operation, ttl: Duration, unheard_late: Duration) -> Self {
        let Span { from, until } = operation.span;
        let answered = matches!(operation.answer, Answer::Lease { .. }).then_some(until);
        Self {
            from,
            carried_out_by: answered.unwrap_or_else(|| until.saturating_add(unheard_late)),
            answered,
            ttl,
        }
    }
}

fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort();
    let mut merged: Vec<Span> = Vec::new();
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.from <= last.until => last.until = last.until.max(span.until),
            _ => merged.push(span),
        }
    }
    merged
}

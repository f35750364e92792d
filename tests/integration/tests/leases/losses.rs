//! Why leases were lost whose connection cooled down: what kept each from moving.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::history::{Fault, History, Row, Span};

/// Ended registrations are told of at once, but not in no time.
const TOLD: Duration = Duration::from_millis(300);

/// What kept a lease off another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hindrance {
    /// Another lease was on it.
    Held,
    /// Requests of another lease were still there, or could be by what their data plane was granted.
    InFlight,
    /// It cooled down too.
    Cooled,
    /// Nothing that is seen from outside.
    Unseen,
}

impl fmt::Display for Hindrance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Held => "held",
            Self::InFlight => "in flight",
            Self::Cooled => "cooled",
            Self::Unseen => "unseen",
        })
    }
}

/// How often leases were lost with the other connections in which states.
pub(crate) fn losses(history: &History, clocks: Duration) -> BTreeMap<String, u64> {
    let connections: BTreeSet<&str> = (history.rows.iter())
        .map(|row| row.connection.as_str())
        .collect();
    let moved: Vec<&Row> = history.moves().into_iter().map(|(row, _)| row).collect();
    let lost = history.rows.iter().filter(|row| {
        let cooled = row.ended.as_deref() == Some("HEALTH_OR_COOLDOWN");
        cooled && !moved.contains(row)
    });
    let mut counts = BTreeMap::new();
    for row in lost {
        let others = connections.iter().filter(|other| **other != row.connection);
        let mut words: Vec<Hindrance> = others
            .map(|other| hindrance(history, row, other, clocks))
            .collect();
        words.sort_unstable();
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        *counts.entry(words.join(", ")).or_default() += 1;
    }
    counts
}

fn hindrance(history: &History, lost: &Row, other: &str, clocks: Duration) -> Hindrance {
    let at = lost.held.until;
    let about = Span::new(at.saturating_sub(clocks), at.saturating_add(clocks));
    let lately = Span::new(at.saturating_sub(TOLD), about.until);
    let there = |row: &&Row| row.connection == other && row.lease != lost.lease;
    if (history.rows.iter().filter(there)).any(|row| row.held.and(about).is_some()) {
        return Hindrance::Held;
    }
    let sent = history.arrivals.iter().any(|arrival| {
        let there = arrival.connection == other && arrival.lease != lost.lease;
        there && arrival.span.and(lately).is_some()
    });
    if sent {
        return Hindrance::InFlight;
    }
    let cooled = history.faults.iter().any(|(fault, span)| {
        matches!(fault, Fault::Cool { .. }) && fault.cools(other) && span.and(about).is_some()
    });
    if cooled {
        return Hindrance::Cooled;
    }
    Hindrance::Unseen
}

#[test]
fn a_loss_is_told_with_what_kept_the_lease_from_each_other_connection() {
    use super::history::{Arrival, LeaseName};
    let ms = Duration::from_millis;
    let span = |(from, until)| Span::new(ms(from), ms(until));
    let row = |owner, connection: &str, held, ended: Option<&str>| Row {
        lease: LeaseName {
            owner,
            generation: 1,
        },
        connection: connection.to_owned(),
        held: span(held),
        ended: ended.map(str::to_owned),
    };
    let mut history = History {
        rows: vec![
            row(0, "c1", (0, 5_000), Some("HEALTH_OR_COOLDOWN")),
            row(1, "c2", (0, 9_000), None),
            row(2, "c3", (0, 4_000), Some("OWNER_EXIT")),
            row(3, "c4", (0, 1_000), Some("TTL_EXPIRED")),
        ],
        arrivals: vec![Arrival {
            number: 1,
            lease: LeaseName {
                owner: 2,
                generation: 1,
            },
            connection: "c3".to_owned(),
            plane: 0,
            span: span((3_900, 4_900)),
            aborted: false,
        }],
        faults: vec![(Fault::Cool { connection: 4 }, span((3_000, 6_000)))],
        ..History::default()
    };
    let told = |history: &History| losses(history, ms(100)).into_iter().collect::<Vec<_>>();
    assert_eq!(told(&history), [("held, in flight, cooled".to_owned(), 1)]);
    history.faults.clear();
    assert_eq!(told(&history), [("held, in flight, unseen".to_owned(), 1)]);
    // One that moved is not lost.
    history.rows.push(row(0, "c4", (5_000, 6_000), None));
    assert_eq!(told(&history), []);
}

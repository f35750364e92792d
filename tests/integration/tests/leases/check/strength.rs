//! How much of what goes wrong the checker sees: one event of a history that holds is dropped, doubled, moved in time or
//! changed, over and over, and what is not found is counted.
//!
//! Not every such change is wrong. Of a lease that nobody used, nobody can say when it ended. So each kind of change has
//! a share that must be found at least; the checker's own table shows that what is found is what was done.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::super::history::{Answer, Asked, History, LeaseName, Operation, Span};
use super::{Kind, Rules, check, is_silenced, undisturbed};

/// How long after a release has been answered a request is said to have been sent.
const AFTER_RELEASE: Duration = Duration::from_millis(500);
/// How often each kind of change is tried.
const TRIES: u32 = 40;

/// What is done to a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A row is lost.
    DropRow,
    /// A row appears once more, of another owner.
    DoubleRow,
    /// A row held some seconds later.
    ShiftRow,
    /// The grant of a lease that was used is lost.
    DropGrant,
    /// An owner that was told to wait was granted something.
    GrantInVain,
    /// A grant has the number of the one before.
    LowerGeneration,
    /// What stood is said to be over, and stands afterwards.
    DenyLive,
    /// What was over is said to stand.
    AffirmOver,
    /// A release was never asked for. The record says that there was one, unless it was asked for twice.
    DropRelease,
    /// A request arrived elsewhere.
    MoveArrival,
    /// A request arrived under another owner's lease.
    SwapLease,
    /// A request arrived long after.
    LateArrival,
    /// A request arrived long before.
    EarlyArrival,
    /// A request stayed for long.
    LongArrival,
    /// A request that was served is said to have been denied.
    DenyRequest,
    /// A request that was served is said to have been cut.
    CutRequest,
    /// A request that was served is said to have been sent, and to have arrived, some time after its lease was given back.
    SendAfterRelease,
}

impl Change {
    /// Every kind, and how many of a hundred must be found.
    pub(crate) const ALL: [(Self, u32); 17] = [
        (Self::DropRow, 95),
        (Self::DoubleRow, 95),
        (Self::ShiftRow, 60),
        (Self::DropGrant, 95),
        (Self::GrantInVain, 95),
        (Self::LowerGeneration, 95),
        (Self::DenyLive, 90),
        (Self::AffirmOver, 90),
        (Self::DropRelease, 90),
        (Self::MoveArrival, 90),
        (Self::SwapLease, 90),
        (Self::LateArrival, 85),
        (Self::EarlyArrival, 90),
        (Self::LongArrival, 90),
        // Few requests are so long before the end of their lease, and so far from faults, that these two are wrong of them.
        (Self::DenyRequest, 15),
        (Self::CutRequest, 25),
        (Self::SendAfterRelease, 90),
    ];

    /// What it must be found as, where other rules would find it, too.
    fn is_found_as(self, kind: Kind) -> bool {
        match self {
            Self::DenyRequest => kind == Kind::Lost,
            Self::CutRequest => kind == Kind::CutEarly,
            Self::SendAfterRelease => kind == Kind::SentAfterEnd,
            _ => true,
        }
    }
}

/// How often a change was tried, and how often it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strength {
    pub(crate) change: Change,
    pub(crate) tried: u32,
    pub(crate) found: u32,
    /// So many of a hundred must be found.
    pub(crate) least_percent: u32,
}

impl Strength {
    pub(crate) fn is_enough(&self) -> bool {
        self.tried > 0 && self.found * 100 >= self.tried * self.least_percent
    }
}

/// Tries every kind of change on a history without violations.
pub(crate) fn strength(history: &History, rules: &Rules, seed: u64) -> Vec<Strength> {
    let mut random = StdRng::seed_from_u64(seed);
    let of = |(change, least_percent)| {
        let (mut tried, mut found) = (0, 0);
        for _ in 0..TRIES {
            let mut changed = history.clone();
            if apply(change, &mut changed, rules, &mut random).is_some() {
                tried += 1;
                let violations = check(&changed, rules);
                let is_found = violations.iter().any(|it| change.is_found_as(it.kind));
                found += u32::from(is_found);
            }
        }
        Strength {
            change,
            tried,
            found,
            least_percent,
        }
    };
    Change::ALL.map(of).to_vec()
}

/// `None` when there is nothing to be changed so.
fn apply(change: Change, history: &mut History, rules: &Rules, random: &mut StdRng) -> Option<()> {
    let seconds = Duration::from_secs(random.random_range(12..20));
    match change {
        Change::DropRow => {
            let used = indices(&history.rows, |row| is_granted(history, row.lease));
            history.rows.remove(*used.choose(random)?);
        }
        Change::DoubleRow => {
            let mut row = history.rows.choose(random)?.clone();
            row.lease.owner = row.lease.owner.wrapping_add(100);
            history.rows.push(row);
        }
        Change::ShiftRow => {
            let few = Duration::from_millis(random.random_range(500..4_000));
            let row = pick(&mut history.rows, random, |_| true)?;
            row.held = later(row.held, few);
        }
        Change::DropGrant => {
            let arrived = history.arrivals.choose(random)?.lease;
            history
                .operations
                .retain(|operation| grants(operation) != Some(arrived));
        }
        Change::GrantInVain => {
            let refused = pick(&mut history.operations, random, |operation| {
                matches!(operation.asked, Asked::Acquire { .. }) && operation.answer == Answer::Busy
            })?;
            refused.answer = Answer::Lease { generation: 1_000 };
        }
        Change::LowerGeneration => {
            // An owner's last grant, whose number is not the first and was not given twice.
            let granted: Vec<LeaseName> = history.operations.iter().filter_map(grants).collect();
            let later_ones = granted.iter().filter(|name| {
                let again = granted.iter().filter(|other| other == name).count();
                name.generation > 2 && again == 1
            });
            let later_ones: Vec<LeaseName> = later_ones.copied().collect();
            let victim = *later_ones.choose(random)?;
            let operation = pick(&mut history.operations, random, |operation| {
                grants(operation) == Some(victim)
            })?;
            operation.answer = Answer::Lease {
                generation: victim.generation.saturating_sub(2),
            };
        }
        Change::DenyLive => {
            let live = live(history);
            // One that is shown to stand once more later.
            let again: Vec<usize> = (live.iter())
                .filter(|(index, name)| {
                    live.iter()
                        .any(|(other, same)| other > index && same == name)
                })
                .map(|(index, _)| *index)
                .collect();
            let operation = history.operations.get_mut(*again.choose(random)?)?;
            operation.answer = Answer::Over;
        }
        Change::AffirmOver => {
            let denied = pick(&mut history.operations, random, |operation| {
                matches!(operation.asked, Asked::Renew { .. } | Asked::Status { .. })
                    && operation.answer == Answer::Over
            })?;
            let generation = match denied.asked {
                Asked::Renew { generation, .. } | Asked::Status { generation } => generation,
                _ => return None,
            };
            // Long after, so that no bound of before reaches so far.
            denied.answer = Answer::Lease { generation };
            let (owner, span) = (denied.owner, later(denied.span, seconds));
            let asked = Asked::Status { generation };
            history.operations.push(Operation {
                owner,
                asked,
                span,
                answer: Answer::Lease { generation },
            });
        }
        Change::DropRelease => {
            let released = indices(&history.operations, |operation| {
                matches!(
                    (operation.asked, operation.answer),
                    (Asked::Release { .. }, Answer::Lease { .. })
                )
            });
            history.operations.remove(*released.choose(random)?);
        }
        Change::MoveArrival => {
            let elsewhere = history.arrivals.choose(random)?.connection.clone();
            let arrival = pick(&mut history.arrivals, random, |arrival| {
                arrival.connection != elsewhere
            })?;
            arrival.connection = elsewhere;
        }
        Change::SwapLease => {
            let other = history.arrivals.choose(random)?.lease;
            let arrival = pick(&mut history.arrivals, random, |arrival| {
                arrival.lease.owner != other.owner
            })?;
            arrival.lease = other;
        }
        Change::LateArrival => {
            let arrival = pick(&mut history.arrivals, random, |_| true)?;
            arrival.span = later(arrival.span, seconds);
        }
        Change::EarlyArrival => {
            let arrival = pick(&mut history.arrivals, random, |arrival| {
                arrival.span.from > seconds
            })?;
            arrival.span.from = arrival.span.from.saturating_sub(seconds);
            arrival.span.until = arrival.span.until.saturating_sub(seconds);
        }
        Change::LongArrival => {
            let arrival = pick(&mut history.arrivals, random, |_| true)?;
            arrival.span.until = arrival.span.until.saturating_add(seconds);
        }
        Change::DenyRequest => served(history, rules, random)?.answer = Answer::Over,
        Change::CutRequest => served(history, rules, random)?.answer = Answer::Cut,
        Change::SendAfterRelease => {
            let (request, arrival, from) = *released(history, rules).choose(random)?;
            let request = history.operations.get_mut(request)?;
            let arrival = history.arrivals.get_mut(arrival)?;
            let by = from.saturating_sub(request.span.from);
            request.span = later(request.span, by);
            arrival.span = later(arrival.span, by);
        }
    }
    Some(())
}

/// A request that was served and never without an answer of the authority.
fn served<'a>(
    history: &'a mut History,
    rules: &Rules,
    random: &mut StdRng,
) -> Option<&'a mut Operation> {
    let mut undisturbed = undisturbed(history, rules);
    undisturbed.retain(|index| {
        let request = history.operations.get(*index);
        request.is_some_and(|request| request.answer == Answer::Served)
    });
    history.operations.get_mut(*undisturbed.choose(random)?)
}

/// Requests that were served, what they were at the upstream, and when they could have been sent after the release of
/// their leases, had the authority been there to say so.
fn released(history: &History, rules: &Rules) -> Vec<(usize, usize, Duration)> {
    let mut released = Vec::new();
    for (place, arrival) in history.arrivals.iter().enumerate() {
        let LeaseName { owner, generation } = arrival.lease;
        let is_sent = |request: &Operation| {
            matches!(request.asked, Asked::Send { number, .. } if number == arrival.number)
                && request.answer == Answer::Served
        };
        let release = history.operations.iter().find(|operation| {
            operation.owner == owner
                && operation.asked == Asked::Release { generation }
                && operation.answer == Answer::Lease { generation }
        });
        let request = history.operations.iter().position(is_sent);
        let (Some(release), Some(request)) = (release, request) else {
            continue;
        };
        let from = release.span.until.saturating_add(AFTER_RELEASE);
        let moved = history.operations.get(request).filter(|request| {
            let by = from.saturating_sub(request.span.from);
            !is_silenced(history, rules, request, later(request.span, by))
        });
        if moved.is_some_and(|request| request.span.from < from) {
            released.push((request, place, from));
        }
    }
    released
}

fn later(span: Span, by: Duration) -> Span {
    Span::new(span.from.saturating_add(by), span.until.saturating_add(by))
}

fn indices<T>(all: &[T], fits: impl Fn(&T) -> bool) -> Vec<usize> {
    let numbered = all.iter().enumerate();
    numbered
        .filter(|(_, item)| fits(item))
        .map(|(index, _)| index)
        .collect()
}

fn pick<'a, T>(
    all: &'a mut [T],
    random: &mut StdRng,
    fits: impl Fn(&T) -> bool,
) -> Option<&'a mut T> {
    let index = *indices(all, fits).choose(random)?;
    all.get_mut(index)
}

/// The lease that an acquisition was granted.
fn grants(operation: &Operation) -> Option<LeaseName> {
    match (operation.asked, operation.answer) {
        (Asked::Acquire { .. }, Answer::Lease { generation }) => Some(LeaseName {
            owner: operation.owner,
            generation,
        }),
        _ => None,
    }
}

fn is_granted(history: &History, lease: LeaseName) -> bool {
    let mut granted = history.operations.iter().filter_map(grants);
    granted.any(|name| name == lease)
}

/// Answers that show leases to stand, and which.
fn live(history: &History) -> Vec<(usize, LeaseName)> {
    let numbered = history.operations.iter().enumerate();
    numbered
        .filter_map(
            |(index, operation)| match (operation.asked, operation.answer) {
                (Asked::Renew { .. } | Asked::Status { .. }, Answer::Lease { generation }) => {
                    let owner = operation.owner;
                    Some((index, LeaseName { owner, generation }))
                }
                _ => None,
            },
        )
        .collect()
}

//! What is wished of a pool, and what many wishes together come to: pure steps on copies of pool and queue.

use std::collections::BTreeSet;

use tidegate_core::ids::{AttemptId, PlaneIncarnation};
use tidegate_core::permit::{self, Asker, Claim, Joined, Pool, Queue, Shares, Term, WaitTerms};
use tidegate_core::time::Timestamp;
use tokio::sync::oneshot;

use super::{Taken, Waited};

/// What somebody wants of a pool.
#[derive(Debug)]
pub(super) enum Wish {
    Take {
        attempt: AttemptId,
        claim: Claim,
        replaces: Option<AttemptId>,
        cap: u32,
        told: oneshot::Sender<Taken>,
    },
    Wait {
        attempt: AttemptId,
        claim: Claim,
        cap: u32,
        terms: WaitTerms,
        told: oneshot::Sender<Waited>,
    },
    Release {
        attempt: AttemptId,
    },
    /// Nobody heard of what was granted.
    TakeBack {
        attempt: AttemptId,
        claim: Claim,
    },
    Renew {
        plane: PlaneIncarnation,
        keep: BTreeSet<u64>,
        newest: u64,
        told: oneshot::Sender<bool>,
    },
}

/// What a change comes to for those who wished it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Per wish: it is fulfilled, or waits.
    pub(super) granted: Vec<bool>,
    /// The line afterwards.
    pub(super) queue: Queue,
    /// Who of those who waited holds a permit now.
    pub(super) served: Vec<AttemptId>,
}

/// What becomes of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    Given,
    Waits,
    Refused,
}

impl Outcome {
    fn over(queue: &Queue) -> Self {
        Self {
            queue: queue.clone(),
            ..Self::default()
        }
    }

    /// Serves those who wait.
    fn serve(&mut self, serve: impl FnOnce(&Queue) -> Vec<AttemptId>) {
        for attempt in serve(&self.queue) {
            self.queue.leave(attempt);
            self.served.push(attempt);
        }
    }

    /// Grants wishes in their order.
    fn grant(&mut self, wishes: &[Wish], mut grant: impl FnMut(&mut Queue, &Wish) -> Grant) {
        for wish in wishes {
            let granted = grant(&mut self.queue, wish);
            if let (Wish::Wait { attempt, .. }, Grant::Given) = (wish, granted) {
                self.queue.leave(*attempt);
                self.served.push(*attempt);
            }
            self.granted.push(granted != Grant::Refused);
        }
    }
}

/// One change of the shared pool: what ended, then those who wait, then the others.
pub(super) fn fold(
    pool: &mut Pool,
    wishes: &[Wish],
    queue: &Queue,
    replica: &str,
    cap: u32,
    term: Term,
) -> Outcome {
    let now = term.now;
    settle(pool, wishes, term);
    let mut outcome = Outcome::over(queue);
    outcome.serve(|queue| queue.serve(pool, replica, cap, term));
    outcome.grant(wishes, |queue, wish| match wish {
        Wish::Take {
            attempt,
            claim,
            replaces,
            cap,
            ..
        } => {
            let holds = pool.acquire(*attempt, *replaces, *cap, Asker::Newcomer, term);
            given(pool, holds, *attempt, *claim)
        }
        Wish::Wait {
            attempt,
            claim,
            cap,
            terms,
            ..
        } => {
            if pool.acquire(*attempt, None, *cap, Asker::Newcomer, term) {
                pool.claim(*attempt, *claim);
                return Grant::Given;
            }
            let joined = join(queue, pool, replica, (*attempt, *claim), *terms, now);
            // Said at once, so that the next one is counted after it.
            queue.serve(pool, replica, 0, term);
            joined
        }
        Wish::Release { .. } | Wish::TakeBack { .. } | Wish::Renew { .. } => Grant::Given,
    });
    outcome
}

/// The same from the shares of data planes, the store being away.
pub(super) fn fold_shares(
    shares: &mut Shares,
    wishes: &[Wish],
    queue: &Queue,
    replica: &str,
    cap: u32,
    planes: u32,
    term: Term,
) -> Outcome {
    let share = |cap| permit::share(cap, planes);
    let now = term.now;
    settle_shares(shares, wishes, term);
    let mut outcome = Outcome::over(queue);
    outcome.serve(|queue| queue.serve_shares(shares, share(cap), term));
    outcome.grant(wishes, |queue, wish| match wish {
        Wish::Take {
            attempt,
            claim,
            replaces,
            cap,
            ..
        } => {
            if shares.acquire((*attempt, *claim), *replaces, share(*cap), term) {
                Grant::Given
            } else {
                Grant::Refused
            }
        }
        Wish::Wait {
            attempt,
            claim,
            cap,
            terms,
            ..
        } => {
            if shares.acquire((*attempt, *claim), None, share(*cap), term) {
                return Grant::Given;
            }
            // Nobody knows who waits elsewhere.
            let nobody = Pool::default();
            join(queue, &nobody, replica, (*attempt, *claim), *terms, now)
        }
        Wish::Release { .. } | Wish::TakeBack { .. } | Wish::Renew { .. } => Grant::Given,
    });
    outcome
}

fn given(pool: &mut Pool, holds: bool, attempt: AttemptId, claim: Claim) -> Grant {
    if !holds {
        return Grant::Refused;
    }
    pool.claim(attempt, claim);
    Grant::Given
}

/// Stands in line behind those that the pool tells of.
pub(super) fn join(
    queue: &mut Queue,
    pool: &Pool,
    replica: &str,
    who: (AttemptId, Claim),
    terms: WaitTerms,
    now: Timestamp,
) -> Grant {
    match queue.join(pool, replica, who, terms, now) {
        Joined::Waits => Grant::Waits,
        Joined::Full => Grant::Refused,
    }
}

/// Takes out what has ended and renews the rest.
fn settle(pool: &mut Pool, wishes: &[Wish], term: Term) {
    pool.prune(term.now);
    for wish in wishes {
        match wish {
            Wish::Release { attempt } => _ = pool.release(*attempt),
            Wish::TakeBack { attempt, claim } => _ = pool.take_back(*attempt, *claim),
            Wish::Renew {
                plane,
                keep,
                newest,
                ..
            } => pool.renew(*plane, keep, *newest, term),
            Wish::Take { .. } | Wish::Wait { .. } => {}
        }
    }
}

/// The same with shares.
fn settle_shares(shares: &mut Shares, wishes: &[Wish], term: Term) {
    shares.prune(term.now);
    for wish in wishes {
        match wish {
            Wish::Release { attempt } => shares.release(*attempt),
            Wish::TakeBack { attempt, claim } => shares.take_back(*attempt, *claim),
            Wish::Renew {
                plane,
                keep,
                newest,
                ..
            } => shares.renew(*plane, keep, *newest, term),
            Wish::Take { .. } | Wish::Wait { .. } => {}
        }
    }
}

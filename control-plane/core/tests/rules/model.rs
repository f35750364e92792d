//! The rules beside a model of them that keeps nothing but what happened.
//!
//! One provider with one connection, whose requests all name a combo and one model. The model is written from
//! `failure-state.md` §1.3 to §1.6, §3.2, §4.3, §4.5 and decisions 9 to 12, with lists and loops where the rules have
//! marks and shifts: whether an attempt was decided after something is asked of the order of the steps.

use proptest::prelude::*;
use tidegate_core::breaker::BreakerStatus;
use tidegate_core::outcome::{Attempt, AttemptOutcome, Outcome};
use tidegate_core::settings::ProviderClass;
use tidegate_core::state::Event;
use tidegate_core::time::Timestamp;

use super::world::{World, status, with_header};

/// Longest wait a header of the test asks for, in seconds.
const LONGEST_HINT_S: u64 = 700;

#[derive(Clone, Debug)]
enum Step {
    Send,
    /// An attempt ends. Which one is drawn from those in flight.
    End(usize, Ending),
    /// An operator resets the breaker, the connection or the locks.
    Reset(u8),
    Pass(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Success,
    /// 503 or 500: ladder, counted.
    Server(u16),
    /// 429, with a hint in seconds.
    Limited(Option<u64>),
    /// 404: two minutes, the level stays.
    NotFound,
    /// 418: the base, the level stays.
    Odd,
}

impl Ending {
    fn outcome(self) -> Outcome {
        match self {
            Self::Success => Outcome::Success,
            Self::Server(code) => status(code),
            Self::Limited(None) => status(429),
            Self::Limited(Some(seconds)) => with_header(429, "retry-after", &seconds.to_string()),
            Self::NotFound => status(404),
            Self::Odd => status(418),
        }
    }

    /// Which shape of key it locks, if the lockout's list names its status.
    fn locks(self) -> Option<usize> {
        match self {
            Self::Limited(_) | Self::NotFound => Some(0),
            Self::Server(503) => Some(1),
            Self::Success | Self::Server(_) | Self::Odd => None,
        }
    }
}

/// A count of a lock and what it needs to know.
#[derive(Clone, Debug)]
struct Lock {
    until: u64,
    failures: u32,
    last_at: u64,
    length: u64,
    escalated: usize,
    changed: usize,
}

/// An attempt in flight and the step it was decided at.
#[derive(Clone, Debug)]
struct InFlight {
    attempt: Attempt,
    decided: usize,
}

#[derive(Clone, Debug, Default)]
struct Model {
    step: usize,
    // The breaker.
    open: bool,
    degraded: bool,
    count: u32,
    last_failure: Option<u64>,
    epoch: usize,
    counted: Option<u64>,
    // The connection.
    until: Option<u64>,
    level: u32,
    escalated: usize,
    changed: usize,
    // The bare and the exact lock.
    locks: [Option<Lock>; 2],
}

impl Model {
    fn end(&mut self, decided: usize, ending: Ending, at: u64) {
        let same_epoch = decided >= self.epoch;
        if ending == Ending::Success {
            if same_epoch && !self.open {
                self.count = self.count.saturating_sub(1);
                if self.count <= 7 {
                    self.degraded = false;
                }
                if self.counted.is_some_and(|counted| counted <= at) {
                    self.counted = None;
                }
            }
            for lock in &mut self.locks {
                if let Some(held) = lock
                    && decided >= held.changed
                {
                    held.failures /= 2;
                    if held.failures == 0 {
                        *lock = None;
                    }
                }
            }
            // A reset with nothing after it stays: what was under way when it came may still end.
            if decided >= self.changed && (self.until.is_some() || self.level > 0) {
                (self.until, self.level, self.escalated, self.changed) = (None, 0, 0, 0);
            }
            return;
        }
        let duplicate = self
            .counted
            .is_some_and(|counted| at.abs_diff(counted) < 5_000);
        if matches!(ending, Ending::Server(_)) && same_epoch && !self.open && !duplicate {
            self.count += 1;
            self.counted = self.counted.max(Some(at));
            self.last_failure = self.last_failure.max(Some(at));
            self.degraded = self.count >= 7;
            if self.count >= 12 {
                (self.open, self.epoch) = (true, self.step);
            }
        }
        self.cool(decided, ending, at);
        if let Some(shape) = ending.locks() {
            self.lock(shape, decided, ending, at);
        }
    }

    fn cool(&mut self, decided: usize, ending: Ending, at: u64) {
        let ladder = |level: u32| {
            let mut length = 3_000;
            for _ in 0..level {
                length *= 2;
            }
            length
        };
        let (length, stated, level) = match ending {
            Ending::Limited(Some(seconds)) => (seconds * 1_000, true, 0),
            Ending::NotFound => (120_000, true, self.level),
            Ending::Odd => (3_000, false, self.level),
            _ => (ladder(self.level), false, 5.min(self.level + 1)),
        };
        let end = at + length;
        let running = self.until.is_some_and(|until| until > at);
        if running || decided < self.escalated {
            if stated && self.until.is_some_and(|until| until < end) {
                self.until = Some(end);
                self.changed = self.step;
            }
            return;
        }
        self.level = level;
        self.until = self.until.max(Some(end));
        (self.escalated, self.changed) = (self.step, self.step);
    }

    fn lock(&mut self, shape: usize, decided: usize, ending: Ending, at: u64) {
        let hint = match ending {
            Ending::Limited(Some(seconds)) if seconds > 120 => Some(seconds * 1_000),
            _ => None,
        };
        let length = |failures: u32| {
            hint.unwrap_or_else(|| {
                let mut length: u64 = 120_000;
                for _ in 1..failures {
                    length = 1_800_000.min(length * 2);
                }
                length
            })
        };
        // Locks that can neither block nor escalate any more make room when another shape is locked for the first time.
        if self.locks[shape].is_none() {
            for lock in &mut self.locks {
                lock.take_if(|held| held.until.max(held.last_at + 30_000 + held.length) < at);
            }
        }
        let Some(held) = &mut self.locks[shape] else {
            self.locks[shape] = Some(Lock {
                until: at + length(1),
                failures: 1,
                last_at: at,
                length: length(1),
                escalated: self.step,
                changed: self.step,
            });
            return;
        };
        let within = at <= held.last_at + 30_000 + held.length;
        if within && decided < held.escalated {
            if let Some(hint) = hint
                && at + hint > held.until
            {
                held.until = at + hint;
                held.length = held.length.max(hint);
                held.changed = self.step;
            }
            return;
        }
        held.failures = if within { held.failures + 1 } else { 1 };
        (held.escalated, held.changed) = (self.step, self.step);
        held.last_at = held.last_at.max(at);
        if at + length(held.failures) > held.until {
            held.until = at + length(held.failures);
            held.length = length(held.failures);
        }
    }

    fn reset(&mut self, what: u8) {
        match what {
            0 => {
                (self.open, self.degraded, self.count) = (false, false, 0);
                (self.last_failure, self.epoch) = (None, self.step);
            }
            1 if self.until.is_none() && self.level == 0 => {}
            1 => {
                (self.until, self.level) = (None, 0);
                (self.escalated, self.changed) = (self.step, self.step);
            }
            _ => self.locks = [None, None],
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ending = prop_oneof![
        3 => Just(Ending::Success),
        3 => Just(Ending::Server(503)),
        2 => Just(Ending::Server(500)),
        2 => Just(Ending::Limited(None)),
        2 => (1..=LONGEST_HINT_S).prop_map(|seconds| Ending::Limited(Some(seconds))),
        1 => Just(Ending::NotFound),
        1 => Just(Ending::Odd),
    ];
    let step = prop_oneof![
        6 => Just(Step::Send),
        6 => (any::<usize>(), ending).prop_map(|(which, ending)| Step::End(which, ending)),
        4 => prop_oneof![0..10_000_u64, 0..400_000_u64].prop_map(Step::Pass),
        1 => (0..3_u8).prop_map(Step::Reset),
    ];
    prop::collection::vec(step, 1..120)
}

/// Compares the rules with the model after each step.
fn compare(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(ProviderClass::Apikey);
    world.policy.lockout.enabled = true;
    let mut model = Model::default();
    let mut in_flight: Vec<InFlight> = Vec::new();
    let mut now = 1_000_000;
    for (index, step) in steps.iter().enumerate() {
        // From 1, so that what never happened is before everything.
        model.step = index + 1;
        match step {
            Step::Send => {
                let attempt = world.send("c1");
                in_flight.push(InFlight {
                    attempt,
                    decided: model.step,
                });
            }
            Step::Pass(ms) => now += ms,
            Step::Reset(what) => {
                let connection = world.config("c1").id.clone();
                let event = match what {
                    0 => Event::ResetBreaker,
                    1 => Event::ResetConnection {
                        connection,
                        terminal_too: false,
                    },
                    _ => Event::ClearLocks {
                        connection,
                        model: None,
                    },
                };
                world.event(Some("c1"), &event, Timestamp(now));
                model.reset(*what);
            }
            Step::End(_, _) if in_flight.is_empty() => {}
            Step::End(which, ending) => {
                let ended = in_flight.swap_remove(which % in_flight.len());
                world.report(AttemptOutcome {
                    attempt: ended.attempt,
                    outcome: ending.outcome(),
                    occurred_at: Timestamp(now),
                    next_target_same_provider: false,
                    combo: true,
                    count: 1,
                });
                model.end(ended.decided, *ending, now);
            }
        }
        agree(&world, &model)?;
    }
    Ok(())
}

fn agree(world: &World, model: &Model) -> Result<(), TestCaseError> {
    let breaker = &world.state.breaker;
    let expected = match (model.open, model.degraded) {
        (true, _) => BreakerStatus::Open,
        (false, true) => BreakerStatus::Degraded,
        (false, false) => BreakerStatus::Closed,
    };
    prop_assert_eq!(breaker.status, expected);
    prop_assert_eq!(breaker.failure_count, model.count);
    prop_assert_eq!(breaker.last_failure_at.map(|at| at.0), model.last_failure);
    prop_assert_eq!(world.cooldown(), (model.until, model.level));
    let mut shown: Vec<_> = world.c1().locks.iter().collect();
    shown.sort_by_key(|lock| lock.key.clone());
    let shown: Vec<_> = shown
        .iter()
        .map(|lock| (lock.until.0, lock.failure_count))
        .collect();
    let expected: Vec<_> = model
        .locks
        .iter()
        .flatten()
        .map(|lock| (lock.until, lock.failures))
        .collect();
    prop_assert_eq!(shown, expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_024))]
    #[test]
    fn the_rules_agree_with_the_model(steps in steps()) {
        compare(&steps)?;
    }
}

//! The in-process store beside a model of the contract that searches lists.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::StreamExt as _;
use proptest::prelude::*;
use tidegate_core::ids::{PlaneIncarnation, Shard};
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Revision, Version};

use crate::hot::{
    Change, Entry, Followed, HotStore, MARK_TTL, MarkMove, RefusalReason, ReportMark, ShardWrite,
    WriteOutcome, WriteValue,
};
use crate::memory::clock::ManualClock;
use crate::memory::{MemoryHotStore, MemoryOptions};

const KEYS: [&str; 3] = ["p:a", "c:a:one", "c:a:two"];
const PLANES: [u64; 2] = [7, 8];
const START: u64 = 1_000_000;

/// What a writer believes of a value.
#[derive(Clone, Copy, Debug)]
enum Belief {
    Right,
    Absent,
    /// So many revisions before the last.
    Revision(u64),
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        /// By key: what is believed, and for how long the new value is kept.
        values: [Option<(Belief, u64)>; 3],
        /// By plane: how far after the mark the run begins (1 is next, 0 repeats), and its length.
        marks: [Option<(u64, u64)>; 2],
        late: bool,
        other_incarnation: bool,
    },
    /// A new incarnation, asked for by somebody who knows which one stands, or does not.
    Begin {
        knows: bool,
    },
    Pass(u64),
    Follow,
}

/// The contract, by lists.
#[derive(Debug, Default)]
struct Model {
    now: u64,
    incarnation: Option<Incarnation>,
    revision: u64,
    values: Vec<Entry>,
    /// Mark and its end.
    marks: Vec<(ReportMark, u64)>,
    /// What was written since the last look of the follower, and whether an incarnation began.
    unseen: Vec<Change>,
    begun: bool,
}

impl Model {
    fn forget(&mut self) {
        let now = self.now;
        self.values.retain(|entry| entry.expires_at.0 >= now);
        self.marks.retain(|(_, end)| *end >= now);
    }

    fn value(&self, key: &str) -> Option<&Entry> {
        self.values.iter().find(|entry| entry.key == key)
    }

    fn mark(&self, plane: PlaneIncarnation) -> u64 {
        let found = self.marks.iter().find(|(mark, _)| mark.plane == plane);
        found.map_or(0, |(mark, _)| mark.number)
    }

    fn refusal(&self, write: &ShardWrite) -> Option<RefusalReason> {
        let applied = write
            .marks
            .iter()
            .any(|run| self.mark(run.plane) >= run.first);
        let conflict = write
            .values
            .iter()
            .any(|value| self.value(&value.key).map(|found| found.version) != value.expected);
        match self.incarnation {
            None => Some(RefusalReason::Empty),
            Some(stands) if stands != write.incarnation => Some(RefusalReason::OtherIncarnation),
            Some(_) if self.now > write.not_after.0 => Some(RefusalReason::Late),
            Some(_) if applied => Some(RefusalReason::AlreadyApplied),
            Some(_) => conflict.then_some(RefusalReason::Conflict),
        }
    }

    fn write(&mut self, write: &ShardWrite) {
        self.revision += 1;
        let version = Version {
            incarnation: write.incarnation,
            revision: Revision(self.revision),
        };
        let entries: Vec<Entry> = write
            .values
            .iter()
            .map(|value| Entry {
                key: value.key.clone(),
                version,
                schema: value.schema,
                payload: value.payload.clone(),
                expires_at: value.expires_at,
            })
            .collect();
        self.values
            .retain(|old| entries.iter().all(|new| new.key != old.key));
        self.values.extend(entries.clone());
        let marks: Vec<ReportMark> = write
            .marks
            .iter()
            .map(|run| ReportMark {
                plane: run.plane,
                number: run.last,
            })
            .collect();
        self.marks
            .retain(|(old, _)| marks.iter().all(|new| new.plane != old.plane));
        let end = self.now + u64::try_from(MARK_TTL.as_millis()).unwrap();
        self.marks.extend(marks.iter().map(|mark| (*mark, end)));
        self.unseen.push(Change {
            version,
            entries,
            marks,
        });
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let belief = prop_oneof![
        6 => Just(Belief::Right),
        1 => Just(Belief::Absent),
        1 => (0..3_u64).prop_map(Belief::Revision),
    ];
    let value = prop::option::of((belief, 1..5_000_u64));
    let mark = prop::option::of((0..3_u64, 1..4_u64));
    let write = (
        prop::array::uniform3(value),
        prop::array::uniform2(mark),
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.05),
    );
    let step = prop_oneof![
        12 => write.prop_map(|(values, marks, late, other_incarnation)| Step::Write {
            values, marks, late, other_incarnation,
        }),
        1 => any::<bool>().prop_map(|knows| Step::Begin { knows }),
        3 => prop_oneof![0..3_000_u64, Just(3_600_000_u64)].prop_map(Step::Pass),
        3 => Just(Step::Follow),
    ];
    prop::collection::vec(step, 1..60)
}

fn ask(model: &Model, step: &Step) -> Option<ShardWrite> {
    let Step::Write {
        values,
        marks,
        late,
        other_incarnation,
    } = step
    else {
        return None;
    };
    let incarnation = model.incarnation.unwrap_or_default();
    let values: Vec<WriteValue> = KEYS
        .iter()
        .zip(values)
        .filter_map(|(key, wanted)| wanted.map(|wanted| (key, wanted)))
        .map(|(key, (belief, keep_ms))| WriteValue {
            key: (*key).to_owned(),
            expected: match belief {
                Belief::Right => model.value(key).map(|found| found.version),
                Belief::Absent => None,
                Belief::Revision(before) => Some(Version {
                    incarnation,
                    revision: Revision(model.revision.saturating_sub(before)),
                }),
            },
            schema: 1,
            payload: model.revision.to_be_bytes().to_vec(),
            expires_at: Timestamp(model.now + keep_ms),
        })
        .collect();
    let marks: Vec<MarkMove> = PLANES
        .iter()
        .zip(marks)
        .filter_map(|(plane, run)| run.map(|run| (PlaneIncarnation(*plane), run)))
        .map(|(plane, (after, length))| {
            let first = (model.mark(plane) + after).max(1);
            MarkMove {
                plane,
                first,
                last: first + length - 1,
            }
        })
        .collect();
    (!values.is_empty() || !marks.is_empty()).then(|| ShardWrite {
        shard: shard(),
        incarnation: Incarnation(incarnation.0 + u64::from(*other_incarnation)),
        not_after: Timestamp(if *late { model.now - 1 } else { model.now }),
        values,
        marks,
    })
}

fn shard() -> Shard {
    Shard::new(5).unwrap()
}

/// A call of a store that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("it never waits")
}

fn same_contents(store: &MemoryHotStore, model: &mut Model) -> Result<(), TestCaseError> {
    model.forget();
    let mut image = at_once(store.read(shard())).unwrap();
    image.entries.sort_by(|a, b| a.key.cmp(&b.key));
    image.marks.sort();
    model.values.sort_by(|a, b| a.key.cmp(&b.key));
    let mut marks: Vec<_> = model.marks.iter().map(|(mark, _)| *mark).collect();
    marks.sort();
    prop_assert_eq!(&image.entries, &model.values);
    prop_assert_eq!(image.marks, marks);
    prop_assert_eq!(image.check.incarnation, model.incarnation);
    prop_assert_eq!(image.check.revision.0, model.revision);
    Ok(())
}

fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    let clock = Arc::new(ManualClock::new(Timestamp(START)));
    let store = MemoryHotStore::new(Arc::clone(&clock) as _, MemoryOptions::default());
    let mut follower = store.follow(Default::default());
    let mut model = Model {
        now: START,
        ..Model::default()
    };
    for step in steps {
        model.forget();
        match step {
            Step::Pass(ms) => {
                clock.advance_ms(*ms);
                model.now += ms;
            }
            Step::Begin { knows } => {
                let found = model.incarnation.filter(|_| *knows);
                let begun = at_once(store.begin_incarnation(
                    shard(),
                    found,
                    Incarnation(0),
                    Timestamp(model.now),
                ));
                if found == model.incarnation {
                    let larger = found.unwrap_or_default().0 + 1;
                    model.incarnation = Some(Incarnation(larger.max(model.now)));
                    model.revision = 0;
                    model.begun = true;
                    model.unseen.clear();
                }
                prop_assert_eq!(begun.unwrap(), model.incarnation);
            }
            Step::Write { .. } => {
                let Some(write) = ask(&model, step) else {
                    continue;
                };
                let expected = model.refusal(&write);
                match (at_once(store.write(write.clone())).unwrap(), expected) {
                    (WriteOutcome::Written { revision, .. }, None) => {
                        model.write(&write);
                        prop_assert_eq!(revision.0, model.revision);
                    }
                    (WriteOutcome::Refused(refusal), Some(expected)) => {
                        prop_assert_eq!(refusal.reason, expected);
                        let stands: Vec<_> = write
                            .values
                            .iter()
                            .map(|value| model.value(&value.key).cloned())
                            .collect();
                        prop_assert_eq!(refusal.values, stands);
                        for mark in refusal.marks {
                            prop_assert_eq!(mark.number, model.mark(mark.plane));
                        }
                    }
                    (outcome, expected) => {
                        return Err(TestCaseError::fail(format!(
                            "{outcome:?}, not {expected:?}"
                        )));
                    }
                }
            }
            Step::Follow => {
                let mut doubted = false;
                let mut seen: Vec<Change> = Vec::new();
                while let Some(Some(followed)) = follower.next().now_or_never() {
                    match followed {
                        Followed::Doubt(_) => doubted = true,
                        Followed::Changes(_, changes) => seen.extend(changes),
                    }
                }
                prop_assert_eq!(doubted, model.begun, "a new incarnation is a doubt");
                // What was written between the beginning and the doubt is found by reading.
                let expected = if doubted { &[][..] } else { &model.unseen };
                prop_assert_eq!(seen, expected);
                model.unseen.clear();
                model.begun = false;
            }
        }
        same_contents(&store, &mut model)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn the_store_does_what_the_model_does(steps in steps()) {
        run(&steps)?;
    }
}

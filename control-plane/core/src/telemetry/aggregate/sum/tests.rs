use proptest::prelude::*;

use super::*;
use crate::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use crate::telemetry::aggregate::{End, Verdict};

const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn bounds() -> Bounds {
    Bounds {
        combos: 3,
        targets: 6,
        tracks: 9,
        sessions_per_combo: 2,
        sessions: 4,
        connections: 5,
        tool_limits: 1,
        planes: 1,
        plane_connections: 1,
    }
}

/// What happens to a sum.
#[derive(Clone, Debug)]
enum Step {
    End { name: usize, combo: usize, age: u64 },
    Prune { later_ms: u64 },
    Newest { name: usize, combo: usize, age: u64 },
    Take,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end = (0_usize..12, 0_usize..5, 0_u64..86_400_000);
    let step = prop_oneof![
        20 => end.clone().prop_map(|(name, combo, age)| Step::End { name, combo, age }),
        2 => (0_u64..86_400_000).prop_map(|later_ms| Step::Prune { later_ms }),
        10 => end.prop_map(|(name, combo, age)| Step::Newest { name, combo, age }),
        1 => Just(Step::Take),
    ];
    prop::collection::vec(step, 0..60)
}

fn part(name: usize, combo: usize, age: u64) -> Aggregate {
    let name = format!("n{name}");
    let at = NOW.minus_ms(age);
    Aggregate::of_end(End {
        target: Some((ComboName::new(format!("c{combo}")).unwrap(), name.clone())),
        provider: ProviderId::new("p").unwrap(),
        connection: ConnectionId::new(&name).unwrap(),
        model: ModelId::new(&name).unwrap(),
        verdict: Verdict::Served { ready_ms: 1 },
        began_at: at,
        at,
        session: Some(name),
    })
}

proptest! {
    #[test]
    fn the_room_that_is_kept_is_the_room_there_is(steps in steps()) {
        let mut sum = BoundedSum::new(bounds());
        for step in steps {
            match step {
                Step::End { name, combo, age } => drop(sum.absorb(part(name, combo, age))),
                Step::Prune { later_ms } => sum.prune(NOW.plus_ms(later_ms)),
                Step::Newest { name, combo, age } => {
                    drop(sum.absorb_newest(part(name, combo, age)));
                }
                Step::Take => drop(sum.take()),
            }
            prop_assert_eq!(&sum.room, &sum.bounds.room(&sum.sum));
            for kind in Kind::ALL {
                prop_assert!(sum.sum.count(kind) <= sum.bounds.most(kind));
            }
        }
    }
}

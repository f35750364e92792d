//! What owners do and what is done to the fleet, out of a seed and nothing else.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::history::Fault;

/// One step of an owner. Whatever it names it names by the generation that the owner was last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Time before it.
    pub(crate) pause: Duration,
    /// Which plane is asked, to be taken modulo their number.
    pub(crate) plane: usize,
    pub(crate) action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Acquire {
        ttl: Duration,
    },
    Renew {
        ttl: Duration,
    },
    Release,
    Status,
    /// A request goes out and the owner goes on.
    Send(Request),
    /// A request under the generation before.
    SendStale,
}

/// How long a request takes at the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Quick,
    /// The answer comes whole, after a while.
    Late,
    /// A stream of some seconds.
    Stream,
    /// A stream without an end, until it is cut or the client leaves.
    Endless,
}

impl Request {
    pub(crate) const ALL: [Self; 4] = [Self::Quick, Self::Late, Self::Stream, Self::Endless];

    pub(crate) fn model(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Late => "late",
            Self::Stream => "stream",
            Self::Endless => "endless",
        }
    }
}

/// The steps of one owner, without an end.
pub(crate) struct Steps(StdRng);

impl Steps {
    pub(crate) fn new(seed: u64, owner: u8) -> Self {
        Self(of_seed(seed, u64::from(owner).saturating_add(1)))
    }
}

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let random = &mut self.0;
        let ttl = Duration::from_millis(random.random_range(1_500..6_000));
        // Now and then longer than a lease lasts, and then mostly for a renewal: few others come too late.
        let is_long = random.random_range(0..15) == 0;
        let action = match random.random_range(0..20) {
            _ if is_long && random.random_range(0..3) > 0 => Action::Renew { ttl },
            0..3 => Action::Acquire { ttl },
            3..7 => Action::Renew { ttl },
            7..9 => Action::Release,
            9..11 => Action::Status,
            11..14 => Action::Send(Request::Quick),
            14..16 => Action::Send(Request::Late),
            16..18 => Action::Send(Request::Stream),
            18 => Action::Send(Request::Endless),
            _ => Action::SendStale,
        };
        let longest = if is_long { 7_000 } else { 400 };
        Some(Step {
            pause: Duration::from_millis(random.random_range(0..longest)),
            plane: random.random_range(0..usize::MAX),
            action,
        })
    }
}

/// One thing that is done to the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mischief {
    /// Time before it.
    pub(crate) pause: Duration,
    pub(crate) deed: Deed,
    /// How long it lasts, a move about; a database that ends comes back at once.
    pub(crate) lasts: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Fault(Fault),
    /// A connection cools down while there is a free one, so that the lease there moves.
    Move,
    /// Nothing.
    Calm,
}

/// A move, a calm, then all other kinds in whatever order, over and over. Data planes, replicas and connections are to be
/// taken modulo their number.
pub(crate) struct Mischiefs {
    random: StdRng,
    /// The shortest time that a data plane must not stand still for.
    guard: Duration,
    round: Vec<Kind>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    ShortPause,
    LongPause,
    Stop,
    Kill,
    Restart,
    Cool,
    Move,
    Calm,
}

/// Where a connection cools down the lease is mostly lost, since all others are taken. So each round begins with a move.
/// That takes long enough for the authority to recover, and silences nobody: so the calm that follows it is one from its
/// beginning.
const ROUND: [Kind; 6] = [
    Kind::ShortPause,
    Kind::LongPause,
    Kind::Stop,
    Kind::Kill,
    Kind::Restart,
    Kind::Cool,
];

impl Mischiefs {
    pub(crate) fn new(seed: u64, guard: Duration) -> Self {
        Self {
            random: of_seed(seed, 0),
            guard,
            round: Vec::new(),
        }
    }
}

impl Iterator for Mischiefs {
    type Item = Mischief;

    fn next(&mut self) -> Option<Mischief> {
        if self.round.is_empty() {
            self.round = ROUND.to_vec();
            self.round.shuffle(&mut self.random);
            self.round.extend([Kind::Calm, Kind::Move]);
        }
        let kind = self.round.pop()?;
        let random = &mut self.random;
        let which = random.random_range(0..usize::MAX);
        let (deed, lasts) = match kind {
            Kind::ShortPause => (
                Deed::Fault(Fault::Pause { plane: which }),
                self.guard.mul_f64(random.random_range(0.1..0.7)),
            ),
            // Longer than a horizon, so that others are given what it held.
            Kind::LongPause => (
                Deed::Fault(Fault::Pause { plane: which }),
                Duration::from_millis(random.random_range(5_500..7_500)),
            ),
            // As long as a question waits for its answer, about: some are answered late and some are given up.
            Kind::Stop => (
                Deed::Fault(Fault::Stop { replica: which }),
                Duration::from_millis(random.random_range(200..2_000)),
            ),
            Kind::Kill => (
                Deed::Fault(Fault::Kill { replica: which }),
                Duration::from_millis(random.random_range(0..1_500)),
            ),
            Kind::Restart => (Deed::Fault(Fault::Restart), Duration::ZERO),
            Kind::Cool => (
                Deed::Fault(Fault::Cool { connection: which }),
                Duration::from_millis(random.random_range(500..1_500)),
            ),
            Kind::Move => (Deed::Move, Duration::from_secs(2)),
            Kind::Calm => (Deed::Calm, Duration::from_secs(8)),
        };
        Some(Mischief {
            pause: Duration::from_millis(random.random_range(200..1_000)),
            deed,
            lasts,
        })
    }
}

/// Streams of random numbers that have nothing to do with each other.
fn of_seed(seed: u64, stream: u64) -> StdRng {
    let mut bytes = [0; 32];
    let (low, high) = bytes.split_at_mut(8);
    low.copy_from_slice(&seed.to_le_bytes());
    for (place, byte) in high.iter_mut().zip(stream.to_le_bytes()) {
        *place = byte;
    }
    StdRng::from_seed(bytes)
}

#[test]
fn a_seed_is_a_schedule() {
    let steps = |seed, owner| Steps::new(seed, owner).take(50).collect::<Vec<_>>();
    assert_eq!(steps(7, 1), steps(7, 1));
    assert_ne!(steps(7, 1), steps(7, 2));
    assert_ne!(steps(7, 1), steps(8, 1));
    let guard = Duration::from_millis(600);
    let mischiefs = |seed| Mischiefs::new(seed, guard).take(16).collect::<Vec<_>>();
    assert_eq!(mischiefs(7), mischiefs(7));
    for round in mischiefs(9).chunks(8) {
        let begins: Vec<Deed> = round.iter().take(2).map(|first| first.deed).collect();
        assert_eq!(begins, [Deed::Move, Deed::Calm]);
        let mut words: Vec<_> = round
            .iter()
            .filter_map(|mischief| match mischief.deed {
                Deed::Fault(fault @ Fault::Pause { .. }) => {
                    Some((fault.word(), mischief.lasts > guard))
                }
                Deed::Fault(fault) => Some((fault.word(), false)),
                Deed::Move | Deed::Calm => None,
            })
            .collect();
        words.sort_unstable();
        assert_eq!(
            words,
            [
                ("cool", false),
                ("kill", false),
                ("pause", false),
                ("pause", true),
                ("restart", false),
                ("stop", false)
            ]
        );
    }
}

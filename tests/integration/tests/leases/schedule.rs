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
        let action = match random.random_range(0..20) {
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
        // Now and then longer than a lease lasts.
        let longest = if random.random_range(0..15) == 0 {
            7_000
        } else {
            400
        };
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
    pub(crate) fault: Fault,
    /// How long it lasts; a database that ends comes back at once.
    pub(crate) lasts: Duration,
}

/// All kinds over and over, each time in another order. Data planes, replicas and connections are to be taken modulo
/// their number.
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
    Kill,
    Restart,
    Cool,
}

/// Most moves come of several.
const ROUND: [Kind; 7] = [
    Kind::ShortPause,
    Kind::LongPause,
    Kind::Kill,
    Kind::Restart,
    Kind::Cool,
    Kind::Cool,
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
        }
        let kind = self.round.pop()?;
        let random = &mut self.random;
        let which = random.random_range(0..usize::MAX);
        let (fault, lasts) = match kind {
            Kind::ShortPause => (
                Fault::Pause { plane: which },
                self.guard.mul_f64(random.random_range(0.1..0.7)),
            ),
            // Longer than a horizon, so that others are given what it held.
            Kind::LongPause => (
                Fault::Pause { plane: which },
                Duration::from_millis(random.random_range(5_500..8_500)),
            ),
            Kind::Kill => (
                Fault::Kill { replica: which },
                Duration::from_millis(random.random_range(0..1_500)),
            ),
            Kind::Restart => (Fault::Restart, Duration::ZERO),
            Kind::Cool => (
                Fault::Cool { connection: which },
                Duration::from_millis(random.random_range(500..1_500)),
            ),
        };
        Some(Mischief {
            pause: Duration::from_millis(random.random_range(500..2_500)),
            fault,
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
    let mischiefs = |seed| Mischiefs::new(seed, guard).take(14).collect::<Vec<_>>();
    assert_eq!(mischiefs(7), mischiefs(7));
    for round in mischiefs(9).chunks(7) {
        let mut words: Vec<_> = round
            .iter()
            .filter(|mischief| mischief.fault.word() != "cool")
            .map(|mischief| (mischief.fault.word(), mischief.lasts > guard))
            .collect();
        words.sort_unstable();
        let kill = words.first().is_some_and(|(_, long)| *long);
        assert_eq!(
            words,
            [
                ("kill", kill),
                ("pause", false),
                ("pause", true),
                ("restart", false)
            ]
        );
    }
}

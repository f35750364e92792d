//! The control-plane replicas and which of them is asked.
//!
//! One replica is *home*: it feeds the watch, decides, and takes the reports, so that what was reported is in
//! the view that decides next. Home changes only when it fails, falls silent or goes stale; a replica that was
//! left is not preferred again before home fails in turn, so a flapping one costs little. Data planes start at
//! different replicas (by incarnation), and go back to their own from time to time ([`Replicas::preferred`]),
//! so that a restarted replica gets load again.
//!
//! Order: trusted before suspect, fresh before stale, home before others, then the circle from the preferred.
//! Nothing is ever ruled out: when all are suspect, the best of them is asked.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use secrecy::SecretString;
use tidegate_core::ids::PlaneIncarnation;
use tidegate_proto::common::v1::Freshness;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::endpoint::{Address, ChannelError, ChannelSettings, PlaneChannel, TlsSettings, channel};

/// Most replicas of one control plane.
pub const MAX_REPLICAS: usize = 64;
/// How long a replica that failed is asked after the others.
const SUSPICION: Duration = Duration::from_secs(3);
/// How long a replica counts as stale after it said so. Nobody watches one that was left, so nobody would hear
/// that it is well again.
const STALENESS: Duration = Duration::from_secs(10);
/// A view of this age is stale whatever its replica thinks of it (`architecture.md` §3, View).
const STALE_AGE_MS: u64 = 3_000;

/// Why there is nobody to ask.
#[derive(Debug, thiserror::Error)]
pub enum ReplicasError {
    /// None, or more than [`MAX_REPLICAS`].
    #[error("there must be 1 to {MAX_REPLICAS} control-plane addresses")]
    Count,
    /// A channel cannot be made.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// Which replicas were asked already in one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked(u64);

impl Asked {
    pub(crate) fn add(&mut self, index: usize) {
        self.0 |= bit(index);
    }

    fn contains(self, index: usize) -> bool {
        self.0 & bit(index) != 0
    }
}

fn bit(index: usize) -> u64 {
    u32::try_from(index)
        .ok()
        .and_then(|index| 1_u64.checked_shl(index))
        .unwrap_or(0)
}

/// All replicas. Nothing here waits.
pub(crate) struct Replicas {
    list: Vec<Replica>,
    home: AtomicUsize,
    preferred: usize,
}

/// One replica.
pub(crate) struct Replica {
    /// Its place in the list.
    pub(crate) index: usize,
    /// For logs.
    pub(crate) name: String,
    channel: PlaneChannel,
    recipe: Recipe,
    health: Mutex<Health>,
    /// How often it was left because it sent nothing.
    silences: watch::Sender<u64>,
}

struct Recipe {
    address: Address,
    settings: ChannelSettings,
    tls: Option<TlsSettings>,
    token: Option<SecretString>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Health {
    suspect_until: Option<Instant>,
    stale_until: Option<Instant>,
}

/// How one replica looks from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Its address.
    pub name: String,
    /// It is the one that is asked first.
    pub home: bool,
    /// It failed or fell silent a moment ago.
    pub suspect: bool,
    /// Its view does not follow the hot store.
    pub stale: bool,
}

impl fmt::Debug for Replicas {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_list()
            .entries(self.list.iter().map(|replica| &replica.name))
            .finish()
    }
}

impl Replicas {
    /// Makes a channel to each address.
    pub(crate) fn new(
        addresses: &[Address],
        settings: &ChannelSettings,
        tls: Option<&TlsSettings>,
        token: Option<&SecretString>,
        plane: PlaneIncarnation,
    ) -> Result<Self, ReplicasError> {
        if addresses.is_empty() || addresses.len() > MAX_REPLICAS {
            return Err(ReplicasError::Count);
        }
        let list = addresses
            .iter()
            .enumerate()
            .map(|(index, address)| {
                let recipe = Recipe {
                    address: address.clone(),
                    settings: settings.clone(),
                    tls: tls.cloned(),
                    token: token.cloned(),
                };
                Ok(Replica {
                    index,
                    name: address.to_string(),
                    channel: recipe.channel()?,
                    recipe,
                    health: Mutex::default(),
                    silences: watch::Sender::new(0),
                })
            })
            .collect::<Result<Vec<_>, ChannelError>>()?;
        let count = u64::try_from(list.len()).unwrap_or(u64::MAX);
        let preferred = usize::try_from(plane.0 % count).unwrap_or(0);
        Ok(Self {
            list,
            home: AtomicUsize::new(preferred),
            preferred,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The best replica that is not among `asked`; `None` when all are.
    pub(crate) fn choose(&self, now: Instant, asked: Asked) -> Option<&Replica> {
        let home = self.home.load(Ordering::Relaxed);
        self.list
            .iter()
            .filter(|replica| !asked.contains(replica.index))
            .min_by_key(|replica| {
                let health = *replica.health.lock();
                let distance = (replica.index + self.list.len() - self.preferred) % self.list.len();
                (
                    health.is_suspect(now),
                    health.is_stale(now),
                    replica.index != home,
                    distance,
                )
            })
    }

    /// The replica this data plane starts at and goes back to, unless it is in no state to be preferred.
    pub(crate) fn preferred(&self, now: Instant) -> Option<&Replica> {
        self.list.get(self.preferred).filter(|replica| {
            let health = *replica.health.lock();
            !health.is_suspect(now) && !health.is_stale(now)
        })
    }

    /// The replica answered a decision: it is trusted and, if its view is fresh, home.
    pub(crate) fn answered(&self, replica: &Replica, freshness: Option<&Freshness>, now: Instant) {
        replica.health.lock().suspect_until = None;
        self.heard(replica, freshness, now);
        if !replica.health.lock().is_stale(now) {
            self.move_home(replica);
        }
    }

    /// The replica said how fresh its view is. A sign of life is no decision: one that does not decide in time
    /// stays suspect.
    pub(crate) fn heard(&self, replica: &Replica, freshness: Option<&Freshness>, now: Instant) {
        if let Some(freshness) = freshness {
            let stale = freshness.stale || freshness.age_ms >= STALE_AGE_MS;
            replica.health.lock().stale_until = stale.then_some(now + STALENESS);
        }
    }

    /// Makes the replica home.
    pub(crate) fn move_home(&self, replica: &Replica) {
        self.home.store(replica.index, Ordering::Relaxed);
    }

    /// The replica gave no answer or fell silent.
    pub(crate) fn failed(&self, replica: &Replica, now: Instant) {
        replica.health.lock().suspect_until = Some(now + SUSPICION);
    }

    /// How all of them look.
    pub(crate) fn status(&self, now: Instant) -> Vec<ReplicaStatus> {
        let home = self.home.load(Ordering::Relaxed);
        self.list
            .iter()
            .map(|replica| {
                let health = *replica.health.lock();
                ReplicaStatus {
                    name: replica.name.clone(),
                    home: replica.index == home,
                    suspect: health.is_suspect(now),
                    stale: health.is_stale(now),
                }
            })
            .collect()
    }
}

impl Replica {
    /// It sent nothing for so long that it was left: it is of no use to wait for it.
    pub(crate) fn is_silent(&self) {
        self.silences
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Changes when it falls silent from now on.
    pub(crate) fn fell_silent(&self) -> watch::Receiver<u64> {
        self.silences.subscribe()
    }

    /// The channel that all calls share.
    pub(crate) fn channel(&self) -> PlaneChannel {
        self.channel.clone()
    }

    /// A channel with a connection of its own, for whoever has reason to doubt the shared one.
    pub(crate) fn fresh_channel(&self) -> Result<PlaneChannel, ChannelError> {
        self.recipe.channel()
    }
}

impl Recipe {
    fn channel(&self) -> Result<PlaneChannel, ChannelError> {
        channel(
            &self.address,
            &self.settings,
            self.tls.as_ref(),
            self.token.as_ref(),
        )
    }
}

impl Health {
    fn is_suspect(self, now: Instant) -> bool {
        self.suspect_until.is_some_and(|until| until > now)
    }

    fn is_stale(self, now: Instant) -> bool {
        self.stale_until.is_some_and(|until| until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Uri;

    fn replicas(plane: u64) -> Replicas {
        let addresses = [
            "http://127.0.0.1:1",
            "http://127.0.0.1:2",
            "http://127.0.0.1:3",
        ]
        .map(|address| Address::Tcp(Uri::from_static(address)));
        let settings = ChannelSettings::default();
        Replicas::new(&addresses, &settings, None, None, PlaneIncarnation(plane)).unwrap()
    }

    fn order(replicas: &Replicas, now: Instant) -> Vec<usize> {
        let mut asked = Asked::default();
        let mut order = Vec::new();
        while let Some(replica) = replicas.choose(now, asked) {
            asked.add(replica.index);
            order.push(replica.index);
        }
        order
    }

    fn freshness(stale: bool, age_ms: u64) -> Freshness {
        Freshness {
            age_ms,
            stale,
            store_time_unix_ms: 1,
        }
    }

    #[tokio::test]
    async fn data_planes_start_at_different_replicas_and_know_all() {
        let now = Instant::now();
        assert_eq!(order(&replicas(3), now), [0, 1, 2]);
        assert_eq!(order(&replicas(5), now), [2, 0, 1]);
    }

    #[tokio::test]
    async fn a_stale_replica_is_asked_last_and_a_suspect_one_after_it() {
        let replicas = replicas(3);
        let now = Instant::now();
        replicas.answered(&replicas.list[0], Some(&freshness(true, 0)), now);
        assert_eq!(order(&replicas, now), [1, 2, 0]);
        replicas.failed(&replicas.list[1], now);
        replicas.heard(&replicas.list[1], Some(&freshness(false, 0)), now);
        assert_eq!(order(&replicas, now), [2, 0, 1]);
        replicas.answered(&replicas.list[0], Some(&freshness(false, 10)), now);
        assert_eq!(order(&replicas, now), [0, 2, 1]);
        replicas.answered(
            &replicas.list[0],
            Some(&freshness(false, STALE_AGE_MS)),
            now,
        );
        assert_eq!(order(&replicas, now), [2, 0, 1]);
    }

    #[tokio::test]
    async fn a_stale_replica_that_is_not_heard_of_again_gets_another_chance() {
        let replicas = replicas(3);
        let now = Instant::now();
        replicas.answered(&replicas.list[1], Some(&freshness(false, 0)), now);
        replicas.heard(&replicas.list[0], Some(&freshness(true, 0)), now);
        assert_eq!(order(&replicas, now), [1, 2, 0]);
        assert!(replicas.preferred(now).is_none());
        let later = now + STALENESS;
        assert_eq!(order(&replicas, later), [1, 0, 2]);
        assert_eq!(replicas.preferred(later).unwrap().index, 0);
    }

    #[tokio::test]
    async fn who_left_home_stays_away_until_the_new_home_fails() {
        let replicas = replicas(3);
        let now = Instant::now();
        replicas.failed(&replicas.list[0], now);
        replicas.answered(&replicas.list[2], Some(&freshness(false, 0)), now);
        assert_eq!(order(&replicas, now), [2, 1, 0]);
        assert!(replicas.preferred(now).is_none());
        let later = now + SUSPICION + Duration::from_millis(1);
        assert_eq!(order(&replicas, later), [2, 0, 1]);
        assert_eq!(replicas.preferred(later).unwrap().index, 0);
        replicas.failed(&replicas.list[2], later);
        assert_eq!(order(&replicas, later), [0, 1, 2]);
    }

    #[tokio::test]
    async fn a_control_plane_without_addresses_is_refused() {
        let settings = ChannelSettings::default();
        assert!(matches!(
            Replicas::new(&[], &settings, None, None, PlaneIncarnation(1)),
            Err(ReplicasError::Count)
        ));
    }
}

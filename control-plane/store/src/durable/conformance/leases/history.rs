//! Random commands of several owners at once, of two processes; then what was answered is checked as one history, in
//! the database's time.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tidegate_core::lease::{Capacity, Lease, LeaseError, LeaseName, LeaseState, Placement};
use tidegate_core::settings::LeaseSettings;
use tidegate_core::time::Timestamp;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{
    CaseError, CaseResult, DurableStore, Fixture, SHORT_MS, activity, ask, at_once, failed, fenced,
    named, owner, placed, release, renew, stores,
};

const OWNERS: usize = 5;
const COMMANDS: usize = 120;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Longest pause between two commands of an owner, in ms: beyond the horizon, now and then beyond a lease.
const MAX_PAUSE_MS: u64 = 500;
const SETTINGS: LeaseSettings = LeaseSettings {
    horizon_ms: 300,
    guard_ms: 50,
    drain_ms: 200,
    reserve_pool: false,
};

/// An owner was seen to have a connection at the first moment, and had it until the second, not included.
#[derive(Clone, Debug)]
struct Held {
    lease: LeaseName,
    connection: String,
    from: Timestamp,
    until: Timestamp,
}

/// Attempts of a lease may have been in flight from the first moment until the second.
#[derive(Clone, Debug)]
struct Sending {
    lease: LeaseName,
    connection: String,
    from: Timestamp,
    until: Timestamp,
}

#[derive(Debug, Default)]
struct History {
    held: Vec<Held>,
    sending: Vec<Sending>,
}

/// One owner, who does one thing after the other and so knows what it has.
struct Owner {
    stores: Vec<Arc<dyn DurableStore>>,
    number: u8,
    random: StdRng,
    history: History,
    /// Its lease as last answered.
    lease: Option<Lease>,
    /// When it was first seen to have it.
    seen_from: Timestamp,
    /// Latest generation.
    generation: u64,
}

impl Owner {
    async fn step(&mut self) -> CaseResult {
        let store = Arc::clone(&self.stores[self.random.random_range(0..self.stores.len())]);
        let first = self.random.random_range(0..NAMES.len());
        let names = &NAMES[first..];
        let lease = self.lease.clone();
        match (self.random.random_range(0..12), lease) {
            (0, _) => {
                let pause = self.random.random_range(0..MAX_PAUSE_MS);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            (1..4, _) | (_, None) => {
                let reply = ask(&store, owner(self.number), names, SHORT_MS).await?;
                match reply.answer {
                    Ok(lease) => self.has(&store, lease).await?,
                    Err(LeaseError::Capacity(Capacity { .. })) => self.may_have_expired(reply.now),
                    Err(error) => return Err(error.into()),
                }
            }
            (4..6, Some(lease)) => match renew(&store, &lease, SHORT_MS).await?.answer {
                Ok(lease) => self.has(&store, lease).await?,
                Err(error) => self.is_over(error, store, &lease).await?,
            },
            (6, Some(lease)) => match release(&store, &lease).await?.answer {
                Ok(released) => {
                    if released.state() != LeaseState::Released {
                        return Err(failed(format!("{released:?}")));
                    }
                    self.ends(released.ended.map_or(released.expires_at, |ended| ended.at));
                }
                Err(error) => self.is_over(error, store, &lease).await?,
            },
            (7..9, Some(lease)) => {
                let reply = placed(&store, lease.name(), names).await?;
                match reply.answer {
                    Ok(Placement::Lease(lease)) => self.has(&store, lease).await?,
                    Ok(Placement::Ordinary(_)) => return Err(failed("there are candidates")),
                    Err(LeaseError::Capacity(_)) => self.ends_at_most(reply.now),
                    Err(error) => self.is_over(error, store, &lease).await?,
                }
            }
            (_, Some(lease)) => self.send(&store, &lease).await?,
        }
        Ok(())
    }

    /// Sends something, for a while.
    async fn send(&mut self, store: &Arc<dyn DurableStore>, lease: &Lease) -> CaseResult {
        let in_flight = activity(lease, u64::from(self.number) + 1);
        let before = store.lease_status(lease.owner, named(lease)).await?.now;
        match fenced(store, &in_flight, &SETTINGS).await? {
            Ok(grant) => {
                let from = store.lease_status(lease.owner, named(lease)).await?.now;
                let pause = self.random.random_range(0..SETTINGS.horizon_ms);
                tokio::time::sleep(Duration::from_millis(pause / 4)).await;
                let until = store.lease_status(lease.owner, named(lease)).await?.now;
                store.delete_activity(&in_flight).await?;
                self.history.sending.push(Sending {
                    lease: lease.name(),
                    connection: lease.connection.to_string(),
                    from,
                    until: until.min(before.plus_ms(grant.horizon_ms)),
                });
            }
            Err(_) => {
                let status = store.lease_status(lease.owner, named(lease)).await?;
                if status.answer.is_ok() {
                    return Err(failed("a fence refuses the lease of now"));
                }
                self.may_have_expired(status.now);
            }
        }
        Ok(())
    }

    async fn has(&mut self, store: &Arc<dyn DurableStore>, lease: Lease) -> CaseResult {
        let number = lease.generation.number();
        let same = self.lease.as_ref().is_some_and(|old| old.id == lease.id);
        let moved = self
            .lease
            .as_ref()
            .is_some_and(|old| old.name() == lease.name());
        if number < self.generation || (!same && !moved && number == self.generation) {
            return Err(failed(format!(
                "generation {number} after {}",
                self.generation
            )));
        }
        if !same {
            self.ends_at_most(lease.acquired_at);
            let now = store.lease_status(lease.owner, named(&lease)).await?.now;
            self.seen_from = now.min(lease.expires_at);
        }
        self.generation = number;
        self.lease = Some(lease);
        Ok(())
    }

    /// A refusal that only an expiry explains.
    async fn is_over(
        &mut self,
        error: LeaseError,
        store: Arc<dyn DurableStore>,
        lease: &Lease,
    ) -> CaseResult {
        let now = store.lease_status(lease.owner, named(lease)).await?.now;
        if now < lease.expires_at {
            return Err(failed(format!("{error} at {now:?} for {lease:?}")));
        }
        self.may_have_expired(now);
        Ok(())
    }

    fn may_have_expired(&mut self, now: Timestamp) {
        if self
            .lease
            .as_ref()
            .is_some_and(|lease| lease.expires_at <= now)
        {
            self.ends_at_most(now);
        }
    }

    fn ends_at_most(&mut self, at: Timestamp) {
        let expires_at = self.lease.as_ref().map_or(at, |lease| lease.expires_at);
        self.ends(at.min(expires_at));
    }

    fn ends(&mut self, until: Timestamp) {
        if let Some(lease) = self.lease.take() {
            self.history.held.push(Held {
                lease: lease.name(),
                connection: lease.connection.to_string(),
                from: self.seen_from,
                until,
            });
        }
    }
}

/// Of every connection one owner at a time, also of what is in flight.
fn check(history: &History) -> CaseResult {
    let mut by_connection: BTreeMap<&str, Vec<&Held>> = BTreeMap::new();
    for held in &history.held {
        by_connection
            .entry(&held.connection)
            .or_default()
            .push(held);
    }
    for held in by_connection.values_mut() {
        held.sort_by_key(|held| (held.from, held.until));
        for pair in held.windows(2) {
            if pair[0].until > pair[1].from {
                return Err(failed(format!("two at once: {pair:?}")));
            }
        }
    }
    for sending in &history.sending {
        let other = history.held.iter().find(|held| {
            held.connection == sending.connection
                && held.lease != sending.lease
                && held.from < sending.until
                && held.until > sending.from
        });
        if let Some(other) = other {
            return Err(failed(format!("{sending:?} beside {other:?}")));
        }
    }
    Ok(())
}

/// At every instant a connection has one owner at most, generations do not fall, and nothing is in flight beside another
/// owner.
///
/// # Errors
/// When the store fails, or the history is not right; the seed is told.
pub async fn random_commands_give_a_connection_to_one_owner_at_a_time(
    fixture: &impl Fixture,
) -> CaseResult {
    let seed: u64 = rand::random();
    let two = stores(fixture, 2).await?;
    let outcome = at_once(&stores(fixture, OWNERS).await?, |index, _| {
        let stores = two.clone();
        async move {
            let number = u8::try_from(index)?;
            let mut owner = Owner {
                stores,
                number,
                random: StdRng::seed_from_u64(seed.wrapping_add(u64::from(number))),
                history: History::default(),
                lease: None,
                seen_from: Timestamp::default(),
                generation: 0,
            };
            for _ in 0..COMMANDS {
                owner.step().await?;
            }
            let expires_at = owner.lease.as_ref().map(|lease| lease.expires_at);
            owner.ends(expires_at.unwrap_or_default());
            Ok(owner.history)
        }
    })
    .await;
    let check_all = |histories: Vec<History>| {
        let mut whole = History::default();
        for history in histories {
            whole.held.extend(history.held);
            whole.sending.extend(history.sending);
        }
        if whole.held.is_empty() || whole.sending.is_empty() {
            return Err(failed("nothing happened"));
        }
        check(&whole)
    };
    let checked: Result<(), CaseError> = outcome.and_then(check_all);
    checked.map_err(|error| failed(format!("seed {seed}: {error}")))
}

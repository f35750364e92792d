//! Cases of leases (`sessions-and-streams.md` §7). The rules themselves are tested in `tidegate-core`; here it is that a
//! database runs them on what stands, for several processes at once.

mod activity;
mod history;
mod hygiene;
mod races;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::{KeyId, PlaneIncarnation};
use tidegate_core::lease::{
    Acquire, ActivityName, Eligibility, Eligible, EndReason, Fence, FenceError, Generation, Grant,
    Inference, Lease, LeaseError, LeaseId, LeaseName, LeaseState, Named, OwnerHash, Placement,
};
use tidegate_core::settings::LeaseSettings;

use super::samples::{connection, provider};
use super::{CaseError, CaseResult, Fixture, at_once, failed, stores};
use crate::durable::{DurableStore, LeaseReply};

pub use activity::*;
pub use history::*;
pub use hygiene::*;
pub use races::*;

/// Long enough for any case on a busy machine.
const LONG_MS: u64 = 600_000;
/// Short enough to be waited out; the shortest there is.
const SHORT_MS: u64 = 1_000;
/// How long a case that waits for an end sleeps before it looks again.
const AGAIN: Duration = Duration::from_millis(20);

fn owner(number: u8) -> OwnerHash {
    OwnerHash::from_bytes([number; 32])
}

fn key(name: &str) -> Result<KeyId, CaseError> {
    Ok(KeyId::new(name)?)
}

fn eligible(names: &[&str]) -> Result<Vec<Eligible>, CaseError> {
    let mut list = Vec::with_capacity(names.len());
    for name in names {
        list.push(Eligible {
            provider: provider("openai")?,
            connection: connection(name)?,
        });
    }
    Ok(list)
}

fn new_id() -> LeaseId {
    LeaseId(rand::random())
}

/// Asks for one of these connections, with key `k1`.
async fn ask(
    store: &Arc<dyn DurableStore>,
    who: OwnerHash,
    names: &[&str],
    ttl_ms: u64,
) -> Result<LeaseReply<Lease>, CaseError> {
    ask_with(
        store,
        who,
        "k1",
        Eligibility::Some(&eligible(names)?),
        ttl_ms,
    )
    .await
}

async fn ask_with(
    store: &Arc<dyn DurableStore>,
    who: OwnerHash,
    with: &str,
    eligibility: Eligibility<'_>,
    ttl_ms: u64,
) -> Result<LeaseReply<Lease>, CaseError> {
    let asked = Acquire {
        id: new_id(),
        owner: who,
        key: &key(with)?,
        eligibility,
        why: &|_| Some(EndReason::HealthOrCooldown),
        ttl_ms,
    };
    Ok(store
        .acquire_lease(&asked, &LeaseSettings::default())
        .await?)
}

/// A lease that is granted.
async fn acquired(
    store: &Arc<dyn DurableStore>,
    who: OwnerHash,
    names: &[&str],
    ttl_ms: u64,
) -> Result<Lease, CaseError> {
    Ok(ask(store, who, names, ttl_ms).await?.answer?)
}

async fn renew(
    store: &Arc<dyn DurableStore>,
    lease: &Lease,
    ttl_ms: u64,
) -> Result<LeaseReply<Lease>, CaseError> {
    Ok(store.renew_lease(lease.owner, named(lease), ttl_ms).await?)
}

async fn release(
    store: &Arc<dyn DurableStore>,
    lease: &Lease,
) -> Result<LeaseReply<Lease>, CaseError> {
    let reason = EndReason::ClientCancelled;
    Ok(store
        .release_lease(lease.owner, named(lease), reason)
        .await?)
}

fn named(lease: &Lease) -> Named<'_> {
    Named {
        generation: lease.generation,
        key: &lease.key,
    }
}

/// Places a request under a lease where these connections are eligible.
async fn placed(
    store: &Arc<dyn DurableStore>,
    name: LeaseName,
    names: &[&str],
) -> Result<LeaseReply<Placement>, CaseError> {
    let asked = Inference {
        id: new_id(),
        name,
        key: &key("k1")?,
        forced: None,
        candidates: &eligible(names)?,
        why: &|_| Some(EndReason::HealthOrCooldown),
    };
    let settings = LeaseSettings::default();
    Ok(store.place_under_lease(&asked, &settings).await?)
}

/// A data plane asks whether it may send.
async fn fenced(
    store: &Arc<dyn DurableStore>,
    activity: &ActivityName,
    settings: &LeaseSettings,
) -> Result<Result<Grant, FenceError>, CaseError> {
    let asked = Fence {
        lease: activity.lease,
        key: &key("k1")?,
        connection: &activity.connection,
        plane: activity.plane,
        number: activity.number,
    };
    Ok(store.fence(&asked, settings).await?)
}

/// The first registration of a data plane under a lease.
fn activity(lease: &Lease, plane: u64) -> ActivityName {
    ActivityName {
        connection: lease.connection.clone(),
        lease: lease.name(),
        plane: PlaneIncarnation(plane),
        number: 1,
    }
}

/// Vectors 4 to 8, and what is told of a lease comes back as it was.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_08_leases_are_acquired_renewed_and_given_back(
    fixture: &impl Fixture,
) -> CaseResult {
    let (store, other) = (fixture.store(), fixture.another().await?);
    let reply = ask(&store, owner(1), &["a", "b"], 120_000).await?;
    let lease = reply.answer?;
    assert_eq!(lease.acquired_at, reply.now);
    assert_eq!(lease.expires_at, reply.now.plus_ms(120_000));
    assert_eq!(
        (lease.generation.number(), lease.state()),
        (1, LeaseState::Active)
    );
    let status = other.lease_status(owner(1), named(&lease)).await?;
    assert_eq!(status.answer, Ok(lease.clone()));

    let again = acquired(&other, owner(1), &["a", "b"], LONG_MS).await?;
    assert_eq!((again.id, again.generation), (lease.id, lease.generation));
    let renewed = renew(&store, &lease, LONG_MS).await?;
    assert_eq!(renewed.answer?.expires_at, renewed.now.plus_ms(LONG_MS));
    let next = Lease {
        generation: Generation::try_from(2)?,
        ..lease.clone()
    };
    assert_eq!(
        renew(&store, &next, 1).await?.answer,
        Err(LeaseError::FenceStale)
    );

    for store in [&store, &other] {
        let released = release(store, &lease).await?.answer?;
        assert_eq!(released.state(), LeaseState::Released);
        assert_eq!(
            renew(store, &lease, 1).await?.answer,
            Err(LeaseError::FenceStale)
        );
    }
    let second = acquired(&other, owner(1), &["a", "b"], LONG_MS).await?;
    assert_eq!(second.generation.number(), 2);
    assert_eq!(
        release(&store, &lease).await?.answer?.state(),
        LeaseState::Released
    );
    let (_, listed) = store.list_leases().await?;
    assert_eq!(listed, [second]);
    Ok(())
}

/// Vectors 9 and 10: an overdue lease holds nothing, written down or not, and a renewed one holds longer.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_10_a_lease_holds_until_it_is_over(
    fixture: &impl Fixture,
) -> CaseResult {
    let (store, other) = (fixture.store(), fixture.another().await?);
    let lease = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    let renewed = renew(&store, &lease, 1).await?.answer?;
    assert_eq!(renewed.expires_at, renewed.renewed_at.plus_ms(SHORT_MS));
    let next = loop {
        let reply = ask(&other, owner(2), &["a"], LONG_MS).await?;
        match reply.answer {
            Ok(next) => break next,
            Err(LeaseError::Capacity(_)) => assert!(reply.now < renewed.expires_at),
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(AGAIN).await;
    };
    assert!(next.acquired_at >= renewed.expires_at);
    assert!(next.sequence > renewed.sequence && renewed.sequence == lease.sequence);
    assert_eq!(
        renew(&store, &lease, 1).await?.answer,
        Err(LeaseError::FenceStale)
    );
    assert_eq!(
        release(&store, &lease).await?.answer,
        Err(LeaseError::FenceStale)
    );
    let elsewhere = acquired(&store, owner(1), &["a", "b"], LONG_MS).await?;
    assert_eq!(elsewhere.connection, connection("b")?);
    assert_eq!(elsewhere.generation.number(), 2);
    Ok(())
}

/// Vector 13: without anything to give the answer is not one of capacity.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_13_what_is_not_eligible_is_not_given(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    for (eligibility, error) in [
        (Eligibility::UnknownModel, LeaseError::ModelInvalid),
        (Eligibility::None, LeaseError::NoEligibleConnection),
        (Eligibility::Some(&[]), LeaseError::NoEligibleConnection),
        (Eligibility::Blocked, LeaseError::EligibilityUnavailable),
    ] {
        let reply = ask_with(&store, owner(1), "k1", eligibility, LONG_MS).await?;
        assert_eq!(reply.answer, Err(error));
    }
    assert_eq!(store.list_leases().await?.1, []);
    Ok(())
}

/// Vector 14: a lease is its key's alone.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_14_another_key_changes_nothing(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let lease = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    let foreign = Lease {
        key: key("k2")?,
        ..lease.clone()
    };
    assert_eq!(
        renew(&store, &foreign, 1).await?.answer,
        Err(LeaseError::FenceStale)
    );
    assert_eq!(
        release(&store, &foreign).await?.answer,
        Err(LeaseError::FenceStale)
    );
    let candidates = eligible(&["a", "b"])?;
    let asked = ask_with(
        &store,
        owner(1),
        "k2",
        Eligibility::Some(&candidates),
        LONG_MS,
    )
    .await?;
    assert_eq!(asked.answer, Err(LeaseError::FenceStale));
    assert_eq!(store.list_leases().await?.1, [lease]);
    Ok(())
}

/// An owner that asks again keeps a connection that only its own attempts in flight keep out of selection.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_busy_connection_stays_with_its_owner(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let lease = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    acquired(&store, owner(2), &["b"], LONG_MS).await?;
    let others = eligible(&["b"])?;
    for eligibility in [Eligibility::Some(&others), Eligibility::Blocked] {
        let asked = Acquire {
            id: new_id(),
            owner: owner(1),
            key: &key("k1")?,
            eligibility,
            why: &|_| None,
            ttl_ms: LONG_MS,
        };
        let reply = store
            .acquire_lease(&asked, &LeaseSettings::default())
            .await?;
        let again = reply.answer?;
        assert_eq!(again.expires_at, reply.now.plus_ms(LONG_MS));
        assert_eq!(
            (again.id, again.name(), again.connection),
            (lease.id, lease.name(), lease.connection.clone())
        );
    }
    Ok(())
}

/// Vector 15: a lease whose connection cools down moves and keeps generation and end.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_15_a_lease_moves(fixture: &impl Fixture) -> CaseResult {
    let (store, other) = (fixture.store(), fixture.another().await?);
    let settings = LeaseSettings::default();
    let lease = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    let stays = placed(&other, lease.name(), &["b", "a"]).await?.answer;
    assert_eq!(stays, Ok(Placement::Lease(lease.clone())));
    let Ok(Placement::Lease(moved)) = placed(&other, lease.name(), &["b"]).await?.answer else {
        return Err(failed("it did not move"));
    };
    assert_eq!(
        (moved.connection.as_str(), moved.name()),
        ("b", lease.name())
    );
    assert_eq!(moved.expires_at, lease.expires_at);
    let before = fenced(&store, &activity(&lease, 1), &settings).await?;
    assert_eq!(before, Err(LeaseError::ConnectionMismatch.into()));
    assert!(
        fenced(&store, &activity(&moved, 1), &settings)
            .await?
            .is_ok()
    );
    assert_eq!(store.list_leases().await?.1, [moved]);
    Ok(())
}

/// Vectors 16 and 17: without another connection, or with foreign ones only, the lease is lost.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_16_a_lease_without_a_connection_is_lost(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    let lease = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    for _ in 0..2 {
        let nowhere = placed(&store, lease.name(), &[]).await?.answer;
        assert_eq!(nowhere, Ok(Placement::Ordinary(None)));
    }
    let recovered = placed(&store, lease.name(), &["a"]).await?.answer;
    assert_eq!(recovered, Err(LeaseError::Required));
    assert_eq!(
        release(&store, &lease).await?.answer,
        Err(LeaseError::FenceStale)
    );

    let second = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    assert_eq!(second.generation.number(), 2);
    let foreign = acquired(&store, owner(2), &["b"], LONG_MS).await?;
    let taken = placed(&store, second.name(), &["b"]).await?.answer;
    assert!(matches!(taken, Err(LeaseError::Capacity(_))), "{taken:?}");
    assert_eq!(store.list_leases().await?.1, [foreign]);
    Ok(())
}

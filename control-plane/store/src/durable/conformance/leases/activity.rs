//! What is in flight under leases.

use super::{
    AGAIN, ActivityName, CaseResult, FenceError, Fixture, LONG_MS, LeaseError, LeaseSettings,
    acquired, activity, ask, fenced, named, owner, release, renew,
};

/// Horizons and drains that can be waited out.
fn short(drain_ms: u64) -> LeaseSettings {
    LeaseSettings {
        horizon_ms: 600,
        guard_ms: 100,
        drain_ms,
        ..LeaseSettings::default()
    }
}

/// A fence is registered, passes again, and only for the newest registration of its data plane.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_fence_is_registered(fixture: &impl Fixture) -> CaseResult {
    let (store, other) = (fixture.store(), fixture.another().await?);
    let settings = LeaseSettings::default();
    let lease = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    let second = ActivityName {
        number: u64::MAX,
        ..activity(&lease, u64::MAX)
    };
    assert!(store.renew_activity(&second, &settings).await?.is_none());
    for store in [&store, &other, &store] {
        let grant = fenced(store, &second, &settings).await??;
        assert!(grant.horizon_ms <= settings.horizon_ms && grant.lease_ms <= LONG_MS);
    }
    let first = activity(&lease, u64::MAX);
    let late = fenced(&store, &first, &settings).await?;
    assert_eq!(late, Err(FenceError::Superseded));
    store.delete_activity(&first).await?;
    assert!(other.renew_activity(&second, &settings).await?.is_some());
    assert!(other.renew_activity(&first, &settings).await?.is_none());
    other.delete_activity(&second).await?;
    assert!(store.renew_activity(&second, &settings).await?.is_none());
    assert!(fenced(&store, &first, &settings).await?.is_ok());
    Ok(())
}

/// Vector 59: what is in flight when a lease is given back keeps the connection until it is over.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_59_attempts_in_flight_keep_their_connection(
    fixture: &impl Fixture,
) -> CaseResult {
    let (store, other) = (fixture.store(), fixture.another().await?);
    let settings = LeaseSettings::default();
    let lease = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    let planes = [activity(&lease, 1), activity(&lease, 2)];
    for plane in &planes {
        fenced(&store, plane, &settings).await??;
    }
    release(&store, &lease).await?.answer?;
    let fence = fenced(&other, &planes[0], &settings).await?;
    assert_eq!(fence, Err(LeaseError::Required.into()));
    for plane in &planes {
        let refused = ask(&other, owner(2), &["a"], LONG_MS).await?.answer;
        let Err(LeaseError::Capacity(capacity)) = refused else {
            return Err(super::failed(format!("it is in flight: {refused:?}")));
        };
        assert!((1..=30).contains(&capacity.retry_after_seconds));
        assert!(store.renew_activity(plane, &settings).await?.is_some());
        store.delete_activity(plane).await?;
    }
    acquired(&other, owner(2), &["a"], LONG_MS).await?;
    Ok(())
}

/// Vectors 60 and 61: what nobody ends is over with drain and guard, and then it is not renewed.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_60_attempts_are_over_with_the_drain(
    fixture: &impl Fixture,
) -> CaseResult {
    let (store, other) = (fixture.store(), fixture.another().await?);
    for (number, drain_ms) in [(1, 0), (2, 900)] {
        let settings = short(drain_ms);
        let lease = acquired(&store, owner(number), &["a"], LONG_MS).await?;
        let in_flight = activity(&lease, 1);
        let grant = fenced(&store, &in_flight, &settings).await??;
        assert!(grant.horizon_ms <= settings.horizon_ms);
        let mut now = release(&store, &lease).await?.now;
        let mut promised = now;
        let next = loop {
            if let Some(grant) = store.renew_activity(&in_flight, &settings).await? {
                promised = promised.max(now.plus_ms(grant.horizon_ms));
            }
            let reply = ask(&other, owner(number + 10), &["a"], LONG_MS).await?;
            now = reply.now;
            match reply.answer {
                Ok(next) => break next,
                Err(LeaseError::Capacity(_)) => {}
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(AGAIN).await;
        };
        assert!(next.acquired_at >= promised);
        assert!(store.renew_activity(&in_flight, &settings).await?.is_none());
        release(&other, &next).await?.answer?;
    }
    Ok(())
}

/// Vector 62: as the lease is renewed, so may be what is in flight.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_62_a_renewed_lease_moves_the_horizon(
    fixture: &impl Fixture,
) -> CaseResult {
    const TTL_MS: u64 = 10_000;
    let store = fixture.store();
    let settings = LeaseSettings {
        drain_ms: 0,
        ..LeaseSettings::default()
    };
    let lease = acquired(&store, owner(1), &["a"], TTL_MS).await?;
    let in_flight = activity(&lease, 1);
    let grant = fenced(&store, &in_flight, &settings).await??;
    assert!(grant.horizon_ms <= TTL_MS && grant.lease_ms <= TTL_MS);
    renew(&store, &lease, LONG_MS).await?.answer?;
    let grant = store.renew_activity(&in_flight, &settings).await?;
    assert!(grant.is_some_and(|grant| grant.horizon_ms > TTL_MS && grant.lease_ms > TTL_MS));
    Ok(())
}

/// A registration whose end got lost keeps earlier numbers away only until it is over.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_registration_past_its_end_keeps_no_number_away(
    fixture: &impl Fixture,
) -> CaseResult {
    let (store, settings) = (fixture.store(), short(0));
    let lease = acquired(&store, owner(1), &["a"], LONG_MS).await?;
    let first = activity(&lease, 1);
    let lost = ActivityName {
        number: 5,
        ..first.clone()
    };
    let before = store.lease_status(owner(1), named(&lease)).await?.now;
    fenced(&store, &lost, &settings).await??;
    let grant = loop {
        match fenced(&store, &first, &settings).await? {
            Ok(grant) => break grant,
            Err(FenceError::Superseded) => tokio::time::sleep(AGAIN).await,
            Err(error) => return Err(error.into()),
        }
    };
    let after = store.lease_status(owner(1), named(&lease)).await?.now;
    assert!(after >= before.plus_ms(settings.horizon_ms + settings.guard_ms));
    assert_eq!(grant.horizon_ms, settings.horizon_ms);
    assert!(store.renew_activity(&lost, &settings).await?.is_none());
    Ok(())
}

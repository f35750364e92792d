//! Owners that ask at once, of several processes.

use std::collections::BTreeSet;

use super::{
    CaseResult, Fixture, LONG_MS, LeaseError, acquired, ask, at_once, failed, owner, placed,
    release, renew, stores,
};

/// How often two owners race: enough for every order of their steps, few enough to be quick.
const ROUNDS: usize = 200;

/// Vector 22: nine connections for ten owners at once.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_22_owners_at_once_have_a_connection_each(
    fixture: &impl Fixture,
) -> CaseResult {
    const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let answers = at_once(&stores(fixture, 10).await?, |index, store| async move {
        let who = owner(u8::try_from(index)?);
        Ok(ask(&store, who, &NAMES, LONG_MS).await?.answer)
    })
    .await?;
    let (given, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    let connections: BTreeSet<_> = given.into_iter().flatten().map(|l| l.connection).collect();
    assert_eq!(connections.len(), NAMES.len());
    assert!(
        matches!(refused[..], [Err(LeaseError::Capacity(_))]),
        "{refused:?}"
    );
    Ok(())
}

/// Vector 23: of two owners that race for one connection exactly one gets it.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn vector_sessions_23_one_of_two_owners_wins(fixture: &impl Fixture) -> CaseResult {
    let both = stores(fixture, 2).await?;
    let mut last = [0; 2];
    for round in 0..ROUNDS {
        let answers = at_once(&both, |index, store| async move {
            let who = owner(u8::try_from(index)?);
            Ok((index, ask(&store, who, &["a"], LONG_MS).await?.answer))
        })
        .await?;
        let won: Vec<_> = answers
            .into_iter()
            .filter(|(_, answer)| answer.is_ok())
            .collect();
        let [(index, Ok(lease))] = &won[..] else {
            return Err(failed(format!("round {round}: {won:?}")));
        };
        assert_eq!(
            lease.generation.number(),
            last[*index] + 1,
            "each its own count"
        );
        last[*index] += 1;
        release(&both[round % 2], lease).await?.answer?;
    }
    Ok(())
}

/// An owner that asks several times at once has one lease.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn one_owner_at_once_has_one_lease(fixture: &impl Fixture) -> CaseResult {
    let all = stores(fixture, 6).await?;
    let leases = at_once(&all, |index, store| async move {
        let names = ["a", "b", "c"];
        acquired(&store, owner(1), &names[index % 3..], LONG_MS).await
    })
    .await?;
    assert!(leases.iter().all(|lease| lease.generation.number() == 1));
    assert_eq!(all[0].list_leases().await?.1.len(), 1);
    Ok(())
}

/// A heartbeat that meets a move waits for it and finds the lease where it has gone.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_lease_that_moves_is_renewed_all_the_same(fixture: &impl Fixture) -> CaseResult {
    let all = stores(fixture, 4).await?;
    let lease = acquired(&all[0], owner(1), &["a"], LONG_MS).await?;
    for round in 0..20 {
        let to = if round % 2 == 0 { "b" } else { "a" };
        at_once(&all, |index, store| {
            let lease = lease.clone();
            async move {
                if index == 0 {
                    placed(&store, lease.name(), &[to]).await?.answer?;
                } else {
                    renew(&store, &lease, LONG_MS).await?.answer?;
                }
                Ok(())
            }
        })
        .await?;
    }
    Ok(())
}

//! Cases of usage.

use std::time::Duration;

use tidegate_core::ids::{AttemptId, PlaneIncarnation};
use tidegate_core::time::Timestamp;
use tidegate_core::usage::{OpenAttempt, TokenUsage, UsageRecord, UsageSource};

use super::samples::{NOW, open, usage};
use super::{CaseError, CaseResult, Fixture, at_once, stores};
use crate::durable::{DurableStore, DurableStoreError, MAX_REAPED_ATTEMPTS, Reaped};

/// Every data plane is silent for so long.
const ANY: Duration = Duration::ZERO;
/// No data plane of a test is silent for so long.
const LONG: Duration = Duration::from_secs(3_600);

fn unknown(record: UsageRecord) -> UsageRecord {
    UsageRecord {
        tokens: TokenUsage::UNKNOWN,
        ..record
    }
}

fn opened(plane: u64, numbers: impl Iterator<Item = u64>) -> Result<Vec<OpenAttempt>, CaseError> {
    let opened: Result<Vec<_>, _> = numbers.map(|number| open(plane, number)).collect();
    Ok(opened?)
}

async fn opens(store: &dyn DurableStore, plane: u64, numbers: &[u64]) -> CaseResult {
    let attempts = opened(plane, numbers.iter().copied())?;
    Ok(store
        .open_attempts(PlaneIncarnation(plane), &attempts)
        .await?)
}

/// Number and source of each row.
async fn sources(fixture: &impl Fixture) -> Result<Vec<(u64, String)>, CaseError> {
    let rows = fixture.usage().await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.number, row.source.unwrap_or_default()))
        .collect())
}

/// New ones count, known ones do not, within a call and between calls.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn usage_of_an_attempt_is_recorded_once(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let records = [usage(1, 1)?, usage(1, 2)?, usage(2, 1)?, usage(1, 1)?];
    let mut counted = store.record_usage(&records).await?;
    counted.sort_unstable();
    let attempts = [usage(1, 1)?, usage(1, 2)?, usage(2, 1)?].map(|record| record.attempt);
    assert_eq!(counted, attempts);
    assert_eq!(store.record_usage(&records).await?, []);
    let same_attempt = UsageRecord {
        at: NOW.plus_ms(1),
        tokens: TokenUsage {
            input: None,
            output: Some(5),
            source: UsageSource::Provider,
        },
        ..usage(1, 1)?
    };
    let new = usage(2, 2)?;
    let records = [same_attempt, new.clone()];
    assert_eq!(store.record_usage(&records).await?, [new.attempt]);
    assert_eq!(store.record_usage(&[]).await?, []);
    Ok(())
}

/// Sixteen writers with the same attempts in different orders: each attempt counts for exactly one of them.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn concurrent_duplicates_of_usage_count_once(fixture: &impl Fixture) -> CaseResult {
    const WRITERS: usize = 16;
    const ATTEMPTS: u64 = 300;
    let new = at_once(
        &stores(fixture, WRITERS).await?,
        |writer, store| async move {
            let mut records = Vec::new();
            for number in 1..=ATTEMPTS {
                records.push(usage(u64::MAX - number % 3, number)?);
            }
            records.rotate_left(writer * 17);
            if writer % 2 == 1 {
                records.reverse();
            }
            let mut new = Vec::new();
            for batch in records.chunks(100) {
                new.extend(store.record_usage(batch).await?);
            }
            Ok::<Vec<AttemptId>, CaseError>(new)
        },
    )
    .await?;
    assert_eq!(u64::try_from(new.concat().len())?, ATTEMPTS);
    Ok(())
}

/// Numbers that a broken data plane may send neither fail the batch nor meet each other.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn absurd_numbers_do_not_hold_up_the_rest(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let (mut records, mut under_way) = (Vec::new(), Vec::new());
    for (plane, number) in [(0, 0), (u64::MAX, u64::MAX), (1 << 63, 1 << 63), (1, 1)] {
        records.push(UsageRecord {
            at: Timestamp(u64::MAX),
            tokens: TokenUsage {
                input: Some(u64::MAX),
                output: Some(1 << 63),
                source: UsageSource::Estimated,
            },
            ..usage(plane, number)?
        });
        under_way.push(OpenAttempt {
            since: Timestamp(u64::MAX),
            ..open(plane, number)?
        });
    }
    for open in under_way {
        store.open_attempts(open.attempt.plane, &[open]).await?;
    }
    assert_eq!(store.record_usage(&records).await?.len(), 4);
    assert_eq!(store.record_usage(&records).await?.len(), 0);
    assert_eq!(fixture.under_way().await?.0, 0);
    Ok(())
}

/// Every source, with and without tokens.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn what_is_recorded_comes_with_its_source(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let mut records = Vec::new();
    for (number, source) in (1..).zip(UsageSource::ALL) {
        records.push(UsageRecord {
            tokens: TokenUsage {
                input: Some(number),
                output: (number == 2).then_some(7),
                source,
            },
            ..usage(9, number)?
        });
    }
    store.record_usage(&records).await?;
    let rows = fixture.usage().await?;
    let of_rows: Vec<_> = rows
        .iter()
        .map(|row| (row.number, row.input, row.output, row.source.as_deref()))
        .collect();
    assert_eq!(
        of_rows,
        [
            (1, Some(1), None, Some("provider")),
            (2, Some(2), Some(7), Some("estimated")),
            (3, Some(3), None, Some("unknown")),
        ]
    );
    assert!(rows.iter().all(|row| (row.plane, row.at) == (9, NOW.0)));
    Ok(())
}

/// What is known takes the place of what is not, within a call and between calls, and counts once.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn only_unknown_usage_is_replaced(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let real = usage(1, 1)?;
    let not_known = unknown(real.clone());
    let counted = [real.attempt];
    assert_eq!(
        store.record_usage(std::slice::from_ref(&not_known)).await?,
        counted
    );
    assert_eq!(
        store.record_usage(std::slice::from_ref(&not_known)).await?,
        []
    );
    let later = UsageRecord {
        at: NOW.plus_ms(5),
        ..real.clone()
    };
    let both = [not_known.clone(), later];
    assert_eq!(store.record_usage(&both).await?, counted);
    assert_eq!(store.record_usage(&both).await?, []);
    let estimated = UsageRecord {
        tokens: TokenUsage {
            source: UsageSource::Estimated,
            ..real.tokens
        },
        ..real
    };
    assert_eq!(store.record_usage(&[estimated]).await?, []);
    assert_eq!(store.record_usage(&[not_known]).await?, []);
    let rows = fixture.usage().await?;
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].at, rows[0].input), (NOW.0 + 5, Some(1)));
    assert_eq!(rows[0].source.as_deref(), Some("provider"));
    Ok(())
}

/// Once, of that data plane alone; the real record replaces it.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn answers_of_a_silent_data_plane_are_recorded_as_unknown(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    opens(&*store, 7, &[1, 2, 3]).await?;
    // Told twice is under way once.
    opens(&*store, 7, &[1, 2, 3]).await?;
    store.record_usage(&[usage(7, 2)?]).await?;
    assert_eq!(fixture.under_way().await?, (2, 1));
    let reaped = Reaped {
        found: true,
        unknown: 2,
    };
    assert_eq!(store.reap_open_attempts(ANY).await?, reaped);
    assert_eq!(store.reap_open_attempts(ANY).await?, Reaped::default());
    let word = |source: UsageSource| source.name().to_owned();
    let all = |one, two, three| [(1, word(one)), (2, word(two)), (3, word(three))];
    let (provider, none) = (UsageSource::Provider, UsageSource::Unknown);
    assert_eq!(sources(fixture).await?, all(none, provider, none));
    let rows = fixture.usage().await?;
    assert!(
        rows[0].at > NOW.minus_ms(1_000).0,
        "as of when it was heard"
    );
    assert_eq!(fixture.under_way().await?, (0, 0));
    // It was only cut off.
    let counted = store
        .record_usage(&[usage(7, 1)?, unknown(usage(7, 3)?)])
        .await?;
    assert_eq!(counted, [usage(7, 1)?.attempt]);
    assert_eq!(sources(fixture).await?, all(provider, provider, none));
    Ok(())
}

/// Whoever spoke not long ago lives, whatever it said.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_data_plane_that_is_heard_keeps_its_answers(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    opens(&*store, 7, &[1]).await?;
    opens(&*store, 7, &[]).await?;
    assert_eq!(store.reap_open_attempts(LONG).await?, Reaped::default());
    assert_eq!(fixture.under_way().await?, (1, 1));
    assert_eq!(fixture.usage().await?, []);
    Ok(())
}

/// Everything is recorded by then.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_data_plane_that_ends_in_order_leaves_nothing(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    opens(&*store, 7, &[1]).await?;
    store.record_usage(&[usage(7, 1)?]).await?;
    let reaped = Reaped {
        found: true,
        unknown: 0,
    };
    assert_eq!(store.reap_open_attempts(ANY).await?, reaped);
    assert_eq!(store.reap_open_attempts(ANY).await?, Reaped::default());
    assert_eq!(fixture.under_way().await?, (0, 0));
    assert_eq!(sources(fixture).await?, [(1, "provider".to_owned())]);
    Ok(())
}

/// A message that comes late changes nothing, and neither does one of an attempt that was given up.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn what_is_recorded_is_not_opened_again(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    store
        .record_usage(&[usage(7, 1)?, unknown(usage(7, 2)?)])
        .await?;
    opens(&*store, 7, &[1, 2, 3]).await?;
    assert_eq!(fixture.under_way().await?, (1, 1));
    let reaped = Reaped {
        found: true,
        unknown: 1,
    };
    assert_eq!(store.reap_open_attempts(ANY).await?, reaped);
    Ok(())
}

/// Whether that one lives is not known.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn answers_of_other_data_planes_are_refused(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let attempts = [open(7, 1)?, open(8, 1)?];
    let refused = store.open_attempts(PlaneIncarnation(7), &attempts).await;
    assert!(
        matches!(refused, Err(DurableStoreError::Refused(_))),
        "{refused:?}"
    );
    assert_eq!(fixture.under_way().await?, (0, 0));
    Ok(())
}

/// More than fit into a call.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_data_plane_with_many_answers_is_recorded_in_parts(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    let most = u64::from(MAX_REAPED_ATTEMPTS);
    let attempts = opened(7, 1..=most + 5)?;
    store.open_attempts(PlaneIncarnation(7), &attempts).await?;
    let mut unknown = Vec::new();
    loop {
        let reaped = store.reap_open_attempts(ANY).await?;
        if !reaped.found {
            break;
        }
        unknown.push(reaped.unknown);
    }
    assert_eq!(unknown, [most, 5]);
    assert_eq!(fixture.under_way().await?, (0, 0));
    Ok(())
}

/// All data planes are lost, and everybody looks.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn of_concurrent_reapers_each_answer_is_counted_by_one(
    fixture: &impl Fixture,
) -> CaseResult {
    const REAPERS: usize = 8;
    let store = fixture.store();
    for plane in 1..=20 {
        opens(&*store, plane, &[1, 2, 3]).await?;
    }
    let counted = at_once(&stores(fixture, REAPERS).await?, |_, store| async move {
        reap_all(&*store).await
    })
    .await?;
    assert_eq!(counted.iter().sum::<u64>(), 60);
    assert_eq!(fixture.usage().await?.len(), 60);
    assert_eq!(fixture.under_way().await?, (0, 0));
    Ok(())
}

async fn reap_all(store: &dyn DurableStore) -> Result<u64, CaseError> {
    let mut unknown = 0;
    loop {
        match store.reap_open_attempts(ANY).await {
            Ok(Reaped { found: false, .. }) => return Ok(unknown),
            Ok(reaped) => unknown += reaped.unknown,
            Err(DurableStoreError::Contended(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Data planes that come back, repeat themselves and are taken for lost, all at the same time: at the end each attempt is
/// recorded as it was, and nothing is under way.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn concurrent_ends_and_reapers_count_each_answer_once(
    fixture: &impl Fixture,
) -> CaseResult {
    const TASKS: usize = 9;
    const ATTEMPTS: u64 = 120;
    let counted = at_once(&stores(fixture, TASKS).await?, |task, store| async move {
        let mut counted = 0;
        for first in (1..=ATTEMPTS).step_by(20) {
            let numbers: Vec<u64> = (first..first + 20).collect();
            match task % 3 {
                0 => opens(&*store, 7, &numbers).await?,
                1 => {
                    reap_all(&*store).await?;
                }
                _ => {
                    let records: Result<Vec<_>, _> =
                        numbers.iter().map(|number| usage(7, *number)).collect();
                    counted += store.record_usage(&records?).await?.len();
                }
            }
        }
        Ok::<usize, CaseError>(counted)
    })
    .await?;
    let all = usize::try_from(ATTEMPTS)?;
    assert_eq!(counted.iter().sum::<usize>(), all);
    reap_all(&*fixture.store()).await?;
    let rows = sources(fixture).await?;
    assert_eq!(rows.len(), all);
    assert!(
        rows.iter().all(|(_, source)| source == "provider"),
        "{rows:?}"
    );
    assert_eq!(fixture.under_way().await?, (0, 0));
    Ok(())
}

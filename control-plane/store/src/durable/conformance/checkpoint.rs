//! Cases of the checkpoint.

use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;

use super::samples::{NOW, entry, mark, shard};
use super::{CaseResult, Damage, Fixture, at_once, stores};
use crate::durable::DurableStoreError;
use crate::hot::{Entry, MARK_TTL, ReportMark};

fn sorted(mut entries: Vec<Entry>, mut marks: Vec<ReportMark>) -> (Vec<Entry>, Vec<ReportMark>) {
    entries.sort_by(|one, two| one.key.cmp(&two.key));
    marks.sort();
    (entries, marks)
}

async fn loaded(
    fixture: &impl Fixture,
    number: u8,
    now: Timestamp,
) -> Result<(Vec<Entry>, Vec<ReportMark>), super::CaseError> {
    let (entries, marks) = fixture.store().load_checkpoint(shard(number)?, now).await?;
    Ok(sorted(entries, marks))
}

/// Every number, schema and byte round-trips, also those that do not fit a signed column.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_checkpoint_comes_back_as_it_was(fixture: &impl Fixture) -> CaseResult {
    let mut entries = vec![
        entry("c:openai/a", Version::new(u64::MAX, u64::MAX)),
        entry("p:anthropic", Version::new(0, 0)),
        entry("p:openai", Version::new(1 << 63, (1 << 63) - 1)),
    ];
    if let [one, two, three] = entries.as_mut_slice() {
        (one.schema, one.payload) = (u32::MAX, (0..=u8::MAX).collect());
        (two.schema, two.payload) = (0, Vec::new());
        three.expires_at = Timestamp(u64::MAX);
    }
    let marks = vec![mark(1, u64::MAX), mark(1 << 63, 0), mark(u64::MAX, 1)];
    fixture
        .store()
        .save_checkpoint(shard(3)?, &entries, &marks, NOW)
        .await?;
    assert_eq!(loaded(fixture, 3, NOW).await?, sorted(entries, marks));
    Ok(())
}

/// A higher incarnation wins whatever its revision, within one the higher revision; anything else changes nothing.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_checkpoint_takes_only_what_is_newer(fixture: &impl Fixture) -> CaseResult {
    // In the order of writing, with whether it is taken.
    let writes = [
        (Version::new(5, 5), true),
        (Version::new(5, 4), false),
        (Version::new(4, u64::MAX), false),
        (Version::new(5, 6), true),
        (Version::new(6, 1), true),
        (Version::new(5, 7), false),
        (Version::new((1 << 63) - 1, 1), true),
        (Version::new(1 << 63, 0), true),
        (Version::new((1 << 63) - 1, u64::MAX), false),
        (Version::new(u64::MAX, u64::MAX), true),
    ];
    let store = fixture.store();
    let mut stands = Vec::new();
    for (version, taken) in writes {
        let written = vec![entry("p:openai", version)];
        store.save_checkpoint(shard(0)?, &written, &[], NOW).await?;
        if taken {
            stands = written;
        }
        assert_eq!(loaded(fixture, 0, NOW).await?.0, stands, "{version:?}");
    }
    Ok(())
}

/// The same call, also with other bytes under the same version, leaves what is there.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_repeated_checkpoint_changes_nothing(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let entries = vec![
        entry("p:a", Version::new(1, 1)),
        entry("p:b", Version::new(1, 2)),
    ];
    let marks = vec![mark(7, 9)];
    store
        .save_checkpoint(shard(1)?, &entries, &marks, NOW)
        .await?;
    let mut others = entries.clone();
    for entry in &mut others {
        entry.payload = b"other".to_vec();
    }
    let later = NOW.plus_ms(1_000);
    for repeated in [&entries, &others, &Vec::new()] {
        store
            .save_checkpoint(shard(1)?, repeated, &marks, later)
            .await?;
        assert_eq!(
            loaded(fixture, 1, NOW).await?,
            (entries.clone(), marks.clone())
        );
    }
    Ok(())
}

/// One call may name a key or a plane twice.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn the_newest_of_one_key_in_a_call_wins(fixture: &impl Fixture) -> CaseResult {
    let newest = entry("p:a", Version::new(2, 1));
    let entries = [
        entry("p:a", Version::new(1, 9)),
        newest.clone(),
        entry("p:a", Version::new(1, 8)),
    ];
    let marks = [mark(7, 1), mark(7, 3), mark(7, 2)];
    fixture
        .store()
        .save_checkpoint(shard(0)?, &entries, &marks, NOW)
        .await?;
    assert_eq!(
        loaded(fixture, 0, NOW).await?,
        (vec![newest], vec![mark(7, 3)])
    );
    Ok(())
}

/// Two who take themselves for the leader write the same keys in different orders; neither blocks the other, and
/// the newest of each key stands.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn concurrent_checkpoints_leave_the_newest_of_all(fixture: &impl Fixture) -> CaseResult {
    const WRITERS: usize = 16;
    const KEYS: u64 = 50;
    const ROUNDS: u64 = 4;
    let key = |number: u64| format!("p:{number:02}");
    at_once(
        &stores(fixture, WRITERS).await?,
        move |writer, store| async move {
            let writer = u64::try_from(writer)?;
            for round in 1..=ROUNDS {
                // Whoever writes a key last is not whoever has its newest version.
                let mut entries: Vec<Entry> = (0..KEYS)
                    .map(|number| {
                        let revision = round * 100 + (writer + number) % 16;
                        entry(&key(number), Version::new(1, revision))
                    })
                    .collect();
                if writer % 2 == 1 {
                    entries.reverse();
                }
                store
                    .save_checkpoint(shard(2)?, &entries, &[mark(1, round * 100 + writer)], NOW)
                    .await?;
            }
            Ok(())
        },
    )
    .await?;
    let newest: Vec<Entry> = (0..KEYS)
        .map(|number| entry(&key(number), Version::new(1, ROUNDS * 100 + 15)))
        .collect();
    assert_eq!(
        loaded(fixture, 2, NOW).await?,
        (newest, vec![mark(1, ROUNDS * 100 + 15)])
    );
    Ok(())
}

/// More than a statement takes.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_large_checkpoint_is_saved_in_one_call(fixture: &impl Fixture) -> CaseResult {
    let entries: Vec<Entry> = (0..2_500_u64)
        .map(|number| entry(&format!("p:{number:04}"), Version::new(1, number)))
        .collect();
    let marks: Vec<ReportMark> = (1..=1_100).map(|plane| mark(plane, plane)).collect();
    fixture
        .store()
        .save_checkpoint(shard(15)?, &entries, &marks, NOW)
        .await?;
    assert_eq!(loaded(fixture, 15, NOW).await?, (entries, marks));
    Ok(())
}

/// The same keys and planes in two shards are different rows.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn shards_do_not_see_each_other(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    for number in [4_u8, 5] {
        let entries = [entry("p:a", Version::new(u64::from(number), 1))];
        let marks = [mark(1, u64::from(number))];
        store
            .save_checkpoint(shard(number)?, &entries, &marks, NOW)
            .await?;
    }
    for number in [4_u8, 5] {
        let (entries, marks) = loaded(fixture, number, NOW).await?;
        assert_eq!(entries, [entry("p:a", Version::new(u64::from(number), 1))]);
        assert_eq!(marks, [mark(1, u64::from(number))]);
    }
    assert_eq!(loaded(fixture, 6, NOW).await?, (Vec::new(), Vec::new()));
    Ok(())
}

/// At its expiry a value is gone for readers; deleting takes exactly those and counts them.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn what_is_expired_is_not_loaded_and_then_deleted(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let at = |key: &str, expires_at: Timestamp| Entry {
        expires_at,
        ..entry(key, Version::new(1, 1))
    };
    let (before, exactly) = (at("p:before", NOW.minus_ms(1)), at("p:exactly", NOW));
    let (after, never) = (
        at("p:later", NOW.plus_ms(1)),
        at("p:never", Timestamp(u64::MAX)),
    );
    store
        .save_checkpoint(
            shard(0)?,
            &[before, exactly, after.clone(), never.clone()],
            &[],
            NOW,
        )
        .await?;
    let kept = vec![after, never.clone()];
    assert_eq!(loaded(fixture, 0, NOW).await?.0, kept);
    assert_eq!(store.delete_expired_checkpoint(NOW).await?, 2);
    assert_eq!(store.delete_expired_checkpoint(NOW).await?, 0);
    assert_eq!(loaded(fixture, 0, Timestamp(0)).await?.0, kept);
    let last = Timestamp(u64::MAX - 1);
    assert_eq!(store.delete_expired_checkpoint(last).await?, 1);
    assert_eq!(loaded(fixture, 0, Timestamp(0)).await?.0, [never]);
    Ok(())
}

/// A lower mark changes nothing, a higher one also begins the time anew.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn marks_only_rise_and_are_forgotten_after_their_time(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    let ttl_ms = u64::try_from(MARK_TTL.as_millis())?;
    let save = async |number: u64, now: Timestamp| {
        store
            .save_checkpoint(shard(0)?, &[], &[mark(9, number)], now)
            .await?;
        Ok::<(), super::CaseError>(())
    };
    save(5, NOW).await?;
    save(4, NOW.plus_ms(10)).await?;
    save(5, NOW.plus_ms(10)).await?;
    let end = NOW.plus_ms(ttl_ms);
    assert_eq!(loaded(fixture, 0, end.minus_ms(1)).await?.1, [mark(9, 5)]);
    assert_eq!(loaded(fixture, 0, end).await?.1, []);
    save(6, NOW.plus_ms(20)).await?;
    assert_eq!(loaded(fixture, 0, end).await?.1, [mark(9, 6)]);
    assert_eq!(store.delete_expired_checkpoint(end).await?, 0);
    assert_eq!(store.delete_expired_checkpoint(end.plus_ms(20)).await?, 1);
    Ok(())
}

/// A schema that is no number of ours is an error; the value's bytes are nobody's business here.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_checkpoint_value_that_does_not_decode_is_corrupt(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    store
        .save_checkpoint(shard(0)?, &[entry("p:a", Version::new(1, 1))], &[], NOW)
        .await?;
    fixture.damage(Damage::CheckpointSchemas).await?;
    let error = store.load_checkpoint(shard(0)?, NOW).await.err();
    assert!(
        matches!(error, Some(DurableStoreError::Corrupt(_))),
        "{error:?}"
    );
    Ok(())
}

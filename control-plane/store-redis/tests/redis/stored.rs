//! What is in the server: names, ends, bounds.

use tidegate_core::ids::{PlaneIncarnation, Shard};
use tidegate_core::time::Timestamp;
use tidegate_store::hot::{HotStore as _, MARK_TTL, WriteOutcome};
use tidegate_store_redis::keys;
use tidegate_test_support::{Redis, RedisOptions};

use crate::host::{Fault, Hand, STREAM_ENTRIES, config, eventually};

#[tokio::test]
async fn all_keys_of_a_shard_are_in_one_slot() -> Result<(), Fault> {
    let options = RedisOptions {
        cluster: true,
        ..RedisOptions::default()
    };
    let redis = Redis::start_with(options).await?;
    for shard in Shard::all() {
        let mut slots = Vec::new();
        for key in [
            keys::meta(shard),
            keys::rev(shard),
            keys::stream(shard),
            keys::index(shard),
            keys::value(shard, "p:openai"),
            keys::value(shard, "c:{x}/}{"),
            keys::mark(shard, PlaneIncarnation(7)),
        ] {
            let slot = redis.command(&["CLUSTER", "KEYSLOT", &key]).await?;
            slots.push(slot.as_integer().ok_or("no slot")?);
        }
        slots.dedup();
        assert_eq!(slots.len(), 1, "{shard}");
    }
    Ok(())
}

#[tokio::test]
async fn the_server_forgets_values_and_marks_by_itself() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    let mut write = hand.write(incarnation, "p:one", None, 1);
    let end = hand.store.time().await?.plus_ms(600_000);
    for value in &mut write.values {
        value.expires_at = end;
    }
    hand.store.write(write).await?;
    let ends = redis
        .command(&["PEXPIRETIME", "tidegate:1:{s04}:v:p:one"])
        .await?;
    assert_eq!(ends.as_integer(), Some(i64::try_from(end.0)?));
    let left = redis
        .command(&["PTTL", "tidegate:1:{s04}:r:0000000000000001"])
        .await?;
    let left = left.as_integer().ok_or("no time to live")?;
    let hour = i64::try_from(MARK_TTL.as_millis())?;
    assert!(left > hour / 2 && left <= hour, "{left}");
    let text = redis.command(&["GET", "tidegate:1:{s04}:v:p:one"]).await?;
    let header = format!("1 {} 1 {}\n1", incarnation.0, end.0);
    assert_eq!(text.as_text(), Some(header.as_str()));
    Ok(())
}

#[tokio::test]
async fn index_and_stream_stay_bounded() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    let end = hand.store.time().await?.plus_ms(50);
    for report in 1..=600 {
        let mut write = hand.write(incarnation, &format!("p:{report}"), None, report);
        for value in &mut write.values {
            value.expires_at = end;
        }
        let outcome = hand.store.write(write).await?;
        assert!(
            matches!(outcome, WriteOutcome::Written { .. }),
            "{outcome:?}"
        );
    }
    eventually("the ends to pass", || async {
        hand.store.time().await.ok().filter(|now| *now > end)
    })
    .await?;
    hand.put(incarnation, "p:last", None, 601).await?;
    let named = redis.command(&["ZCARD", "tidegate:1:{s04}:index"]).await?;
    assert_eq!(named.as_integer(), Some(2), "the last value and one mark");
    let kept = redis.command(&["XLEN", "tidegate:1:{s04}:stream"]).await?;
    let kept = kept.as_integer().ok_or("no length")?;
    assert!(kept < i64::try_from(STREAM_ENTRIES)? + 200, "{kept}");
    Ok(())
}

#[tokio::test]
async fn a_value_that_has_ended_before_it_is_written_is_never_there() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    for (report, end) in [(1, 0), (2, 1), (3, 1_000)] {
        let mut write = hand.write(incarnation, "p:gone", None, report);
        for value in &mut write.values {
            value.expires_at = Timestamp(end);
        }
        let outcome = hand.store.write(write).await?;
        assert!(
            matches!(outcome, WriteOutcome::Written { .. }),
            "{outcome:?}"
        );
        assert!(hand.store.read(hand.shard).await?.entries.is_empty());
    }
    Ok(())
}

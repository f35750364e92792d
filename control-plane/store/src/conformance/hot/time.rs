//! Rules of the store's time.

use std::time::{Duration, Instant};

use tidegate_core::time::Timestamp;

use crate::clock::{Observed, StoreClock};
use crate::conformance::Verdict;
use crate::hot::WriteOutcome;

use super::HotStoreHost;
use super::steps::{begin, run, shard, value, write_of};

/// Every answer carries the store's time, and a later answer never an earlier time.
pub async fn time_in_answers_does_not_run_back(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let mut last = Timestamp::default();
    for number in 1..=20 {
        let mut told = vec![store.time().await?];
        let conflicting = vec![value(&*store, "p:one", None, "1").await?];
        for write in [
            write_of(incarnation, conflicting, vec![]),
            write_of(incarnation, vec![], vec![run(4, number, number)]),
        ] {
            told.push(match store.write(write).await? {
                WriteOutcome::Written { now, .. } => now,
                WriteOutcome::Refused(refusal) => refusal.now,
            });
        }
        told.extend(
            store
                .check()
                .await?
                .get(shard().index())
                .map(|check| check.now),
        );
        told.push(store.read(shard()).await?.check.now);
        assert_eq!(told.len(), 5);
        for now in told {
            assert!(now >= last, "{now:?} after {last:?}");
            last = now;
        }
    }
    Ok(())
}

/// A [`StoreClock`] fed with the answers never runs back and is within a round trip of the store's time.
pub async fn the_store_clock_shows_the_stores_time(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let clock = StoreClock::new(Timestamp(0), Instant::now());
    let mut best = Duration::MAX;
    let mut shown = Timestamp(0);
    for _ in 0..50 {
        let sent = Instant::now();
        let time = store.time().await?;
        let received = Instant::now();
        best = best.min(received.duration_since(sent));
        assert_eq!(clock.observe(sent, received, time), Observed::Usual);
        let now = clock.at(Instant::now());
        assert!(now >= shown, "{now:?} after {shown:?}");
        shown = now;
    }
    // The clock is wrong by at most half the best round trip, and each of three times by its rounding.
    let error = u64::try_from(best.as_millis())?.saturating_add(3);
    let before = store.time().await?;
    let shown = clock.at(Instant::now());
    let after = store.time().await?;
    assert!(
        shown.plus_ms(error) >= before,
        "{shown:?} is before {before:?}"
    );
    assert!(
        shown <= after.plus_ms(error),
        "{shown:?} is after {after:?}"
    );
    Ok(())
}

//! Rules of announced schemas.

use std::time::Duration;

use crate::conformance::Verdict;
use crate::hot::{Announcement, HotStore};

use super::HotStoreHost;
use super::steps::{Fault, eventually};

fn speaks(replica: &str, schema: u32) -> Announcement {
    Announcement {
        replica: replica.to_owned(),
        schema,
    }
}

async fn sorted(store: &dyn HotStore) -> Result<Vec<Announcement>, Fault> {
    let mut announced = store.announced().await?;
    announced.sort_by(|one, two| one.replica.cmp(&two.replica));
    Ok(announced)
}

/// An announcement is there until its time to live has passed.
pub async fn announcements_expire(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    assert_eq!(sorted(&*store).await?, []);
    store
        .announce(speaks("stays", 2), Duration::from_secs(600))
        .await?;
    store
        .announce(speaks("goes", 1), Duration::from_millis(300))
        .await?;
    let other = host.replica().await?;
    eventually("an announcement to end", || async {
        let announced = sorted(&*other).await?;
        Ok((announced == [speaks("stays", 2)]).then_some(()))
    })
    .await
}

/// The last word of a replica counts, and it renews.
pub async fn an_announcement_replaces_the_last_of_its_replica(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let long = Duration::from_secs(600);
    store
        .announce(speaks("one: a b", 1), Duration::from_millis(50))
        .await?;
    store.announce(speaks("one: a b", 7), long).await?;
    store.announce(speaks("two", 0), long).await?;
    let end = store.time().await?.plus_ms(60);
    eventually("the first end to pass", || async {
        Ok((store.time().await? > end).then_some(()))
    })
    .await?;
    assert_eq!(
        sorted(&*store).await?,
        [speaks("one: a b", 7), speaks("two", 0)]
    );
    Ok(())
}

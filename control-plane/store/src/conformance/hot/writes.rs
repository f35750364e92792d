//! Rules of a single write.

use tidegate_core::version::{Incarnation, Version};

use crate::conformance::Verdict;
use crate::hot::RefusalReason;

use super::HotStoreHost;
use super::steps::{
    Watcher, begin, check, other_shard, refused, run, shard, standing, value, vector, write_of,
    written,
};

/// Each write takes one revision for all it writes, one more than the write before.
pub async fn all_values_of_a_write_share_its_revision(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let values = vec![
        value(&*store, "p:one", None, "1").await?,
        value(&*store, "c:one/a", None, "2").await?,
    ];
    let first = written(&*store, write_of(incarnation, values, vec![])).await?;
    let values = vec![value(&*store, "p:two", None, "3").await?];
    let second = written(&*store, write_of(incarnation, values, vec![])).await?;
    assert_eq!(first.0 + 1, second.0);
    let standing = standing(&*store).await?;
    let versions: Vec<_> = standing.values().map(|entry| entry.version).collect();
    let version = |revision| Version {
        incarnation,
        revision,
    };
    // In the order of the keys: c:one/a, p:one, p:two.
    assert_eq!(versions, [version(first), version(first), version(second)]);
    assert_eq!(check(&*store, shard()).await?.revision, second);
    Ok(())
}

/// A payload may hold any byte, and none is lost in a reading, a refusal or a change.
pub async fn what_was_written_is_read_back_byte_for_byte(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let mut watcher = Watcher::new(
        &*store,
        vector(Version {
            incarnation,
            ..Version::default()
        }),
    );
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let mut values = Vec::new();
    for (key, payload) in [
        ("p:every-byte", every_byte),
        ("p:empty", Vec::new()),
        ("p:lines", b"\r\n\n{}\n".to_vec()),
        ("c:p/ключ {x}", "größer".into()),
    ] {
        let mut value = value(&*store, key, None, "").await?;
        value.payload = payload;
        values.push(value);
    }
    let revision = written(&*store, write_of(incarnation, values.clone(), vec![])).await?;
    let standing = standing(&*store).await?;
    assert_eq!(standing.len(), values.len());
    for value in &values {
        let entry = standing.get(&value.key).ok_or("a value is missing")?;
        assert_eq!(entry.payload, value.payload);
        assert_eq!(entry.schema, value.schema);
        assert_eq!(entry.expires_at, value.expires_at);
    }
    let refusal = refused(&*store, write_of(incarnation, values.clone(), vec![])).await?;
    for (value, found) in values.iter().zip(&refusal.values) {
        assert_eq!(found.as_ref(), standing.get(&value.key));
    }
    watcher
        .until_version(Version {
            incarnation,
            revision,
        })
        .await?;
    let change = watcher.changes.first().ok_or("no change")?;
    for (value, told) in values.iter().zip(&change.entries) {
        assert_eq!(Some(told), standing.get(&value.key));
    }
    Ok(())
}

/// One value with another version than expected stops the whole write, and the answer holds what stands
/// under every key of it, so that the next try needs no reading.
pub async fn a_conflict_answers_with_what_stands_and_writes_nothing(
    host: &impl HotStoreHost,
) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let one = value(&*store, "p:one", None, "old").await?;
    let revision = written(
        &*store,
        write_of(incarnation, vec![one], vec![run(9, 1, 4)]),
    )
    .await?;
    let before = standing(&*store).await?;
    let stands = Version {
        incarnation,
        revision,
    };
    let wrong = [
        None,
        Some(Version::new(incarnation.0, revision.0 + 1)),
        Some(Version::new(incarnation.0 - 1, revision.0)),
    ];
    for expected in wrong {
        let values = vec![
            value(&*store, "p:absent", None, "new").await?,
            value(&*store, "p:one", expected, "new").await?,
        ];
        let marks = vec![run(8, 1, 1), run(9, 5, 6)];
        let refusal = refused(&*store, write_of(incarnation, values, marks)).await?;
        assert_eq!(refusal.reason, RefusalReason::Conflict);
        assert_eq!(refusal.incarnation, Some(incarnation));
        assert_eq!(refusal.values, [None, before.get("p:one").cloned()]);
        let marks: Vec<_> = refusal
            .marks
            .iter()
            .map(|mark| (mark.plane.0, mark.number))
            .collect();
        assert_eq!(marks, [(9, 4)]);
    }
    // Expected to be there, but absent.
    let values = vec![value(&*store, "p:absent", Some(stands), "new").await?];
    let refusal = refused(&*store, write_of(incarnation, values, vec![])).await?;
    assert_eq!(refusal.reason, RefusalReason::Conflict);
    assert_eq!(refusal.values, [None]);
    assert_eq!(standing(&*store).await?, before);
    assert_eq!(check(&*store, shard()).await?.revision, revision);
    Ok(())
}

/// The first reason of the list that holds is the one that is told.
pub async fn refusals_come_in_the_order_of_their_list(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let early = store.time().await?;
    // A write that breaks every rule there is.
    let conflicting = value(&*store, "p:one", None, "new").await?;
    let mut write = write_of(
        Incarnation(1),
        vec![conflicting.clone()],
        vec![run(9, 4, 5)],
    );
    write.not_after = early.minus_ms(1_000);

    let refusal = refused(&*store, write.clone()).await?;
    assert_eq!(refusal.reason, RefusalReason::Empty);
    assert_eq!(refusal.incarnation, None);

    let first = begin(&*store, shard()).await?;
    written(
        &*store,
        write_of(first, vec![conflicting], vec![run(9, 1, 4)]),
    )
    .await?;
    host.swap_server().await?;
    check(&*store, shard()).await?;
    let refusal = refused(&*store, write.clone()).await?;
    assert_eq!(refusal.reason, RefusalReason::OtherServer);
    assert_eq!(refusal.incarnation, None);
    // Also for who knows the right incarnation.
    write.incarnation = first;
    let refusal = refused(&*store, write.clone()).await?;
    assert_eq!(refusal.reason, RefusalReason::OtherServer);

    let second = begin(&*store, shard()).await?;
    let refusal = refused(&*store, write.clone()).await?;
    assert_eq!(refusal.reason, RefusalReason::OtherIncarnation);
    assert_eq!(refusal.incarnation, Some(second));

    write.incarnation = second;
    let refusal = refused(&*store, write.clone()).await?;
    assert_eq!(refusal.reason, RefusalReason::Late);

    write.not_after = store.time().await?.plus_ms(60_000);
    let refusal = refused(&*store, write.clone()).await?;
    assert_eq!(refusal.reason, RefusalReason::AlreadyApplied);

    write.marks = vec![run(9, 5, 5)];
    let refusal = refused(&*store, write.clone()).await?;
    assert_eq!(refusal.reason, RefusalReason::Conflict);

    for value in &mut write.values {
        let stands = refusal.values.iter().flatten().next();
        value.expected = stands.map(|entry| entry.version);
    }
    written(&*store, write).await?;
    Ok(())
}

/// A write whose time has passed changes nothing, whatever else is right with it.
pub async fn a_write_past_its_time_is_refused(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let mut write = write_of(
        incarnation,
        vec![value(&*store, "p:one", None, "1").await?],
        vec![run(9, 1, 1)],
    );
    write.not_after = store.time().await?.minus_ms(1);
    let refusal = refused(&*store, write.clone()).await?;
    assert_eq!(refusal.reason, RefusalReason::Late);
    assert!(refusal.now > write.not_after);
    assert_eq!(standing(&*store).await?, std::collections::BTreeMap::new());
    write.not_after = refusal.now.plus_ms(60_000);
    written(&*store, write).await?;
    Ok(())
}

/// The same key in two shards is two values, and each shard counts for itself.
pub async fn shards_do_not_touch_each_other(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let one = begin(&*store, shard()).await?;
    assert_eq!(check(&*store, other_shard()).await?.found, None);
    let other = begin(&*store, other_shard()).await?;
    for (payload, report) in [("1", 1), ("2", 2)] {
        let expected = standing(&*store)
            .await?
            .get("p:x")
            .map(|entry| entry.version);
        let values = vec![value(&*store, "p:x", expected, payload).await?];
        written(&*store, write_of(one, values, vec![run(9, report, report)])).await?;
    }
    let mut elsewhere = write_of(
        other,
        vec![value(&*store, "p:x", None, "other").await?],
        vec![run(9, 1, 1)],
    );
    elsewhere.shard = other_shard();
    assert_eq!(written(&*store, elsewhere).await?.0, 1);
    let image = store.read(other_shard()).await?;
    assert_eq!(image.entries.len(), 1);
    assert_eq!(image.marks.len(), 1);
    let here = standing(&*store).await?;
    assert_eq!(
        here.get("p:x").map(|entry| entry.version.revision.0),
        Some(2)
    );
    Ok(())
}

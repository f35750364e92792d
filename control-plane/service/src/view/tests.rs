use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::{Breaker, BreakerStatus};
use tidegate_core::ids::{ConnectionId, PlaneIncarnation, ProviderId, Shard};
use tidegate_core::routing::View as _;
use tidegate_core::state::{
    ConnectionState, ProviderState, StateKey, StateValue, StoredValue, VALUE_SCHEMA,
};
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Revision, Version};
use tidegate_store::codec;
use tidegate_store::hot::{Change, Entry, ReportMark, ShardCheck, ShardImage};

use super::{Taken, View};
use crate::clock::local_now;

const NEVER: Timestamp = Timestamp(u64::MAX);

fn provider() -> ProviderId {
    ProviderId::new("alpha").unwrap()
}

fn shard() -> Shard {
    Shard::of_provider(&provider())
}

fn state(failures: u32) -> ProviderState {
    ProviderState {
        breaker: Breaker {
            failure_count: failures,
            ..Breaker::default()
        },
        ..ProviderState::default()
    }
}

fn entry(failures: u32, version: Version, expires_at: Timestamp) -> Entry {
    let value = StoredValue::from_live(
        StateValue::Provider(state(failures)),
        Version::default(),
        expires_at,
    );
    let write = codec::encode(&StateKey::Provider(provider()), None, &value).unwrap();
    Entry {
        key: write.key,
        version,
        schema: write.schema,
        payload: write.payload,
        expires_at,
    }
}

fn connection_entry(id: &str, version: Version) -> Entry {
    let value = StoredValue::from_live(
        StateValue::Connection(ConnectionState::default()),
        Version::default(),
        NEVER,
    );
    let key = StateKey::Connection(provider(), ConnectionId::new(id).unwrap());
    let write = codec::encode(&key, None, &value).unwrap();
    Entry {
        key: write.key,
        version,
        schema: write.schema,
        payload: write.payload,
        expires_at: NEVER,
    }
}

fn change(failures: u32, version: Version) -> Change {
    Change {
        version,
        entries: vec![entry(failures, version, NEVER)],
        marks: Vec::new(),
    }
}

fn check(version: Version) -> ShardCheck {
    ShardCheck {
        incarnation: Some(version.incarnation),
        found: Some(version.incarnation),
        revision: version.revision,
        now: Timestamp(0),
    }
}

fn image(version: Version, entries: Vec<Entry>) -> ShardImage {
    ShardImage {
        check: check(version),
        entries,
        marks: Vec::new(),
    }
}

fn failures(view: &View) -> Option<u32> {
    view.provider(&provider())
        .map(|state| state.breaker.failure_count)
}

/// A view that was read whole at (1, 10).
fn view() -> View {
    let view = View::new(local_now());
    let doubt = view.doubt(shard());
    let at = Version::new(1, 10);
    let read = image(at, vec![entry(1, Version::new(1, 4), NEVER)]);
    assert!(view.replace(shard(), read, local_now(), doubt));
    view
}

#[test]
fn changes_in_order_move_value_and_version() {
    let view = view();
    assert_eq!(failures(&view), Some(1));
    let taken = view.apply(shard(), change(2, Version::new(1, 11)));
    assert_eq!(taken, Taken::Applied);
    assert_eq!(failures(&view), Some(2));
    assert_eq!(view.complete_to(shard()), Version::new(1, 11));
    // Delivered again, or late: nothing goes back.
    view.apply(shard(), change(9, Version::new(1, 3)));
    assert_eq!(failures(&view), Some(2));
    assert_eq!(view.complete_to(shard()), Version::new(1, 11));
}

#[test]
fn own_write_ahead_of_the_stream_shows_at_once_and_completes_nothing() {
    let view = view();
    let ahead = Version::new(1, 13);
    view.learn(shard(), vec![entry(5, ahead, NEVER)], Some(ahead));
    assert_eq!(failures(&view), Some(5));
    assert_eq!(view.complete_to(shard()), Version::new(1, 10));
    view.apply(shard(), change(2, Version::new(1, 11)));
    assert_eq!(failures(&view), Some(5), "a cell never goes back");
    let next = Version::new(1, 12);
    view.learn(shard(), vec![connection_entry("c", next)], Some(next));
    assert_eq!(
        view.complete_to(shard()),
        next,
        "the very next write completes"
    );
}

#[test]
fn other_incarnation_leaves_the_old_view_in_force_until_it_is_read_whole() {
    let view = view();
    let other = Version::new(2, 1);
    let taken = view.apply(shard(), change(7, other));
    assert_eq!(taken, Taken::OtherIncarnation);
    assert_eq!(failures(&view), Some(1));
    let doubt = view.doubt(shard());
    // The reading is older than the change that was left out, so another one is needed.
    let early = image(Version::new(2, 0), Vec::new());
    assert!(!view.replace(shard(), early, local_now(), doubt));
    let whole = image(other, vec![entry(7, other, NEVER)]);
    assert!(view.replace(shard(), whole, local_now(), doubt));
    assert_eq!(failures(&view), Some(7));
    assert_eq!(view.complete_to(shard()), other);
}

#[test]
fn reading_begun_before_a_doubt_does_not_end_it() {
    let view = view();
    let first = view.doubt(shard());
    let second = view.doubt(shard());
    let at = Version::new(1, 12);
    assert!(!view.replace(shard(), image(at, Vec::new()), local_now(), first));
    assert!(view.replace(shard(), image(at, Vec::new()), local_now(), second));
}

#[test]
fn in_doubt_values_move_and_the_version_waits_for_the_reading() {
    let view = view();
    let doubt = view.doubt(shard());
    view.apply(shard(), change(3, Version::new(1, 15)));
    assert_eq!(failures(&view), Some(3));
    assert_eq!(view.complete_to(shard()), Version::new(1, 10));
    // The reading is older than the change; the change stays, and both together are complete.
    let read = image(Version::new(1, 14), Vec::new());
    assert!(view.replace(shard(), read, local_now(), doubt));
    assert_eq!(failures(&view), Some(3));
    assert_eq!(view.complete_to(shard()), Version::new(1, 15));
}

#[test]
fn reading_removes_what_the_store_has_forgotten() {
    let view = view();
    let doubt = view.doubt(shard());
    let read = image(Version::new(1, 20), Vec::new());
    assert!(view.replace(shard(), read, local_now(), doubt));
    assert_eq!(failures(&view), None);
}

#[test]
fn key_that_expires_and_returns_is_seen() {
    let view = View::new(local_now());
    let doubt = view.doubt(shard());
    let expiring = entry(1, Version::new(1, 1), Timestamp(1_000));
    let read = image(Version::new(1, 1), vec![expiring]);
    assert!(view.replace(shard(), read, local_now(), doubt));
    view.forget(Timestamp(999));
    assert_eq!(failures(&view), Some(1));
    view.forget(Timestamp(1_000));
    assert_eq!(failures(&view), None);
    view.apply(shard(), change(4, Version::new(1, 2)));
    assert_eq!(failures(&view), Some(4));
}

#[test]
fn value_of_a_higher_schema_is_passed_on_and_decides_as_the_one_before_it() {
    let view = view();
    let at = Version::new(1, 11);
    let newer = Entry {
        schema: VALUE_SCHEMA + 1,
        payload: b"?".to_vec(),
        ..entry(0, at, NEVER)
    };
    view.apply(
        shard(),
        Change {
            version: at,
            entries: vec![newer.clone()],
            marks: Vec::new(),
        },
    );
    assert_eq!(failures(&view), Some(1));
    assert!(view.held_provider(&provider()).unwrap().stored.is_none());
    let (_, entries) = view.newer_than(shard(), Version::new(1, 10));
    assert_eq!(entries, [newer]);
}

#[test]
fn overlay_hides_what_the_store_has_and_only_from_decisions() {
    let view = view();
    let mut open = state(2);
    open.breaker.status = BreakerStatus::Open;
    view.overlay_provider(&provider(), open);
    let connection = ConnectionId::new("c").unwrap();
    view.overlay_connection(&provider(), &connection, ConnectionState::default());
    assert_eq!(failures(&view), Some(2));
    let held = view.held_provider(&provider()).unwrap();
    assert_eq!(held.effective.as_ref().unwrap().breaker.failure_count, 1);
    let (_, entries) = view.newer_than(shard(), Version::default());
    assert_eq!(entries.len(), 1);
    view.clear_overlays(shard());
    assert_eq!(failures(&view), Some(1));
    assert!(view.connection(&provider(), &connection).is_none());
}

#[test]
fn resume_brings_what_is_newer_and_everything_of_another_life() {
    let view = view();
    view.apply(shard(), change(2, Version::new(1, 11)));
    let brings = |since: Version| view.newer_than(shard(), since).1.len();
    assert_eq!(brings(Version::new(1, 11)), 0);
    assert_eq!(brings(Version::new(1, 10)), 1);
    assert_eq!(brings(Version::new(0, 99)), 1);
}

#[test]
fn marks_only_rise_and_come_with_changes_and_readings() {
    let view = view();
    let plane = PlaneIncarnation(7);
    let mark = |number| ReportMark { plane, number };
    view.raise_marks(shard(), &[mark(5)]);
    view.raise_marks(shard(), &[mark(3)]);
    assert_eq!(view.mark(shard(), plane), 5);
    let mut with_mark = change(2, Version::new(1, 11));
    with_mark.marks = vec![mark(8)];
    view.apply(shard(), with_mark);
    assert_eq!(view.mark(shard(), plane), 8);
    assert_eq!(view.marks(shard()), [mark(8)]);
}

#[test]
fn age_is_that_of_the_shard_complete_longest_ago() {
    let start = local_now();
    let view = View::new(start);
    assert!(view.age(start).stale, "nothing was read yet");
    for shard in Shard::all() {
        let doubt = view.doubt(shard);
        view.replace(shard, image(Version::new(1, 1), Vec::new()), start, doubt);
    }
    let later = start + Duration::from_secs(2);
    assert!(!view.age(later).stale);
    assert_eq!(view.age(later).age, Duration::from_secs(2));
    for other in Shard::all().filter(|other| *other != shard()) {
        view.checked(other, &check(Version::new(1, 1)), later);
    }
    assert_eq!(view.age(later).age, Duration::from_secs(2));
    // The store is ahead in the last one: complete only when the change has come.
    view.checked(shard(), &check(Version::new(1, 2)), later);
    assert_eq!(view.age(later).age, Duration::from_secs(2));
    view.apply(shard(), change(1, Version::new(1, 2)));
    assert_eq!(view.age(later).age, Duration::ZERO);
    assert!(view.age(later + Duration::from_secs(4)).stale);
}

#[test]
fn watchers_are_told_each_change_once() {
    let view = view();
    let mut updates = view.subscribe();
    let at = Version::new(1, 11);
    view.learn(shard(), vec![entry(2, at, NEVER)], Some(at));
    view.apply(shard(), change(2, at));
    let told = updates.try_recv().unwrap();
    assert_eq!(
        (told.version, told.entries.as_ref().map(Vec::len)),
        (at, Some(1))
    );
    assert!(
        updates.try_recv().is_err(),
        "the same write again is no news"
    );
}

#[test]
fn unread_incarnation_is_the_default() {
    let view = View::new(local_now());
    assert_eq!(
        view.complete_to(shard()).incarnation,
        Incarnation::default()
    );
    assert_eq!(view.complete_to(shard()).revision, Revision(0));
    assert!(!view.is_filled());
    assert!(Arc::new(view).provider(&provider()).is_none());
}

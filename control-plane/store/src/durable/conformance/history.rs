//! Cases of history.

use tidegate_core::config::Document;
use tidegate_core::ids::ProviderId;
use tidegate_core::state::Transition;
use tidegate_core::time::Timestamp;
use tidegate_core::usage::UsageRecord;

use super::samples::{NOW, provider, transition, usage};
use super::{CaseResult, Damage, Fixture};
use crate::durable::{
    DurableStore, DurableStoreError, EventMarks, EventPosition, EventQuery, EventRow, EventSource,
    History, MAX_LIST_ROWS, SealedSecrets, StoredEvent,
};

fn numbered(rows: &[Transition]) -> Vec<(String, Transition)> {
    (0..)
        .zip(rows)
        .map(|(number, row): (u32, _)| (format!("{number:04}"), row.clone()))
        .collect()
}

/// The newest transitions, of one provider or all.
async fn transitions(
    store: &dyn DurableStore,
    provider: Option<&ProviderId>,
    limit: u32,
) -> Result<Vec<Transition>, DurableStoreError> {
    let asked = EventQuery {
        provider,
        source: Some(EventSource::Transitions),
        ..ALL
    };
    let rows = store.list_events(asked, limit).await?;
    let told = rows.into_iter().filter_map(|row| match row.event {
        StoredEvent::Transition(it) => Some(it),
        StoredEvent::Audit(_) | StoredEvent::Unreadable { .. } => None,
    });
    Ok(told.collect())
}

/// By moment, and within one by the order of appending; also for one provider.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn transitions_are_appended_once_and_listed_newest_first(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    let rows = [
        transition("openai", 30, 1)?,
        transition("anthropic", 10, 2)?,
        transition("openai", 20, 3)?,
        transition("openai", 20, 4)?,
        Transition {
            connection: None,
            attempt: None,
            origin: None,
            ..transition("openai", u64::MAX, 5)?
        },
    ];
    for _ in 0..3 {
        store.append_transitions(&numbered(&rows)).await?;
    }
    store.append_transitions(&[]).await?;
    let [a, b, c, d, e] = rows;
    let all = [e.clone(), a.clone(), d.clone(), c.clone(), b.clone()];
    assert_eq!(transitions(&*store, None, 100).await?, all);
    assert_eq!(transitions(&*store, None, 2).await?, [e.clone(), a.clone()]);
    let openai = provider("openai")?;
    assert_eq!(
        transitions(&*store, Some(&openai), 100).await?,
        [e, a, d, c]
    );
    let none = provider("none")?;
    assert_eq!(transitions(&*store, Some(&none), 100).await?, []);
    Ok(())
}

/// A batch of which some is known.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn a_repeated_batch_with_something_new_appends_only_that(
    fixture: &impl Fixture,
) -> CaseResult {
    let store = fixture.store();
    let mut rows = numbered(&[transition("openai", 1, 1)?, transition("openai", 2, 2)?]);
    store.append_transitions(&rows).await?;
    // The same id with another body is the same transition; the first stands. Twice in a call counts once.
    for row in &mut rows {
        row.1.at = Timestamp(9);
    }
    let new = ("new".to_owned(), transition("openai", 3, 3)?);
    rows.push(new.clone());
    rows.push(new);
    store.append_transitions(&rows).await?;
    let levels: Vec<u64> = transitions(&*store, None, 100)
        .await?
        .into_iter()
        .map(|row| row.at.0)
        .collect();
    assert_eq!(levels, [3, 2, 1]);
    Ok(())
}

/// Whatever is asked for.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn lists_are_bounded(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let mut rows = Vec::new();
    for number in 0..MAX_LIST_ROWS + 5 {
        rows.push(transition("openai", u64::from(number), number)?);
    }
    store.append_transitions(&numbered(&rows)).await?;
    let listed = transitions(&*store, None, u32::MAX).await?;
    assert_eq!(listed.len(), usize::try_from(MAX_LIST_ROWS)?);
    assert_eq!(listed.first(), rows.last());
    assert_eq!(transitions(&*store, None, 0).await?, []);
    Ok(())
}

/// What is old goes, what is not stays, of each kind alone.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn old_history_is_deleted(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let at = |second: u64| NOW.plus_ms(second * 1_000);
    let rows = [
        transition("openai", at(1).0, 1)?,
        transition("openai", at(2).0, 2)?,
        transition("openai", u64::MAX, 3)?,
    ];
    store.append_transitions(&numbered(&rows)).await?;
    let mut records = Vec::new();
    for number in 1..=3 {
        records.push(UsageRecord {
            at: at(number),
            ..usage(1, number)?
        });
    }
    store.record_usage(&records).await?;
    let (document, secrets) = (Document::default(), SealedSecrets::default());
    store
        .save_document(0, &document, &secrets, "ops", "")
        .await?;
    for history in History::ALL {
        assert_eq!(store.delete_history(history, Timestamp(0)).await?, 0);
    }
    assert_eq!(store.delete_history(History::Usage, at(3)).await?, 2);
    assert_eq!(store.delete_history(History::Usage, at(3)).await?, 0);
    let left: Vec<u64> = fixture
        .usage()
        .await?
        .iter()
        .map(|row| row.number)
        .collect();
    assert_eq!(left, [3]);
    assert_eq!(transitions(&*store, None, 10).await?.len(), 3);
    assert_eq!(store.delete_history(History::Transitions, at(2)).await?, 1);
    let [_, kept, last] = rows;
    assert_eq!(transitions(&*store, None, 10).await?, [last, kept]);
    assert_eq!(store.list_audit(10).await?.len(), 1);
    // The database's clock tells when an entry was made.
    let far = Timestamp(u64::MAX);
    assert_eq!(store.delete_history(History::Audit, far).await?, 1);
    assert_eq!(store.list_audit(10).await?.len(), 0);
    Ok(())
}

/// All events.
const ALL: EventQuery<'static> = EventQuery {
    provider: None,
    connection: None,
    source: None,
    since: Timestamp(0),
    before: EventPosition::END,
};

fn levels(rows: &[EventRow]) -> Vec<(EventSource, u64)> {
    let place = |row: &EventRow| (row.position.source, row.position.at.0);
    rows.iter().map(place).collect()
}

/// Both sources in one order, page by page, with every filter.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn events_are_one_history_in_pages(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let rows = [
        transition("openai", 30, 1)?,
        transition("anthropic", 10, 2)?,
        transition("openai", 20, 3)?,
        transition("openai", 20, 4)?,
        Transition {
            connection: None,
            ..transition("openai", u64::MAX, 5)?
        },
    ];
    store.append_transitions(&numbered(&rows)).await?;
    let secrets = SealedSecrets::default();
    store
        .save_document(0, &Document::default(), &secrets, "ops", "one")
        .await?;
    let whole = store.list_events(ALL, 100).await?;
    let now = whole.get(1).map_or(0, |row| row.position.at.0);
    let of = |at| (EventSource::Transitions, at);
    let audit = (EventSource::Audit, now);
    assert_eq!(
        levels(&whole),
        [of(u64::MAX), audit, of(30), of(20), of(20), of(10)]
    );
    // Of one moment the last appended comes first.
    let [_, _, c, d, _] = &rows;
    let told: Vec<_> = whole.iter().skip(3).take(2).map(|row| &row.event).collect();
    let [c, d] = [c, d].map(|it| StoredEvent::Transition(it.clone()));
    assert_eq!(told, [&d, &c]);
    let audit = whole.get(1).map(|row| &row.event);
    let Some(StoredEvent::Audit(entry)) = audit else {
        return Err(format!("{audit:?} is not of the audit trail").into());
    };
    assert_eq!(
        (entry.author.as_str(), entry.summary.as_str()),
        ("ops", "one")
    );
    assert_eq!(entry.document_version, Some(1));
    // Pages of any size meet without a gap.
    for size in 1..=7 {
        let mut paged = Vec::new();
        let mut before = EventPosition::END;
        loop {
            let page = store
                .list_events(EventQuery { before, ..ALL }, size)
                .await?;
            let Some(last) = page.last() else { break };
            before = last.position;
            paged.extend(page);
        }
        assert_eq!(paged, whole, "pages of {size}");
    }
    let since = EventQuery {
        since: Timestamp(20),
        ..ALL
    };
    assert_eq!(store.list_events(since, 100).await?.len(), 5);
    let openai = provider("openai")?;
    let of_provider = EventQuery {
        provider: Some(&openai),
        ..ALL
    };
    let listed = store.list_events(of_provider, 100).await?;
    assert_eq!(levels(&listed), [of(u64::MAX), of(30), of(20), of(20)]);
    let [a, ..] = &rows;
    let of_connection = EventQuery {
        connection: a.connection.as_ref(),
        ..of_provider
    };
    let listed = store.list_events(of_connection, 100).await?;
    assert!(!listed.is_empty());
    assert!(listed.iter().all(|row| match &row.event {
        StoredEvent::Transition(it) => it.connection == a.connection,
        StoredEvent::Audit(_) | StoredEvent::Unreadable { .. } => false,
    }));
    let of_connection = EventQuery {
        provider: None,
        ..of_connection
    };
    let is_of = |row: &&EventRow| matches!(&row.event, StoredEvent::Transition(it) if it.connection == a.connection);
    let expected: Vec<_> = whole.iter().filter(is_of).cloned().collect();
    assert_eq!(store.list_events(of_connection, 100).await?, expected);
    for source in [EventSource::Transitions, EventSource::Audit] {
        let of_source = EventQuery {
            source: Some(source),
            ..ALL
        };
        let only = whole.iter().filter(|row| row.position.source == source);
        let only: Vec<_> = only.cloned().collect();
        assert_eq!(store.list_events(of_source, 100).await?, only);
    }
    Ok(())
}

/// What cannot be read has its place, and does not keep the rest from being read.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn an_event_that_does_not_decode_is_passed_over(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    let old = [transition("openai", 10, 1)?];
    store.append_transitions(&numbered(&old)).await?;
    fixture.damage(Damage::Transitions).await?;
    let new = transition("openai", 20, 2)?;
    let later = [("later".to_owned(), new.clone())];
    store.append_transitions(&later).await?;
    store
        .append_audit("admin", "reset", "breakers reset")
        .await?;
    let news = store.events_after(EventMarks::default(), 100).await?;
    let whole = store.list_events(ALL, 100).await?;
    for rows in [&news, &whole] {
        let [mut unreadable, mut transitions, mut audit] = [0_u32; 3];
        for row in rows {
            match &row.event {
                StoredEvent::Unreadable { .. } => unreadable += 1,
                StoredEvent::Transition(it) => {
                    assert_eq!(*it, new);
                    transitions += 1;
                }
                StoredEvent::Audit(entry) => {
                    let told = [&entry.author, &entry.action, &entry.summary];
                    assert_eq!(told, ["admin", "reset", "breakers reset"]);
                    assert_eq!(entry.document_version, None);
                    audit += 1;
                }
            }
        }
        assert_eq!([unreadable, transitions, audit], [1, 1, 1], "{rows:?}");
    }
    Ok(())
}

/// Who follows gets everything that was appended since, once.
///
/// # Errors
/// When the store fails.
///
/// # Panics
/// When the case fails.
pub async fn events_are_followed_by_marks(fixture: &impl Fixture) -> CaseResult {
    let store = fixture.store();
    assert_eq!(store.event_marks().await?, EventMarks::default());
    let first = numbered(&[transition("openai", 30, 1)?, transition("openai", 10, 2)?]);
    store.append_transitions(&first).await?;
    let marks = store.event_marks().await?;
    assert_eq!(store.events_after(marks, 100).await?, []);
    // In the order of appending, whenever it happened.
    let later = transition("openai", 5, 3)?;
    store
        .append_transitions(&[("later".to_owned(), later.clone())])
        .await?;
    let secrets = SealedSecrets::default();
    store
        .save_document(0, &Document::default(), &secrets, "ops", "one")
        .await?;
    let news = store.events_after(marks, 100).await?;
    let sources: Vec<_> = news.iter().map(|row| row.position.source).collect();
    assert_eq!(sources, [EventSource::Transitions, EventSource::Audit]);
    let told = news.first().map(|row| row.event.clone());
    assert_eq!(told, Some(StoredEvent::Transition(later)));
    let all = store.events_after(EventMarks::default(), 1).await?;
    assert_eq!(levels(&all).first(), Some(&(EventSource::Transitions, 30)));
    assert_eq!(all.len(), 2);
    let behind = store.event_marks().await?;
    assert_eq!(store.events_after(behind, 100).await?, []);
    Ok(())
}

//! Events: listed with filters and pages, and watched.

use std::collections::BTreeMap;

use serde_json::json;
use tidegate_proto::admin::v1 as admin;
use tidegate_proto::admin::v1::watch_events_response::What;
use tonic::{Code, Streaming};
use tonic_types::StatusExt as _;

use crate::fleet::{Fleet, Replica, apply_request, document, eventually, within};

fn of_kinds(kinds: &[&str]) -> admin::EventFilter {
    admin::EventFilter {
        kinds: kinds.iter().map(ToString::to_string).collect(),
        ..admin::EventFilter::default()
    }
}

impl Replica {
    async fn events(&self, filter: Option<admin::EventFilter>) -> Vec<admin::Event> {
        let request = admin::ListEventsRequest {
            filter,
            ..admin::ListEventsRequest::default()
        };
        let answer = self.admin().list_events(request).await.unwrap();
        answer.into_inner().events
    }

    async fn watch_events(
        &self,
        filter: Option<admin::EventFilter>,
    ) -> Streaming<admin::WatchEventsResponse> {
        let request = admin::WatchEventsRequest { filter };
        let mut events = self
            .admin()
            .watch_events(request)
            .await
            .unwrap()
            .into_inner();
        let first = within("the watch to begin", events.message()).await;
        let first = first.unwrap().unwrap().what;
        assert!(matches!(first, Some(What::Began(_))), "{first:?}");
        events
    }

    async fn patch_threshold(&self, threshold: u32) {
        let change = json!({"providerBreaker": {"local": {"failureThreshold": threshold}}});
        let request = admin::PatchSettingsRequest {
            patch_json: change.to_string(),
            author: "ada".to_owned(),
            ..admin::PatchSettingsRequest::default()
        };
        self.patch(request).await.unwrap();
    }
}

async fn next(events: &mut Streaming<admin::WatchEventsResponse>) -> admin::Event {
    match within("an event", events.message())
        .await
        .unwrap()
        .unwrap()
        .what
    {
        Some(What::Event(event)) => event,
        other => panic!("expected an event: {other:?}"),
    }
}

#[tokio::test]
async fn changes_of_state_and_of_the_configuration_are_one_history() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    one.open_breaker(7).await;
    one.patch_threshold(9).await;
    eventually("the breaker's event", async || {
        !other.events(Some(of_kinds(&["breaker"]))).await.is_empty()
    })
    .await;
    let all = other.events(None).await;
    let newest = &all[0];
    assert!(
        all.is_sorted_by(|a, b| a.at_unix_ms >= b.at_unix_ms),
        "{all:?}"
    );
    let changed = other.events(Some(of_kinds(&["configuration"]))).await;
    assert_eq!(changed.len(), 2, "{changed:?}");
    assert_eq!(
        (changed[0].author.as_str(), changed[0].configuration_version),
        ("local ada", Some(2))
    );
    assert!(
        changed[0].description.contains("failureThreshold"),
        "{newest:?}"
    );
    // Page by page it is the same.
    let mut token = String::new();
    let mut paged = Vec::new();
    loop {
        let request = admin::ListEventsRequest {
            page_size: 1,
            page_token: token,
            ..admin::ListEventsRequest::default()
        };
        let answer = other
            .admin()
            .list_events(request)
            .await
            .unwrap()
            .into_inner();
        paged.extend(answer.events);
        token = answer.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(paged, all);
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for event in &all {
        *count.entry(event.kind.as_str()).or_default() += 1;
    }
    let of_alpha = admin::EventFilter {
        provider: "alpha".to_owned(),
        ..admin::EventFilter::default()
    };
    let of_alpha = other.events(Some(of_alpha)).await;
    assert_eq!(of_alpha.len(), all.len() - count["configuration"]);
    let later = admin::ListEventsRequest {
        since_unix_ms: newest.at_unix_ms + 1,
        ..admin::ListEventsRequest::default()
    };
    let later = other.admin().list_events(later).await.unwrap();
    assert!(later.into_inner().events.is_empty());
    let unknown = admin::ListEventsRequest {
        filter: Some(of_kinds(&["breaker", "braker"])),
        ..admin::ListEventsRequest::default()
    };
    let refused = other.admin().list_events(unknown).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let details = refused.get_error_details();
    let field = &details.bad_request().unwrap().field_violations[0].field;
    assert_eq!(field, "filter.kinds[1]");
}

fn of(provider: &str, connection: &str) -> admin::EventFilter {
    admin::EventFilter {
        provider: provider.to_owned(),
        connection: connection.to_owned(),
        ..admin::EventFilter::default()
    }
}

/// The refusal of each way to ask for history, and of watching; `None` for what is answered.
async fn refusals(replica: &Replica, filter: &admin::EventFilter) -> [Option<String>; 3] {
    let told = |refused: tonic::Status| {
        let details = refused.get_error_details();
        let reason = &details.error_info().unwrap().reason;
        format!("{reason} {}", refused.message())
    };
    let mut client = replica.admin();
    let events = admin::ListEventsRequest {
        filter: Some(filter.clone()),
        ..admin::ListEventsRequest::default()
    };
    let transitions = admin::ListTransitionsRequest {
        provider: filter.provider.clone(),
        connection: filter.connection.clone(),
        ..admin::ListTransitionsRequest::default()
    };
    let watch = admin::WatchEventsRequest {
        filter: Some(filter.clone()),
    };
    [
        client.list_events(events).await.err().map(told),
        client.list_transitions(transitions).await.err().map(told),
        client.watch_events(watch).await.err().map(told),
    ]
}

#[tokio::test]
async fn who_misspells_a_name_is_told_and_history_outlives_what_it_is_about() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    one.open_breaker(7).await;
    eventually("the breaker's event", async || {
        !one.events(Some(of_kinds(&["breaker"]))).await.is_empty()
    })
    .await;
    let unknown = |what: &str| Some(format!("CP0011 there is no {what}"));
    // Of these something is configured, though nothing happened.
    for known in [of("", ""), of("beta", ""), of("", "b1"), of("alpha", "")] {
        assert_eq!(
            refusals(&one, &known).await,
            [None, None, None],
            "{known:?}"
        );
    }
    for (filter, what) in [
        (of("alhpa", ""), "provider alhpa"),
        (of("", "a11"), "connection a11"),
        (of("alpha", "a11"), "connection a11"),
    ] {
        let expected = [unknown(what), unknown(what), unknown(what)];
        assert_eq!(refusals(&one, &filter).await, expected, "{filter:?}");
        let of_a_kind = admin::EventFilter {
            kinds: vec!["lock".to_owned()],
            ..filter
        };
        assert_eq!(refusals(&one, &of_a_kind).await[0], unknown(what));
    }

    // What is deleted is remembered, and nothing more will be told of it.
    let mut without = document();
    without.providers.remove(0);
    without.connections.remove(0);
    one.apply(apply_request(without)).await.unwrap();
    one.has_configuration(2).await;
    assert!(!one.events(Some(of("alpha", ""))).await.is_empty());
    let expected = [None, None, unknown("provider alpha")];
    assert_eq!(refusals(&one, &of("alpha", "")).await, expected);
    let rare = admin::EventFilter {
        kinds: vec!["lock".to_owned()],
        ..of("alpha", "")
    };
    assert_eq!(one.events(Some(rare)).await, []);
}

#[tokio::test]
async fn before_there_is_a_configuration_only_what_names_nothing_is_watched() {
    let fleet = Fleet::new().await;
    let one = fleet.start().await;
    assert_eq!(refusals(&one, &of("", "")).await, [None, None, None]);
    let [_, _, refused] = refusals(&one, &of("alpha", "")).await;
    assert_eq!(
        refused.as_deref(),
        Some("CP0011 there is no provider alpha")
    );
}

#[tokio::test]
async fn watchers_are_told_what_any_replica_did_and_only_what_they_want() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    one.patch_threshold(8).await;
    let mut all = other.watch_events(None).await;
    let mut breakers = other.watch_events(Some(of_kinds(&["breaker"]))).await;
    one.patch_threshold(2).await;
    let event = next(&mut all).await;
    assert_eq!(
        (event.kind.as_str(), event.author.as_str()),
        ("configuration", "local ada")
    );
    // What was before the watch is not told.
    assert_eq!(event.configuration_version, Some(3));
    one.open_breaker(7).await;
    let event = next(&mut breakers).await;
    assert_eq!(
        (event.kind.as_str(), event.provider.as_str()),
        ("breaker", "alpha")
    );
    assert_eq!(next(&mut all).await.provider, "alpha");
    assert_eq!(other.gauge("event_watchers"), 2);
    drop((all, breakers));
    eventually("the watchers to be gone", async || {
        other.gauge("event_watchers") == 0
    })
    .await;
    // Who comes after all have gone is told as well.
    let mut late = other.watch_events(None).await;
    one.patch_threshold(3).await;
    assert_eq!(next(&mut late).await.configuration_version, Some(4));
}

#[tokio::test]
async fn a_watch_ends_with_its_replica_and_watchers_are_bounded() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let mut watching = Vec::new();
    // All of these are one caller, who has a share of the places.
    for _ in 0..64 {
        watching.push(one.watch_events(None).await);
    }
    let request = admin::WatchEventsRequest::default();
    let refused = one.admin().watch_events(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("share"), "{refused:?}");
    assert_eq!(one.gauge("event_watchers"), 64);
    let last = watching.pop().unwrap();
    drop(last);
    eventually("a place", async || {
        let request = admin::WatchEventsRequest::default();
        one.admin().watch_events(request).await.is_ok()
    })
    .await;
    let mut first = watching.swap_remove(0);
    one.shutdown().await;
    let ended = within("the end", first.message()).await;
    assert!(matches!(ended, Ok(None) | Err(_)), "{ended:?}");
}

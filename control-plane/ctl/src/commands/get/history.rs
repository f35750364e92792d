//! Lists of what happened.

use serde_json::json;
use tidegate_proto::admin::v1::{Event, EventFilter, ListEventsRequest, ListTransitionsRequest};

use crate::cli::GetArguments;
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Listing, moment_value};

/// Most pages that are read for one answer; a page of rare kinds may be empty though there are more.
const MAX_PAGES: u32 = 100;

/// The newest changes of state.
pub(crate) async fn transitions(
    client: &mut Client,
    arguments: &GetArguments,
) -> Result<Listing, Failure> {
    let (service, request) = client.call(ListTransitionsRequest {
        provider: arguments.provider.clone().unwrap_or_default(),
        limit: arguments.limit,
    });
    let answer = service.list_transitions(request).await?.into_inner();
    let mut listing = Listing::new(&[
        "at",
        "provider",
        "connection",
        "kind",
        "change",
        "rule",
        "upstream said",
        "attempt",
    ]);
    for transition in answer.transitions {
        listing.push(vec![
            moment_value(Some(transition.at_unix_ms)),
            json!(transition.provider),
            json!(transition.connection),
            json!(transition.kind),
            json!(transition.description),
            json!(transition.rule),
            json!(transition.original_status),
            json!(transition.attempt),
        ]);
    }
    Ok(listing)
}

/// What happened, newest first.
pub(crate) async fn events(
    client: &mut Client,
    arguments: &GetArguments,
) -> Result<Listing, Failure> {
    let since = arguments.since.and_then(|since| {
        let began = std::time::SystemTime::now().checked_sub(since)?;
        began.duration_since(std::time::UNIX_EPOCH).ok()
    });
    let filter = EventFilter {
        kinds: arguments.kinds.clone(),
        provider: arguments.provider.clone().unwrap_or_default(),
        connection: arguments.name.clone().unwrap_or_default(),
    };
    let since_unix_ms = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
    let found = read(client, &filter, since_unix_ms, arguments.limit).await?;
    let mut listing = Listing::new(&[
        "at",
        "kind",
        "provider",
        "connection",
        "change",
        "author",
        "version",
        "rule",
        "upstream said",
        "attempt",
    ])
    .narrowed_to(&["at", "kind", "provider", "connection", "change", "author"]);
    for event in found {
        listing.push(vec![
            moment_value(Some(event.at_unix_ms)),
            json!(event.kind),
            json!(event.provider),
            json!(event.connection),
            json!(event.description),
            json!(event.author),
            json!(event.configuration_version),
            json!(event.rule),
            json!(event.original_status),
            json!(event.attempt),
        ]);
    }
    Ok(listing)
}

/// The newest events, at most `limit`.
pub(crate) async fn read(
    client: &mut Client,
    filter: &EventFilter,
    since_unix_ms: u64,
    limit: u32,
) -> Result<Vec<Event>, Failure> {
    let limit_len = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut found: Vec<Event> = Vec::new();
    let mut page_token = String::new();
    for _ in 0..MAX_PAGES {
        let (service, request) = client.call(ListEventsRequest {
            filter: Some(filter.clone()),
            since_unix_ms,
            page_size: limit,
            page_token,
        });
        let answer = service.list_events(request).await?.into_inner();
        found.extend(answer.events);
        found.truncate(limit_len);
        page_token = answer.next_page_token;
        if page_token.is_empty() || found.len() == limit_len {
            return Ok(found);
        }
    }
    Err(Failure::Output(format!(
        "history was read for {MAX_PAGES} pages, and goes on; {} of {limit} events were found: ask for fewer, or with --since",
        found.len()
    )))
}

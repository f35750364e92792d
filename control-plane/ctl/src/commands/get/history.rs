//! Lists of what happened.

use serde_json::json;
use tidegate_proto::admin::v1::{
    Event, EventFilter, ListEventsRequest, ListTransitionsRequest, Transition,
};

use crate::cli::{GetArguments, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Column, Listing, moment_value};

/// Most pages that are read for one answer; a page of rare kinds may be empty though there are more.
const MAX_PAGES: u32 = 100;
/// How many are listed when nobody says how many.
const DEFAULT_LIMIT: u32 = 100;

const TRANSITIONS: &[Column<Transition>] = &[
    Column::new("at", |it, _| moment_value(Some(it.at_unix_ms))),
    Column::new("provider", |it, _| json!(it.provider)),
    Column::new("connection", |it, _| json!(it.connection)),
    Column::new("kind", |it, _| json!(it.kind)),
    Column::new("change", |it, _| json!(it.description)),
    Column::new("rule", |it, _| json!(it.rule)),
    Column::new("upstream said", |it, _| json!(it.original_status)),
    Column::new("attempt", |it, _| json!(it.attempt)),
];

/// The newest changes of state.
pub(crate) async fn transitions(
    client: &mut Client,
    arguments: &GetArguments,
) -> Result<Listing, Failure> {
    let (service, request) = client.call(ListTransitionsRequest {
        provider: arguments.provider.clone().unwrap_or_default(),
        limit: limit(arguments),
        connection: arguments.name.clone().unwrap_or_default(),
    });
    let found = service.list_transitions(request).await?.into_inner();
    // What people read has no use for the form of the answer.
    Ok(Listing::of(&found.transitions, TRANSITIONS, Output::Json))
}

fn limit(arguments: &GetArguments) -> u32 {
    arguments.limit.unwrap_or(DEFAULT_LIMIT)
}

const EVENTS: &[Column<Event>] = &[
    Column::new("at", |it, _| moment_value(Some(it.at_unix_ms))),
    Column::new("kind", |it, _| json!(it.kind)),
    Column::new("provider", |it, _| json!(it.provider)),
    Column::new("connection", |it, _| json!(it.connection)),
    Column::new("change", |it, _| json!(it.description)),
    Column::new("author", |it, _| json!(it.author)),
    Column::wide("version", |it, _| json!(it.configuration_version)),
    Column::wide("rule", |it, _| json!(it.rule)),
    Column::wide("upstream said", |it, _| json!(it.original_status)),
    Column::wide("attempt", |it, _| json!(it.attempt)),
];

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
    let found = read(client, &filter, since_unix_ms, limit(arguments)).await?;
    Ok(Listing::of(&found, EVENTS, Output::Json))
}

/// The newest events, at most `limit`.
pub(crate) async fn read(
    client: &mut Client,
    filter: &EventFilter,
    since_unix_ms: u64,
    limit: u32,
) -> Result<Vec<Event>, Failure> {
    let Found { events, goes_on } = look_through(client, filter, since_unix_ms, limit).await?;
    if goes_on {
        return Err(Failure::Output(format!(
            "history was read for {MAX_PAGES} pages, and goes on; {} of {limit} events were found: ask for fewer, or with --since",
            events.len()
        )));
    }
    Ok(events)
}

/// What a look through history found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Newest first.
    pub(crate) events: Vec<Event>,
    /// Fewer were found than were asked for, and there is more than one command reads.
    pub(crate) goes_on: bool,
}

/// The newest events, at most `limit`, of as much of history as one command reads.
pub(crate) async fn look_through(
    client: &mut Client,
    filter: &EventFilter,
    since_unix_ms: u64,
    limit: u32,
) -> Result<Found, Failure> {
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
            return Ok(Found {
                events: found,
                goes_on: false,
            });
        }
    }
    Ok(Found {
        events: found,
        goes_on: true,
    })
}

//! Events in `tidegate.admin.v1.AdminService`.

use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::time::Timestamp;
use tidegate_proto::admin::v1 as proto;
use tokio::sync::mpsc;
use tonic::Status;

use crate::access::{Caller, Right};
use crate::admin::{Admin, EventFilter, EventFilterError, MAX_PAGE, NotRead, event};
use crate::events::{NotWatched, Told, Watcher};

use super::error::{Refusal, invalid_member};
use super::lists::{connection_exists, page, provider_exists};
use super::routing::name;

/// Messages that wait for a watcher to take them, beyond what the connection buffers.
pub(super) const QUEUE: usize = 16;
/// Transitions that are listed when no number is given.
const DEFAULT_TRANSITIONS: u32 = 100;
/// Most kinds in a filter: more than there are.
const MAX_KINDS: usize = 64;

fn filter(asked: Option<proto::EventFilter>) -> Result<EventFilter, Status> {
    let asked = asked.unwrap_or_default();
    if asked.kinds.len() > MAX_KINDS {
        let message = format!("filter.kinds must be at most {MAX_KINDS}");
        return Err(invalid_member("filter.kinds", message));
    }
    let filter = EventFilter {
        provider: name("filter.provider", &asked.provider, ProviderId::new)?,
        connection: name("filter.connection", &asked.connection, ConnectionId::new)?,
        kinds: asked.kinds,
    };
    match filter.check() {
        Ok(()) => Ok(filter),
        Err(error @ EventFilterError::Kind { index, .. }) => {
            let field = format!("filter.kinds[{index}]");
            Err(invalid_member(&field, error.to_string()))
        }
    }
}

fn not_read(error: NotRead) -> Status {
    match error {
        NotRead::Store(_) | NotRead::Late => Refusal::DurableStoreAway.status(error.to_string()),
    }
}

/// What a filter names is configured.
fn must_be_configured(admin: &Admin, filter: &EventFilter) -> Result<(), Status> {
    if filter.provider.is_none() && filter.connection.is_none() {
        return Ok(());
    }
    let current = admin.config.current();
    let current =
        current.ok_or_else(|| Refusal::NotReady.status("there is no configuration yet"))?;
    if let Some(id) = &filter.provider {
        provider_exists(&current, id)?;
    }
    if let Some(id) = &filter.connection {
        connection_exists(&current, id)?;
    }
    Ok(())
}

/// What a filter names is configured, or was and is remembered: history outlives what it tells of. Anything else is a
/// mistake, which an empty list would hide. Asked only where nothing was found.
async fn must_be_known(admin: &Admin, filter: &EventFilter) -> Result<(), Status> {
    let Err(unknown) = must_be_configured(admin, filter) else {
        return Ok(());
    };
    if admin.is_in_history(filter).await.map_err(not_read)? {
        return Ok(());
    }
    Err(unknown)
}

pub(super) async fn list(
    admin: &Admin,
    request: proto::ListEventsRequest,
) -> Result<proto::ListEventsResponse, Status> {
    let filter = filter(request.filter)?;
    let since = request.since_unix_ms;
    let kinds = filter.kinds.join(",");
    let text = |id: Option<&str>| id.unwrap_or_default().to_owned();
    let filters = [
        kinds,
        text(filter.provider.as_ref().map(ProviderId::as_str)),
        text(filter.connection.as_ref().map(ConnectionId::as_str)),
        since.to_string(),
    ];
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    let page = page("events", &filters, request.page_size, &request.page_token)?;
    let listed = admin.list_events(&filter, Timestamp(since), &page).await;
    let (events, next_page_token) = listed.map_err(not_read)?;
    if events.is_empty() && next_page_token.is_empty() && page.after().is_none() {
        must_be_known(admin, &filter).await?;
    }
    Ok(proto::ListEventsResponse {
        events,
        next_page_token,
    })
}

/// The newest changes of state, of a provider or a connection or all.
pub(super) async fn transitions(
    admin: &Admin,
    request: &proto::ListTransitionsRequest,
) -> Result<proto::ListTransitionsResponse, Status> {
    let filter = EventFilter {
        provider: name("provider", &request.provider, ProviderId::new)?,
        connection: name("connection", &request.connection, ConnectionId::new)?,
        kinds: Vec::new(),
    };
    let limit = match request.limit {
        0 => DEFAULT_TRANSITIONS,
        limit if limit <= MAX_PAGE => limit,
        _ => {
            let message = format!("limit must be at most {MAX_PAGE}");
            return Err(invalid_member("limit", message));
        }
    };
    let listed = admin.list_transitions(&filter, limit).await;
    let transitions = listed.map_err(not_read)?;
    if transitions.is_empty() {
        must_be_known(admin, &filter).await?;
    }
    Ok(proto::ListTransitionsResponse { transitions })
}

/// Begins a watch.
pub(super) async fn watch(
    admin: &Admin,
    caller: &Caller,
    request: proto::WatchEventsRequest,
) -> Result<(EventFilter, Watcher), Status> {
    let filter = filter(request.filter)?;
    must_be_configured(admin, &filter)?;
    let watcher = admin
        .events
        .watch(&caller.to_string())
        .await
        .map_err(|error| match error {
            NotWatched::Full | NotWatched::OfCaller => {
                Refusal::WindowFull.status(error.to_string())
            }
            NotWatched::Away => Refusal::DurableStoreAway.status(error.to_string()),
        })?;
    Ok((filter, watcher))
}

/// Tells a watcher what happens, until it goes, or its key may no longer look.
pub(super) async fn feed(
    filter: EventFilter,
    mut watcher: Watcher,
    mut right: Right,
    told: mpsc::Sender<Result<proto::WatchEventsResponse, Status>>,
) {
    use proto::watch_events_response::What;
    let mut what = Some(What::Began(proto::WatchBegan {}));
    loop {
        if let Some(what) = what.take() {
            let message = proto::WatchEventsResponse { what: Some(what) };
            if told.send(Ok(message)).await.is_err() {
                return;
            }
        }
        let next = tokio::select! {
            next = watcher.next() => next,
            denied = right.is_lost() => {
                // Who is gone need not be told.
                _ = told.send(Err(denied.into())).await;
                return;
            }
            () = told.closed() => return,
        };
        what = match next {
            None => return,
            Some(Told::Missed(missed)) => Some(What::Lagged(proto::WatchLagged { missed })),
            Some(Told::Event(row)) => event(&row)
                .filter(|event| filter.takes(event))
                .map(What::Event),
        };
    }
}

//! Lists of `tidegate.admin.v1.AdminService`, in pages.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_proto::admin::v1 as proto;
use tonic::Status;

use crate::admin::{Admin, NotCleared, NotRead, Page, PageError, lease_status};
use crate::config::Current;

use super::error::{Refusal, invalid_member};
use super::mask::Mask;
use super::routing::name;

impl From<PageError> for Status {
    fn from(error: PageError) -> Self {
        invalid_member(error.field(), format!("{} {error}", error.field()))
    }
}

/// The page of a list that has these filters.
pub(super) fn page<K: Ord + Serialize + DeserializeOwned>(
    list: &str,
    filters: &[&str],
    size: u32,
    token: &str,
) -> Result<Page<K>, Status> {
    let filters = filters.iter().flat_map(|filter| ["\n", *filter]);
    let list: String = std::iter::once(list).chain(filters).collect();
    Ok(Page::read(list, size, token)?)
}

/// A provider that is named, and exists.
pub(super) fn provider(current: &Current, text: &str) -> Result<Option<ProviderId>, Status> {
    let provider = name("provider", text, ProviderId::new)?;
    if let Some(id) = &provider {
        provider_exists(current, id)?;
    }
    Ok(provider)
}

/// A connection that is named, and exists.
pub(super) fn connection(current: &Current, text: &str) -> Result<Option<ConnectionId>, Status> {
    let connection = name("connection", text, ConnectionId::new)?;
    if let Some(id) = &connection {
        connection_exists(current, id)?;
    }
    Ok(connection)
}

/// The provider is configured.
pub(super) fn provider_exists(current: &Current, id: &ProviderId) -> Result<(), Status> {
    match current.config.provider(id) {
        Some(_) => Ok(()),
        None => Err(Refusal::NotFound.status(format!("there is no provider {id}"))),
    }
}

/// The connection is configured.
pub(super) fn connection_exists(current: &Current, id: &ConnectionId) -> Result<(), Status> {
    match current.config.connection(id) {
        Some(_) => Ok(()),
        None => Err(Refusal::NotFound.status(format!("there is no connection {id}"))),
    }
}

/// A connection that must be named, and exists.
pub(super) fn needed_connection(current: &Current, text: &str) -> Result<ConnectionId, Status> {
    connection(current, text)?
        .ok_or_else(|| invalid_member("connection", "connection is missing".to_owned()))
}

pub(super) fn breakers(
    admin: &Admin,
    current: &Current,
    request: &proto::ListBreakersRequest,
) -> Result<proto::ListBreakersResponse, Status> {
    let provider = provider(current, &request.provider)?;
    let filters = [request.provider.as_str()];
    let page = page("breakers", &filters, request.page_size, &request.page_token)?;
    let (breakers, next_page_token) = admin.breakers(&current.config, provider.as_ref(), &page);
    Ok(proto::ListBreakersResponse {
        breakers,
        next_page_token,
    })
}

pub(super) async fn connections(
    admin: &Admin,
    current: &Current,
    request: &proto::ListConnectionsRequest,
) -> Result<proto::ListConnectionsResponse, Status> {
    let provider = provider(current, &request.provider)?;
    let connection = connection(current, &request.connection)?;
    let mask = Mask::read(request.read_mask.as_ref())?;
    let filters = [request.provider.as_str(), request.connection.as_str()];
    let (size, token) = (request.page_size, &request.page_token);
    let page = page("connections", &filters, size, token)?;
    let only = (provider.as_ref(), connection.as_ref());
    let listed = admin.connections(current, only, mask.shows("token"), &page);
    let (mut connections, next_page_token) = listed.await;
    for connection in &mut connections {
        mask.apply(connection);
    }
    Ok(proto::ListConnectionsResponse {
        connections,
        next_page_token,
    })
}

pub(super) fn lockouts(
    admin: &Admin,
    current: &Current,
    request: &proto::ListLockoutsRequest,
) -> Result<proto::ListLockoutsResponse, Status> {
    let provider = provider(current, &request.provider)?;
    let connection = connection(current, &request.connection)?;
    let filters = [request.provider.as_str(), request.connection.as_str()];
    let page = page("lockouts", &filters, request.page_size, &request.page_token)?;
    let (provider, connection) = (provider.as_ref(), connection.as_ref());
    let listed = admin.lockouts(&current.config, provider, connection, &page);
    let (lockouts, next_page_token) = listed;
    Ok(proto::ListLockoutsResponse {
        lockouts,
        next_page_token,
    })
}

pub(super) fn cooldowns(
    admin: &Admin,
    current: &Current,
    request: &proto::ListCooldownsRequest,
) -> Result<proto::ListCooldownsResponse, Status> {
    let provider = provider(current, &request.provider)?;
    let connection = connection(current, &request.connection)?;
    let filters = [request.provider.as_str(), request.connection.as_str()];
    let (size, token) = (request.page_size, &request.page_token);
    let page = page("cooldowns", &filters, size, token)?;
    let (provider, connection) = (provider.as_ref(), connection.as_ref());
    let listed = admin.cooldowns(&current.config, provider, connection, &page);
    let (cooldowns, next_page_token) = listed;
    Ok(proto::ListCooldownsResponse {
        cooldowns,
        next_page_token,
    })
}

pub(super) async fn leases(
    admin: &Admin,
    current: &Current,
    request: &proto::ListLeasesRequest,
) -> Result<proto::ListLeasesResponse, Status> {
    let provider = provider(current, &request.provider)?;
    let connection = connection(current, &request.connection)?;
    let filters = [request.provider.as_str(), request.connection.as_str()];
    let page = page("leases", &filters, request.page_size, &request.page_token)?;
    let (now, leases) = admin.leases.list().await?;
    let selected = leases
        .iter()
        .filter(|it| provider.as_ref().is_none_or(|only| it.provider == *only))
        .filter(|it| {
            connection
                .as_ref()
                .is_none_or(|only| it.connection == *only)
        });
    let keyed = selected.map(|lease| (lease.connection.to_string(), lease_status(lease, now)));
    let (leases, next_page_token) = page.of(keyed);
    Ok(proto::ListLeasesResponse {
        leases,
        next_page_token,
    })
}

pub(super) async fn end_lease(
    admin: &Admin,
    current: &Current,
    request: &proto::EndLeaseRequest,
) -> Result<proto::EndLeaseResponse, Status> {
    let connection = needed_connection(current, &request.connection)?;
    let generation = Some(request.generation).filter(|generation| *generation > 0);
    let ended = admin.leases.end_by_hand(&connection, generation).await?;
    let ended = ended.map(|(now, lease)| lease_status(&lease, now));
    Ok(proto::EndLeaseResponse { ended })
}

pub(super) async fn permits(
    admin: &Admin,
    current: &Current,
    request: &proto::ListPermitsRequest,
) -> Result<proto::ListPermitsResponse, Status> {
    let provider = provider(current, &request.provider)?;
    let connection = connection(current, &request.connection)?;
    let filters = [request.provider.as_str(), request.connection.as_str()];
    let page = page("permits", &filters, request.page_size, &request.page_token)?;
    let (provider, connection) = (provider.as_ref(), connection.as_ref());
    let listed = admin.permit_pools(&current.config, provider, connection, &page);
    let (pools, next_page_token) = listed.await;
    Ok(proto::ListPermitsResponse {
        pools,
        next_page_token,
    })
}

pub(super) async fn pins(
    admin: &Admin,
    current: &Current,
    request: &proto::ListPinsRequest,
) -> Result<proto::ListPinsResponse, Status> {
    let provider = provider(current, &request.provider)?;
    let connection = connection(current, &request.connection)?;
    let filters = [request.provider.as_str(), request.connection.as_str()];
    let page = page("pins", &filters, request.page_size, &request.page_token)?;
    let listed = admin.list_pins(provider.as_ref(), connection.as_ref(), &page);
    let (pins, next_page_token) = listed.await.map_err(|error| match error {
        NotRead::Store(_) | NotRead::Late => Refusal::DurableStoreAway.status(error.to_string()),
    })?;
    Ok(proto::ListPinsResponse {
        pins,
        next_page_token,
    })
}

pub(super) async fn queues(
    admin: &Admin,
    current: &Current,
    request: &proto::ListQueuesRequest,
) -> Result<proto::ListQueuesResponse, Status> {
    let provider = provider(current, &request.provider)?;
    let connection = connection(current, &request.connection)?;
    let filters = [request.provider.as_str(), request.connection.as_str()];
    let page = page("queues", &filters, request.page_size, &request.page_token)?;
    let (provider, connection) = (provider.as_ref(), connection.as_ref());
    let listed = admin.queues(&current.config, provider, connection, &page);
    let (queues, next_page_token) = listed.await;
    Ok(proto::ListQueuesResponse {
        queues,
        next_page_token,
    })
}

pub(super) async fn clear_permits(
    admin: &Admin,
    current: &Current,
    request: &proto::ClearPermitsRequest,
) -> Result<proto::ClearPermitsResponse, Status> {
    let connection = needed_connection(current, &request.connection)?;
    match admin.clear_permits(&current.config, &connection).await {
        Ok(cleared) => Ok(proto::ClearPermitsResponse { cleared }),
        Err(error @ NotCleared::NoConnection(_)) => {
            Err(Refusal::NotFound.status(error.to_string()))
        }
        Err(error @ NotCleared::Unchanged(_)) => {
            Err(Refusal::HotStoreAway.status(error.to_string()))
        }
    }
}

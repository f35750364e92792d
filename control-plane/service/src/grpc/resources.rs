//! Providers, connections, combos and keys of `tidegate.admin.v1.AdminService`, one by one and as lists, as they are
//! configured.

use tidegate_core::config::Resource;
use tidegate_core::ids::ConnectionId;
use tidegate_proto::admin::v1 as proto;
use tidegate_proto::config::v1 as config;
use tonic::Status;

use crate::admin::{Admin, Page, lease_status};
use crate::config::Current;
use crate::config::apply::ApplyError;

use super::error::invalid_member;
use super::lists::page;

/// One of the lists of the document in force, as data planes get it: it holds no secret.
fn all<'a, T>(current: &'a Current, list: impl FnOnce(&'a config::Document) -> &'a [T]) -> &'a [T] {
    match &current.snapshot.document {
        Some(document) => list(document),
        None => &[],
    }
}

/// A page of a list, by name.
fn listed<T: Clone>(
    items: &[T],
    name: impl Fn(&T) -> &str,
    page: &Page<String>,
) -> (Vec<T>, String) {
    let mut keyed: Vec<(&str, &T)> = items.iter().map(|it| (name(it), it)).collect();
    keyed.sort_unstable_by_key(|(name, _)| *name);
    let keyed = keyed.into_iter().map(|(name, it)| (name.to_owned(), it));
    let (page, next) = page.of(keyed);
    (page.into_iter().cloned().collect(), next)
}

/// The one of this name.
fn found<T: Clone>(
    items: &[T],
    name: impl Fn(&T) -> &str,
    wanted: &str,
    resource: impl FnOnce(String) -> Resource,
) -> Result<T, Status> {
    if wanted.is_empty() {
        let resource = resource(String::new());
        let field = if matches!(resource, Resource::Combo(_)) {
            "name"
        } else {
            "id"
        };
        return Err(invalid_member(field, format!("{field} is missing")));
    }
    let found = items.iter().find(|it| name(it) == wanted);
    found
        .cloned()
        .ok_or_else(|| ApplyError::Missing(resource(wanted.to_owned())).into())
}

pub(super) fn providers(
    current: &Current,
    request: &proto::ListProvidersRequest,
) -> Result<proto::ListProvidersResponse, Status> {
    let page = page("providers", &[], request.page_size, &request.page_token)?;
    let items = all(current, |it| it.providers.as_slice());
    let (providers, next_page_token) = listed(items, |it| it.id.as_str(), &page);
    Ok(proto::ListProvidersResponse {
        providers,
        next_page_token,
    })
}

pub(super) fn combos(
    current: &Current,
    request: &proto::ListCombosRequest,
) -> Result<proto::ListCombosResponse, Status> {
    let page = page("combos", &[], request.page_size, &request.page_token)?;
    let items = all(current, |it| it.combos.as_slice());
    let (combos, next_page_token) = listed(items, |it| it.name.as_str(), &page);
    Ok(proto::ListCombosResponse {
        combos,
        next_page_token,
    })
}

pub(super) fn keys(
    current: &Current,
    request: &proto::ListKeysRequest,
) -> Result<proto::ListKeysResponse, Status> {
    let page = page("keys", &[], request.page_size, &request.page_token)?;
    let items = all(current, |it| it.keys.as_slice());
    let (keys, next_page_token) = listed(items, |it| it.id.as_str(), &page);
    Ok(proto::ListKeysResponse {
        keys,
        next_page_token,
    })
}

pub(super) fn provider(
    admin: &Admin,
    current: &Current,
    request: &proto::GetProviderRequest,
) -> Result<proto::GetProviderResponse, Status> {
    let items = all(current, |it| it.providers.as_slice());
    let provider = found(items, |it| it.id.as_str(), &request.id, Resource::Provider)?;
    let id = super::lists::provider(current, &request.id)?;
    let only = Page::read("one".to_owned(), 1, "").map_err(Status::from)?;
    let (mut breakers, _) = admin.breakers(&current.config, id.as_ref(), &only);
    Ok(proto::GetProviderResponse {
        version: current.config.version,
        provider: Some(provider),
        breaker: breakers.pop(),
    })
}

pub(super) async fn connection(
    admin: &Admin,
    current: &Current,
    request: &proto::GetConnectionRequest,
) -> Result<proto::GetConnectionResponse, Status> {
    let items = all(current, |it| it.connections.as_slice());
    let connection = found(
        items,
        |it| it.id.as_str(),
        &request.id,
        Resource::Connection,
    )?;
    let id: Option<ConnectionId> = super::lists::connection(current, &request.id)?;
    let only = Page::read("one".to_owned(), 1, "").map_err(Status::from)?;
    let listed = admin.connections(current, (None, id.as_ref()), true, &only);
    let (mut statuses, _) = listed.await;
    Ok(proto::GetConnectionResponse {
        version: current.config.version,
        connection: Some(connection),
        status: statuses.pop(),
    })
}

pub(super) fn combo(
    current: &Current,
    request: &proto::GetComboRequest,
) -> Result<proto::GetComboResponse, Status> {
    let items = all(current, |it| it.combos.as_slice());
    Ok(proto::GetComboResponse {
        version: current.config.version,
        combo: Some(found(
            items,
            |it| it.name.as_str(),
            &request.name,
            Resource::Combo,
        )?),
    })
}

pub(super) async fn key(
    admin: &Admin,
    current: &Current,
    request: &proto::GetKeyRequest,
) -> Result<proto::GetKeyResponse, Status> {
    let items = all(current, |it| it.keys.as_slice());
    let key = found(items, |it| it.id.as_str(), &request.id, Resource::Key)?;
    let (now, leases) = admin.leases.list().await?;
    let own = leases.iter().filter(|it| it.key.as_str() == request.id);
    Ok(proto::GetKeyResponse {
        version: current.config.version,
        key: Some(key),
        leases: own.map(|lease| lease_status(lease, now)).collect(),
    })
}

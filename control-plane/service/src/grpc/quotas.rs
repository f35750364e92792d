//! Quotas in messages.

use tidegate_core::ids::ConnectionId;
use tidegate_core::telemetry::quota::QuotaSource;
use tidegate_proto::admin::v1 as proto;
use tidegate_wire as wire;
use tonic::Status;

use crate::admin::{Admin, Known, NotTaken, connections};
use crate::config::Current;

use super::error::{Refusal, invalid, invalid_member};
use super::lists::page;
use super::routing::name;

/// Takes what somebody fetched.
pub(super) fn report(
    admin: &Admin,
    current: &Current,
    request: proto::ReportQuotaRequest,
) -> Result<proto::ReportQuotaResponse, Status> {
    let needed = |field: &str| invalid_member(field, format!("{field} is missing"));
    let connection = name("connection", &request.connection, ConnectionId::new)?;
    let connection = connection.ok_or_else(|| needed("connection"))?;
    let quota = request.quota.ok_or_else(|| needed("quota"))?;
    let quota = wire::quota::from_proto(quota).map_err(|error| invalid(&error))?;
    let taken = admin
        .take_quota(&current.config, &connection, quota)
        .map_err(|error| refused(&error))?;
    let configured = current.config.connection(&connection);
    Ok(proto::ReportQuotaResponse {
        taken,
        known: configured.map(|it| told(&admin.quotas_of(&current.config, it))),
    })
}

/// Lists what is known.
pub(super) fn list(
    admin: &Admin,
    current: &Current,
    request: &proto::ListQuotasRequest,
) -> Result<proto::ListQuotasResponse, Status> {
    let config = &current.config;
    let only = name("connection", &request.connection, ConnectionId::new)?;
    if let Some(only) = &only
        && config.connection(only).is_none()
    {
        return Err(refused(&NotTaken::NoConnection(only.clone())));
    }
    let filters = [request.connection.as_str()];
    let page = page("quotas", &filters, request.page_size, &request.page_token)?;
    let (listed, next_page_token) = page.of(connections(config, None, only.as_ref()));
    let quotas = listed
        .into_iter()
        .map(|it| told(&admin.quotas_of(config, it)));
    Ok(proto::ListQuotasResponse {
        quotas: quotas.collect(),
        next_page_token,
    })
}

fn told(known: &Known<'_>) -> proto::ConnectionQuotas {
    let told = known.told.iter().map(|(source, quota)| proto::ToldQuota {
        source: match source {
            QuotaSource::Headers => proto::QuotaSource::Headers,
            QuotaSource::Fetched => proto::QuotaSource::Fetched,
        }
        .into(),
        quota: Some(wire::quota::to_proto(quota)),
        age_ms: known.now.ms_since(quota.observed_at),
    });
    proto::ConnectionQuotas {
        connection: known.connection.id.to_string(),
        provider: known.connection.provider.to_string(),
        known: known.combined.as_ref().map(wire::quota::to_proto),
        told: told.collect(),
        polled: known.polled,
        low: known.low,
    }
}

fn refused(error: &NotTaken) -> Status {
    let message = error.to_string();
    match error {
        NotTaken::NoConnection(_) => Refusal::NotFound.status(message),
        NotTaken::NoSense(why) => invalid_member(why.field(), why.to_string()),
        NotTaken::Full(_) => Refusal::WindowFull.status(message),
    }
}

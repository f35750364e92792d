//! Quota pools, and what is known of models.

use tidegate_core::catalogue::{ModelInfo, ModelRow};
use tidegate_core::config::{PoolConnection, QuotaPool};
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::number::Finite;
use tidegate_proto::config::v1 as proto;

use crate::{WireError, name};

use super::models;

pub(super) fn to_proto(pool: &QuotaPool) -> proto::QuotaPool {
    proto::QuotaPool {
        group: pool.group.clone(),
        provider: pool.provider.to_string(),
        models: pool.models.iter().map(ToString::to_string).collect(),
        connections: pool
            .connections
            .iter()
            .map(|shared| proto::PoolConnection {
                connection: shared.connection.to_string(),
                weight: shared.weight.get(),
            })
            .collect(),
    }
}

pub(super) fn from_proto(index: usize, message: proto::QuotaPool) -> Result<QuotaPool, WireError> {
    let field = |member: &str| format!("quotaPools[{index}].{member}");
    let connections = message.connections.into_iter().enumerate();
    Ok(QuotaPool {
        group: message.group,
        provider: name(field("provider"), ProviderId::new(&message.provider))?,
        models: models(&field("models"), message.models)?,
        connections: connections
            .map(|(place, shared)| {
                let field = |member: &str| field(&format!("connections[{place}].{member}"));
                let id = ConnectionId::new(&shared.connection);
                Ok(PoolConnection {
                    connection: name(field("connection"), id)?,
                    weight: Finite::new(shared.weight)
                        .map_err(|error| WireError::invalid(field("weight"), error.to_string()))?,
                })
            })
            .collect::<Result<Vec<_>, WireError>>()?,
    })
}

pub(super) fn row_to_proto(row: &ModelRow) -> proto::ModelRow {
    proto::ModelRow {
        model: row.model.clone(),
        info_json: if row.info == ModelInfo::default() {
            String::new()
        } else {
            serde_json::to_string(&row.info).unwrap_or_default()
        },
    }
}

pub(super) fn row_from_proto(
    index: usize,
    message: proto::ModelRow,
) -> Result<ModelRow, WireError> {
    let info = if message.info_json.is_empty() {
        ModelInfo::default()
    } else {
        serde_json::from_str(&message.info_json)
            .map_err(|error| WireError::invalid(format!("models[{index}]"), error.to_string()))?
    };
    Ok(ModelRow {
        model: message.model,
        info,
    })
}

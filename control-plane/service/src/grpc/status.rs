//! How a replica is, in messages.

use tidegate_core::condition::Degraded;
use tidegate_proto::admin::v1 as proto;

use crate::admin::Admin;
use crate::watch::Plane;

/// How this replica is.
pub(super) async fn told(admin: &Admin) -> proto::GetStatusResponse {
    let condition = admin.condition().await;
    let planes = condition.planes;
    let degraded = condition.degraded.into_iter().map(degraded_mode);
    proto::GetStatusResponse {
        replica: admin.replica.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        freshness: Some(condition.view),
        hot_store_reachable: condition.hot_store_answers,
        durable_store_reachable: condition.durable_store_answers,
        checkpoint_leader: admin.checkpoint.leads(),
        configuration_version: condition.config.map_or(0, |config| config.version),
        replicas: admin.schemas.replicas(),
        data_planes: u32::try_from(planes.len()).unwrap_or(u32::MAX),
        planes: planes.into_iter().map(data_plane).collect(),
        degraded: degraded.map(Into::into).collect(),
        data_planes_in_fleet: condition.planes_in_fleet,
    }
}

fn degraded_mode(degraded: Degraded) -> proto::DegradedMode {
    match degraded {
        Degraded::HotStoreAway => proto::DegradedMode::HotStoreAway,
        Degraded::DurableStoreAway => proto::DegradedMode::DurableStoreAway,
        Degraded::ViewStale => proto::DegradedMode::ViewStale,
        Degraded::NoConfiguration => proto::DegradedMode::NoConfiguration,
        Degraded::ConfigurationRefused => proto::DegradedMode::ConfigurationRefused,
    }
}

fn data_plane(plane: Plane) -> proto::DataPlaneStatus {
    proto::DataPlaneStatus {
        name: plane.name,
        incarnation: format!("{:016x}", plane.incarnation.0),
        configuration_version: plane.configuration,
        refused_version: plane.refused,
    }
}

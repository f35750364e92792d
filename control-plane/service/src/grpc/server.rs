//! All services in one server, and how it treats connections.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::management::MAX_MANAGEMENT_BYTES;
use tidegate_proto::FILE_DESCRIPTOR_SET;
use tidegate_proto::admin::v1::admin_service_server::AdminServiceServer;
use tidegate_proto::config::v1::snapshot_service_server::SnapshotServiceServer;
use tidegate_proto::lease::v1::lease_service_server::LeaseServiceServer;
use tidegate_proto::management::v1::management_service_server::ManagementServiceServer;
use tidegate_proto::report::v1::report_service_server::ReportServiceServer;
use tidegate_proto::routing::v1::admission_service_server::AdmissionServiceServer;
use tidegate_proto::routing::v1::handoff_service_server::HandoffServiceServer;
use tidegate_proto::routing::v1::routing_service_server::RoutingServiceServer;
use tidegate_telemetry::Traces;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::{Routes, RoutesBuilder};
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::access::Access;
use crate::admin::Admin;
use crate::decide::Decider;
use crate::handoff::Handoffs;
use crate::lanes::Lanes;
use crate::lease::Leases;
use crate::record::Recorder;
use crate::rest::Rest;
use crate::telemetry::metrics::Metrics;
use crate::usage::Usages;
use crate::watch::Watchers;

use super::admin::AdminApi;
use super::admission::AdmissionApi;
use super::auth::Guarded;
use super::handoff::HandoffApi;
use super::lease::LeaseApi;
use super::management::ManagementApi;
use super::report::Reports;
use super::routing::Routing;
use super::snapshot::Snapshots;

/// HTTP/2 keep-alive (decision 56).
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection lives at most (decision 56), so that new replicas get load.
const CONNECTION_AGE: Duration = Duration::from_secs(300);
/// The part of it by which processes differ, so that they do not all lose their clients at once.
const CONNECTION_AGE_JITTER: f64 = 0.1;
const CONNECTION_AGE_GRACE: Duration = Duration::from_secs(30);
/// Requests under way of one connection, streams included.
const MAX_STREAMS: u32 = 4_096;
/// Largest header list of a request, in bytes.
const MAX_HEADER_LIST: u32 = 16 * 1024;
/// Largest request of data planes: 256 reports with bodies of 8 KiB, or 200 prior attempts.
const MAX_REQUEST: usize = 8 * 1024 * 1024;
/// Largest request about a note: its bounds in characters of four bytes, twice over.
const MAX_HANDOFF: usize = 128 * 1024;
/// Largest request about a lease: names and numbers.
const MAX_LEASE: usize = 16 * 1024;
/// Largest request that a data plane forwards: its body, and the longest head that data planes take.
const MAX_MANAGEMENT: usize = MAX_MANAGEMENT_BYTES + 64 * 1024;
/// Largest configuration, in bytes.
const MAX_CONFIGURATION: usize = 128 * 1024 * 1024;

/// What the services work on.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) decider: Arc<Decider>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) admin: Arc<Admin>,
    pub(crate) rest: Rest,
    pub(crate) handoffs: Arc<Handoffs>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) usages: Arc<Usages>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Traces,
    pub(crate) tasks: TaskTracker,
    pub(crate) drain: CancellationToken,
}

/// Who a server is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// Data planes and operators.
    Everything,
    /// Operators only.
    Administration,
}

impl Offered {
    /// Names of the services.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Everything => &[
                "tidegate.routing.v1.RoutingService",
                "tidegate.routing.v1.HandoffService",
                "tidegate.lease.v1.LeaseService",
                "tidegate.routing.v1.AdmissionService",
                "tidegate.report.v1.ReportService",
                "tidegate.config.v1.SnapshotService",
                "tidegate.management.v1.ManagementService",
                "tidegate.admin.v1.AdminService",
            ],
            Self::Administration => &["tidegate.admin.v1.AdminService"],
        }
    }
}

/// The services, health and reflection, each behind its guard.
pub(crate) fn routes(
    services: &Services,
    access: &Access,
    offered: Offered,
) -> (Routes, HealthReporter) {
    let mut routes = Routes::builder();
    if offered == Offered::Everything {
        add_data_plane_services(&mut routes, services, access);
    }
    let admin = AdminServiceServer::new(AdminApi {
        admin: Arc::clone(&services.admin),
        tasks: services.tasks.clone(),
        drain: services.drain.clone(),
    })
    .max_decoding_message_size(MAX_CONFIGURATION)
    .max_encoding_message_size(MAX_CONFIGURATION);
    let (reporter, health) = tonic_health::server::health_reporter();
    routes
        .add_service(Guarded::new(admin, access))
        .add_service(Guarded::new(health, access));
    match reflection(offered) {
        Ok((v1, v1alpha)) => {
            routes
                .add_service(Guarded::new(v1, access))
                .add_service(Guarded::new(v1alpha, access));
        }
        Err(error) => tracing::error!(%error, "reflection is not served"),
    }
    (routes.routes(), reporter)
}

fn add_data_plane_services(routes: &mut RoutesBuilder, services: &Services, access: &Access) {
    let routing = RoutingServiceServer::new(Routing {
        decider: Arc::clone(&services.decider),
        traces: services.traces.clone(),
    })
    .max_decoding_message_size(MAX_REQUEST);
    let reports = ReportServiceServer::new(Reports {
        recorder: Arc::clone(&services.recorder),
        fleet: Arc::clone(&services.decider.fleet),
        config: Arc::clone(&services.decider.config),
        usages: Arc::clone(&services.usages),
        metrics: Arc::clone(&services.metrics),
        tasks: services.tasks.clone(),
        drain: services.drain.clone(),
    })
    .max_decoding_message_size(MAX_REQUEST);
    let snapshots = SnapshotServiceServer::new(Snapshots {
        watchers: Arc::clone(&services.watchers),
        tasks: services.tasks.clone(),
        drain: services.drain.clone(),
    })
    .max_decoding_message_size(MAX_REQUEST)
    .max_encoding_message_size(MAX_CONFIGURATION);
    let handoffs = HandoffServiceServer::new(HandoffApi {
        handoffs: Arc::clone(&services.handoffs),
    })
    .max_decoding_message_size(MAX_HANDOFF);
    let leases = LeaseServiceServer::new(LeaseApi {
        leases: Arc::clone(&services.leases),
    })
    .max_decoding_message_size(MAX_LEASE);
    let admissions = AdmissionServiceServer::new(AdmissionApi {
        lanes: Arc::clone(&services.lanes),
        config: Arc::clone(&services.decider.config),
        clock: Arc::clone(&services.decider.clock),
    })
    .max_decoding_message_size(MAX_REQUEST);
    let management = ManagementServiceServer::new(ManagementApi {
        rest: services.rest.clone(),
    })
    .max_decoding_message_size(MAX_MANAGEMENT);
    routes
        .add_service(Guarded::new(management, access))
        .add_service(Guarded::new(routing, access))
        .add_service(Guarded::new(handoffs, access))
        .add_service(Guarded::new(leases, access))
        .add_service(Guarded::new(admissions, access))
        .add_service(Guarded::new(reports, access))
        .add_service(Guarded::new(snapshots, access));
}

type Reflection<T> = Result<T, tonic_reflection::server::Error>;

fn reflection(
    offered: Offered,
) -> Reflection<(
    tonic_reflection::server::v1::ServerReflectionServer<
        impl tonic_reflection::server::v1::ServerReflection,
    >,
    tonic_reflection::server::v1alpha::ServerReflectionServer<
        impl tonic_reflection::server::v1alpha::ServerReflection,
    >,
)> {
    let builder = || {
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name("grpc.health.v1.Health");
        let names = offered.names().iter();
        names.fold(builder, |builder, name| builder.with_service_name(*name))
    };
    Ok((builder().build_v1()?, builder().build_v1alpha()?))
}

/// A server that treats connections as decision 56 says.
pub(crate) fn server() -> Server {
    let jitter = CONNECTION_AGE_JITTER * (rand::random::<f64>() - 0.5) * 2.0;
    Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .max_connection_age(CONNECTION_AGE.mul_f64(1.0 + jitter))
        .max_connection_age_grace(CONNECTION_AGE_GRACE)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADER_LIST)
        .tcp_nodelay(true)
}

/// Says by gRPC health whether decisions can be served, for as long as that changes.
pub(crate) async fn show_health(
    reporter: HealthReporter,
    offered: Offered,
    is_ready: impl Fn() -> bool,
) {
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let mut shown: Option<bool> = None;
    loop {
        ticks.tick().await;
        let ready = is_ready();
        if shown == Some(ready) {
            continue;
        }
        shown = Some(ready);
        let status = if ready {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for service in offered.names().iter().chain(&[""]) {
            reporter.set_service_status(service, status).await;
        }
    }
}

//! Who may call which method. A method that is not in the table cannot be called; that none is forgotten is tested against
//! the descriptors of everything that is served.

use crate::access::Need;

/// What each method needs, by service.
const RULES: [(&str, &[(&str, Need)]); 11] = [
    (
        "tidegate.routing.v1.RoutingService",
        &[
            ("Decide", Need::DataPlane),
            ("Await", Need::DataPlane),
            ("Abandon", Need::DataPlane),
            ("KeepPermits", Need::DataPlane),
            ("ReleasePermits", Need::DataPlane),
        ],
    ),
    (
        "tidegate.routing.v1.HandoffService",
        &[
            ("FetchHandoff", Need::DataPlane),
            ("BeginHandoff", Need::DataPlane),
            ("SaveHandoff", Need::DataPlane),
        ],
    ),
    (
        "tidegate.routing.v1.AdmissionService",
        &[
            ("Admit", Need::DataPlane),
            ("KeepAdmitted", Need::DataPlane),
            ("ReleaseAdmitted", Need::DataPlane),
        ],
    ),
    (
        "tidegate.lease.v1.LeaseService",
        &[
            ("Acquire", Need::DataPlane),
            ("Renew", Need::DataPlane),
            ("Release", Need::DataPlane),
            ("Status", Need::DataPlane),
            ("Fence", Need::DataPlane),
            ("RenewActivity", Need::DataPlane),
            ("EndActivity", Need::DataPlane),
        ],
    ),
    (
        "tidegate.report.v1.ReportService",
        &[
            ("Report", Need::DataPlane),
            ("RecordUsage", Need::DataPlane),
            ("ReportOpenAttempts", Need::DataPlane),
            ("ReportTelemetry", Need::DataPlane),
        ],
    ),
    (
        "tidegate.config.v1.SnapshotService",
        &[
            ("Watch", Need::DataPlane),
            ("ReportConfiguration", Need::DataPlane),
        ],
    ),
    (
        "tidegate.admin.v1.AdminService",
        &[
            ("GetConfiguration", Need::Read),
            ("ApplyConfiguration", Need::Manage),
            ("GetSettings", Need::Read),
            ("PatchSettings", Need::Manage),
            ("ListBreakers", Need::Read),
            ("ListConnections", Need::Read),
            ("ListLockouts", Need::Read),
            ("Explain", Need::Read),
            ("Reset", Need::Manage),
            ("ListTransitions", Need::Read),
            ("ReportQuota", Need::Manage),
            ("ListQuotas", Need::Read),
            ("GetStatus", Need::Read),
            ("ListCooldowns", Need::Read),
            ("ListLeases", Need::Read),
            ("EndLease", Need::Manage),
            ("ListPermits", Need::Read),
            ("ListQueues", Need::Read),
            ("ListPins", Need::Read),
            ("ClearPermits", Need::Manage),
            ("SetConnectionEnabled", Need::Manage),
            ("ListProviders", Need::Read),
            ("ListCombos", Need::Read),
            ("ListKeys", Need::Read),
            ("GetProvider", Need::Read),
            ("GetConnection", Need::Read),
            ("GetCombo", Need::Read),
            ("GetKey", Need::Read),
            ("DeleteResource", Need::Manage),
            ("ListEvents", Need::Read),
            ("WatchEvents", Need::Read),
        ],
    ),
    // What a client may do that stands behind the data plane is decided by what it showed (`crate::rest`).
    (
        "tidegate.management.v1.ManagementService",
        &[("Call", Need::DataPlane)],
    ),
    // Orchestrators probe without a token. The others tell no more, but would let anybody keep streams open.
    (
        "grpc.health.v1.Health",
        &[("Check", Need::Nothing), ("Watch", Need::Known)],
    ),
    (
        "grpc.reflection.v1.ServerReflection",
        &[("ServerReflectionInfo", Need::Known)],
    ),
    (
        "grpc.reflection.v1alpha.ServerReflection",
        &[("ServerReflectionInfo", Need::Known)],
    ),
];

/// A method of everything that is served over gRPC, for whoever checks that none is forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcMethod {
    /// Its path, such as `/tidegate.admin.v1.AdminService/GetStatus`.
    pub path: String,
    /// Who shows nothing is answered.
    pub is_for_everybody: bool,
}

/// Every method of every service. A listener may serve some services only.
pub fn grpc_methods() -> impl Iterator<Item = GrpcMethod> {
    RULES.iter().flat_map(|(service, methods)| {
        methods.iter().map(move |(method, need)| GrpcMethod {
            path: format!("/{service}/{method}"),
            is_for_everybody: *need == Need::Nothing,
        })
    })
}

/// What a call of this path needs, such as `/tidegate.admin.v1.AdminService/GetStatus`. `None`: nobody said.
pub(super) fn need(path: &str) -> Option<Need> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let (_, methods) = RULES.iter().find(|(name, _)| *name == service)?;
    let (_, need) = methods.iter().find(|(name, _)| *name == method)?;
    Some(*need)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_method_that_is_served_has_a_rule_and_every_rule_its_method() {
        let sets = [
            tidegate_proto::FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut served = BTreeSet::new();
        for set in sets {
            for file in FileDescriptorSet::decode(set).unwrap().file {
                for service in &file.service {
                    for method in &service.method {
                        let (package, service) = (file.package(), service.name());
                        served.insert(format!("/{package}.{service}/{}", method.name()));
                    }
                }
            }
        }
        let ruled: BTreeSet<String> = grpc_methods().map(|it| it.path).collect();
        assert_eq!(served, ruled);
    }

    #[test]
    fn only_what_is_called_reading_can_be_done_by_readers() {
        for (service, methods) in RULES {
            for (method, need) in methods {
                let reads = ["Get", "List", "Watch", "Explain"];
                let reads = reads.iter().any(|verb| method.starts_with(verb));
                match need {
                    Need::Read => assert!(reads, "{service}/{method} changes something"),
                    Need::Manage => assert!(!reads, "{service}/{method} changes nothing"),
                    Need::Nothing | Need::Known | Need::DataPlane => {}
                }
            }
        }
    }

    #[test]
    fn what_has_no_rule_has_no_need() {
        for path in [
            "",
            "/",
            "/tidegate.admin.v1.AdminService",
            "/tidegate.admin.v1.AdminService/",
            "/tidegate.admin.v1.AdminService/Nothing",
            "/tidegate.admin.v1.AdminService/GetStatus/more",
            "tidegate.admin.v1.AdminService/GetStatus",
        ] {
            assert_eq!(need(path), None, "{path}");
        }
    }
}

//! The gRPC contract of Tidegate, generated from the files under `proto/tidegate`. No logic.

/// `tidegate.common.v1`
pub mod common {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tidegate.common.v1");
    }
}

/// `tidegate.routing.v1`
pub mod routing {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tidegate.routing.v1");

        impl std::fmt::Debug for HandoffNote {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter
                    .debug_struct("HandoffNote")
                    .finish_non_exhaustive()
            }
        }
    }
}

/// `tidegate.report.v1`
pub mod report {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tidegate.report.v1");
    }
}

/// `tidegate.config.v1`
pub mod config {
    /// Version 1.
    #[expect(
        clippy::large_enum_variant,
        reason = "messages are moved once, and the large one is the rare one"
    )]
    pub mod v1 {
        tonic::include_proto!("tidegate.config.v1");

        impl std::fmt::Debug for Credential {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter
                    .debug_struct("Credential")
                    .field("connection", &self.connection)
                    .field("version", &self.version)
                    .finish_non_exhaustive()
            }
        }
    }
}

/// `tidegate.lease.v1`
pub mod lease {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tidegate.lease.v1");
    }
}

/// `tidegate.admin.v1`
pub mod admin {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tidegate.admin.v1");

        impl std::fmt::Debug for ApplyConfigurationRequest {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter
                    .debug_struct("ApplyConfigurationRequest")
                    .field("document", &self.document)
                    .field("credentials", &self.credentials.keys())
                    .field("refresh_tokens", &self.refresh_tokens.keys())
                    .field("client_secrets", &self.client_secrets.keys())
                    .field("expected_version", &self.expected_version)
                    .field("dry_run", &self.dry_run)
                    .field("reseal", &self.reseal)
                    .field("part", &self.part)
                    .field("author", &self.author)
                    .finish_non_exhaustive()
            }
        }
    }
}

/// `tidegate.management.v1`
pub mod management {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tidegate.management.v1");

        impl std::fmt::Debug for CallRequest {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter
                    .debug_struct("CallRequest")
                    .field("method", &self.method)
                    .field("path", &self.path)
                    .finish_non_exhaustive()
            }
        }
    }
}

/// Descriptor set of the whole contract, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tidegate.bin"));

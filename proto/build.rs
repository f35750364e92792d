//! Compiles the contract without a system `protoc` and keeps the descriptor set for gRPC reflection.

use std::path::PathBuf;

use prost::Message as _;

const FILES: [&str; 10] = [
    "tidegate/common/v1/common.proto",
    "tidegate/routing/v1/routing.proto",
    "tidegate/routing/v1/handoff.proto",
    "tidegate/routing/v1/admission.proto",
    "tidegate/report/v1/report.proto",
    "tidegate/report/v1/telemetry.proto",
    "tidegate/config/v1/config.proto",
    "tidegate/lease/v1/lease.proto",
    "tidegate/admin/v1/admin.proto",
    "tidegate/management/v1/management.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=tidegate");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("tidegate.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".tidegate.config.v1.HotValue.payload")
        // These hold secrets or what people said: their `Debug` is written by hand and shows none of it.
        .skip_debug([
            ".tidegate.routing.v1.HandoffNote",
            ".tidegate.config.v1.Credential",
            ".tidegate.admin.v1.ApplyConfigurationRequest",
            ".tidegate.management.v1.CallRequest",
        ])
        .compile_fds(descriptors)?;
    Ok(())
}

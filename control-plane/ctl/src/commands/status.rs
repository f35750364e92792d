//! `tidegatectl status`.

use serde_json::{Value, json};
use tidegate_proto::admin::v1::{DataPlaneStatus, DegradedMode, GetStatusRequest};

use crate::cli::Output;
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{print_value, write_line};

fn planes(planes: &[DataPlaneStatus]) -> Vec<Value> {
    planes
        .iter()
        .map(|plane| {
            json!({
                "name": plane.name,
                "incarnation": plane.incarnation,
                "configurationVersion": plane.configuration_version,
                "refusedVersion": plane.refused_version,
            })
        })
        .collect()
}

/// For people: its name, what it uses, and what it could not use.
fn plane_line(plane: &Value) -> String {
    let mut line = format!(
        "{} configuration {}",
        plane["name"], plane["configurationVersion"]
    );
    if plane["refusedVersion"] != 0 {
        line.push_str(&format!(", cannot use {}", plane["refusedVersion"]));
    }
    line
}

/// What is not as it should be, in a word; of a newer control plane in a number.
fn degraded(mode: i32) -> Value {
    match DegradedMode::try_from(mode) {
        Ok(known) => {
            let name = known.as_str_name();
            let word = name.strip_prefix("DEGRADED_MODE_").unwrap_or(name);
            json!(word.to_lowercase())
        }
        Err(_newer) => json!(mode),
    }
}

/// Tells how the control plane is.
pub(crate) async fn run(client: &mut Client, output: Output) -> Result<(), Failure> {
    let (service, request) = client.call(GetStatusRequest {});
    let status = service.get_status(request).await?.into_inner();
    let freshness = status.freshness.unwrap_or_default();
    let amiss: Vec<Value> = status.degraded.iter().copied().map(degraded).collect();
    let members = [
        ("degraded", json!(amiss)),
        ("replica", json!(status.replica)),
        ("version", json!(status.version)),
        ("configurationVersion", json!(status.configuration_version)),
        ("hotStoreReachable", json!(status.hot_store_reachable)),
        (
            "durableStoreReachable",
            json!(status.durable_store_reachable),
        ),
        ("viewAgeMs", json!(freshness.age_ms)),
        ("viewStale", json!(freshness.stale)),
        ("checkpointLeader", json!(status.checkpoint_leader)),
        ("replicas", json!(status.replicas)),
        ("dataPlanes", json!(status.data_planes)),
        ("dataPlanesInFleet", json!(status.data_planes_in_fleet)),
        ("planes", Value::Array(planes(&status.planes))),
    ];
    if output.is_for_people() {
        for (name, value) in &members {
            match value {
                Value::Array(lines) if *name == "planes" => {
                    for line in lines {
                        write_line(&format!("{:22} {}", "dataPlane", plane_line(line)))?;
                    }
                }
                Value::Array(all) if *name == "degraded" && all.is_empty() => {
                    write_line(&format!("{name:22} no"))?;
                }
                value => write_line(&format!("{name:22} {value}"))?,
            }
        }
        return Ok(());
    }
    let object = members
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    print_value(&serde_json::Value::Object(object), output)
}

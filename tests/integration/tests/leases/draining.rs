//! What is in flight when its lease expires. (The rest of it, which needs no short lease, is tested with the fleet.)

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http_body_util::BodyExt as _;
use serde_json::json;
use tidegate_integration::LIMIT;
use tidegate_test_support::upstream::Mode;
use tidegate_test_support::{FleetOptions, eventually};

use super::history::LeaseName;
use super::lifecycle::acquire_for;
use super::stage::{Setup, Stage};

const A: u8 = 1;
const B: u8 = 2;

#[tokio::test]
async fn vector_sessions_60_what_outlasts_its_expired_lease_is_cut_after_the_drain() -> Result<()> {
    let setup = Setup {
        settings: json!({"leases": {"drainMs": 2_000, "horizonMs": 30_000, "guardMs": 300}}),
        ..Setup::default()
    };
    let stage = Stage::start(&setup, FleetOptions::default()).await?;
    stage.upstream.set_default(Mode::Stall { events: 2 });
    let asked = Instant::now();
    let ttl = Duration::from_secs(4);
    let generation = acquire_for(&stage, 0, A, 4_000).await?;
    let lease = LeaseName {
        owner: A,
        generation: generation.ok().context("the connection is not free")?,
    };
    let response = stage.stream(1, lease).await?;
    ensure!(response.status() == 200, "{}", response.status());
    let rest = tokio::time::timeout(LIMIT, response.into_body().collect()).await??;
    let cut = asked.elapsed();
    let rest = String::from_utf8_lossy(&rest.to_bytes()).into_owned();
    assert!(rest.contains("LEASE_FENCE_STALE"), "{rest}");
    assert!(!rest.contains("[DONE]"), "{rest}");
    // The data plane counts from before it asked, so a little of the drain may be missing.
    assert!(cut >= ttl + Duration::from_millis(1_500), "{cut:?}");
    // Meanwhile it was over for everything that was not in flight.
    let answer = stage.infer(0, lease).await?;
    assert_eq!(
        answer.json()["error"]["code"],
        "LEASE_REQUIRED",
        "{answer:?}"
    );
    eventually(LIMIT, "the connection is free", || async {
        acquire_for(&stage, 1, B, 60_000).await.ok()?.ok()
    })
    .await?;
    Ok(())
}

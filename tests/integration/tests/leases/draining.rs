//! What is in flight when its lease expires, and when it would have. (The rest of it, which needs no short lease, is tested with the fleet.)

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::json;
use tidegate_integration::LIMIT;
use tidegate_test_support::upstream::{Mode, Reply};
use tidegate_test_support::{FleetOptions, eventually};

use super::history::LeaseName;
use super::lifecycle::{acquire_for, is_renewed};
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

/// For so long every lease lasts from when it was last asked for.
const TTL_MS: u64 = 4_000;

#[tokio::test]
async fn vector_sessions_62_a_stream_goes_on_while_its_lease_is_renewed_and_no_longer() -> Result<()>
{
    let setup = Setup {
        connections: 2,
        settings: json!({"leases": {"drainMs": 0, "horizonMs": 30_000, "guardMs": 300}}),
        ..Setup::default()
    };
    let stage = Stage::start(&setup, FleetOptions::default()).await?;
    stage.upstream.set_default(Mode::SlowDrip {
        gap: Duration::from_secs(1),
    });
    stage.upstream.set_reply(Reply {
        chunks: 60,
        ..Reply::default()
    });
    let (renewed, mut goes_on) = streaming(&stage, A, 0).await?;
    let (_, left_alone) = streaming(&stage, B, 1).await?;
    let began = Instant::now();
    let mut text = String::new();
    let mut replica = 0;
    // Far beyond what it was first given: a second at a time, as the upstream goes.
    while began.elapsed() < Duration::from_secs(10) {
        let stands = is_renewed(&stage, replica % 2, renewed, TTL_MS).await?;
        ensure!(stands, "not renewed after {:?}", began.elapsed());
        replica += 1;
        let frame = tokio::time::timeout(LIMIT, goes_on.frame()).await?;
        let frame = frame.with_context(|| format!("the stream ended: {text}"))?;
        if let Ok(data) = frame?.into_data() {
            text.push_str(&String::from_utf8_lossy(&data));
        }
    }
    assert!(!text.contains("LEASE_FENCE_STALE"), "{text}");
    // Both lasted for as long as their leases did, and the upstream would have gone on.
    for stream in [left_alone, goes_on] {
        let rest = tokio::time::timeout(LIMIT, stream.collect()).await??;
        let rest = String::from_utf8_lossy(&rest.to_bytes()).into_owned();
        assert!(rest.contains("LEASE_FENCE_STALE"), "{rest}");
        assert!(!rest.contains("[DONE]"), "{rest}");
    }
    Ok(())
}

/// A lease for [`TTL_MS`], and a stream under it.
async fn streaming(stage: &Stage, owner: u8, plane: usize) -> Result<(LeaseName, Incoming)> {
    let generation = acquire_for(stage, plane, owner, TTL_MS).await?;
    let lease = LeaseName {
        owner,
        generation: generation.ok().context("no connection is free")?,
    };
    let response = stage.stream(plane, lease).await?;
    ensure!(response.status() == 200, "{}", response.status());
    Ok((lease, response.into_body()))
}

//! Where requests under a lease go when their connection may not be used, and where they may not go at all.

use anyhow::{Context as _, Result, ensure};
use http::Request;
use serde_json::{Value, json};
use tidegate_integration::{Answer, LIMIT, send};
use tidegate_proto::common::v1::LeaseRefusal;
use tidegate_proto::lease::v1::{
    FenceRequest, Registration, StatusRequest, fence_response, status_response,
};
use tidegate_test_support::upstream::{Gate, Mode, Selector};
use tidegate_test_support::{FleetOptions, eventually};
use tokio_util::task::TaskTracker;

use super::history::LeaseName;
use super::stage::{Setup, Stage, chat_body, inference, wire_name};

const A: u8 = 1;
const B: u8 = 2;
const FIRST: LeaseName = LeaseName {
    owner: A,
    generation: 1,
};
/// A data plane that only this test plays.
const PLANE: u64 = 0x5eed_1ea5;

fn at(connection: &str) -> Selector {
    Selector::any().credential(format!("sk-{connection}"))
}

async fn start(connections: usize, combos: Value) -> Result<Stage> {
    let setup = Setup {
        connections,
        combos,
        ..Setup::default()
    };
    Stage::start(&setup, FleetOptions::default()).await
}

/// Why a lease is not the one of now; `None` while it is.
async fn status(stage: &Stage, replica: usize, lease: LeaseName) -> Result<Option<LeaseRefusal>> {
    let request = StatusRequest {
        lease: Some(wire_name(lease)?),
        key_id: "k1".to_owned(),
    };
    let answer = stage.leases(replica)?.status(request).await?.into_inner();
    Ok(match answer.answer.context("no answer")? {
        status_response::Answer::Standing(_) => None,
        status_response::Answer::Refused(refused) => Some(refused),
    })
}

/// The code with which a fence refuses; `None` when it grants.
async fn fence(stage: &Stage, lease: LeaseName, connection: &str) -> Result<Option<String>> {
    let request = FenceRequest {
        registration: Some(Registration {
            lease: Some(wire_name(lease)?),
            connection: connection.to_owned(),
            plane: PLANE,
            number: 1,
        }),
        key_id: "k1".to_owned(),
    };
    let answer = stage.leases(1)?.fence(request).await?.into_inner();
    Ok(match answer.answer.context("no answer")? {
        fence_response::Answer::Grant(_) => None,
        fence_response::Answer::Refused(refused) => Some(refused.code),
        fence_response::Answer::Superseded(_) => anyhow::bail!("superseded"),
    })
}

async fn state_of(stage: &Stage, replica: usize, connection: &str) -> Result<String> {
    let listed = stage
        .fleet
        .ctl_json(replica, &["get", "connections"])
        .await?;
    let found = listed
        .as_array()
        .context("no list")?
        .iter()
        .find(|row| row["id"] == connection)
        .context("no such connection")?;
    Ok(found["state"].as_str().unwrap_or_default().to_owned())
}

/// One failure under the lease takes its connection out, in every replica.
async fn fails(stage: &Stage, answer: Mode, state: &str) -> Result<Answer> {
    stage.upstream.set(at("c1"), answer);
    let failed = stage.infer(0, FIRST).await?;
    stage.upstream.set(at("c1"), Mode::Ok);
    for replica in 0..2 {
        eventually(LIMIT, "the connection is out", || async {
            let now = state_of(stage, replica, "c1").await.ok()?;
            (now == state).then_some(())
        })
        .await?;
    }
    Ok(failed)
}

fn code(answer: &Answer) -> String {
    let json = answer.json();
    json["error"]["code"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn cools() -> Mode {
    Mode::rate_limited("600")
}

#[tokio::test]
async fn vector_sessions_15_a_lease_moves_with_its_generation() -> Result<()> {
    let stage = start(2, json!([])).await?;
    assert_eq!(stage.acquire(0, A).await?, 1);
    assert_eq!(stage.infer(1, FIRST).await?.status, 200);
    assert_eq!(stage.upstream.log().count(&at("c1")), 1);
    fails(&stage, cools(), "unavailable").await?;
    for plane in 0..2 {
        let answer = stage.infer(plane, FIRST).await?;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(stage.upstream.log().count(&at("c1")), 2);
    assert!(stage.upstream.log().count(&at("c2")) >= 2);
    assert_eq!(status(&stage, 0, FIRST).await?, None);
    let rows = stage.rows(3).await?;
    let connections: Vec<_> = rows
        .iter()
        .map(|row| (row.lease, row.connection.as_str()))
        .collect();
    assert_eq!(connections, [(FIRST, "c1"), (FIRST, "c2")]);
    let elsewhere = fence(&stage, FIRST, "c1").await?;
    assert_eq!(elsewhere.as_deref(), Some("LEASE_CONNECTION_MISMATCH"));
    assert_eq!(fence(&stage, FIRST, "c2").await?, None);
    Ok(())
}

#[tokio::test]
async fn vector_sessions_16_the_only_connection_cools_and_the_lease_is_lost() -> Result<()> {
    let stage = start(1, json!([])).await?;
    assert_eq!(stage.acquire(0, A).await?, 1);
    let failed = fails(&stage, cools(), "unavailable").await?;
    assert!(
        !code(&failed).to_lowercase().contains("lease"),
        "{failed:?}"
    );
    for plane in [1, 0, 1] {
        let ordinary = stage.infer(plane, FIRST).await?;
        assert_eq!(ordinary.status, 503, "{ordinary:?}");
        assert_eq!(code(&ordinary), "all_targets_cooling_down");
    }
    let lost = status(&stage, 1, FIRST).await?.context("it stands")?;
    assert_eq!(lost.code, "LEASE_FENCE_STALE");
    stage.fleet.ctl_json(0, &["reset", "cooldowns"]).await?;
    eventually(LIMIT, "the connection is back", || async {
        let answer = stage.infer(0, FIRST).await.ok()?;
        (code(&answer) == "LEASE_REQUIRED").then_some(())
    })
    .await?;
    assert_eq!(stage.upstream.log().count(&Selector::any()), 1);
    assert_eq!(stage.acquire(1, A).await?, 2);
    Ok(())
}

#[tokio::test]
async fn vector_sessions_17_nowhere_to_move_is_a_lack_of_capacity() -> Result<()> {
    let stage = start(2, json!([])).await?;
    assert_eq!(stage.acquire(0, A).await?, 1);
    assert_eq!(stage.acquire(1, B).await?, 1);
    // The request that fails looks for another connection itself; if it has not, the next one does.
    let capacity = "lease-capacity-unavailable";
    let failed = fails(&stage, cools(), "unavailable").await?;
    let next = stage.infer(1, FIRST).await?;
    let codes = [code(&failed), code(&next)];
    ensure!(
        codes.iter().any(|code| code == capacity),
        "{failed:?} {next:?}"
    );
    ensure!(next.status.is_client_error(), "{next:?}");
    assert_eq!(stage.upstream.log().count(&at("c2")), 0);
    let lost = status(&stage, 1, FIRST).await?.context("it stands")?;
    assert_eq!(lost.code, "LEASE_FENCE_STALE");
    let again = stage
        .ask(0, A, &json!({"action": "acquire", "model": "p/m"}))
        .await?;
    assert_eq!(
        (again.status.as_u16(), code(&again).as_str()),
        (429, capacity)
    );
    Ok(())
}

#[tokio::test]
async fn vector_sessions_13_what_cannot_be_used_is_not_a_lack_of_capacity() -> Result<()> {
    let stage = start(1, json!([])).await?;
    assert_eq!(stage.acquire(0, A).await?, 1);
    let acquire = json!({"action": "acquire", "model": "p/m"});
    fails(&stage, cools(), "unavailable").await?;
    for plane in 0..2 {
        let answer = stage.ask(plane, B, &acquire).await?;
        assert_eq!(answer.status, 429, "{answer:?}");
        assert_eq!(code(&answer), "LEASE_ELIGIBILITY_UNAVAILABLE");
        assert!(!answer.headers.contains_key("retry-after"), "{answer:?}");
    }
    stage.fleet.ctl_json(0, &["reset", "cooldowns"]).await?;
    let lease = eventually(LIMIT, "a lease again", || async {
        stage.acquire(0, A).await.ok()
    })
    .await?;
    let banned = Mode::status_with_body(500, "account has been deactivated");
    stage.upstream.set(at("c1"), banned);
    let lease = LeaseName {
        owner: A,
        generation: lease,
    };
    stage.infer(1, lease).await?;
    for plane in 0..2 {
        eventually(LIMIT, "nothing is eligible", || async {
            let answer = stage.ask(plane, B, &acquire).await.ok()?;
            let found = (answer.status.as_u16(), code(&answer));
            (found == (409, "LEASE_NO_ELIGIBLE_CONNECTION".to_owned())).then_some(())
        })
        .await?;
    }
    Ok(())
}

/// Decisions 41 and 42b.
#[tokio::test]
async fn vector_sessions_24_whoever_has_no_lease_stays_off_connections_that_are_leased_or_reserved()
-> Result<()> {
    let mut setup = Setup {
        connections: 3,
        leasable: Some(2),
        ..Setup::default()
    };
    let stage = Stage::start(&setup, FleetOptions::default()).await?;
    ordinary_go_to(&stage, "c1").await?;
    // Leased, it is left alone from when everybody knows; given back, it is used again.
    assert_eq!(stage.acquire(0, A).await?, 1);
    ordinary_go_to(&stage, "c2").await?;
    stage.release(1, FIRST).await?;
    ordinary_go_to(&stage, "c1").await?;
    // Reserved, what may be leased is left alone, whether it is or not.
    setup.settings = json!({"leases": {"reservePool": true}});
    stage.apply(&setup).await?;
    ordinary_go_to(&stage, "c3").await?;
    assert_eq!(stage.acquire(1, A).await?, 2);
    ordinary_go_to(&stage, "c3").await?;
    setup.settings = json!({});
    stage.apply(&setup).await?;
    ordinary_go_to(&stage, "c2").await?;
    // Nobody can say any more what is leased, so all that may be comes last.
    for replica in &stage.fleet.control_planes {
        replica.process.kill().await?;
    }
    for plane in [0, 1, 0, 1, 0, 1] {
        assert_ne!(stage.goes_to(plane).await?, "c1");
    }
    ordinary_go_to(&stage, "c3").await
}

/// Requests without a lease go there, through every data plane, as soon as it knows; and stay there.
async fn ordinary_go_to(stage: &Stage, connection: &str) -> Result<()> {
    for plane in 0..2 {
        eventually(LIMIT, &format!("requests at {connection}"), || async {
            (stage.goes_to(plane).await.ok()? == connection).then_some(())
        })
        .await?;
    }
    for plane in [0, 1, 0, 1] {
        assert_eq!(stage.goes_to(plane).await?, connection);
    }
    Ok(())
}

#[tokio::test]
async fn vector_sessions_20_another_connection_and_vector_sessions_21_other_routes() -> Result<()> {
    let combos = json!([
        {"name": "fused", "strategy": "fusion", "steps": ["p/m", "p/m"]},
        {"name": "long", "strategy": "pipeline", "steps": ["p/m", "p/m"]},
        {"name": "single", "strategy": "pipeline", "steps": ["p/m"]},
    ]);
    let stage = start(2, combos).await?;
    assert_eq!(stage.acquire(0, A).await?, 1);
    // 20.
    for plane in 0..2 {
        let mut request = asked(&stage, plane, "p/m")?;
        let headers = request.headers_mut();
        headers.insert("x-omniroute-connection", "c2".parse()?);
        let answer = send(request).await?;
        assert_eq!(answer.status, 409, "{answer:?}");
        assert_eq!(code(&answer), "LEASE_CONNECTION_MISMATCH");
    }
    // 21.
    for model in ["fused", "long"] {
        let answer = send(asked(&stage, 0, model)?).await?;
        assert_eq!(answer.status, 409, "{model}: {answer:?}");
        assert_eq!(code(&answer), "LEASE_UNSUPPORTED_ROUTE");
    }
    assert_eq!(stage.upstream.log().count(&Selector::any()), 0);
    let answer = send(asked(&stage, 1, "single")?).await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(stage.upstream.log().count(&at("c1")), 1);
    for replica in 0..2 {
        assert_ne!(state_of(&stage, replica, "c1").await?, "unavailable");
    }
    Ok(())
}

fn asked(
    stage: &Stage,
    plane: usize,
    model: &str,
) -> Result<Request<http_body_util::Full<bytes::Bytes>>> {
    inference(
        stage.data_plane(plane)?,
        "k1",
        FIRST,
        &chat_body(model, false),
    )
}

#[tokio::test]
async fn vector_sessions_19_a_lease_is_released_while_its_request_waits() -> Result<()> {
    let setup = Setup {
        connection: json!({"maxConcurrent": 1}),
        combos: json!([{"name": "turns", "strategy": "round-robin", "steps": ["p/m"]}]),
        ..Setup::default()
    };
    let stage = Stage::start(&setup, FleetOptions::default()).await?;
    assert_eq!(stage.acquire(0, A).await?, 1);
    let gate = Gate::new();
    let held = Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(Mode::Ok),
    };
    stage.upstream.set(at("c1"), held);
    let tasks = TaskTracker::new();
    let first = tasks.spawn(send(asked(&stage, 0, "turns")?));
    ensure!(stage.upstream.log().wait_for(&at("c1"), 1, LIMIT).await);
    let waiting = tasks.spawn(send(asked(&stage, 1, "turns")?));
    // It waits in a queue, which nothing outside shows but that it does not end.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    ensure!(!waiting.is_finished());
    stage.release(1, FIRST).await?;
    gate.open();
    assert_eq!(tokio::time::timeout(LIMIT, first).await???.status, 200);
    let refused = tokio::time::timeout(LIMIT, waiting).await???;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert_eq!(code(&refused), "LEASE_REQUIRED");
    assert_eq!(stage.upstream.log().count(&Selector::any()), 1);
    Ok(())
}

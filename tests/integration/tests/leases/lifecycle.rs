//! Acquire, renew, release, status over HTTP, each asked of another data plane than the one before; and over gRPC what
//! HTTP has no member for.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tidegate_integration::{Answer, LIMIT, send};
use tidegate_proto::lease::v1::{AcquireRequest, RenewRequest, acquire_response, renew_response};
use tidegate_test_support::upstream::Selector;
use tidegate_test_support::{FleetOptions, eventually};

use super::history::LeaseName;
use super::stage::{Setup, Stage, chat_body, hash, inference, key_secret, token, wire_name};

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;

fn acquire() -> Value {
    json!({"action": "acquire", "model": "p/m"})
}

fn renew(generation: impl Into<Value>) -> Value {
    json!({"action": "renew", "generation": generation.into()})
}

fn release(generation: u64) -> Value {
    json!({"action": "release", "generation": generation, "reason": "CLIENT_CANCELLED"})
}

/// A refusal of the gateway's own, with the members that the contract gives it and no others.
fn refused(answer: &Answer, status: u16, code: &str) -> Result<()> {
    let json = answer.json();
    ensure!(
        answer.status.as_u16() == status && json["error"]["code"] == code,
        "{status} {code} expected: {answer:?}"
    );
    ensure!(json["error"]["type"] == "lease_error", "{answer:?}");
    Ok(())
}

/// A lease, with the members that the contract gives it and no others.
fn stands(answer: &Answer, state: &str, generation: u64) -> Result<()> {
    ensure!(answer.status == 200, "{answer:?}");
    let json = answer.json();
    let mut members: Vec<&String> = json.as_object().context("no object")?.keys().collect();
    members.sort();
    ensure!(
        members
            == [
                "acquiredAt",
                "expiresAt",
                "generation",
                "renewedAt",
                "state"
            ],
        "{json}"
    );
    ensure!(
        json["state"] == state && json["generation"] == generation,
        "{state} {generation} expected: {json}"
    );
    Ok(())
}

/// A moment of an answer, in ms since the Unix epoch.
fn moment(answer: &Answer, member: &str) -> Result<i64> {
    let json = answer.json();
    let text = json[member].as_str().context("no moment")?;
    ensure!(text.len() == 24 && text.ends_with('Z'), "{text}");
    Ok(text.parse::<jiff::Timestamp>()?.as_millisecond())
}

#[tokio::test]
async fn vector_sessions_04_acquire_vector_sessions_05_again_vector_sessions_06_renew_vector_sessions_07_release_vector_sessions_08_anew()
-> Result<()> {
    let stage = Stage::start(&Setup::default(), FleetOptions::default()).await?;
    // 4.
    let first = stage.ask(0, A, &acquire()).await?;
    stands(&first, "ACTIVE", 1)?;
    let lasts = moment(&first, "expiresAt")? - moment(&first, "acquiredAt")?;
    assert_eq!(lasts, 120_000);
    // 5.
    let again = stage.ask(1, A, &acquire()).await?;
    stands(&again, "ACTIVE", 1)?;
    assert_eq!(moment(&again, "acquiredAt")?, moment(&first, "acquiredAt")?);
    assert!(moment(&again, "expiresAt")? >= moment(&first, "expiresAt")?);
    // 6.
    let renewed = stage.ask(0, A, &renew(1)).await?;
    stands(&renewed, "ACTIVE", 1)?;
    let lasts = moment(&renewed, "expiresAt")? - moment(&renewed, "renewedAt")?;
    assert_eq!(lasts, 120_000);
    refused(&stage.ask(1, A, &renew(2)).await?, 409, "LEASE_FENCE_STALE")?;
    for generation in [
        json!(0),
        json!(-1),
        json!(1.5),
        json!("1"),
        json!(1_u64 << 53),
    ] {
        let answer = stage.ask(0, A, &renew(generation)).await?;
        refused(&answer, 400, "LEASE_ACTION_INVALID")?;
    }
    let first_lease = LeaseName {
        owner: A,
        generation: 1,
    };
    assert_eq!(stage.infer(1, first_lease).await?.status, 200);
    // 7.
    stands(&stage.ask(1, A, &release(1)).await?, "RELEASED", 1)?;
    stands(&stage.ask(0, A, &release(1)).await?, "RELEASED", 1)?;
    refused(&stage.ask(1, A, &renew(1)).await?, 409, "LEASE_FENCE_STALE")?;
    for plane in 0..2 {
        let answer = stage.infer(plane, first_lease).await?;
        refused(&answer, 409, "LEASE_REQUIRED")?;
    }
    assert_eq!(stage.upstream.log().count(&Selector::any()), 1);
    // 8.
    stands(&stage.ask(0, A, &acquire()).await?, "ACTIVE", 2)?;
    stands(&stage.ask(1, A, &release(1)).await?, "RELEASED", 1)?;
    let status = json!({"action": "status", "generation": 2});
    let standing = stage.ask(0, A, &status).await?;
    assert_eq!(standing.status, 200, "{standing:?}");
    assert_eq!(standing.json()["state"], "ACTIVE");
    refused(
        &stage.infer(0, first_lease).await?,
        409,
        "LEASE_FENCE_STALE",
    )?;
    Ok(())
}

#[tokio::test]
async fn vector_sessions_02_owners_vector_sessions_11_capacity_vector_sessions_14_keys_vector_sessions_18_generations()
-> Result<()> {
    let stage = Stage::start(&Setup::default(), FleetOptions::default()).await?;
    // 2.
    let long = format!("vlo_{}", "A".repeat(44));
    let short = format!("vlo_{}", "A".repeat(42));
    let upper = format!("VLO_{}", "A".repeat(43));
    let padded = format!("vlo_{}=", "A".repeat(42));
    let plus = format!("vlo_{}+", "A".repeat(42));
    let slash = format!("vlo_{}/", "A".repeat(42));
    for owner in ["vlo_short", &long, &short, &upper, &padded, &plus, &slash] {
        let answer = ask_raw(&stage, Some(owner)).await?;
        refused(&answer, 400, "LEASE_CONTEXT_INVALID")?;
        ensure!(!String::from_utf8_lossy(&answer.body).contains(owner));
    }
    refused(&ask_raw(&stage, None).await?, 400, "LEASE_CONTEXT_REQUIRED")?;
    let spaced = format!("  {} ", token(A));
    stands(&ask_raw(&stage, Some(&spaced)).await?, "ACTIVE", 1)?;

    // 11.
    for plane in 0..2 {
        let answer = stage.ask(plane, B, &acquire()).await?;
        let full = answer.json();
        assert_eq!(answer.status, 429, "{answer:?}");
        let after = full["retryAfter"].as_u64().context("no retryAfter")?;
        assert!((1..=120).contains(&after), "{full}");
        assert_eq!(answer.headers["retry-after"], after.to_string());
        assert_eq!(full["state"], "WAITING_FOR_CAPACITY");
        assert_eq!(full["error"]["code"], "lease-capacity-unavailable");
        assert_eq!(
            (&full["freeCount"], &full["eligibleCount"]),
            (&json!(0), &json!(1))
        );
        for secret in [&token(A), &token(B), "apiKey", "c1", "k1"] {
            assert!(!full.to_string().contains(secret), "{full}");
        }
    }

    // 14.
    let stale = "LEASE_FENCE_STALE";
    for body in [renew(1), release(1), acquire()] {
        refused(&stage.ask_with(1, "k2", A, &body).await?, 409, stale)?;
    }
    stands(&stage.ask(0, A, &renew(1)).await?, "ACTIVE", 1)?;
    let lease = LeaseName {
        owner: A,
        generation: 1,
    };
    let foreign = inference(stage.data_plane(0)?, "k2", lease, &chat_body("p/m", false))?;
    refused(&send(foreign).await?, 409, stale)?;

    // 18.
    for generation in [None, Some("01"), Some("+1"), Some("1.0")] {
        let mut request = inference(stage.data_plane(1)?, "k1", lease, &chat_body("p/m", false))?;
        request.headers_mut().remove("x-omniroute-lease-generation");
        if let Some(generation) = generation {
            let headers = request.headers_mut();
            headers.insert("x-omniroute-lease-generation", generation.parse()?);
        }
        refused(&send(request).await?, 400, "LEASE_CONTEXT_INVALID")?;
    }
    assert_eq!(stage.upstream.log().count(&Selector::any()), 0);
    assert_eq!(stage.infer(1, lease).await?.status, 200);
    Ok(())
}

async fn ask_raw(stage: &Stage, owner: Option<&str>) -> Result<Answer> {
    let url = format!("http://{}/api/v1/session-leases", stage.data_plane(0)?);
    let mut request = Request::post(url)
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {}", key_secret("k1")));
    if let Some(owner) = owner {
        request = request.header("x-omniroute-lease-owner", owner);
    }
    send(request.body(Full::new(Bytes::from(acquire().to_string())))?).await
}

/// What an acquire with a time of its own is answered: the generation, or the seconds after which to ask again.
pub(crate) async fn acquire_for(
    stage: &Stage,
    replica: usize,
    owner: u8,
    ttl_ms: u64,
) -> Result<Result<u64, u64>> {
    let request = AcquireRequest {
        owner_sha256: hash(owner)?.as_bytes().to_vec(),
        key_id: "k1".to_owned(),
        model: "p/m".to_owned(),
        ttl_ms,
        configuration_version: 1,
    };
    let answer = stage.leases(replica)?.acquire(request).await?.into_inner();
    match answer.answer.context("no answer")? {
        acquire_response::Answer::Lease(lease) => Ok(Ok(lease.generation)),
        acquire_response::Answer::Refused(refused) => {
            ensure!(refused.code == "lease-capacity-unavailable", "{refused:?}");
            Ok(Err(refused.retry_after_seconds))
        }
    }
}

/// Whether a lease stands, and lasts for so long from now.
pub(crate) async fn is_renewed(
    stage: &Stage,
    replica: usize,
    lease: LeaseName,
    ttl_ms: u64,
) -> Result<bool> {
    let request = RenewRequest {
        lease: Some(wire_name(lease)?),
        key_id: "k1".to_owned(),
        ttl_ms,
    };
    let answer = stage.leases(replica)?.renew(request).await?.into_inner();
    match answer.answer.context("no answer")? {
        renew_response::Answer::Lease(_) => Ok(true),
        renew_response::Answer::Refused(refused) => {
            ensure!(refused.code == "LEASE_FENCE_STALE", "{refused:?}");
            Ok(false)
        }
    }
}

#[tokio::test]
async fn vector_sessions_09_expiry_vector_sessions_10_renewal_vector_sessions_12_retry_after()
-> Result<()> {
    let setup = Setup {
        connections: 2,
        ..Setup::default()
    };
    let stage = Stage::start(&setup, FleetOptions::default()).await?;
    let first = LeaseName {
        owner: A,
        generation: 1,
    };
    // 9.
    assert_eq!(acquire_for(&stage, 0, A, 1_000).await?, Ok(1));
    eventually(LIMIT, "the first lease to expire", || async {
        (!is_live(&stage, first).await.ok()?).then_some(())
    })
    .await?;
    assert!(!is_renewed(&stage, 1, first, 1_000).await?);
    assert_eq!(acquire_for(&stage, 1, B, 600_000).await?, Ok(1));
    assert_eq!(acquire_for(&stage, 0, A, 1_000).await?, Ok(2));
    let rows = stage.rows(4).await?;
    let where_it_was: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row.lease.owner,
                row.lease.generation,
                row.connection.as_str(),
            )
        })
        .collect();
    assert_eq!(where_it_was, [(A, 1, "c1"), (B, 1, "c1"), (A, 2, "c2")]);
    assert_eq!(
        rows[0].held.until - rows[0].held.from,
        Duration::from_secs(1)
    );
    // 12: that of the first one to end, not of the other.
    let second = LeaseName {
        owner: A,
        generation: 2,
    };
    let busy = acquire_for(&stage, 1, C, 1_000).await?;
    // On a machine that stood still it may have expired meanwhile.
    assert!(
        busy == Err(1) || !is_live(&stage, second).await?,
        "{busy:?}"
    );
    // 10: asked for a little at a time, it outlives what it was first given by far.
    let third = match acquire_for(&stage, 0, A, 600_000).await? {
        Ok(generation) => LeaseName {
            owner: A,
            generation,
        },
        Err(_) => anyhow::bail!("somebody else has it"),
    };
    assert!(is_renewed(&stage, 1, third, 90_000).await?);
    let busy = acquire_for(&stage, 0, C, 1_000).await?;
    assert!(
        busy.is_err_and(|after| (60..=90).contains(&after)),
        "{busy:?}"
    );
    assert!(is_renewed(&stage, 0, third, 1_500).await?);
    eventually(LIMIT, "the last lease to expire", || async {
        acquire_for(&stage, 1, C, 1_000).await.ok()?.ok()
    })
    .await?;
    assert!(!is_renewed(&stage, 0, third, 1_000).await?);
    Ok(())
}

async fn is_live(stage: &Stage, lease: LeaseName) -> Result<bool> {
    let request = tidegate_proto::lease::v1::StatusRequest {
        lease: Some(wire_name(lease)?),
        key_id: "k1".to_owned(),
    };
    let answer = stage.leases(0)?.status(request).await?.into_inner();
    Ok(matches!(
        answer.answer.context("no answer")?,
        tidegate_proto::lease::v1::status_response::Answer::Standing(_)
    ))
}

#[tokio::test]
async fn vector_sessions_22_nine_connections_have_nine_owners() -> Result<()> {
    const CONNECTIONS: u8 = 9;
    let setup = Setup {
        connections: usize::from(CONNECTIONS),
        ..Setup::default()
    };
    let options = FleetOptions {
        control_planes: 3,
        ..FleetOptions::default()
    };
    let stage = Stage::start(&setup, options).await?;
    let asked = (1..=CONNECTIONS).map(|owner| {
        let stage = &stage;
        async move { acquire_for(stage, usize::from(owner % 3), owner, 600_000).await }
    });
    let answers = futures::future::try_join_all(asked).await?;
    assert!(answers.iter().all(|answer| *answer == Ok(1)), "{answers:?}");
    let connections: std::collections::BTreeSet<String> = stage
        .rows(CONNECTIONS + 1)
        .await?
        .into_iter()
        .map(|row| row.connection)
        .collect();
    assert_eq!(connections.len(), usize::from(CONNECTIONS));
    let last = acquire_for(&stage, 0, CONNECTIONS + 1, 600_000).await?;
    assert!(
        last.is_err_and(|after| (1..=600).contains(&after)),
        "{last:?}"
    );
    Ok(())
}

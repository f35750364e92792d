//! The contract's management endpoints: at control planes, and through data planes, whose base URL is all that scripts know.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tidegate_control::rest::{Stranger, api_paths, telemetry_paths};
use tidegate_integration::strangers::{self, Door};
use tidegate_integration::{Answer, CLIENT_KEY, LIMIT, World, chat, metric, send};
use tidegate_proxy::{Guard, served};
use tidegate_test_support::upstream::{Gate, Mode, Selector};
use tidegate_test_support::{ADMIN_TOKEN, eventually};
use tokio_util::task::TaskTracker;

const HEALTH: &str = "/api/monitoring/health";
const SETTINGS: &str = "/api/resilience";

async fn ask(
    addr: SocketAddr,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: &Value,
) -> Result<Answer> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://{addr}{path}"))
        .header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = if body.is_null() {
        Bytes::new()
    } else {
        body.to_string().into()
    };
    send(request.body(Full::new(body))?).await
}

async fn show(addr: SocketAddr, path: &str) -> Result<Value> {
    let answer = ask(addr, Method::GET, path, Some(ADMIN_TOKEN), &Value::Null).await?;
    ensure!(answer.status == 200, "{path}: {answer:?}");
    Ok(answer.json())
}

/// The breaker of a provider, as health tells it.
async fn breaker(addr: SocketAddr, provider: &str) -> Option<Value> {
    let health = show(addr, HEALTH).await.ok()?;
    let breakers = health["providerBreakers"].as_array()?;
    breakers.iter().find(|it| it["name"] == provider).cloned()
}

#[tokio::test]
async fn scripts_with_one_base_url_see_change_and_reset_the_whole_fleet() -> Result<()> {
    let world = World::start().await?;
    let planes = [world.data_plane(0)?, world.data_plane(1)?];
    let replicas: Vec<SocketAddr> = world.fleet.control_planes.iter().map(|it| it.api).collect();
    let everywhere = [planes.to_vec(), replicas.clone()].concat();

    // Who is who is the control plane's to say, whichever way is taken (vector 57).
    let word = json!({"status": "healthy"});
    for addr in &everywhere {
        eventually(LIMIT, "health", || async {
            let answer = ask(*addr, Method::GET, HEALTH, None, &Value::Null)
                .await
                .ok()?;
            (answer.json() == word).then_some(())
        })
        .await?;
        let cooldowns = "/api/resilience/model-cooldowns";
        for (token, status) in [
            (None, 401),
            (Some("wrong"), 401),
            (Some(CLIENT_KEY), 403),
            (Some(ADMIN_TOKEN), 200),
        ] {
            let answer = ask(*addr, Method::GET, cooldowns, token, &Value::Null).await?;
            assert_eq!(answer.status, status, "{addr} with {token:?}");
        }
    }

    // A change through one data plane is in force at every control plane (vector 58).
    let thresholds = json!({"failureThreshold": 2, "degradationThreshold": 1});
    let patch = json!({"providerBreaker": {"apikey": thresholds}});
    let patched = ask(
        planes[0],
        Method::PATCH,
        SETTINGS,
        Some(ADMIN_TOKEN),
        &patch,
    )
    .await?;
    assert_eq!(patched.status, 200, "{patched:?}");
    assert_eq!(patched.json()["ok"], true);
    for addr in &everywhere {
        eventually(LIMIT, "the change", || async {
            let settings = show(*addr, SETTINGS).await.ok()?;
            let breaker = &settings["providerBreaker"]["apikey"];
            (breaker["failureThreshold"] == 2).then_some(())
        })
        .await?;
    }
    let bad = json!({"providerBreaker": {"apikey": {"failureThreshold": 0}}, "magic": {}});
    let refused = ask(planes[1], Method::PATCH, SETTINGS, Some(ADMIN_TOKEN), &bad).await?;
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.json()["error"]["details"].as_array().map(Vec::len),
        Some(2)
    );

    // Two attempts begin, then the breaker opens without them.
    let gate = Gate::new();
    world.one.set_default(Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(Mode::status(503)),
    });
    let tasks = TaskTracker::new();
    let late = [0, 1].map(|_| tasks.spawn(chat(planes[1], "one/m")));
    eventually(LIMIT, "both are under way", || async {
        (world.one.log().count(&Selector::any()) == 2).then_some(())
    })
    .await?;
    world.one.set_default(Mode::status(503));
    chat(planes[0], "one/m").await?;
    for addr in &everywhere {
        eventually(LIMIT, "the open breaker", || async {
            (breaker(*addr, "one").await?["state"] == "OPEN").then_some(())
        })
        .await?;
    }
    let models = ask(
        planes[0],
        Method::GET,
        "/v1/models/health?ids=one/m,main",
        Some(CLIENT_KEY),
        &Value::Null,
    );
    let models = models.await?.json();
    let states: Vec<&Value> = [0, 1]
        .iter()
        .map(|it: &usize| &models["data"][*it]["state"])
        .collect();
    assert!(
        states.contains(&&json!("ok")) && states.contains(&&json!("cooling")),
        "{models}"
    );

    // A reset through a data plane counts everywhere, and what began before it does not undo it.
    let reset = "/api/resilience/reset";
    let done = ask(
        planes[0],
        Method::POST,
        reset,
        Some(ADMIN_TOKEN),
        &Value::Null,
    )
    .await?;
    assert_eq!(
        (done.status.as_u16(), &done.json()["resetCount"]),
        (200, &json!(1))
    );
    for replica in [0, 1] {
        eventually(LIMIT, "the closed breaker", || async {
            let breaker = world.breaker(replica, "one").await.ok()?;
            (breaker["state"] == "CLOSED").then_some(())
        })
        .await?;
    }
    gate.open();
    for late in late {
        assert_ne!(late.await??.status, 200);
    }
    let admin = world
        .fleet
        .data_planes
        .get(1)
        .context("a data plane")?
        .admin;
    eventually(LIMIT, "their reports are acknowledged", || async {
        let waiting = metric(admin, "tidegate_dp_reports_waiting").await.ok()?;
        let under_way = metric(admin, "tidegate_dp_reports_under_way").await.ok()?;
        (waiting + under_way < 0.5).then_some(())
    })
    .await?;
    for replica in [0, 1] {
        let breaker = world.breaker(replica, "one").await?;
        assert_eq!(
            (&breaker["state"], &breaker["failures"]),
            (&json!("CLOSED"), &json!(0)),
            "{breaker}"
        );
    }

    strangers_get_nowhere(&world).await?;

    // Nobody is left to ask.
    for replica in &world.fleet.control_planes {
        replica.process.kill().await?;
    }
    let answer = ask(
        planes[1],
        Method::GET,
        HEALTH,
        Some(ADMIN_TOKEN),
        &Value::Null,
    )
    .await?;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["status"]),
        (200, &json!("degraded"))
    );
    let answer = ask(
        planes[1],
        Method::GET,
        SETTINGS,
        Some(ADMIN_TOKEN),
        &Value::Null,
    )
    .await?;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["code"], "control_plane_unreachable");

    // What was shown stands in no log.
    for process in world.fleet.data_planes.iter().map(|it| &it.process) {
        let log = process.log()?;
        assert!(log.contains("patch_settings") || log.contains("show_health"));
        assert!(
            !log.contains(ADMIN_TOKEN) && !log.contains("Bearer"),
            "{log}"
        );
    }
    Ok(())
}

/// Every method of every path of every HTTP listener of real processes, without a credential.
async fn strangers_get_nowhere(world: &World) -> Result<()> {
    let replica = world.fleet.control_planes.first().context("a replica")?;
    let plane = world.fleet.data_planes.first().context("a data plane")?;
    let mut doors = Vec::new();
    for (addr, paths) in [
        (replica.api, api_paths().collect::<Vec<_>>()),
        (replica.http, telemetry_paths().collect()),
    ] {
        doors.extend(paths.into_iter().map(|served| Door {
            addr,
            path: served.path,
            allow: served.allow,
            status: match served.without_credentials {
                Stranger::Answered => 200,
                Stranger::Status | Stranger::Refused => 401,
            },
        }));
    }
    doors.extend(served().map(|served| Door {
        addr: if served.is_admin {
            plane.admin
        } else {
            plane.http
        },
        path: served.path,
        allow: served.allow,
        status: match served.guard {
            Guard::Nobody => 200,
            Guard::Key | Guard::LeaseKey | Guard::ControlPlane => 401,
        },
    }));
    assert!(doors.len() > 30);
    let before = world.one.log().count(&Selector::any());
    strangers::get_nowhere(&doors).await?;
    assert_eq!(world.one.log().count(&Selector::any()), before);
    Ok(())
}

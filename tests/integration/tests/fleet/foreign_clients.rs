//! Clients of the administration API that are not ours: one that Python makes from the protos, and `grpcurl`, which has
//! nothing but reflection (v1alpha). Both look, explain and reset.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tidegate_integration::{LIMIT, World, chat};
use tidegate_test_support::upstream::Mode;
use tidegate_test_support::{
    ADMIN_TOKEN, ClientCall, Finished, FleetOptions, ProcessBuilder, PythonClients, eventually,
};

const SERVICE: &str = "tidegate.admin.v1.AdminService";

/// `grpcurl` with an operator's token.
struct Grpcurl {
    program: PathBuf,
    addr: SocketAddr,
}

impl Grpcurl {
    async fn run(&self, token: Option<&str>, arguments: &[&str]) -> Result<Finished> {
        let mut builder = ProcessBuilder::program("grpcurl", &self.program).arg("-plaintext");
        if let Some(token) = token {
            builder = builder.args(["-H", &format!("authorization: Bearer {token}")]);
        }
        builder.args(arguments).run(LIMIT).await
    }

    /// Calls a method; the answer as JSON.
    async fn call(&self, method: &str, message: Value) -> Result<Value> {
        let (addr, method) = (self.addr.to_string(), format!("{SERVICE}/{method}"));
        let message = message.to_string();
        let arguments = ["-d", &message, &addr, &method];
        let finished = self.run(Some(ADMIN_TOKEN), &arguments).await?;
        ensure!(finished.status.success(), "{finished:?}");
        Ok(serde_json::from_str(&finished.stdout)?)
    }
}

/// Requests fail until the breaker of provider `two` is open.
async fn open_breaker(world: &World) -> Result<()> {
    world.two.set_default(Mode::status(500));
    let plane = world.data_plane(0)?;
    eventually(LIMIT, "the breaker opens", || async {
        chat(plane, "two/m").await.ok()?;
        let breaker = world.breaker(0, "two").await.ok()?;
        (breaker["state"] == "OPEN").then_some(())
    })
    .await?;
    world.two.set_default(Mode::Ok);
    Ok(())
}

async fn is_closed(world: &World) -> Result<()> {
    eventually(LIMIT, "the breaker closes", || async {
        let breaker = world.breaker(0, "two").await.ok()?;
        (breaker["state"] == "CLOSED").then_some(())
    })
    .await?;
    ensure!(chat(world.data_plane(0)?, "two/m").await?.status == 200);
    Ok(())
}

#[tokio::test]
async fn clients_from_the_protos_or_from_reflection_look_explain_and_reset() -> Result<()> {
    let clients = PythonClients::prepare().await?;
    let world = World::start_with(FleetOptions {
        control_planes: 1,
        data_planes: 1,
        ..FleetOptions::default()
    })
    .await?;
    // Only the breaker is to stand in the way.
    let document = world.document().replace(
        "modelLockout: {enabled: true}",
        "connectionCooldown: {apikey: {baseCooldownMs: 0}}",
    );
    world.fleet.apply(&document).await?;
    let addr = world
        .fleet
        .control_planes
        .first()
        .context("a replica")?
        .grpc;

    // Python.
    open_breaker(&world).await?;
    let modes = ["breakers", "connections", "explain", "refused", "reset"];
    let call = ClientCall::new(addr.to_string(), "two/m", ADMIN_TOKEN).modes(modes);
    let run = clients.run("admin_grpc.py", &call).await?;
    ensure!(run.ok && run.lines.len() == modes.len(), "{run:?}");
    let breakers = &run.mode("breakers")["breakers"];
    let expected = json!({"claude": "CLOSED", "one": "CLOSED", "two": "OPEN"});
    ensure!(*breakers == expected, "{run:?}");
    let listed = &run.mode("connections")["connections"];
    let expected = json!(["claude-a", "one-a", "one-b", "two-a"]);
    ensure!(*listed == expected, "{run:?}");
    let explained = run.mode("explain");
    ensure!(explained["decision"] == "reject", "{run:?}");
    let excluded = &explained["targets"][0]["excluded"];
    ensure!(*excluded == json!(["circuit_open"]), "{run:?}");
    let refused = run.mode("refused");
    ensure!(refused["status"] == "INVALID_ARGUMENT", "{run:?}");
    ensure!(refused["reason"] == "CP0006", "{run:?}");
    ensure!(refused["fields"] == json!(["page_size"]), "{run:?}");
    ensure!(run.mode("reset")["reset"] == 1, "{run:?}");
    is_closed(&world).await?;

    // grpcurl.
    open_breaker(&world).await?;
    let grpcurl = Grpcurl {
        program: clients.tool("grpcurl"),
        addr,
    };
    let to = addr.to_string();
    let services = grpcurl.run(Some(ADMIN_TOKEN), &[&to, "list"]).await?;
    ensure!(services.stdout.contains(SERVICE), "{services:?}");
    let breakers = grpcurl.call("ListBreakers", json!({})).await?;
    let open: Vec<_> = breakers["breakers"]
        .as_array()
        .context("a list")?
        .iter()
        .filter(|it| it["state"] == "OPEN")
        .map(|it| &it["provider"])
        .collect();
    ensure!(open == ["two"], "{breakers}");
    let explained = grpcurl.call("Explain", json!({"model": "two/m"})).await?;
    let reason = &explained["targets"][0]["exclusions"][0]["reason"];
    ensure!(*reason == "circuit_open", "{explained}");
    let wanted = json!({"scope": "RESET_SCOPE_BREAKERS", "provider": "two"});
    let reset = grpcurl.call("Reset", wanted).await?;
    ensure!(reset["resetCount"] == 1, "{reset}");
    is_closed(&world).await?;

    // Without a token there is not even a list of services.
    let denied = grpcurl.run(None, &[&to, "list"]).await?;
    ensure!(!denied.status.success(), "{denied:?}");
    ensure!(!denied.stdout.contains(SERVICE), "{denied:?}");
    let method = format!("{SERVICE}/GetStatus");
    let denied = grpcurl
        .run(Some("wrong"), &["-d", "{}", &to, &method])
        .await?;
    ensure!(!denied.status.success(), "{denied:?}");
    ensure!(denied.stderr.contains("Unauthenticated"), "{denied:?}");
    Ok(())
}

//! A new operator with nothing but the README and `tidegatectl --help`: finds why a model is not served, re-enables it, resets
//! a breaker, bans and unbans a connection, changes a threshold and sees the event.

mod manual;
mod newcomer;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tidegate_integration::{LIMIT, World, chat};
use tidegate_test_support::upstream::{Gate, Mode, Selector};
use tidegate_test_support::{
    ADMIN_TOKEN, Process, ProcessBuilder, ScratchDir, bin_dir, eventually,
};

use crate::permits::{held_at, one_a, reaches, send, with_cap};
use crate::rotation::patient;

use newcomer::Newcomer;

/// What `tidegatectl` prints for people.
async fn said(world: &World, arguments: &[&str]) -> Result<String> {
    let finished = world.fleet.ctl(0, arguments).await?;
    ensure!(
        finished.status.success(),
        "{arguments:?}: {}",
        finished.stderr
    );
    Ok(finished.stdout)
}

fn printed(process: &Process) -> Result<String> {
    Ok(std::fs::read_to_string(process.dir().join("stdout.log"))?)
}

/// A fleet in which provider one has a quota for each model.
async fn world() -> Result<World> {
    let world = World::start().await?;
    let document = world
        .document()
        .replace("{id: one, ", "{id: one, perModelQuota: true, ");
    world.fleet.apply(&document).await?;
    Ok(world)
}

#[tokio::test]
async fn a_new_operator_finds_mends_bans_and_changes_what_they_want() -> Result<()> {
    let world = world().await?;
    let newcomer = Newcomer::of(&world);
    let plane = world.data_plane(0)?;

    // Why is the model not served? Its account cools.
    world.two.set_default(Mode::status(429));
    assert_ne!(chat(plane, "two/m").await?.status, 200);
    world.two.set_default(Mode::Ok);
    eventually(LIMIT, "the reason is told", || async {
        let explained = newcomer.reads(&["explain", "two/m"]).await.ok()?;
        (explained.contains("reject") && explained.contains("two-a")).then_some(())
    })
    .await?;
    let cooling = newcomer.reads(&["get", "cooldowns", "two-a"]).await?;
    assert!(cooling.contains("two-a"), "{cooling}");
    let told = newcomer.finds(&["describe", "connection", "two-a"]).await?;
    assert_eq!(told["configured"]["provider"], "two");
    assert_eq!(told["status"][0]["state"], "unavailable", "{told}");
    assert!(!told["cooldowns"].as_array().context("a list")?.is_empty());

    // It is well again.
    newcomer
        .insists(&["reset", "--connection", "two-a"])
        .await?;
    served(&world, "two/m").await?;

    // Another one is not served because it is locked on both accounts, of which nothing else is excluded.
    world.one.set_default(Mode::status(429));
    assert_ne!(chat(plane, "one/m").await?.status, 200);
    world.one.set_default(Mode::Ok);
    eventually(LIMIT, "the reason is told", || async {
        let explained = newcomer.reads(&["explain", "one/m"]).await.ok()?;
        (explained.contains("reject") && explained.contains("model_lockout")).then_some(())
    })
    .await?;
    let locked = newcomer
        .finds(&["get", "lockouts", "--provider", "one"])
        .await?;
    let locked = locked.as_array().context("a list")?;
    let accounts: Vec<_> = locked.iter().map(|lock| &lock["connection"]).collect();
    assert_eq!(locked.len(), 2, "{locked:?}");
    assert!(accounts.contains(&&json!("one-a")) && accounts.contains(&&json!("one-b")));
    assert!(locked.iter().all(|lock| lock["model"] == "m"), "{locked:?}");
    let cooling = newcomer.finds(&["get", "cooldowns", "one-a"]).await?;
    assert_eq!(cooling, json!([]));
    assert_ne!(chat(plane, "one/m").await?.status, 200);
    let reset = ["reset", "lockouts", "--provider", "one", "--model", "m"];
    newcomer.insists(&reset).await?;
    let locked = ["get", "lockouts", "--provider", "one"];
    assert_eq!(newcomer.finds(&locked).await?, json!([]));
    served(&world, "one/m").await?;

    // A threshold is changed, and the change is seen as it happens.
    let effective = newcomer.reads(&["settings", "get", "--effective"]).await?;
    let watch = newcomer.watches(&["watch", "--kind", "configuration", "--count", "1"])?;
    eventually(LIMIT, "the watch has begun", || async {
        printed(&watch).ok()?.contains("watching").then_some(())
    })
    .await?;
    let changes = [
        "providerBreaker.apikey.failureThreshold=2",
        "providerBreaker.apikey.degradationThreshold=1",
        "connectionCooldown.apikey.baseCooldownMs=0",
        "modelLockout.enabled=false",
    ];
    for change in changes {
        let setting = change.split('=').next().context("a name")?;
        assert!(effective.contains(setting), "{setting} in {effective}");
    }
    let set = [
        ["settings", "set"].as_slice(),
        &changes,
        &["--author", "newcomer"],
    ]
    .concat();
    newcomer.reads(&set).await?;
    ensure!(watch.wait(LIMIT).await?.success(), "{}", printed(&watch)?);
    let seen = printed(&watch)?;
    assert!(seen.contains("failureThreshold: 3 -> 2"), "{seen}");
    assert!(seen.contains("by admin newcomer"), "{seen}");
    let events = ["get", "events", "--kind", "configuration"];
    let listed = newcomer.finds(&events).await?;
    let newest = listed[0]["change"].as_str().context("a change")?;
    assert!(newest.contains("failureThreshold: 3 -> 2"), "{listed}");

    // A breaker opens and is reset.
    world.two.set_default(Mode::status(500));
    eventually(LIMIT, "the breaker opens", || async {
        chat(plane, "two/m").await.ok()?;
        let breaker = breaker(&newcomer).await.ok()?;
        (breaker["state"] == "OPEN").then_some(())
    })
    .await?;
    world.two.set_default(Mode::Ok);
    newcomer
        .insists(&["reset", "breakers", "--provider", "two"])
        .await?;
    eventually(LIMIT, "the breaker closes", || async {
        (breaker(&newcomer).await.ok()?["state"] == "CLOSED").then_some(())
    })
    .await?;
    served(&world, "two/m").await?;

    // A connection is banned: nothing is sent on it. Then it is used again.
    let banned = newcomer.reads(&["ban", "one-a"]).await?;
    assert!(banned.contains("enabled: unset -> false"), "{banned}");
    let of_a = Selector::any().credential("sk-one-a");
    for replica in 0..2 {
        eventually(LIMIT, "the ban is known everywhere", || async {
            let state = world.connection(replica, "one-a").await.ok()?;
            (state["state"] == "disabled").then_some(())
        })
        .await?;
    }
    uses(&world, "one-b").await?;
    let before = world.one.log().count(&of_a);
    for _ in 0..5 {
        assert_eq!(chat(plane, "one/m").await?.status, 200);
    }
    assert_eq!(world.one.log().count(&of_a), before);
    newcomer.reads(&["unban", "one-a"]).await?;
    uses(&world, "one-a").await?;

    // Of one connection all is found, however much happened elsewhere since.
    let own = ["get", "transitions", "two-a", "--limit", "1"];
    let own = newcomer.finds(&own).await?;
    assert_eq!(own[0]["connection"], "two-a", "{own}");

    // The whole story is there to be read.
    let story = newcomer.reads(&["get", "events", "-o", "wide"]).await?;
    for part in [
        "breaker",
        "configuration",
        "connection one-a switched off",
        "cleared",
    ] {
        assert!(story.contains(part), "{part} in {story}");
    }
    newcomer.needed_no_more_than_readme_and_help().await?;

    // What is gone is still known to history, also where it has nothing of what is asked for.
    said(&world, &["delete", "connection", "two-a"]).await?;
    for narrowed in [["--kind", "refreshed"], ["--since", "0s"]] {
        let asked = [["get", "events"].as_slice(), &["two-a"], &narrowed].concat();
        let nothing = world.fleet.ctl_json(0, &asked).await?;
        assert_eq!(nothing, serde_json::json!([]), "{narrowed:?}");
    }
    Ok(())
}

async fn breaker(newcomer: &Newcomer<'_>) -> Result<Value> {
    let listed = newcomer.finds_at(1, &["get", "breakers", "two"]).await?;
    Ok(listed[0].clone())
}

async fn served(world: &World, model: &str) -> Result<()> {
    let plane = world.data_plane(0)?;
    eventually(LIMIT, "the model is served", || async {
        (chat(plane, model).await.ok()?.status == 200).then_some(())
    })
    .await
}

/// Requests of provider one go to this connection.
async fn uses(world: &World, connection: &str) -> Result<()> {
    let plane = world.data_plane(0)?;
    let credential = format!("sk-{connection}");
    eventually(LIMIT, "the connection is used", || async {
        chat(plane, "one/m").await.ok()?;
        let last = world.one.log().last(&Selector::any())?.credential?;
        (last == credential).then_some(())
    })
    .await
}

#[tokio::test]
async fn permits_are_forgotten_by_hand_and_all_forms_of_an_answer_say_the_same() -> Result<()> {
    let fleet = World::start_with(patient()).await?;
    let world = with_cap(fleet, 1, "priority", "queueDepth: 0").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let first = send(&world, 0, "only")?;
    reaches(&world, 1).await?;
    let listed = world.fleet.ctl_json(1, &["permit", "list"]).await?;
    assert_eq!(listed[0]["connection"], "one-a", "{listed}");
    assert_eq!(listed[0]["limit"], 1, "{listed}");
    assert_eq!(listed[0]["held"], 1, "{listed}");
    let of_two = ["permit", "list", "--provider", "two"];
    assert_eq!(world.fleet.ctl_json(1, &of_two).await?, json!([]));
    let full = chat(world.data_plane(1)?, "also").await?;
    assert_eq!(full.status, 429, "{full:?}");

    // Forgotten, the place is free while the request that had it runs on; a renewal of its permit does not come between,
    // since it is due after longer than this takes.
    let cleared = said(&world, &["permit", "clear", "one-a"]).await?;
    assert_eq!(cleared, "cleared: 1\n");
    let second = send(&world, 1, "also")?;
    reaches(&world, 2).await?;
    assert_eq!(world.one.log().most_at_once(&one_a()), 2);
    gate.open();
    for sent in [first, second] {
        assert_eq!(sent.answer().await?.status, 200);
    }
    let operations = ["get", "events", "--kind", "operation"];
    let operations = world.fleet.ctl_json(0, &operations).await?;
    let told = "permits of connection one-a forgotten, 1 were out";
    assert!(operations.to_string().contains(told), "{operations}");

    // How a provider is configured, how it stands, what happened to it.
    let told = world
        .fleet
        .ctl_json(0, &["describe", "provider", "one"])
        .await?;
    assert_eq!(told["configured"]["id"], "one", "{told}");
    assert_eq!(
        told["configured"]["baseUrl"],
        world.one.base_url(),
        "{told}"
    );
    assert_eq!(told["breaker"][0]["state"], "CLOSED", "{told}");
    let connections = told["connections"].as_array().context("a list")?;
    let ids: Vec<_> = connections.iter().map(|it| &it["id"]).collect();
    assert_eq!(ids, ["one-a", "one-b"], "{told}");
    assert_eq!(connections[1]["state"], "disabled", "{told}");
    assert_eq!(told["cooldowns"], json!([]), "{told}");
    assert_eq!(told["lockouts"], json!([]), "{told}");
    let unknown = world.fleet.ctl(0, &["describe", "provider", "no"]).await?;
    assert_eq!(unknown.status.code(), Some(65), "{unknown:?}");

    for asked in [
        ["describe", "provider", "one"].as_slice(),
        &["describe", "combo", "main"],
        &["get", "providers"],
        &["get", "connections"],
        &["get", "keys"],
        &["get", "events"],
        &["settings", "get", "--effective"],
        &["explain", "main"],
    ] {
        let json = world.fleet.ctl_json(0, asked).await?;
        let yaml = said(&world, &[asked, &["-o", "yaml"]].concat()).await?;
        let read: Value = serde_saphyr::from_str(&yaml).with_context(|| yaml.clone())?;
        assert_eq!(read, json, "{asked:?}");
        // And it is no JSON, which is YAML as well.
        assert!(serde_json::from_str::<Value>(&yaml).is_err(), "{yaml}");
    }
    Ok(())
}

#[tokio::test]
async fn files_are_compared_and_things_deleted_with_codes_that_scripts_read() -> Result<()> {
    let world = World::start().await?;
    let folder = ScratchDir::new("operator")?;
    // Secrets are beside the file.
    for name in ["one-a", "one-b", "two-a", "claude-a"] {
        std::fs::write(
            folder.path().join(format!("{name}.key")),
            format!("sk-{name}"),
        )?;
    }
    std::fs::write(
        folder.path().join("client.key"),
        tidegate_integration::CLIENT_KEY,
    )?;
    let file = folder.path().join("wanted.yaml");
    let path = file.to_str().context("the folder is not UTF-8")?;
    let diff = async |document: String| {
        std::fs::write(&file, document)?;
        world.fleet.ctl(0, &["diff", "-f", path]).await
    };
    let same = diff(world.document()).await?;
    assert_eq!(same.status.code(), Some(0), "{same:?}");
    let other = diff(
        world
            .document()
            .replace("failureThreshold: 3", "failureThreshold: 4"),
    )
    .await?;
    assert_eq!(other.status.code(), Some(2), "{other:?}");
    assert!(
        other.stdout.contains("failureThreshold: 3 -> 4"),
        "{other:?}"
    );
    assert_eq!(other.stderr, "");
    let version = |status: &Value| status["configurationVersion"].as_u64();
    let before = version(&world.fleet.ctl_json(0, &["status"]).await?);

    let used = world.fleet.ctl(0, &["delete", "provider", "two"]).await?;
    assert_eq!(used.status.code(), Some(65), "{used:?}");
    assert!(used.stderr.contains("CP0001"), "{used:?}");
    // Everything that refers to it is named, as what it is.
    for place in [
        "connections[2].provider: connection two-a refers to provider two",
        "combos[0].steps[1]: combo main refers to provider two",
    ] {
        assert!(used.stderr.contains(place), "{used:?}");
    }
    let unknown = world.fleet.ctl(0, &["delete", "combo", "nothing"]).await?;
    assert_eq!(unknown.status.code(), Some(65), "{unknown:?}");
    // A name that means nothing is an error, whatever is listed; one of which there is nothing to list is none.
    for kind in [
        "providers",
        "connections",
        "combos",
        "keys",
        "breakers",
        "cooldowns",
        "lockouts",
        "leases",
        "permits",
        "pins",
        "queues",
        "transitions",
        "events",
    ] {
        let unnamed = world.fleet.ctl(0, &["get", kind, "nothing"]).await?;
        assert_eq!(unnamed.status.code(), Some(65), "{kind}: {unnamed:?}");
        assert!(unnamed.stderr.contains("CP0011"), "{kind}: {unnamed:?}");
    }
    let lately = ["get", "events", "nothing", "--since", "1h"];
    let unnamed = world.fleet.ctl(0, &lately).await?;
    assert_eq!(unnamed.status.code(), Some(65), "{unnamed:?}");
    let none = world
        .fleet
        .ctl_json(0, &["get", "cooldowns", "one-a"])
        .await?;
    assert_eq!(none, serde_json::json!([]));
    let only = ["get", "breakers", "--provider", "two"];
    let breakers = world.fleet.ctl_json(0, &only).await?;
    assert_eq!(
        breakers.as_array().context("a list")?.len(),
        1,
        "{breakers}"
    );
    for passed_over in [
        ["get", "keys", "--provider", "two"],
        ["get", "connections", "--limit", "5"],
    ] {
        let refused = world.fleet.ctl(0, &passed_over).await?;
        assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    }
    let after = version(&world.fleet.ctl_json(0, &["status"]).await?);
    assert_eq!(before, after);
    let done = world.fleet.ctl(0, &["delete", "combo", "main"]).await?;
    assert!(done.stdout.contains("- combo main"), "{done:?}");

    // A file with one connection is put into what stands; pruned, it would be all there is, which makes no sense.
    std::fs::write(
        &file,
        "connections: [{id: one-c, provider: one, credential: {file: one-a.key}}]",
    )?;
    let put = world.fleet.ctl(0, &["apply", "-f", path]).await?;
    assert!(put.status.success(), "{put:?}");
    assert!(put.stdout.contains("+ connection one-c"), "{put:?}");
    assert!(!put.stdout.contains("- "), "{put:?}");
    assert!(put.stderr.contains("8 more"), "{put:?}");
    assert!(put.stderr.contains("key client"), "{put:?}");
    let again = world.fleet.ctl_json(0, &["apply", "-f", path]).await?;
    assert_eq!(again["untouchedCount"], 8, "{again}");
    assert_eq!(again["untouched"][0], "key client", "{again}");
    let pruned = world
        .fleet
        .ctl(0, &["apply", "-f", path, "--prune"])
        .await?;
    assert_eq!(pruned.status.code(), Some(65), "{pruned:?}");
    assert!(
        pruned.stderr.contains("there is no provider one"),
        "{pruned:?}"
    );
    // The whole takes out what it does not name.
    std::fs::write(&file, world.document())?;
    let whole = world
        .fleet
        .ctl(0, &["apply", "-f", path, "--prune"])
        .await?;
    assert!(whole.stdout.contains("- connection one-c"), "{whole:?}");
    assert!(whole.stdout.contains("+ combo main"), "{whole:?}");
    assert_eq!(whole.stderr, "");

    // What a combo and a key come to.
    let combo = world
        .fleet
        .ctl_json(0, &["describe", "combo", "main"])
        .await?;
    assert_eq!(combo["configured"]["name"], "main", "{combo}");
    assert_eq!(combo["now"]["decision"], "dispatch", "{combo}");
    let targets = combo["now"]["targets"].as_array().context("targets")?;
    assert_eq!(targets.len(), 3, "{combo}");
    let key = world
        .fleet
        .ctl_json(0, &["describe", "key", "client"])
        .await?;
    assert_eq!(key["configured"]["id"], "client", "{key}");
    assert_eq!(key["leasesHeld"], 0, "{key}");
    Ok(())
}

#[tokio::test]
async fn a_context_says_where_a_control_plane_is_and_where_its_token_is() -> Result<()> {
    let world = World::start().await?;
    let folder = ScratchDir::new("contexts")?;
    let (config, token) = (folder.path().join("ctl.yaml"), folder.path().join("token"));
    std::fs::write(&token, format!("{ADMIN_TOKEN}\n"))?;
    let ctl = async |arguments: &[&str]| {
        ProcessBuilder::program("tidegatectl", bin_dir()?.join("tidegatectl"))
            .args(arguments)
            .env("TIDEGATE_CTL_CONFIG", config.as_os_str())
            .run(LIMIT)
            .await
    };
    let replica = world.fleet.control_planes.first().context("a replica")?;
    let address = format!("http://{}", replica.grpc);
    let token = token.to_str().context("the folder is not UTF-8")?;
    let bare = ctl(&["context", "set", "bare", "--control-plane", &address]).await?;
    assert!(bare.status.success(), "{bare:?}");
    let refused = ctl(&["status"]).await?;
    assert_eq!(refused.status.code(), Some(77), "{refused:?}");
    assert!(refused.stderr.contains("CP0008"), "{refused:?}");
    let set = [
        "context",
        "set",
        "good",
        "--control-plane",
        &address,
        "--token-file",
        token,
    ];
    assert!(ctl(&set).await?.status.success());
    let named = ctl(&["status", "--context", "good"]).await?;
    assert!(named.status.success(), "{named:?}");
    assert!(ctl(&["context", "use", "good"]).await?.status.success());
    assert!(ctl(&["status"]).await?.status.success());
    // A token is not shown to another address than that of its context.
    let other = world.fleet.control_planes.get(1).context("a replica")?;
    let other = format!("http://{}", other.grpc);
    let elsewhere = ctl(&["status", "--control-plane", &other]).await?;
    assert_eq!(elsewhere.status.code(), Some(77), "{elsewhere:?}");
    assert!(elsewhere.stderr.contains("context good"), "{elsewhere:?}");
    let given = ["status", "--control-plane", &other, "--token-file", token];
    assert!(ctl(&given).await?.status.success());
    let stored = std::fs::read_to_string(&config)?;
    assert!(!stored.contains(ADMIN_TOKEN), "{stored}");
    let unknown = ctl(&["status", "--context", "nowhere"]).await?;
    assert_eq!(unknown.status.code(), Some(65), "{unknown:?}");
    for shell in ["bash", "zsh", "fish"] {
        let completion = ctl(&["completion", shell]).await?;
        assert!(completion.stdout.contains("describe"), "{shell}");
    }
    Ok(())
}

//! `context-relay`: what a conversation came to follows it to another account, whichever plane serves.

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tidegate_integration::{CLIENT_KEY, LIMIT, World, metric, send};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{FakeUpstream, Gate, Reply, Selector};

use crate::permits::held_at;
use crate::rotation::patient;

const OTHER_KEY: &str = "tg-other-key";
const NOTE: &str = "they sail to the west";

/// Provider `codex` with two accounts at the upstream of `one`, `glm` with one at that of `two`; both tell that so many
/// percent of the session's quota are used. Model `n` sums up.
async fn start(used: u32) -> Result<World> {
    let world = World::start_with(patient()).await?;
    world.fleet.write_secret("other.key", OTHER_KEY)?;
    let document = format!(
        "
providers:
  - {{id: codex, protocol: openai, baseUrl: {one}, class: apikey, models: [m, n]}}
  - {{id: glm, protocol: openai, baseUrl: {two}, class: apikey, models: [m]}}
connections:
  - {{id: codex-a, provider: codex, credential: {{file: one-a.key}}}}
  - {{id: codex-b, provider: codex, credential: {{file: one-b.key}}}}
  - {{id: glm-a, provider: glm, credential: {{file: two-a.key}}}}
combos:
  - name: talk
    strategy: context-relay
    steps: [codex/m]
    config: {{maxRetries: 0, handoffModel: codex/n}}
  - name: glm-talk
    strategy: context-relay
    steps: [glm/m]
    config: {{handoffProviders: [codex, glm]}}
keys:
  - {{id: client, secret: {{file: client.key}}}}
  - {{id: other, secret: {{file: other.key}}}}
settings:
  waitForCooldown: {{enabled: false}}
  comboCooldownWait: {{enabled: false}}
",
        one = world.one.base_url(),
        two = world.two.base_url(),
    );
    world.fleet.apply(&document).await?;
    for upstream in [&world.one, &world.two] {
        upstream.set_reply(Reply {
            opening: json!({"summary": NOTE}).to_string(),
            chunks: 1,
            chunk_bytes: 1,
            ..Reply::default()
        });
        let headers = [
            ("x-codex-primary-used-percent", used.to_string()),
            ("x-codex-primary-window-minutes", "300".to_owned()),
            ("x-codex-primary-reset-after-seconds", "3600".to_owned()),
            ("x-codex-secondary-used-percent", "10".to_owned()),
            ("x-codex-secondary-window-minutes", "10080".to_owned()),
        ];
        upstream.set_headers(
            headers
                .map(|(name, value)| (name.to_owned(), value))
                .to_vec(),
        );
    }
    Ok(world)
}

/// A turn of one session through a data plane.
#[derive(Clone, Copy)]
struct Turn {
    plane: usize,
    combo: &'static str,
    account: &'static str,
    key: &'static str,
}

const FIRST: Turn = Turn {
    plane: 0,
    combo: "talk",
    account: "codex-a",
    key: CLIENT_KEY,
};
const ELSEWHERE: Turn = Turn {
    plane: 1,
    account: "codex-b",
    ..FIRST
};

async fn say(world: &World, turn: Turn) -> Result<()> {
    let addr = world.data_plane(turn.plane)?;
    let body = json!({"model": turn.combo, "messages": [{"role": "user", "content": "hi"}]});
    let request = Request::post(format!("http://{addr}/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {}", turn.key))
        .header("x-codex-session-id", "one session")
        .header("x-omniroute-connection", turn.account)
        .body(Full::new(body.to_string().into()))?;
    let answer = send(request).await?;
    ensure!(answer.status == 200, "{answer:?}");
    Ok(())
}

fn summaries(upstream: &FakeUpstream) -> usize {
    let all = upstream.log().requests(&Selector::any());
    let bodies = all.iter().filter_map(|request| request.json());
    bodies.filter(|body| body["max_tokens"] == 800).count()
}

/// Whether the last turn that the second account served was told the note.
fn is_told(world: &World) -> Result<bool> {
    let second = Selector::any().credential("sk-one-b");
    let all = world.one.log().requests(&second);
    let bodies = all.iter().filter_map(|request| request.json());
    let turns = bodies.filter(|body| body["max_tokens"] != 800);
    let last: Value = turns.last().context("a turn")?;
    let first = &last["messages"][0];
    Ok(first["role"] == "system" && first.to_string().contains(NOTE))
}

/// Turns until a note is made: a store that is slow once is no reason to make one, and the next success asks again.
async fn until_saved(world: &World, turn: Turn) -> Result<()> {
    let plane = world.fleet.data_planes.get(turn.plane).context("a plane")?;
    let sample = "tidegate_dp_handoffs_total{end=\"saved\"}";
    let before = metric(plane.admin, sample).await?;
    eventually(LIMIT, "a note is made", || async {
        say(world, turn).await.ok()?;
        (metric(plane.admin, sample).await.ok()? > before).then_some(())
    })
    .await
}

/// What became of notes at a data plane.
async fn ends(world: &World, plane: usize, end: &str, count: f64) -> Result<()> {
    let addr = world.fleet.data_planes.get(plane).context("a plane")?.admin;
    let sample = format!("tidegate_dp_handoffs_total{{end=\"{end}\"}}");
    eventually(LIMIT, "the end of a note", || async {
        (metric(addr, &sample).await.ok()? >= count).then_some(())
    })
    .await
}

#[tokio::test]
async fn vector_routing_v_cr2_a_note_is_made_once_and_told_to_the_other_account() -> Result<()> {
    let world = start(90).await?;
    until_saved(&world, FIRST).await?;
    // It stands in the whole fleet: nobody makes another one, and it is told at the other data plane.
    say(&world, ELSEWHERE).await?;
    assert!(is_told(&world)?);
    say(&world, Turn { plane: 1, ..FIRST }).await?;
    assert_eq!(summaries(&world.one), 1);
    // The same name of a session is another session with another key.
    let other = Turn {
        key: OTHER_KEY,
        ..ELSEWHERE
    };
    say(&world, other).await?;
    assert!(!is_told(&world)?);
    until_saved(&world, other).await?;
    assert_eq!(summaries(&world.one), 2);

    let sql =
        format!("SELECT count(*) FROM handoffs WHERE position('{NOTE}'::bytea in sealed) = 0");
    let rows = world
        .fleet
        .postgres
        .execute(&world.fleet.database, &sql)
        .await?;
    assert_eq!(rows, [[Some("2".to_owned())]]);
    for request in world.one.log().requests(&Selector::any()) {
        assert_eq!(request.header("x-codex-session-id"), None);
    }
    for process in &world.fleet.control_planes {
        assert!(!process.process.log()?.contains(NOTE));
    }
    for process in &world.fleet.data_planes {
        assert!(!process.process.log()?.contains(NOTE));
    }
    Ok(())
}

#[tokio::test]
async fn vector_routing_v_cr3_too_late_for_a_note() -> Result<()> {
    let world = start(95).await?;
    say(&world, FIRST).await?;
    ends(&world, 0, "not_wanted", 1.0).await?;
    // A control plane said so; nobody who is asked says nothing either.
    let mut said = 0.0;
    for replica in &world.fleet.control_planes {
        said += metric(
            replica.http,
            "tidegate_cp_handoffs_total{event=\"not_wanted\"}",
        )
        .await?;
    }
    assert!(said >= 1.0);
    assert_eq!(summaries(&world.one), 0);
    Ok(())
}

#[tokio::test]
async fn vector_routing_v_cr4_no_note_for_another_provider() -> Result<()> {
    let world = start(90).await?;
    let glm = Turn {
        combo: "glm-talk",
        account: "glm-a",
        ..FIRST
    };
    say(&world, glm).await?;
    until_saved(&world, FIRST).await?;
    assert_eq!((summaries(&world.one), summaries(&world.two)), (1, 0));
    Ok(())
}

#[tokio::test]
async fn a_note_is_kept_when_the_control_plane_that_was_asked_is_killed() -> Result<()> {
    let world = start(90).await?;
    let gate = Gate::new();
    world.one.set(Selector::any().model("n"), [held_at(&gate)]);
    eventually(LIMIT, "the summary is asked for", || async {
        say(&world, FIRST).await.ok()?;
        (summaries(&world.one) == 1).then_some(())
    })
    .await?;
    let mut asked = 0;
    for replica in &world.fleet.control_planes {
        let begun = "tidegate_cp_handoffs_total{event=\"begun\"}";
        if metric(replica.http, begun).await? > 0.0 {
            replica.process.kill().await?;
            asked += 1;
        }
    }
    assert_eq!(asked, 1);
    // The other replica knows that one is being made.
    let plane = world.fleet.data_planes.first().context("a plane")?;
    let sample = "tidegate_dp_handoffs_total{end=\"not_wanted\"}";
    let before = metric(plane.admin, sample).await?;
    say(&world, FIRST).await?;
    ends(&world, 0, "not_wanted", before + 1.0).await?;
    gate.open();
    ends(&world, 0, "saved", 1.0).await?;
    assert_eq!(summaries(&world.one), 1);
    say(&world, ELSEWHERE).await?;
    assert!(is_told(&world)?);
    Ok(())
}

//! Strategies that promise an exact share, over two control planes and two data planes at once (decision 51).

use anyhow::{Result, bail, ensure};
use futures::future::try_join_all;
use tidegate_integration::{World, chat, metric};
use tidegate_test_support::FleetOptions;
use tidegate_test_support::upstream::Selector;

const MODELS: [&str; 3] = ["a", "b", "c"];
/// Combos that are alike. Each has counters of its own.
const COMBOS: [&str; 4] = ["main", "again", "later", "last"];
/// Blocks of one request for each target.
const BLOCKS: u64 = 20;
/// Requests in flight at once.
const AT_ONCE: usize = 12;

/// A fleet whose decisions may take long: what a busy machine decides without the control plane, or a control plane
/// without the store, is counted apart, and what quota pools send is then sent without a permit.
pub(crate) fn patient() -> FleetOptions {
    let limits = [
        ("TIDEGATE_DECIDE_LIMIT", "5s"),
        ("TIDEGATE_SLOW_DECIDE_LIMIT", "10s"),
        ("TIDEGATE_DECISION_LIMIT", "4s"),
        ("TIDEGATE_DECISION_STORE_LIMIT", "3s"),
    ];
    FleetOptions {
        env: limits
            .map(|(name, limit)| (name.to_owned(), limit.to_owned()))
            .to_vec(),
        ..FleetOptions::default()
    }
}

async fn world(strategy: &str, config: &str) -> Result<World> {
    // Nothing is decided or counted apart only because the machine is busy.
    let world = World::start_with(patient()).await?;
    let combos: String = COMBOS
        .iter()
        .map(|name| {
            format!(
                "  - {{name: {name}, strategy: {strategy}, steps: [one/a, one/b, one/c], config: {config}}}\n"
            )
        })
        .collect();
    let document = format!(
        "
providers:
  - {{id: one, protocol: openai, baseUrl: {one}, class: apikey, models: [a, b, c]}}
connections:
  - {{id: one-a, provider: one, credential: {{file: one-a.key}}}}
combos:
{combos}keys:
  - {{id: client, secret: {{file: client.key}}}}
",
        one = world.one.base_url(),
    );
    world.fleet.apply(&document).await?;
    Ok(world)
}

/// Asserts that shares are off by at most `off`. Each request that was decided without a control plane, asked for twice or
/// counted without the store, as when three calls in a row were late, may change them by one, as documented. Combos tell
/// until one does for which there was no such request.
async fn shares_are_exact(world: &World, off: f64) -> Result<()> {
    for combo in COMBOS {
        let before = counted_apart(world).await?;
        let shares = shares(world, combo, BLOCKS * 3).await?;
        let apart = counted_apart(world).await? - before;
        let is_undisturbed = apart < 0.5;
        // What is left of the last deck, too.
        let allowed = if is_undisturbed {
            off
        } else {
            off + apart + 1.0
        };
        let is_exact = |share: u64| share.abs_diff(BLOCKS) as f64 <= allowed;
        ensure!(
            shares.into_iter().all(is_exact),
            "{combo}: {shares:?}, {apart} apart"
        );
        if is_undisturbed {
            return Ok(());
        }
    }
    bail!("some requests of each combo were decided or counted apart")
}

/// What was decided or counted apart so far.
async fn counted_apart(world: &World) -> Result<f64> {
    let mut apart = 0.0;
    for plane in &world.fleet.data_planes {
        for what in ["decisions_local", "decide_timeouts", "decide_errors"] {
            apart += metric(plane.admin, &format!("tidegate_dp_{what}_total")).await?;
        }
    }
    Ok(apart + turns(world, "local").await?)
}

/// How often the next number of a counter that replicas share was taken there, or elsewhere.
async fn turns(world: &World, taken: &str) -> Result<f64> {
    let mut turns = 0.0;
    for replica in &world.fleet.control_planes {
        let sample = format!("tidegate_cp_turns_total{{taken=\"{taken}\"}}");
        turns += metric(replica.http, &sample).await?;
    }
    Ok(turns)
}

/// How often each target was called after so many requests for a combo, taken in turns by both data planes.
async fn shares(world: &World, combo: &str, requests: u64) -> Result<[u64; 3]> {
    world.one.log().clear();
    let planes = [world.data_plane(0)?, world.data_plane(1)?];
    let mut numbers = (0..requests).zip(planes.into_iter().cycle()).peekable();
    while numbers.peek().is_some() {
        let batch = numbers.by_ref().take(AT_ONCE);
        let answers = try_join_all(batch.map(|(_, plane)| chat(plane, combo))).await?;
        for answer in answers {
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
    Ok(MODELS.map(|model| world.one.log().count(&Selector::any().model(model))))
}

/// V-SR2: one sequence of decks for the whole fleet, each target once in each block.
#[tokio::test]
async fn vector_routing_v_sr2() -> Result<()> {
    let world = world("strict-random", "{}").await?;
    shares_are_exact(&world, 0.0).await?;
    ensure!(turns(&world, "shared").await? > 0.5, "no turn is shared");
    Ok(())
}

#[tokio::test]
async fn round_robin_is_off_by_at_most_one_for_each_replica() -> Result<()> {
    let world = world("round-robin", "{stickyRoundRobinLimit: 1}").await?;
    shares_are_exact(&world, 2.0).await
}

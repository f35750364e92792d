//! Access tokens of a fleet: renewed by one replica at a time, and what ends terminal states.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rstest::rstest;
use serde_json::Value;
use tidegate_integration::{CLIENT_KEY, chat};
use tidegate_test_support::upstream::{FakeUpstream, Mode, Selector, TokenEndpoint, TokenMode};
use tidegate_test_support::{Fleet, FleetOptions, eventually, http_status};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Long enough that a slow machine does nothing twice, short enough to be waited out.
const LEASE_MS: u64 = 8_000;
/// How long a condition may take to come true on a busy machine: leases are waited out in it.
const LIMIT: Duration = Duration::from_secs(60);
/// The refresh token that an operator applies.
const REFRESH_TOKEN: &str = "rt-applied";
/// How often replicas look what is due, in ms, unless a case says otherwise.
const SWEEP_MS: u64 = 200;

/// A fleet before one provider with one OAuth connection, `acct`.
struct World {
    fleet: Fleet,
    upstream: FakeUpstream,
    tokens: TokenEndpoint,
    sweep_ms: u64,
}

impl World {
    async fn start() -> Result<Self> {
        Self::start_sweeping_every(SWEEP_MS).await
    }

    async fn start_sweeping_every(sweep_ms: u64) -> Result<Self> {
        let world = Self {
            sweep_ms,
            upstream: FakeUpstream::start().await?,
            tokens: TokenEndpoint::start(&[REFRESH_TOKEN]).await?,
            fleet: Fleet::start_with(FleetOptions {
                data_planes: 1,
                ..FleetOptions::default()
            })
            .await?,
        };
        world.fleet.write_secret("access.key", "at-old")?;
        world.fleet.write_secret("refresh.key", REFRESH_TOKEN)?;
        world.fleet.write_secret("client.secret", "the secret")?;
        world.fleet.write_secret("client.key", CLIENT_KEY)?;
        world.fleet.apply(&world.document(1)).await?;
        Ok(world)
    }

    fn document(&self, priority: u32) -> String {
        format!(
            "
providers:
  - id: one
    protocol: openai
    baseUrl: {base}
    models: [m]
    oauth: {{tokenEndpoint: {endpoint}, clientId: app}}
connections:
  - id: acct
    provider: one
    priority: {priority}
    credential: {{file: access.key}}
    refreshToken: {{file: refresh.key}}
    clientSecret: {{file: client.secret}}
keys:
  - {{id: client, secret: {{file: client.key}}}}
settings:
  providerBreaker: {{dedupConnectionMs: 0, dedupProviderMs: 0}}
  waitForCooldown: {{enabled: false}}
  tokenRefresh: {{sweepIntervalMs: {sweep_ms}, retryBaseMs: 500, leaseMs: {LEASE_MS}, guardMs: 2000}}
",
            base = self.upstream.base_url(),
            endpoint = self.tokens.url(),
            sweep_ms = self.sweep_ms,
        )
    }

    async fn ask(&self) -> Result<u16> {
        let plane = self.fleet.data_planes.first().context("a data plane")?;
        Ok(chat(plane.http, "one/m").await?.status.as_u16())
    }

    async fn acct(&self, replica: usize) -> Result<Value> {
        let all = self
            .fleet
            .ctl_json(replica, &["get", "connections"])
            .await?;
        let rows = all.as_array().context("a list")?;
        rows.first().cloned().context("a connection")
    }

    /// Requests succeed again, with the access token of this number.
    async fn serves_with(&self, number: u64) -> Result<()> {
        let with_token = Selector::any().credential(format!("at-{number}"));
        eventually(LIMIT, "requests succeed with the new token", || async {
            let status = self.ask().await.ok()?;
            (status == 200 && self.upstream.log().count(&with_token) > 0).then_some(())
        })
        .await
    }

    /// Waits until a control plane has asked the token endpoint this often, and says which one asked last.
    async fn asked(&self, times: usize) -> Result<usize> {
        eventually(LIMIT, "the token endpoint is asked", || async {
            (self.tokens.requests().len() >= times).then_some(())
        })
        .await?;
        for (index, replica) in self.fleet.control_planes.iter().enumerate() {
            if replica.process.log()?.contains("renewing an access token") {
                return Ok(index);
            }
        }
        anyhow::bail!("nobody asked")
    }
}

/// The upstream refuses the old token; it is renewed once, by one replica, and nothing is started again.
#[tokio::test]
async fn an_expired_connection_is_renewed_and_serves_again() -> Result<()> {
    let world = World::start().await?;
    assert_eq!(world.ask().await?, 200);
    let old = Selector::any().credential("at-old");
    world.upstream.set(old, Mode::status(401));
    assert_ne!(world.ask().await?, 200);
    world.serves_with(1).await?;
    // Both replicas sweep several times more.
    sleep(Duration::from_secs(1)).await;
    let requests = world.tokens.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(requests[0].refresh_token, REFRESH_TOKEN);
    // app:the+secret
    let basic = "Basic YXBwOnRoZStzZWNyZXQ=".to_owned();
    assert_eq!(requests[0].authorization, Some(basic));
    for replica in 0..2 {
        let acct = eventually(LIMIT, "every replica shows it", || async {
            let acct = world.acct(replica).await.ok()?;
            (acct["state"] == "active" && acct["credential"] == 2).then_some(acct)
        })
        .await?;
        assert!(acct["tokenExpires"].is_string(), "{acct}");
    }
    // The version is the operators' alone, and the same file puts no old token back.
    let status = world.fleet.ctl_json(0, &["status"]).await?;
    assert_eq!(status["configurationVersion"], 1);
    let applied = world.fleet.apply(&world.document(1)).await?;
    assert!(applied.stdout.contains("nothing differs"), "{applied:?}");
    world.fleet.apply(&world.document(2)).await?;
    assert_eq!(world.acct(0).await?["credential"], 2);
    assert_eq!(world.ask().await?, 200);
    let history = world.fleet.ctl_json(0, &["get", "transitions"]).await?;
    assert!(history.to_string().contains("\"refreshed\""), "{history}");
    for replica in &world.fleet.control_planes {
        let log = replica.process.log()?;
        for secret in [REFRESH_TOKEN, "at-1", "the secret"] {
            assert!(!log.contains(secret), "{secret} is in a log");
        }
        assert_eq!(http_status(replica.http, "/livez").await?, 200);
    }
    Ok(())
}

/// A token whose end is known is renewed before it, while requests go on.
#[tokio::test]
async fn a_token_is_renewed_before_it_runs_out() -> Result<()> {
    let world = World::start().await?;
    // Half of its life, so after ten seconds.
    world.tokens.set_life(20);
    world
        .upstream
        .set(Selector::any().credential("at-old"), Mode::status(401));
    world.ask().await?;
    world.serves_with(1).await?;
    world.tokens.set_life(3_600);
    world.serves_with(2).await?;
    let requests = world.tokens.requests();
    assert_eq!(world.tokens.issued(), 2, "{requests:?}");
    let refused = Selector::any().credential("at-1");
    assert!(world.upstream.log().count(&refused) > 0);
    assert_eq!(world.ask().await?, 200);
    Ok(())
}

/// Three failures while expired make the connection inactive; an operator that names it ends that.
#[tokio::test]
async fn an_inactive_connection_is_renewed_again_after_a_reset() -> Result<()> {
    let world = World::start().await?;
    world.tokens.set_mode(TokenMode::Status(503));
    world
        .upstream
        .set(Selector::any().credential("at-old"), Mode::status(401));
    world.ask().await?;
    eventually(LIMIT, "the connection is inactive", || async {
        let acct = world.acct(1).await.ok()?;
        (acct["nextRefresh"] == "inactive" && acct["refreshRetries"] == 3).then_some(())
    })
    .await?;
    let asked = world.tokens.requests().len();
    assert_eq!(asked, 3);
    world.tokens.set_mode(TokenMode::Ok);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.tokens.requests().len(), asked, "it is inactive");
    assert_eq!(world.acct(0).await?["state"], "expired");
    assert_ne!(world.ask().await?, 200);
    let arguments = ["reset", "cooldowns", "--connection", "acct"];
    let reset = world.fleet.ctl_json(0, &arguments).await?;
    assert_eq!(reset["resetCount"], 2, "{reset}");
    // The token is still refused, so that the connection expires again and is renewed at once.
    world.serves_with(1).await?;
    let history = world.fleet.ctl_json(0, &["get", "transitions"]).await?;
    let history = history.to_string();
    assert!(history.contains("\"inactive\"") && history.contains("status_503, retry 3"));
    Ok(())
}

/// The owner dies in the middle: its lease is waited out, and the token is used once.
#[tokio::test]
async fn a_killed_owner_is_waited_out() -> Result<()> {
    let world = World::start().await?;
    world.tokens.set_mode(TokenMode::Hang);
    world
        .upstream
        .set(Selector::any().credential("at-old"), Mode::status(401));
    world.ask().await?;
    let owner = world.asked(1).await?;
    world.fleet.control_planes[owner].process.kill().await?;
    world.tokens.set_mode(TokenMode::Ok);
    world.serves_with(1).await?;
    let requests = world.tokens.requests();
    assert_eq!(
        (requests.len(), world.tokens.issued()),
        (2, 1),
        "{requests:?}"
    );
    let waited = requests[1].at.saturating_sub(requests[0].at);
    assert!(
        waited >= Duration::from_millis(LEASE_MS - 500),
        "the lease was not waited out: {waited:?}"
    );
    Ok(())
}

/// The owner is stopped with the only good token in its hands: another is refused, and what the owner has is stored
/// when it wakes.
#[tokio::test]
async fn a_stopped_owner_loses_no_token() -> Result<()> {
    let world = World::start().await?;
    let let_go = CancellationToken::new();
    world.tokens.set_mode(TokenMode::AnswerHeld(let_go.clone()));
    world
        .upstream
        .set(Selector::any().credential("at-old"), Mode::status(401));
    world.ask().await?;
    let owner = world.asked(1).await?;
    let process = &world.fleet.control_planes[owner].process;
    process.pause()?;
    world.tokens.set_mode(TokenMode::Ok);
    // The answer comes to a process that does not read it.
    let_go.cancel();
    // The other one waits the lease out and shows a token that is used up.
    eventually(LIMIT, "the other replica asks", || async {
        (world.tokens.requests().len() >= 2).then_some(())
    })
    .await?;
    process.resume()?;
    world.serves_with(1).await?;
    let requests = world.tokens.requests();
    assert_eq!(world.tokens.issued(), 1, "{requests:?}");
    let waited = requests[1].at.saturating_sub(requests[0].at);
    assert!(
        waited >= Duration::from_millis(LEASE_MS - 500),
        "{waited:?}"
    );
    Ok(())
}

/// The store answers nobody in time while the token is refused. It is asked again soon, however far the next sweep is.
#[tokio::test]
async fn a_store_that_was_late_is_asked_again() -> Result<()> {
    let world = World::start_sweeping_every(600_000).await?;
    assert_eq!(world.ask().await?, 200);
    let (postgres, database) = (&world.fleet.postgres, &world.fleet.database);
    let lock = "BEGIN; SELECT 1 FROM refresh_tokens FOR UPDATE; SELECT pg_sleep(4); COMMIT";
    let refused = async {
        let held = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        eventually(LIMIT, "the row is locked", || async {
            let found = postgres.execute(database, held).await.ok()?;
            (!found.is_empty()).then_some(())
        })
        .await?;
        let old = Selector::any().credential("at-old");
        world.upstream.set(old, Mode::status(401));
        world.ask().await?;
        eventually(LIMIT, "a replica gives up", || async {
            let replicas = &world.fleet.control_planes;
            let mut logs = replicas.iter().map(|it| it.process.log());
            logs.any(|log| log.is_ok_and(|it| it.contains("an access token was not renewed")))
                .then_some(())
        })
        .await
    };
    let (locked, refused) = tokio::join!(postgres.execute(database, lock), refused);
    locked?;
    refused?;
    world.serves_with(1).await?;
    assert_eq!(world.tokens.issued(), 1, "{:?}", world.tokens.requests());
    Ok(())
}

/// An answer that is of no use counts as a failure and is not kept.
#[tokio::test]
async fn useless_answers_are_failures() -> Result<()> {
    let world = World::start().await?;
    world.tokens.set_mode(TokenMode::HugeBody);
    world
        .upstream
        .set(Selector::any().credential("at-old"), Mode::status(401));
    world.ask().await?;
    eventually(LIMIT, "the failure is told", || async {
        let history = world
            .fleet
            .ctl_json(0, &["get", "transitions"])
            .await
            .ok()?;
        history
            .to_string()
            .contains("answer_too_large")
            .then_some(())
    })
    .await?;
    world.tokens.set_mode(TokenMode::Ok);
    world.serves_with(1).await
}

/// How the upstream answers for a connection to end in this state.
fn ending(state: &str) -> Mode {
    match state {
        "banned" => Mode::status_with_body(
            403,
            r#"{"error":{"message":"Your account has been deactivated"}}"#,
        ),
        "credits_exhausted" => Mode::status(402),
        _ => Mode::status(401),
    }
}

/// A new credential ends each terminal state; a change of other members ends none.
#[rstest]
#[case::vector_failure_71_banned("banned", true)]
#[case::vector_failure_71_expired("expired", true)]
#[case::vector_failure_71_credits("credits_exhausted", true)]
#[case::vector_failure_72_banned("banned", false)]
#[case::vector_failure_72_expired("expired", false)]
#[case::vector_failure_72_credits("credits_exhausted", false)]
#[tokio::test]
async fn what_ends_a_terminal_state(#[case] state: &str, #[case] replaced: bool) -> Result<()> {
    let world = World::start().await?;
    world.tokens.set_mode(TokenMode::Status(503));
    world
        .upstream
        .set(Selector::any().credential("at-old"), ending(state));
    world.ask().await?;
    eventually(LIMIT, "the connection is terminal", || async {
        let acct = world.acct(1).await.ok()?;
        (acct["state"] == state).then_some(())
    })
    .await?;
    if !replaced {
        world.fleet.apply(&world.document(7)).await?;
        sleep(Duration::from_secs(1)).await;
        let acct = world.acct(1).await?;
        assert_eq!(
            (&acct["state"], &acct["priority"]),
            (&state.into(), &7.into())
        );
        assert_ne!(world.ask().await?, 200);
        return Ok(());
    }
    world.fleet.write_secret("access.key", "at-new")?;
    world.fleet.apply(&world.document(1)).await?;
    let acct = eventually(LIMIT, "the connection is active", || async {
        let acct = world.acct(1).await.ok()?;
        (acct["state"] == "active").then_some(acct)
    })
    .await?;
    ensure!(acct["level"] == 0 && acct["lastError"].is_null(), "{acct}");
    assert_eq!(world.ask().await?, 200);
    let new = Selector::any().credential("at-new");
    assert_eq!(world.upstream.log().count(&new), 1);
    Ok(())
}

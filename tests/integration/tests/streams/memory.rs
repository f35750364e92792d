//! What streams leave behind in a data plane, and what it holds for clients that do not read.
//!
//! Counted by its allocator, so that neither time nor what the allocator keeps for later plays a part.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rstest::rstest;
use tidegate_integration::streams::{Multiplexed, all_end_well, open, open_many, paused};
use tidegate_integration::{CLIENT_KEY, LIMIT, World, metric};
use tidegate_test_support::upstream::{FakeUpstream, Mode, Reply, Selector};
use tidegate_test_support::{DataPlane, FleetOptions, LocalTls, eventually};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

pub(crate) const MIB: f64 = 1_048_576.0;
pub(crate) const KIB: f64 = 1_024.0;
/// For answers that take the fake upstream long to make.
const LONG_LIMIT: Duration = Duration::from_secs(60);
/// Idle connections to upstreams are kept for 20 s and looked at as often.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// One data plane and one control plane; every request holds a permit.
pub(crate) async fn world() -> Result<World> {
    let world = World::start_with(one_plane()).await?;
    world.fleet.apply(&document(&world)).await?;
    Ok(world)
}

fn one_plane() -> FleetOptions {
    FleetOptions {
        control_planes: 1,
        data_planes: 1,
        ..FleetOptions::default()
    }
}

fn document(world: &World) -> String {
    world
        .document()
        .replace("{id: one-a,", "{id: one-a, maxConcurrent: 1000,")
        .replace(
            "settings:\n",
            "settings:\n  requestQueue: {maxWaitMs: 60000}\n",
        )
}

pub(crate) fn plane(world: &World) -> Result<&DataPlane> {
    world.fleet.data_planes.first().context("no data plane")
}

pub(crate) async fn allocated(plane: &DataPlane) -> Result<f64> {
    metric(plane.admin, "tidegate_dp_memory_allocated_bytes").await
}

/// Tasks, and open files.
async fn live(plane: &DataPlane) -> Result<(f64, usize)> {
    let tasks = metric(plane.admin, "tidegate_dp_tasks").await?;
    let files = std::fs::read_dir(format!("/proc/{}/fd", plane.process.pid()))?;
    Ok((tasks, files.count()))
}

pub(crate) async fn run_stream(plane: &DataPlane) -> Result<()> {
    let text = open(plane.http, "one/m").await?.read().await?;
    ensure!(text.ends_with("data: [DONE]\n\n"), "{text}");
    Ok(())
}

async fn together(plane: &DataPlane, streams: usize) -> Result<()> {
    let streams = (0..streams).map(|_| run_stream(plane));
    futures::future::try_join_all(streams).await?;
    Ok(())
}

/// Nothing runs, and nothing waits to be told.
pub(crate) async fn at_rest(plane: &DataPlane) -> Result<()> {
    eventually(LIMIT, "nothing is in flight", || async {
        for gauge in ["requests_in_flight", "streams_open", "permits_held"] {
            let sample = format!("tidegate_dp_{gauge}");
            if metric(plane.admin, &sample).await.ok()? > 0.5 {
                return None;
            }
        }
        Some(())
    })
    .await
}

#[tokio::test]
async fn a_thousand_streams_leave_nothing_behind() -> Result<()> {
    const AT_A_TIME: usize = 50;
    let world = world().await?;
    let plane = plane(&world)?;
    world.one.set_reply(Reply {
        chunks: 10,
        ..Reply::default()
    });
    let idle = live(plane).await?;
    together(plane, AT_A_TIME).await?;
    at_rest(plane).await?;
    let before = allocated(plane).await?;
    for _ in 0..500 {
        run_stream(plane).await?;
    }
    for _ in 0..500 / AT_A_TIME {
        together(plane, AT_A_TIME).await?;
    }
    at_rest(plane).await?;
    let growth = (allocated(plane).await? - before) / MIB;
    assert!(growth < 20.0, "grew by {growth:.1} MiB");
    let after = eventually(IDLE_LIMIT, "tasks and files as before", || async {
        let after = live(plane).await.ok()?;
        // One task more looks after idle connections to upstreams.
        (after.0 <= idle.0 + 1.0 && after.1 <= idle.1).then_some(())
    });
    let ended = after.await;
    let last = live(plane).await?;
    ended.with_context(|| format!("tasks and files were {idle:?}, are {last:?}"))
}

/// How streams come to the data plane and go on to a provider, and what each may take while it says nothing.
struct Way<'a> {
    /// Streams on one connection over HTTP/2; without it, each has one of its own.
    together: Option<usize>,
    model: &'static str,
    upstream: &'a FakeUpstream,
    most: f64,
}

impl Way<'_> {
    /// What each of so many takes.
    async fn each(&self, plane: &DataPlane, streams: usize) -> Result<f64> {
        let before = allocated(plane).await?;
        let gate = paused(self.upstream);
        let mut open = Vec::new();
        // They stay until the streams on them have ended.
        let mut connections = Vec::new();
        match self.together {
            None => open = open_many(plane.http, self.model, streams).await?,
            Some(together) => {
                for _ in 0..streams / together {
                    let connection = Multiplexed::connect(plane.http).await?;
                    for _ in 0..together {
                        open.push(connection.open(self.model).await?);
                    }
                    connections.push(connection);
                }
            }
        }
        let each = (allocated(plane).await? - before) / open.len() as f64;
        gate.open();
        all_end_well(open).await?;
        Ok(each)
    }
}

/// The provider `swift` speaks HTTP/2, as large ones do.
#[tokio::test]
async fn a_silent_stream_takes_little() -> Result<()> {
    const STREAMS: usize = 200;
    let tls = LocalTls::new()?;
    let swift = FakeUpstream::builder().https(tls.server()).start().await?;
    let world = World::start_with(FleetOptions {
        env: vec![tls.env()],
        ..one_plane()
    })
    .await?;
    let document = document(&world).replace(
        "connections:\n",
        &format!(
            "  - {{id: swift, protocol: openai, baseUrl: \"{}\", class: apikey, models: [m]}}\nconnections:\n  \
             - {{id: swift-a, provider: swift, maxConcurrent: 1000, credential: {{file: one-a.key}}}}\n",
            swift.base_url()
        ),
    );
    world.fleet.apply(&document).await?;
    let plane = plane(&world)?;
    let way = |together, model, upstream, most: f64| Way {
        together,
        model,
        upstream,
        most: most * KIB,
    };
    let ways = [
        way(Some(50), "swift/m", &swift, 9.0),
        way(None, "swift/m", &swift, 28.0),
        // Of which 42 are buffers and queues of hyper's for two connections, mostly untouched.
        way(None, "one/m", &world.one, 56.0),
    ];
    let mut wrong = Vec::new();
    for way in ways {
        let warm = open(plane.http, way.model).await?.read().await?;
        ensure!(warm.ends_with("data: [DONE]\n\n"), "{warm}");
        at_rest(plane).await?;
        // That which asks is one.
        eventually(LIMIT, "no client is left", || async {
            let open = metric(plane.admin, "tidegate_dp_connections").await.ok()?;
            (open < 1.5).then_some(())
        })
        .await?;
        let each = way.each(plane, STREAMS).await?;
        if each > way.most {
            let (together, model) = (way.together, way.model);
            wrong.push(format!("{:.1} KiB each, {together:?} {model}", each / KIB));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Much more than all socket buffers on the way hold.
const ANSWER: usize = 24 << 20;

/// Events of 64 KiB.
fn many_events(upstream: &FakeUpstream) {
    upstream.set_default(Mode::Ok);
    upstream.set_reply(Reply {
        chunks: ANSWER / (64 << 10),
        chunk_bytes: 64 << 10,
        ..Reply::default()
    });
}

/// One event.
fn one_line(upstream: &FakeUpstream) {
    upstream.set_default(Mode::LongLine {
        bytes: ANSWER as u64,
    });
}

#[rstest]
#[case::of_events(many_events)]
#[case::of_one_line(one_line)]
#[tokio::test]
async fn clients_that_do_not_read_are_not_buffered_for(
    #[case] answers: fn(&FakeUpstream),
) -> Result<()> {
    const CLIENTS: u32 = 4;
    /// Looks at the memory, this long apart: in all enough for the answers to have come, were they taken in.
    const LOOKS: u32 = 30;
    const BETWEEN: Duration = Duration::from_millis(100);
    /// Beside what is buffered: two connections and the request itself.
    const EACH: f64 = 56.0 * KIB;
    const HELD: f64 = 256.0 * KIB;
    let world = world().await?;
    let plane = plane(&world)?;
    run_stream(plane).await?;
    at_rest(plane).await?;
    let before = allocated(plane).await?;
    let log = world.one.log();
    let asked = log.count(&Selector::any()) + u64::from(CLIENTS);
    answers(&world.one);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(ask(plane).await?);
    }
    ensure!(log.wait_for(&Selector::any(), asked, LIMIT).await);
    eventually(LONG_LIMIT, "every answer has begun", || async {
        let open = metric(plane.admin, "tidegate_dp_streams_open").await.ok()?;
        (open > f64::from(CLIENTS) - 0.5).then_some(())
    })
    .await?;
    let mut most = 0.0_f64;
    for _ in 0..LOOKS {
        tokio::time::sleep(BETWEEN).await;
        most = most.max(allocated(plane).await? - before);
    }
    let each = most / f64::from(CLIENTS);
    assert!(each <= HELD + EACH, "{:.0} KiB each", each / KIB);
    let requests = log.requests(&Selector::any());
    let endings: Vec<_> = requests.iter().map(|request| request.ending).collect();
    let running = endings.iter().filter(|ending| ending.is_none());
    assert_eq!(running.count(), clients.len(), "held back: {endings:?}");
    drop(clients);
    at_rest(plane).await
}

/// A client that asks and never reads.
async fn ask(plane: &DataPlane) -> Result<TcpStream> {
    let mut socket = TcpStream::connect(plane.http).await?;
    let body = r#"{"model":"one/m","stream":true,"messages":[]}"#;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {CLIENT_KEY}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all((head + body).as_bytes()).await?;
    Ok(socket)
}

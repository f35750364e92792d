//! A line of 100 MiB: passed on without being held, and refused where all of it would have to be.
//!
//! The official SDKs put all of a line together before they look at it, so one that waits for its end holds it. What they make
//! of a line of 1 MiB is in the matrix; here is what one costs that reads on for as long as somebody waits for it, of a line
//! that is far longer than it gets, and a stream that is read to its end as it is.

use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rstest::rstest;
use tidegate_integration::{CLIENT_KEY, metric, samples};
use tidegate_test_support::upstream::Mode;
use tidegate_test_support::{ClientCall, DataPlane, PythonClients, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::memory::{KIB, MIB, allocated, at_rest, plane, run_stream, world};

const LINE: u64 = 100 << 20;
/// One in gzip.
const BOMB: u64 = 1 << 30;
/// So long that no SDK is at its end before its memory was looked at often enough: they take 50 MiB a second.
const FAR_LONGER: u64 = 4 << 30;
const LIMIT: Duration = Duration::from_secs(100);
/// Between two looks at the memory.
const BETWEEN: Duration = Duration::from_millis(20);

/// Does something and looks at the memory meanwhile: what came of it, and how many bytes more there were at most.
async fn most_during<T>(
    plane: &DataPlane,
    doing: impl Future<Output = Result<T>>,
) -> Result<(T, f64)> {
    let before = allocated(plane).await?;
    let mut doing = pin!(tokio::time::timeout(LIMIT, doing));
    let mut most = 0.0_f64;
    loop {
        tokio::select! {
            done = &mut doing => return Ok((done??, most)),
            () = tokio::time::sleep(BETWEEN) => {}
        }
        most = most.max(allocated(plane).await? - before);
    }
}

/// Asks for a stream and reads it to its end, or so far: how long it was until there, and the last bytes.
async fn read_stream(plane: &DataPlane, far: u64) -> Result<(u64, String)> {
    const LAST: usize = 400;
    let mut socket = TcpStream::connect(plane.http).await?;
    let body = r#"{"model":"one/m","stream":true,"messages":[]}"#;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {CLIENT_KEY}\r\n\
         connection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all((head + body).as_bytes()).await?;
    let (mut length, mut last) = (0, Vec::new());
    loop {
        last.drain(..last.len().saturating_sub(LAST));
        let read = socket.read_buf(&mut last).await?;
        length += u64::try_from(read)?;
        if read == 0 || length >= far {
            return Ok((length, String::from_utf8_lossy(&last).into_owned()));
        }
    }
}

/// What is looked at of such an event, what waits of it, what was read of the next piece, and two connections.
const PASSED_ON: f64 = (4.0 * 256.0 + 72.0) * KIB;

#[tokio::test]
async fn a_stream_passes_it_on_without_holding_it() -> Result<()> {
    let world = world().await?;
    let plane = plane(&world)?;
    run_stream(plane).await?;
    at_rest(plane).await?;
    world.one.set_default(Mode::LongLine { bytes: LINE });
    let ((length, last), most) = most_during(plane, read_stream(plane, u64::MAX)).await?;
    assert!(length >= LINE, "{length} bytes");
    assert!(last.contains("stream_terminated"), "{last}");
    assert!(most <= PASSED_ON, "{:.0} KiB", most / KIB);
    at_rest(plane).await
}

/// All of it is here at once, as the thousandth part that it is; decoded it is when its client reads. Reading to the end
/// would show nothing more, and take long.
#[tokio::test]
async fn a_bomb_is_decoded_no_further_than_its_client_reads() -> Result<()> {
    const FAR: u64 = 32 << 20;
    let world = world().await?;
    let plane = plane(&world)?;
    run_stream(plane).await?;
    at_rest(plane).await?;
    world.one.set_default(Mode::GzipBomb { bytes: BOMB });
    let ((length, last), most) = most_during(plane, read_stream(plane, FAR)).await?;
    assert!(length >= FAR, "{length} bytes, {last}");
    assert!(most <= PASSED_ON, "{:.0} KiB", most / KIB);
    at_rest(plane).await
}

/// Each of them in turn, for a while.
#[tokio::test]
async fn an_sdk_that_waits_for_its_end_costs_no_memory_and_is_let_go() -> Result<()> {
    /// What is held for a client that does not read, and what measuring itself takes.
    const MOST: f64 = 4.0 * 256.0 * KIB;
    /// Looks at the memory of a stream that is open.
    const LOOKS: u32 = 100;
    let asks = [
        (
            "openai_chat.py",
            "/v1",
            "one/m",
            "stream",
            "chat_completions",
        ),
        (
            "openai_chat.py",
            "/v1",
            "one/m",
            "responses_stream",
            "responses",
        ),
        (
            "anthropic_messages.py",
            "",
            "claude/m",
            "stream",
            "messages",
        ),
    ];
    let world = world().await?;
    let plane = plane(&world)?;
    run_stream(plane).await?;
    at_rest(plane).await?;
    for upstream in [&world.one, &world.claude] {
        upstream.set_default(Mode::LongLine { bytes: FAR_LONGER });
    }
    let clients = PythonClients::prepare().await?;
    for (script, path, model, mode, endpoint) in asks {
        let base = format!("http://{}{path}", plane.http);
        let mut call = ClientCall::new(base, "", CLIENT_KEY)
            .models(vec![model.to_owned()])
            .modes([mode]);
        call.limit = LIMIT;
        let before = allocated(plane).await?;
        let looks = async {
            eventually(LIMIT, "its stream is open", || async {
                let open = metric(plane.admin, "tidegate_dp_streams_open").await.ok()?;
                (open > 0.5).then_some(())
            })
            .await?;
            let mut most = 0.0_f64;
            for _ in 0..LOOKS {
                tokio::time::sleep(BETWEEN).await;
                most = most.max(allocated(plane).await? - before);
            }
            anyhow::Ok(most)
        };
        // Who gives up first is the one that waits for it, which ends the SDK in the middle of its answer.
        let most = tokio::select! {
            run = clients.run(script, &call) => bail!("{endpoint}: it came to its end: {run:?}"),
            most = looks => most?,
        };
        ensure!(most <= MOST, "{endpoint}: {:.0} KiB", most / KIB);
        let left =
            format!("tidegate_dp_requests_total{{endpoint=\"{endpoint}\",end=\"client_abort\"}}");
        let noticed = eventually(LIMIT, "the client left", || async {
            let left = metric(plane.admin, &left).await.ok()?;
            (left > 0.5).then_some(())
        });
        if let Err(error) = noticed.await {
            let ends = samples(plane.admin, "tidegate_dp_requests_total").await?;
            let attempts = samples(plane.admin, "tidegate_dp_attempts_total").await?;
            bail!("{endpoint}: {error}: {ends:?}, {attempts:?}");
        }
        at_rest(plane).await?;
    }
    Ok(())
}

#[rstest]
#[case::openai("openai_chat.py", "/v1", "one/m")]
#[case::anthropic("anthropic_messages.py", "", "claude/m")]
#[tokio::test]
async fn an_answer_in_one_piece_is_refused_when_it_gets_too_long(
    #[case] script: &str,
    #[case] path: &str,
    #[case] model: &str,
) -> Result<()> {
    /// Answers may have 64 MiB, and what they are gathered in grows by doubling.
    const MOST: f64 = 2.0 * 64.0 * MIB;
    let world = world().await?;
    let plane = plane(&world)?;
    for upstream in [&world.one, &world.claude] {
        upstream.set_default(Mode::LongLine { bytes: LINE });
    }
    let clients = PythonClients::prepare().await?;
    let base = format!("http://{}{path}", plane.http);
    let mut call = ClientCall::new(base, "", CLIENT_KEY)
        .models(vec![model.to_owned()])
        .modes(["json"]);
    call.limit = LIMIT;
    let (run, most) = most_during(plane, clients.run(script, &call)).await?;
    let line = run.lines.first().context("an answer")?;
    ensure!(line["status"] == 502, "{line}");
    ensure!(line["code"] == "upstream_protocol_error", "{line}");
    assert!(most <= MOST, "{:.0} MiB", most / MIB);
    at_rest(plane).await
}

//! What is held for a client that does not read: counted, not guessed. What a provider got rid of is either still in the
//! kernel's buffers, which it tells of, or held here.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::json;
use tidegate_core::outcome::Outcome;
use tidegate_core::stream::HOLD_BYTES;
use tidegate_fake_upstream::Reply;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::bench::{Bench, KEY, LIMIT, Options, chat};
use crate::client::read;
use crate::raw_upstream::{RawUpstream, STREAM_HEAD};
use crate::scripted::{Frozen, Scripted, role, settles, stop, text, until};

const CHAT: &str = "/v1/chat/completions";
/// More than that is never held for one client.
const MOST_HELD: u64 = 256 * 1024;
/// As much as the provider has to say.
const ALL: usize = 100 * 1024 * 1024;

/// A client that asks and then never reads.
async fn ask_over_http1(addr: SocketAddr) -> TcpStream {
    let body = chat("one/m", true).to_string();
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [head.as_slice(), &stream.to_be_bytes(), payload].concat()
}

/// The same over HTTP/2, with windows as large as there are: it promises to take everything.
async fn ask_over_http2(addr: SocketAddr) -> TcpStream {
    const LARGEST: u32 = 0x7fff_ffff;
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let key = format!("Bearer {KEY}");
    // POST and http by their numbers in the static table, path and authority by that of their names, one by its name.
    let headers = [
        vec![0x83, 0x86, 0x04],
        text(CHAT),
        vec![0x01],
        text("x"),
        vec![0x00],
        text("authorization"),
        text(&key),
    ]
    .concat();
    let window = [&4_u16.to_be_bytes()[..], &LARGEST.to_be_bytes()].concat();
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &window),
        frame(8, 0, 0, &(LARGEST - 65_535).to_be_bytes()),
        frame(1, 4, 1, &headers),
        frame(0, 1, 1, chat("one/m", true).to_string().as_bytes()),
        frame(4, 1, 0, &[]),
    ]
    .concat();
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(&request).await.unwrap();
    stream
}

/// What the kernel holds in both directions of all connections with one of these ports, as it tells.
fn in_the_kernel(ports: &[u16]) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |address: &str| {
        let (_, port) = address.split_once(':').unwrap();
        u16::from_str_radix(port, 16).unwrap()
    };
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let is_ours = ports.contains(&port(fields[1])) || ports.contains(&port(fields[2]));
            // A listener's numbers are of something else.
            (is_ours && fields[3] != "0A").then(|| {
                let (sending, receiving) = fields[4].split_once(':').unwrap();
                number(sending) + number(receiving)
            })
        })
        .sum()
}

/// What a provider says, over and over.
#[derive(Clone, Copy)]
enum Says {
    /// An event with so much text.
    Events(usize),
    /// Events that are no JSON.
    Plain,
    /// One line that never ends.
    Line,
}

impl Says {
    fn at_first(self) -> &'static str {
        match self {
            Self::Events(_) | Self::Plain => "",
            Self::Line => "data: ",
        }
    }

    fn then(self) -> String {
        match self {
            Self::Events(bytes) => {
                let text = "x".repeat(bytes);
                format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
            }
            Self::Plain => format!("data: {}\n\n", "x".repeat(1_000)),
            Self::Line => "x".repeat(10_000),
        }
    }
}

/// What was held back is ready at once, and would stay for as long as the client likes.
#[tokio::test]
async fn what_a_client_does_not_take_in_time_is_not_kept_for_it() {
    let mut options = Options {
        settings: json!({"streamRecovery": {"enabled": true}}),
        ..Options::default()
    };
    options.limits.stall_time = Duration::from_millis(100);
    let bench = Bench::start_with(options).await;
    bench.one.set_reply(Reply {
        chunks: 4_000,
        chunk_bytes: 8_192,
        ..Reply::default()
    });
    let client = bench.client.with_small_window();
    let response = client.open_post(CHAT, &chat("one/m", true)).await;
    bench
        .until("the end", |bench| bench.control.heard().released.len() == 1)
        .await;
    let text = read(response).await.text();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.contains("client_stalled"), "{last}");
    assert!(
        text.len() < HOLD_BYTES / 2,
        "{} bytes were kept",
        text.len()
    );
}

#[rstest]
#[tokio::test]
async fn little_is_held_for_a_client_that_never_reads(
    #[values(false, true)] over_http2: bool,
    #[values(
        Says::Events(200),
        Says::Events(60_000),
        Says::Events(120_000),
        Says::Events(300_000),
        Says::Plain,
        Says::Line
    )]
    says: Says,
) {
    let upstream = RawUpstream::start().await;
    let mut options = Options {
        one_at: Some(upstream.base_url()),
        ..Options::default()
    };
    options.limits.stall_time = Duration::from_secs(5);
    let bench = Bench::start_with(options).await;
    let client = if over_http2 {
        ask_over_http2(bench.addr).await
    } else {
        ask_over_http1(bench.addr).await
    };
    let mut asked = upstream.asked().await;
    let written = std::sync::Arc::clone(&asked.written);
    let writing = bench.tasks.spawn(async move {
        let event = says.then();
        let mut is_there = asked.write(STREAM_HEAD.as_bytes()).await;
        is_there = is_there && asked.write(says.at_first().as_bytes()).await;
        let mut left = ALL;
        while is_there && left > 0 {
            is_there = asked.write(event.as_bytes()).await;
            left = left.saturating_sub(event.len());
        }
        is_there
    });
    // Until nothing moves any more.
    let standing = async {
        let mut before = 0;
        let mut still = 0;
        while still < 10 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = written.load(Ordering::Relaxed);
            still = if now == before && now > 0 {
                still + 1
            } else {
                0
            };
            before = now;
        }
        before
    };
    let taken = tokio::time::timeout(LIMIT, standing).await.unwrap();
    let in_kernel = in_the_kernel(&[upstream.addr().port(), bench.addr.port()]);
    let held = taken.saturating_sub(in_kernel);
    assert!(taken < ALL.try_into().unwrap(), "the provider waits");
    assert!(in_kernel > 0, "the kernel tells");
    assert!(held <= MOST_HELD, "{held} of {taken} bytes are held");
    // And not for ever.
    let is_there = tokio::time::timeout(LIMIT, writing).await.unwrap().unwrap();
    assert!(!is_there, "the provider is let go");
    bench
        .until("the end", |bench| bench.control.heard().released.len() == 1)
        .await;
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
    assert_eq!(bench.control.heard().usages.len(), 1);
    drop(client);
}

/// Each event is a chunk of its own, which hyper hands over one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_come_together_leave_together() {
    const EVENTS: usize = 50;
    let (one, bench) = Scripted::bench(Options::default()).await;
    let said: Vec<String> = (0..EVENTS)
        .map(|number| text(&number.to_string()))
        .collect();
    let upstream = async {
        let mut call = one.call().await.streams(&[role()]).await;
        call.sends_at_once(&said).await;
        call.sends(&stop()).await;
        call.ends().await;
    };
    let body = chat("one/m", true);
    let asked = bench.client.open_post(CHAT, &body);
    let (response, ()) = tokio::join!(asked, upstream);
    let mut body = response.into_body();
    let mut pieces = Vec::new();
    while let Some(frame) = body.frame().await {
        pieces.push(frame.unwrap().into_data().unwrap());
    }
    let all = role() + &said.concat() + &stop();
    assert_eq!(pieces.concat(), all.as_bytes());
    assert!(pieces.len() <= EVENTS / 5, "{} pieces", pieces.len());
}

/// How a stream ends that has more for its client than the client takes.
#[derive(Clone, Copy)]
enum End {
    /// It breaks while it is held back, and is not opened again.
    Breaks,
    /// Its deadline passes.
    Expires,
    /// It ends as it should, while it is held back.
    Completes,
}

/// What has ended is not kept for ever either.
#[rstest]
#[case::broken(End::Breaks)]
#[case::expired(End::Expires)]
#[case::complete(End::Completes)]
#[tokio::test]
async fn what_an_ended_stream_left_is_not_kept_for_a_client_that_takes_nothing(#[case] end: End) {
    const STALL_MS: u64 = 2_000;
    const KEPT: usize = 50_000;
    let mut options = Options {
        settings: json!({
            "streamRecovery": {"enabled": true},
            "retryBudget": {"ratio": 0.5, "minConcurrent": 0},
        }),
        ..Options::default()
    };
    options.limits.stall_time = Duration::from_millis(STALL_MS);
    options.deadlines.attempt = Some(Duration::from_secs(5));
    let (one, bench) = Scripted::bench(options).await;
    let time = Frozen::time();
    let client = bench.client.with_small_window();
    let said: Vec<String> = (0..KEPT / 1_000)
        .map(|_| text(&"x".repeat(1_000)))
        .collect();
    let upstream = async {
        let mut call = one.call().await.streams(&said).await;
        until("the first event", || !bench.control.outcomes().is_empty()).await;
        settles().await;
        match end {
            End::Breaks => call.breaks(),
            End::Expires => {
                // What is held is shown with the next event.
                time.passes(1_000).await;
                call.sends(&text("y")).await;
                settles().await;
                time.runs_out(4_000).await;
                call.until_let_go().await;
            }
            End::Completes => {
                call.sends(&stop()).await;
                call.ends().await;
            }
        }
    };
    let body = chat("one/m", true);
    let asked = client.open_post(CHAT, &body);
    let (response, ()) = tokio::join!(asked, upstream);
    if !matches!(end, End::Completes) {
        // It has ended for everybody but its client.
        until("the end", || bench.control.heard().released.len() == 1).await;
    }
    settles().await;
    for _ in 0..2 {
        time.runs_out(STALL_MS).await;
        settles().await;
    }
    let shown = read(response).await.text();
    // What the connection took before it waited for room is on its way.
    assert!(
        shown.len() < KEPT * 2 / 3,
        "{} bytes were kept",
        shown.len()
    );
    let last = shown.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.contains("client_stalled"), "{last}");
}

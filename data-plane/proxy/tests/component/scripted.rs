//! A provider whose answers a test writes piece by piece, and time that only a test moves.
//!
//! Time stands still while [`Frozen`] lives, real sockets or not, so a limit passes exactly when a test says so. The
//! limits of the test's own client are among them: less than [`crate::bench::LIMIT`] may pass while it waits.

use std::sync::mpsc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tidegate_core::outcome::{Outcome, StreamFault};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::bench::{Bench, LEASE_KEY, Options, chat};
use crate::client::{Client, Reply, read};
use crate::lease_requests::{OWNER, TOKEN};

/// Of real time; then time goes on, and with it the limits of all waits.
const LONGEST_TEST: Duration = Duration::from_secs(20);
/// Looks at a condition before it is given up.
const LOOKS: u32 = 200_000;

/// Time stands still.
pub(crate) struct Frozen {
    _thaws: mpsc::Sender<()>,
}

impl Frozen {
    pub(crate) fn time() -> Self {
        tokio::time::pause();
        let (thaws, thawed) = mpsc::channel::<()>();
        // While something blocks, paused time does not move by itself.
        drop(tokio::task::spawn_blocking(move || {
            let _thawed = thawed.recv_timeout(LONGEST_TEST);
        }));
        Self { _thaws: thaws }
    }

    /// Lets time pass.
    pub(crate) async fn passes(&self, ms: u64) {
        tokio::time::advance(Duration::from_millis(ms)).await;
    }

    /// Lets time pass until a timer of so many ms that began now has run out: it does so with the next whole ms.
    pub(crate) async fn runs_out(&self, ms: u64) {
        self.passes(ms.saturating_add(1)).await;
    }
}

/// The provider `one` of a bench.
pub(crate) struct Scripted {
    listener: TcpListener,
}

impl Scripted {
    /// A bench whose provider `one` this is.
    pub(crate) async fn bench(options: Options) -> (Self, Bench) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let one = Self { listener };
        let one_at = Some(one.base_url());
        let bench = Bench::start_with(Options { one_at, ..options }).await;
        (one, bench)
    }

    /// The next request.
    pub(crate) async fn call(&self) -> Call {
        let (stream, _) = self.listener.accept().await.unwrap();
        Call::read(stream).await
    }

    /// Nobody asks for anything.
    pub(crate) async fn is_left_alone(&self) {
        for _ in 0..1_000 {
            tokio::select! {
                biased;
                _call = self.listener.accept() => panic!("there is a request"),
                () = tokio::task::yield_now() => {}
            }
        }
    }

    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.listener.local_addr().unwrap())
    }

    /// The provider is gone: connections are refused.
    pub(crate) fn goes_away(self) {
        drop(self);
    }
}

/// One request on a connection of its own, answered in HTTP/1.1 with a chunked body.
pub(crate) struct Call {
    stream: TcpStream,
    pub(crate) body: Value,
}

impl Call {
    async fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        loop {
            assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "a request");
            let text = String::from_utf8(bytes.clone()).unwrap();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length: usize = head
                .to_ascii_lowercase()
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
                .unwrap();
            if body.len() == length {
                let body = serde_json::from_str(body).unwrap();
                return Self { stream, body };
            }
        }
    }

    /// Sends the head of a stream and these events.
    pub(crate) async fn streams(mut self, events: &[String]) -> Self {
        self.write(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
             transfer-encoding: chunked\r\nconnection: close\r\n\r\n",
        )
        .await;
        self.sends(&events.concat()).await;
        self
    }

    /// Sends a piece of the body.
    pub(crate) async fn sends(&mut self, text: &str) {
        self.write(&framed(text)).await;
    }

    /// Sends several of them with one write.
    pub(crate) async fn sends_at_once(&mut self, texts: &[String]) {
        let framed: String = texts.iter().map(|text| framed(text)).collect();
        self.write(&framed).await;
    }

    /// Ends the body as it should be.
    pub(crate) async fn ends(mut self) {
        self.write("0\r\n\r\n").await;
    }

    /// Breaks the connection off.
    pub(crate) fn breaks(self) {
        drop(self);
    }

    /// Answers with an error.
    pub(crate) async fn refuses(self, status: u16) {
        let error = json!({"error": {"message": "no", "type": "server_error"}});
        self.answers(status, &error).await;
    }

    /// Answers in one piece.
    pub(crate) async fn answers(mut self, status: u16, body: &Value) {
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status} Whatever\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        self.write(&head).await;
    }

    /// Waits until the other side hangs up.
    pub(crate) async fn until_let_go(mut self) {
        let mut rest = Vec::new();
        // A reset is as good as an end.
        let _ended = self.stream.read_to_end(&mut rest).await;
        assert_eq!(rest, b"");
    }

    async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }
}

/// A chunk of HTTP/1.1.
fn framed(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// Waits, while time stands still, until `condition` holds.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..LOOKS {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("waited in vain for {what}");
}

/// What goes on by itself has gone on, what goes through the kernel as well: that takes real time, whatever stands still.
pub(crate) async fn settles() {
    for _ in 0..20 {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A chunk of a chat stream with this delta.
pub(crate) fn chunk(delta: &Value, finish_reason: Option<&str>) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish_reason});
    let chunk = json!({"id": "c-1", "object": "chat.completion.chunk", "created": 7,
        "model": "m", "choices": [choice]});
    format!("data: {chunk}\n\n")
}

/// The first chunk of a chat stream.
pub(crate) fn role() -> String {
    chunk(&json!({"role": "assistant", "content": ""}), None)
}

/// A chunk with text.
pub(crate) fn text(text: &str) -> String {
    chunk(&json!({"content": text}), None)
}

/// The last chunk and the end.
pub(crate) fn stop() -> String {
    chunk(&json!({}), Some("stop")) + "data: [DONE]\n\n"
}

/// Something that is not progress.
pub(crate) fn ping() -> String {
    ": ping\n\n".to_owned()
}

/// The text that a client puts together from a chat stream.
pub(crate) fn told(body: &str) -> String {
    events(body)
        .iter()
        .filter_map(|event| event.pointer("/choices/0/delta/content")?.as_str())
        .collect()
}

/// The events of a stream but its `[DONE]`.
pub(crate) fn events(body: &str) -> Vec<Value> {
    body.split("\n\n")
        .filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap_or_else(|_| panic!("JSON in {data}")))
        .collect()
}

/// Where chats are asked for.
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const TRUNCATED: Outcome = Outcome::Stream(StreamFault::Truncated);
pub(crate) const TOO_SLOW: Outcome = Outcome::Stream(StreamFault::ThroughputTooLow);

/// Asks for a stream of the scripted provider.
pub(crate) async fn post(bench: &Bench) -> Reply {
    bench.client.post(CHAT, &chat("one/m", true)).await
}

/// The same under a lease.
pub(crate) async fn leased_post(bench: &Bench) -> Reply {
    let lease = [(OWNER, TOKEN), ("x-omniroute-lease-generation", "3")];
    let body = chat("one/m", true).to_string().into();
    let client = Client::new(bench.addr, LEASE_KEY);
    read(client.open(Method::POST, CHAT, &lease, body).await).await
}

/// The code of the error that a stream ends with.
pub(crate) fn code(reply: &Reply) -> String {
    let events = events(&reply.text());
    let last = events.last().unwrap();
    last["error"]["code"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// So many attempts more than one, as the client is told.
pub(crate) fn fallback_attempts(reply: &Reply) -> Option<&str> {
    reply.header("x-omniroute-fallback-attempts")
}

/// How many attempts became ready. Each of them is billed, whether its client saw any of it or not.
pub(crate) fn ready(bench: &Bench) -> usize {
    let outcomes = bench.control.outcomes();
    outcomes
        .iter()
        .filter(|it| **it == Outcome::Success)
        .count()
}

/// So many usage records, each of another attempt, and the permit of the first attempt is back, once; nothing more comes.
pub(crate) async fn ended_once(bench: &Bench, usages: usize) {
    until("the end", || {
        let heard = bench.control.heard();
        heard.usages.len() == usages && heard.released.len() == 1
    })
    .await;
    settles().await;
    let heard = bench.control.heard();
    let mut recorded: Vec<_> = heard.usages.iter().map(|usage| usage.attempt).collect();
    recorded.dedup();
    assert_eq!((recorded.len(), heard.usages.len()), (usages, usages));
    assert_eq!(heard.released.len(), 1);
    assert_eq!(heard.released[0].number, 1);
    assert_eq!(heard.abandoned, []);
    assert_eq!(heard.asks, 1, "nobody decides what goes where it went");
}

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use super::*;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const MOST: usize = 1_000;

struct Endpoint {
    addr: SocketAddr,
    asked: Arc<AtomicU32>,
    _tasks: TaskTracker,
}

impl Endpoint {
    /// Answers everything with these bytes; none means: never.
    async fn start(answer: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let tasks = TaskTracker::new();
        let count = Arc::clone(&asked);
        tasks.spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1_024];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                count.fetch_add(1, Ordering::Relaxed);
                match &answer {
                    // Who has read enough closes early.
                    Some(answer) => drop(stream.write_all(answer.as_bytes()).await),
                    None => open.push(stream),
                }
            }
        });
        Self {
            addr,
            asked,
            _tasks: tasks,
        }
    }

    async fn ask(&self, within: Duration) -> Result<Answer, NoAnswer> {
        ask(self.addr, within).await
    }
}

async fn ask(addr: SocketAddr, within: Duration) -> Result<Answer, NoAnswer> {
    let uri: Uri = format!("http://{addr}/usage").parse().unwrap();
    let request = Request::get("/usage").header("host", "test");
    let limits = Limits {
        deadline: local_now() + within,
        grace: Duration::ZERO,
        body_bytes: MOST,
    };
    let request = request.body(Full::default()).unwrap();
    Outbound::new().ask(uri, request, limits).await
}

fn with_body(length: usize) -> String {
    let body = "x".repeat(length);
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")
}

#[tokio::test]
async fn a_body_is_read_up_to_the_limit() {
    let most = Endpoint::start(Some(with_body(MOST))).await;
    let answer = most.ask(PATIENCE).await.unwrap();
    assert_eq!((answer.status, answer.body.len()), (StatusCode::OK, MOST));
    let more = Endpoint::start(Some(with_body(MOST + 1))).await;
    assert_eq!(more.ask(PATIENCE).await.unwrap_err(), NoAnswer::TooLarge);
}

#[tokio::test]
async fn a_redirect_is_told_and_not_followed() {
    let target = Endpoint::start(Some(with_body(1))).await;
    let location = format!("http://{}/usage", target.addr);
    let answer = format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
    let from = Endpoint::start(Some(answer)).await;
    let answer = from.ask(PATIENCE).await.unwrap();
    assert_eq!(answer.status, StatusCode::FOUND);
    assert_eq!(answer.headers["location"], location);
    assert_eq!(from.asked.load(Ordering::Relaxed), 1);
    assert_eq!(target.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_silent_endpoint_is_given_up() {
    let silent = Endpoint::start(None).await;
    let error = silent.ask(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(error, NoAnswer::Timeout);
    // Nothing is sent after the deadline.
    let late = Endpoint::start(Some(with_body(1))).await;
    let error = late.ask(Duration::ZERO).await.unwrap_err();
    assert_eq!(error, NoAnswer::Timeout);
    assert_eq!(late.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_is_not_there_or_breaks_off_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(
        ask(addr, PATIENCE).await.unwrap_err(),
        NoAnswer::Unreachable
    );
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_owned();
    let broken = Endpoint::start(Some(half)).await;
    assert_eq!(
        broken.ask(PATIENCE).await.unwrap_err(),
        NoAnswer::Unreachable
    );
}

//! The network's faults, between a client and a server that echoes.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidegate_test_support::{Direction, FaultProxy, Redis, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

const LIMIT: Duration = Duration::from_secs(10);
/// Long enough to see that nothing comes.
const QUIET: Duration = Duration::from_millis(150);

async fn echo_server() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let tasks = TaskTracker::new();
    tasks.clone().spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tasks.spawn(async move {
                let (mut from, mut to) = stream.split();
                drop(tokio::io::copy(&mut from, &mut to).await);
            });
        }
    });
    Ok(addr)
}

async fn say(stream: &mut TcpStream, text: &str) -> std::io::Result<String> {
    stream.write_all(text.as_bytes()).await?;
    let mut answer = vec![0; text.len()];
    timeout(LIMIT, stream.read_exact(&mut answer)).await??;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn bytes_and_ends_pass() {
    let proxy = FaultProxy::start(echo_server().await.unwrap())
        .await
        .unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    let long = "tide".repeat(200_000);
    let (mut from, mut to) = stream.split();
    let sending = async {
        to.write_all(long.as_bytes()).await?;
        to.shutdown().await
    };
    let mut answer = String::new();
    let (sent, received) = tokio::join!(sending, from.read_to_string(&mut answer));
    sent.unwrap();
    assert_eq!(received.unwrap(), long.len());
    assert_eq!(answer, long);
    drop(stream);
    eventually(LIMIT, "the proxy to close", || async {
        (proxy.open() == 0).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_delay_counts_each_way_and_does_not_limit_throughput() {
    let proxy = FaultProxy::start(echo_server().await.unwrap())
        .await
        .unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    // One after the other they would take twice as long as they may.
    let delay = Duration::from_millis(200);
    proxy.set_delay(delay);
    let begun = Instant::now();
    say(&mut stream, "hello").await.unwrap();
    assert!(begun.elapsed() >= delay * 2);
    // Forty messages, one after the other without waiting for answers, are under way together.
    for _ in 0..40 {
        stream.write_all(b"x").await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut answers = [0; 40];
    timeout(delay * 40, stream.read_exact(&mut answers))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_cut_resets_old_and_new_connections_until_resume() {
    let proxy = FaultProxy::start(echo_server().await.unwrap())
        .await
        .unwrap();
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    say(&mut old, "hello").await.unwrap();
    proxy.cut();
    let error = timeout(LIMIT, old.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(say(&mut new, "hello").await.is_err());
    proxy.resume();
    let mut later = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(say(&mut later, "hello").await.unwrap(), "hello");
    proxy.reset_connections();
    assert!(timeout(LIMIT, later.read_u8()).await.unwrap().is_err());
    let mut last = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(say(&mut last, "hello").await.unwrap(), "hello");
    assert_eq!(proxy.accepted(), 4);
}

#[tokio::test]
async fn frozen_bytes_pass_after_resume() {
    let proxy = FaultProxy::start(echo_server().await.unwrap())
        .await
        .unwrap();
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    say(&mut old, "hello").await.unwrap();
    proxy.freeze();
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    for stream in [&mut old, &mut new] {
        stream.write_all(b"held").await.unwrap();
        assert!(timeout(QUIET, stream.read_u8()).await.is_err());
    }
    proxy.resume();
    for stream in [&mut old, &mut new] {
        let mut answer = [0; 4];
        timeout(LIMIT, stream.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&answer, b"held");
    }
}

#[tokio::test]
async fn a_write_can_run_while_its_answer_is_frozen() {
    let redis = Redis::start().await.unwrap();
    let proxy = FaultProxy::start(redis.addr()).await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.freeze_direction(Direction::ToClient);
    stream.write_all(b"SET k v\r\n").await.unwrap();
    eventually(LIMIT, "the write", || async {
        redis
            .command(&["GET", "k"])
            .await
            .ok()?
            .as_text()
            .map(|text| assert_eq!(text, "v"))
    })
    .await
    .unwrap();
    assert!(timeout(QUIET, stream.read_u8()).await.is_err());
    proxy.resume();
    let mut answer = [0; 5];
    timeout(LIMIT, stream.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

#[tokio::test]
async fn a_server_that_is_away_is_a_reset_and_another_can_take_over() {
    let redis = Redis::start().await.unwrap();
    let proxy = FaultProxy::start(redis.addr()).await.unwrap();
    redis.stop().await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(say(&mut stream, "PING\r\n").await.is_err());
    proxy.retarget(echo_server().await.unwrap());
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(say(&mut stream, "hello").await.unwrap(), "hello");
}

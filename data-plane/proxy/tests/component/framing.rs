//! Where requests begin and end on a connection, whatever a client does to make that unclear; and that each of those that
//! were sent is finalized once, and nothing else is.

use rstest::rstest;
use serde_json::Value;
use tidegate_fake_upstream::Selector;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::bench::{Bench, KEY, LIMIT, chat};
use crate::client::raw;
use crate::once::{Counts, is_settled};

const CHAT: &str = "/v1/chat/completions";

fn asked(bench: &Bench) -> (u64, u64) {
    let any = Selector::any();
    (bench.one.log().count(&any), bench.two.log().count(&any))
}

fn body() -> String {
    chat("one/m", false).to_string()
}

fn chunked(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

/// A head with these lines, each with its end.
fn head(lines: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n{lines}\r\n")
}

/// A whole request for `model`, after which the connection ends.
fn last_request(model: &str) -> String {
    let body = chat(model, false).to_string();
    let length = body.len();
    head(&format!(
        "connection: close\r\ncontent-length: {length}\r\n"
    )) + &body
}

/// What an attacker wants to be taken for a request of its own: it asks `two`.
fn smuggled() -> String {
    last_request("two/m")
}

/// Two readings of one request must never give two requests.
#[rstest]
#[case::length_then_chunked("content-length: 4\r\ntransfer-encoding: chunked\r\n", true)]
#[case::chunked_then_length("transfer-encoding: chunked\r\ncontent-length: 4\r\n", true)]
#[case::length_behind_a_bare_line_feed(
    "x: y\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n",
    true
)]
#[case::two_lengths("content-length: LENGTH\r\ncontent-length: 4\r\n", false)]
#[case::list_of_lengths("content-length: LENGTH, 4\r\n", false)]
#[case::negative_length("content-length: -1\r\n", false)]
#[case::signed_length("content-length: +LENGTH\r\n", false)]
#[case::huge_length("content-length: 99999999999999999999\r\n", false)]
#[case::chunked_is_not_last("transfer-encoding: chunked, identity\r\n", true)]
#[case::identity("transfer-encoding: identity\r\ncontent-length: LENGTH\r\n", false)]
#[case::unknown_coding("transfer-encoding: xchunked\r\n", true)]
#[case::vertical_tab("transfer-encoding: \x0bchunked\r\n", true)]
#[case::blank_before_the_colon("transfer-encoding : chunked\r\n", true)]
#[case::folded("transfer-encoding:\r\n chunked\r\n", true)]
#[case::folded_length(
    "content-length: LENGTH\r\nx: y\r\n transfer-encoding: chunked\r\n",
    false
)]
#[case::bare_carriage_return("x: y\rtransfer-encoding: chunked\r\n", true)]
#[case::nul("x: y\0z\r\ncontent-length: LENGTH\r\n", false)]
#[case::nul_in_a_name("x\0: y\r\ncontent-length: LENGTH\r\n", false)]
#[tokio::test]
async fn shapes_with_two_readings(#[case] lines: &str, #[case] is_chunked: bool) {
    let bench = Bench::start().await;
    let body = body();
    let lines = lines.replace("LENGTH", &body.len().to_string());
    let body = if is_chunked { chunked(&body) } else { body };
    let answer = raw(bench.addr, (head(&lines) + &body + &smuggled()).as_bytes()).await;
    let (one, two) = asked(&bench);
    assert_eq!(two, 0, "{answer}");
    assert!(one <= 1, "{answer}");
    let answers = answer.matches("HTTP/1.1 ").count();
    assert!(answers <= 1, "{answer}");
    assert_eq!(one == 1, answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        one == 1 || answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
        "{answer}"
    );
    is_settled(bench, Counts::served(usize::from(one == 1))).await;
}

#[tokio::test]
async fn an_old_client_cannot_send_chunks() {
    let bench = Bench::start().await;
    let head = head("transfer-encoding: chunked\r\n").replace("HTTP/1.1", "HTTP/1.0");
    let answer = raw(
        bench.addr,
        (head + &chunked(&body()) + &smuggled()).as_bytes(),
    )
    .await;
    assert_eq!(asked(&bench), (0, 0), "{answer}");
    assert!(answer.is_empty() || answer.contains(" 400 "), "{answer}");
    is_settled(bench, Counts::served(0)).await;
}

#[rstest]
#[case::negative("-5\r\nhello\r\n0\r\n\r\n")]
#[case::not_a_number("xyz\r\nhello\r\n0\r\n\r\n")]
#[case::too_large("fffffffffffffffff\r\nhello\r\n0\r\n\r\n")]
#[case::prefixed("0x5\r\nhello\r\n0\r\n\r\n")]
#[case::longer_than_said("2\r\nhello\r\n0\r\n\r\n")]
#[case::without_its_end("5\r\nhello0\r\n\r\n")]
#[case::bare_line_feeds("5\nhello\n0\n\n")]
#[tokio::test]
async fn chunks_that_make_no_sense(#[case] chunks: &str) {
    let bench = Bench::start().await;
    let request = head("transfer-encoding: chunked\r\n") + chunks + &smuggled();
    let answer = raw(bench.addr, request.as_bytes()).await;
    assert_eq!(asked(&bench), (0, 0), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(
        answer.contains("body_broken") || answer.contains("content-length: 0"),
        "{answer}"
    );
    is_settled(bench, Counts::served(0)).await;
}

#[tokio::test]
async fn a_chunked_upload_may_have_extensions_and_trailers() {
    let bench = Bench::start().await;
    let body = body();
    let (one, rest) = body.split_at(10);
    let chunks = format!(
        "a;name=value\r\n{one}\r\n{:X};x\r\n{rest}\r\n0\r\nx-trailer: t\r\nauthorization: Bearer other\r\n\r\n",
        rest.len()
    );
    let head = head("connection: close\r\ntransfer-encoding: chunked\r\ntrailer: x-trailer\r\n");
    let answer = raw(bench.addr, (head + &chunks).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = bench.one.log().last(&Selector::any()).unwrap();
    assert_eq!(seen.body, body.replace("one/m", "m"));
    assert_eq!(seen.header("x-trailer"), None);
    assert_eq!(seen.header("trailer"), None);
    assert_eq!(seen.header("authorization"), Some("Bearer sk-one-a"));
    is_settled(bench, Counts::served(1)).await;
}

#[tokio::test]
async fn extensions_without_end_are_not_read() {
    let bench = Bench::start().await;
    let request = head("transfer-encoding: chunked\r\n") + "5;" + &"x".repeat(100_000);
    let answer = raw(bench.addr, request.as_bytes()).await;
    assert_eq!(asked(&bench), (0, 0));
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
        "{answer}"
    );
    is_settled(bench, Counts::served(0)).await;
}

#[tokio::test]
async fn the_whole_url_may_stand_in_the_request_line() {
    let bench = Bench::start().await;
    let request = last_request("one/m").replace(CHAT, &format!("http://elsewhere{CHAT}"));
    let answer = raw(bench.addr, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(asked(&bench), (1, 0), "no request leaves for anywhere else");
    is_settled(bench, Counts::served(1)).await;
}

#[tokio::test]
async fn nobody_is_connected_through() {
    let bench = Bench::start().await;
    let target = bench.one.addr();
    let request = format!(
        "CONNECT {target} HTTP/1.1\r\nhost: {target}\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\r\n"
    );
    let answer = raw(bench.addr, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    assert_eq!(asked(&bench), (0, 0));
    is_settled(bench, Counts::served(0)).await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let bench = Bench::start().await;
    let plain = |model: &str| {
        let body = chat(model, false).to_string();
        head(&format!("content-length: {}\r\n", body.len())) + &body
    };
    let requests = [
        plain("one/m"),
        plain("two/m"),
        plain("nobody/knows"),
        plain("one/n"),
        last_request("two/n"),
    ];
    let answer = raw(bench.addr, requests.concat().as_bytes()).await;
    let mut rest = answer.as_str();
    for expected in ["fp_one", "fp_two", "model_not_found", "fp_one", "fp_two"] {
        let (_, behind) = rest.split_once("HTTP/1.1 ").unwrap();
        let found = behind.find(expected).unwrap_or(usize::MAX);
        let next = behind.find("HTTP/1.1 ").unwrap_or(usize::MAX - 1);
        assert!(found < next, "{expected}: {answer}");
        rest = behind;
    }
    assert_eq!(asked(&bench), (2, 2));
    is_settled(bench, Counts::served(4)).await;
}

/// Streams, too: the next answer begins behind the last chunk of the one before.
#[tokio::test]
async fn a_pipelined_request_waits_for_the_end_of_a_stream() {
    let bench = Bench::start().await;
    let body = chat("one/m", true).to_string();
    let first = head(&format!("content-length: {}\r\n", body.len())) + &body;
    let answer = raw(bench.addr, (first + &last_request("two/m")).as_bytes()).await;
    let (stream, next) = answer.split_once("data: [DONE]").unwrap();
    assert!(!stream.contains("fp_two"), "{answer}");
    assert!(
        next.contains("HTTP/1.1 200") && next.contains("fp_two"),
        "{answer}"
    );
    is_settled(bench, Counts::served(2)).await;
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&read).contains(end) {
            assert!(
                stream.read_buf(&mut read).await.unwrap() > 0,
                "{end} is there"
            );
        }
    };
    tokio::time::timeout(LIMIT, reading).await.unwrap();
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn a_client_that_waits_to_be_asked_for_its_body_is_asked() {
    let bench = Bench::start().await;
    let body = body();
    let head = head(&format!(
        "connection: close\r\nexpect: 100-continue\r\ncontent-length: {}\r\n",
        body.len()
    ));
    let mut stream = TcpStream::connect(bench.addr).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let told = read_until(&mut stream, "\r\n\r\n").await;
    assert_eq!(told, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).await.unwrap();
    let answer = read_until(&mut stream, "fp_one").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    is_settled(bench, Counts::served(1)).await;
}

#[tokio::test]
async fn a_client_that_is_refused_is_not_asked_for_its_body() {
    let bench = Bench::start().await;
    let head = head("expect: 100-continue\r\ncontent-length: 1000000\r\n");
    let answer = raw(bench.addr, head.replace(KEY, "sk-wrong").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    is_settled(bench, Counts::served(0)).await;
}

#[tokio::test]
async fn a_body_may_come_byte_by_byte() {
    let bench = Bench::start().await;
    let mut stream = TcpStream::connect(bench.addr).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in last_request("one/m").as_bytes() {
        stream.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let answer = read_until(&mut stream, "fp_one").await;
    let (_, answer) = answer.split_once("\r\n\r\n").unwrap();
    let answer: Value = serde_json::from_str(answer).unwrap();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(asked(&bench), (1, 0));
    is_settled(bench, Counts::served(1)).await;
}

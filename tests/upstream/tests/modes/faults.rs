//! Faults of the network and of the format.

use std::io::{ErrorKind, Read as _};
use std::time::Duration;

use flate2::read::{DeflateDecoder, GzDecoder, ZlibDecoder};
use tidegate_fake_upstream::{Closing, Encoding, Mode};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::seen::{CHAT, LIMIT, MESSAGES, QUIET, ask, send};
use crate::{chat, start};

fn decoded(encoding: Encoding, bytes: &[u8]) -> (String, bool) {
    let mut out = Vec::new();
    let read = match encoding {
        Encoding::Gzip => GzDecoder::new(bytes).read_to_end(&mut out),
        Encoding::Deflate => ZlibDecoder::new(bytes).read_to_end(&mut out),
        Encoding::RawDeflate => DeflateDecoder::new(bytes).read_to_end(&mut out),
        Encoding::Brotli => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out),
        Encoding::Zstd => zstd::Decoder::new(bytes).unwrap().read_to_end(&mut out),
    };
    (String::from_utf8(out).unwrap(), read.is_ok())
}

#[tokio::test]
async fn a_body_is_compressed_in_every_encoding() {
    let plain = start(Mode::Ok).await.unwrap();
    let plain = ask(plain.addr(), CHAT, &chat(true)).await.unwrap().text();
    for (encoding, name) in [
        (Encoding::Gzip, "gzip"),
        (Encoding::Deflate, "deflate"),
        (Encoding::RawDeflate, "deflate"),
        (Encoding::Brotli, "br"),
        (Encoding::Zstd, "zstd"),
    ] {
        let upstream = start(Mode::Ok.encoded(encoding)).await.unwrap();
        let seen = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
        assert_eq!(seen.header("content-encoding"), Some(name));
        let (text, whole) = decoded(encoding, &seen.body);
        assert!(seen.whole && whole, "{name}");
        assert_eq!(text.len(), plain.len(), "{name}");
        let cut = Mode::CutInEvent { events: 2 }.encoded(encoding);
        upstream.set_default(cut);
        let seen = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
        let (text, whole) = decoded(encoding, &seen.body);
        assert!(!seen.whole && !whole, "{name}");
        assert_eq!(text.matches("data: ").count(), 3, "{name}: {text}");
    }
}

#[tokio::test]
async fn a_bomb_is_a_thousand_times_what_is_sent() {
    let bytes = 8 * 1024 * 1024;
    let upstream = start(Mode::GzipBomb { bytes }).await.unwrap();
    for stream in [false, true] {
        let seen = ask(upstream.addr(), CHAT, &chat(stream)).await.unwrap();
        let (text, whole) = decoded(Encoding::Gzip, &seen.body);
        assert!(!whole);
        assert!(text.ends_with("xxxx"));
        let length = u64::try_from(text.len()).unwrap();
        assert!(length > bytes, "{length}");
        assert!(seen.body.len() < 32 * 1024, "{}", seen.body.len());
    }
}

#[tokio::test]
async fn a_body_is_cut_where_the_mode_says() {
    let upstream = start(Mode::CutInEvent { events: 2 }).await.unwrap();
    let seen = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    assert_eq!(seen.text().matches("\n\n").count(), 2);
    assert!(!seen.whole && !seen.text().ends_with('\n'));
    let seen = ask(upstream.addr(), CHAT, &chat(false)).await.unwrap();
    assert!(!seen.whole && seen.text().starts_with('{') && seen.json().is_null());
    upstream.set_default(Mode::CutInCodePoint);
    for (path, stream) in [(CHAT, true), (CHAT, false), (MESSAGES, true)] {
        let seen = ask(upstream.addr(), path, &chat(stream)).await.unwrap();
        let error = std::str::from_utf8(&seen.body).unwrap_err();
        assert_eq!(error.error_len(), None, "not merely unfinished");
        assert!(!seen.whole && error.valid_up_to() > 20);
    }
    upstream.set_default(Mode::ResetAfter { bytes: 100 });
    for stream in [false, true] {
        let error = ask(upstream.addr(), CHAT, &chat(stream)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn an_end_is_missing_or_comes_twice() {
    let upstream = start(Mode::MissingEnd { last: 1 }).await.unwrap();
    let seen = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    assert!(seen.whole && !seen.text().contains("[DONE]") && seen.text().ends_with("\n\n"));
    let seen = ask(upstream.addr(), MESSAGES, &chat(true)).await.unwrap();
    assert!(seen.whole && !seen.text().contains("message_stop"));
    let seen = ask(upstream.addr(), CHAT, &chat(false)).await.unwrap();
    assert!(seen.whole && seen.json().is_null() && !seen.body.is_empty());
    upstream.set_default(Mode::MissingEnd { last: usize::MAX });
    for stream in [false, true] {
        let seen = ask(upstream.addr(), CHAT, &chat(stream)).await.unwrap();
        assert!(seen.whole && seen.body.is_empty() && seen.status() == 200);
    }
    upstream.set_default(Mode::DoubleEnd);
    let seen = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    assert_eq!(seen.text().matches("[DONE]").count(), 2);
}

#[tokio::test]
async fn a_body_makes_no_sense_or_has_no_end() {
    let upstream = start(Mode::Garbage { bytes: 5_000 }).await.unwrap();
    let seen = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    assert!(seen.whole && seen.body.len() == 5_000);
    assert!(std::str::from_utf8(&seen.body).is_err());
    upstream.set_default(Mode::LongLine { bytes: 100_000 });
    for stream in [false, true] {
        let seen = ask(upstream.addr(), CHAT, &chat(stream)).await.unwrap();
        assert!(seen.whole && seen.text().ends_with('x'));
        assert_eq!(seen.text().matches('x').count(), 100_000);
        assert!(!seen.text().contains('\n'));
    }
}

#[tokio::test]
async fn a_byte_at_a_time_arrives_whole() {
    let upstream = start(Mode::ByteDrip {
        gap: Duration::ZERO,
    })
    .await
    .unwrap();
    let seen = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    assert!(seen.whole && seen.text().ends_with("[DONE]\n\n"));
}

#[tokio::test]
async fn headers_and_informational_responses_come_before_another_mode() {
    let upstream = start(Mode::with_header("content-type", "text/html"))
        .await
        .unwrap();
    let seen = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    assert_eq!(seen.header("content-type"), Some("text/html"));
    assert!(seen.text().ends_with("[DONE]\n\n"));
    upstream.set_default(Mode::Informational {
        codes: vec![103, 102],
        then: Box::new(Mode::status(503)),
    });
    let mut stream = send(upstream.addr(), CHAT, &chat(false)).await.unwrap();
    let mut seen = String::new();
    timeout(LIMIT, stream.read_to_string(&mut seen))
        .await
        .unwrap()
        .unwrap();
    let heads: Vec<&str> = seen
        .lines()
        .filter(|line| line.starts_with("HTTP/"))
        .collect();
    assert_eq!(
        heads,
        [
            "HTTP/1.1 103 -",
            "HTTP/1.1 102 -",
            "HTTP/1.1 503 Service Unavailable"
        ]
    );
}

#[tokio::test]
async fn raw_bytes_take_the_place_of_an_answer() {
    let bytes = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort";
    let upstream = start(Mode::raw(bytes)).await.unwrap();
    let seen = ask(upstream.addr(), CHAT, &chat(false)).await.unwrap();
    assert_eq!((seen.text().as_str(), seen.whole), ("short", false));
    upstream.set_default(Mode::raw(""));
    let error = ask(upstream.addr(), CHAT, &chat(false)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    let raw = |then| Mode::Raw {
        bytes: bytes.into(),
        then,
    };
    upstream.set_default(raw(Closing::Reset));
    let error = ask(upstream.addr(), CHAT, &chat(false)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    upstream.set_default(raw(Closing::StayOpen));
    let mut stream = send(upstream.addr(), CHAT, &chat(false)).await.unwrap();
    let mut seen = vec![0; bytes.len()];
    timeout(LIMIT, stream.read_exact(&mut seen))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(seen, bytes.as_bytes());
    assert!(timeout(QUIET, stream.read_u8()).await.is_err());
    upstream.set_default(raw(Closing::HalfClose));
    let seen = ask(upstream.addr(), CHAT, &chat(false)).await.unwrap();
    assert_eq!(seen.text(), "short");
}

//! Which HTTP a client speaks, seen from its first bytes before any of hyper's buffers is there.
//!
//! hyper can find out by itself, but what it has read by then it puts before what it reads next, and makes the read
//! buffer twice as large for that, for as long as the connection lives.

use std::io;

use tokio::net::TcpStream;

/// What HTTP/2 begins with (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Waits for the first bytes, which stay unread, and tells whether they can only be HTTP/1. What may become HTTP/2's
/// preface is for hyper to read.
///
/// # Errors
/// The connection's.
pub(super) async fn is_http1(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    let length = stream.peek(&mut first).await?;
    Ok(differs(first.get(..length).unwrap_or_default()))
}

fn differs(first: &[u8]) -> bool {
    first
        .iter()
        .zip(PREFACE)
        .any(|(byte, expected)| byte != expected)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(b"", false)]
    #[case::a_method(b"POST /v1/chat/completions", true)]
    #[case::one_byte_that_both_begin_with(b"P", false)]
    #[case::two_bytes(b"PO", true)]
    #[case::the_preface(PREFACE, false)]
    #[case::a_part_of_it(b"PRI * HTT", false)]
    #[case::another_version(b"PRI * HTTP/1.1\r\n", true)]
    #[case::no_http(b"\x16\x03\x01", true)]
    fn what_cannot_become_the_preface_is_http1(#[case] first: &[u8], #[case] expected: bool) {
        assert_eq!(differs(first), expected);
    }
}

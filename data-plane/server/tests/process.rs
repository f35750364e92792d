//! The data plane as a process, with no control plane anywhere.

use std::time::Duration;

use tidegate_test_support::ProcessBuilder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(10);
const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate-data-plane");
/// Nothing listens on the port that is never given out.
const NOBODY: &str = "http://127.0.0.1:1";

fn program() -> ProcessBuilder {
    ProcessBuilder::program("data-plane", PROGRAM)
}

#[tokio::test]
async fn bad_settings_end_with_64_before_a_port_opens() {
    for args in [
        vec![],
        vec!["--control-plane", NOBODY, "--no-such-flag"],
        vec!["--control-plane", "not a url"],
        vec!["--control-plane", "ftp://127.0.0.1:1"],
        vec!["--control-plane", NOBODY, "--egress-id", "two words"],
        vec!["--control-plane", NOBODY, "--grace", "soon"],
        vec!["--control-plane", NOBODY, "--stall-time", "0s"],
        vec!["--control-plane", NOBODY, "--token-file", "no-such-file"],
        vec!["--control-plane", NOBODY, "--log", "=="],
    ] {
        let ended = program().args(args.clone()).run(LIMIT).await.unwrap();
        assert_eq!(ended.status.code(), Some(64), "{args:?} {ended:?}");
    }
}

#[tokio::test]
async fn help_and_version_are_no_errors() {
    for flag in ["--help", "--version"] {
        let ended = program().arg(flag).run(LIMIT).await.unwrap();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        assert!(ended.stdout.contains("tidegate-data-plane"));
    }
}

#[tokio::test]
async fn it_lives_without_a_control_plane_and_ends_in_good_order() {
    let process = program()
        .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .args(["--control-plane", NOBODY, "--grace", "2s"])
        .env("TIDEGATE_DATA_PLANE_TOKEN", "a-token-that-never-shows")
        .with_ready_file()
        .start()
        .unwrap();
    let addresses = process.wait_for_ready_file(LIMIT).await.unwrap();
    let (http, admin) = (addresses["http"], addresses["admin"]);
    process.wait_for_http(admin, "/livez", LIMIT).await.unwrap();
    process
        .wait_for_http(admin, "/metrics", LIMIT)
        .await
        .unwrap();
    let body = "{\"model\":\"m\"}";
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = TcpStream::connect(http).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("configuration_unavailable"), "{answer}");
    let ended = process.terminate(LIMIT).await.unwrap();
    assert_eq!(ended.code(), Some(0), "{}", process.log_tail());
    let log = process.log().unwrap();
    assert!(
        log.contains("the data plane ended") && !log.contains("never-shows"),
        "{log}"
    );
}

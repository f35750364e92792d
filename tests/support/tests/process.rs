//! Processes: readiness, ends, logs. A shell stands for the binaries.

use std::time::Duration;

use tidegate_test_support::upstream::FakeUpstream;
use tidegate_test_support::{ProcessBuilder, Signal, free_port};

const LIMIT: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(200);

fn shell(script: &str) -> ProcessBuilder {
    ProcessBuilder::program("shell", "/bin/sh").args(["-c", script])
}

#[tokio::test]
async fn a_tool_runs_to_its_end() {
    let tool = shell("echo out; echo err >&2; pwd; exit 3")
        .run(LIMIT)
        .await
        .unwrap();
    assert_eq!(tool.status.code(), Some(3));
    assert!(tool.stdout.starts_with("out\n/"), "{}", tool.stdout);
    assert_eq!(tool.stderr, "err\n");
}

#[tokio::test]
async fn only_what_is_said_is_in_the_environment() {
    let tool = shell("env")
        .env("TIDEGATE_X", "1")
        .run(LIMIT)
        .await
        .unwrap();
    let names: Vec<&str> = tool
        .stdout
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    assert!(
        names.contains(&"TIDEGATE_X") && names.contains(&"PATH"),
        "{names:?}"
    );
    assert!(
        !names
            .iter()
            .any(|name| name.starts_with("CARGO") || name.starts_with("NEXTEST"))
    );
}

#[tokio::test]
async fn readiness_is_seen_in_the_log_and_on_the_network() {
    let upstream = FakeUpstream::builder()
        .needs_credential(false)
        .start()
        .await
        .unwrap();
    let addr = upstream.addr();
    let process = shell(&format!(
        "echo warming up; echo listening on {addr}; exec sleep 60"
    ));
    let process = process.start().unwrap();
    assert_eq!(
        process.wait_for_addr("listening", LIMIT).await.unwrap(),
        addr
    );
    let line = process.wait_for_log("listening", LIMIT).await.unwrap();
    assert_eq!(line, format!("listening on {addr}"));
    process.wait_for_tcp(addr, LIMIT).await.unwrap();
    process
        .wait_for_http(addr, "/v1/models", LIMIT)
        .await
        .unwrap();
    assert!(
        process
            .wait_for_http(addr, "/nothing", SHORT)
            .await
            .is_err()
    );
    let nobody = ([127, 0, 0, 1], free_port().unwrap()).into();
    assert!(process.wait_for_tcp(nobody, SHORT).await.is_err());
}

#[tokio::test]
async fn waiting_for_a_process_that_died_fails_at_once_and_shows_its_log() {
    let process = shell("for i in $(seq 100); do echo line $i; done; exit 4")
        .start()
        .unwrap();
    let error = process
        .wait_for_log("never", Duration::from_secs(60))
        .await
        .unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("exit status: 4") && text.contains("line 100"),
        "{text}"
    );
    assert!(
        text.contains("line 51\n") && !text.contains("line 50\n"),
        "{text}"
    );
}

#[tokio::test]
async fn signals_arrive_and_a_process_can_come_back() {
    let script = "trap 'echo bye; exit 0' TERM; echo up $$; while :; do sleep 0.02; done";
    let process = shell(script).start().unwrap();
    let first = process.wait_for_log("up", LIMIT).await.unwrap();
    assert_eq!(first, format!("up {}", process.pid()));
    assert!(process.start_again().is_err());
    assert_eq!(process.terminate(LIMIT).await.unwrap().code(), Some(0));
    assert!(process.log().unwrap().ends_with("bye\n"));
    process.start_again().unwrap();
    let second = process.wait_for_log("up", LIMIT).await.unwrap();
    assert_ne!(first, second);
    process.pause().unwrap();
    process.signal(Signal::SIGTERM).unwrap();
    assert!(process.wait(SHORT).await.is_err());
    process.resume().unwrap();
    assert_eq!(process.wait(LIMIT).await.unwrap().code(), Some(0));
    process.start_again().unwrap();
    process.kill().await.unwrap();
    assert_eq!(process.exit_status().unwrap().unwrap().code(), None);
}

#[tokio::test]
async fn a_ready_file_is_that_of_the_running_process() {
    let script = r#"while :; do [ -e go ] && echo "{\"http\": \"127.0.0.1:$(($$ % 60000))\"}" >"$2"; sleep 0.02; done"#;
    let process = shell(script).arg("shell").with_ready_file();
    assert!(
        process
            .clone()
            .start()
            .unwrap()
            .wait_for_ready_file(SHORT)
            .await
            .is_err()
    );
    let process = process.start().unwrap();
    std::fs::write(process.dir().join("go"), "").unwrap();
    for _ in 0..2 {
        let ready = process.wait_for_ready_file(LIMIT).await.unwrap();
        assert_eq!(u32::from(ready["http"].port()), process.pid() % 60_000);
        process.kill().await.unwrap();
        process.start_again().unwrap();
    }
}

#[test]
fn a_binary_that_was_not_built_is_named() {
    let error = ProcessBuilder::workspace_binary("tidegate-nothing").unwrap_err();
    assert!(error.to_string().contains("tidegate-nothing"), "{error}");
}

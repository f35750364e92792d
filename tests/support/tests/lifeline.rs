//! A test process that is killed leaves nothing behind.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_test_support::{ProcessBuilder, Signal, eventually};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn nothing_survives_a_killed_test_process() {
    let victim = env!("CARGO_BIN_EXE_tidegate-test-victim");
    let victim = ProcessBuilder::program("victim", victim).start().unwrap();
    let line = victim.wait_for_log("ready", LIMIT).await.unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let addrs: Vec<SocketAddr> = words[1..3]
        .iter()
        .map(|word| word.parse().unwrap())
        .collect();
    let root = PathBuf::from(words[3]);
    assert!(root.is_dir());
    // Redis, and Postgres with its helpers.
    assert!(living_below(&root).len() > 4, "{:?}", living_below(&root));

    victim.signal(Signal::SIGKILL).unwrap();
    victim.wait(LIMIT).await.unwrap();

    eventually(LIMIT, "the end of all servers", || async {
        living_below(&root).is_empty().then_some(())
    })
    .await
    .unwrap();
    eventually(LIMIT, "the removal of all files", || async {
        (!root.exists()).then_some(())
    })
    .await
    .unwrap();
    for addr in addrs {
        assert!(TcpStream::connect(addr).await.is_err());
    }
}

/// Processes whose working directory is below `root`, also when it has been removed meanwhile.
fn living_below(root: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let folders = processes.filter_map(|process| fs::read_link(process.path().join("cwd")).ok());
    folders.filter(|folder| folder.starts_with(root)).collect()
}

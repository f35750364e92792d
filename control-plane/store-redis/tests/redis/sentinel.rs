//! A server and its replica under a Sentinel.

use tidegate_core::ids::SHARDS;
use tidegate_core::version::Version;
use tidegate_store::hot::{Followed, HotStore as _, RefusalReason, VersionVector, WriteOutcome};
use tidegate_store_redis::{RedisConfig, RedisMode};
use tidegate_test_support::{ProcessBuilder, Redis, RedisOptions, ReservedPort, ScratchDir};

use crate::following::next;
use crate::host::{Fault, Hand, config, eventually};

/// The replica that takes over has the same values and another run id: it is written to only after a new incarnation.
#[tokio::test]
async fn after_a_fail_over_the_new_server_is_found_and_not_trusted() -> Result<(), Fault> {
    let first = Redis::start().await?;
    let first_port = first.addr().port().to_string();
    let second = Redis::start_with(RedisOptions {
        args: vec!["--replicaof".to_owned(), format!("127.0.0.1 {first_port}")],
        ..RedisOptions::default()
    })
    .await?;
    let port = ReservedPort::reserve()?;
    let scratch = ScratchDir::new("sentinel")?;
    let file = scratch.path().join("sentinel.conf");
    let lines = [
        format!("port {}", port.number()),
        "bind 127.0.0.1".to_owned(),
        "sentinel monitor hot 127.0.0.1 ".to_owned() + &first_port + " 1",
        "sentinel down-after-milliseconds hot 500".to_owned(),
        "sentinel failover-timeout hot 5000".to_owned(),
    ];
    std::fs::write(&file, lines.join("\n"))?;
    let _sentinel = ProcessBuilder::program("sentinel", "redis-server")
        .arg(file)
        .arg("--sentinel")
        .start()?;
    let sentinel_url = format!("redis://{}/", port.addr());
    let through_sentinel = RedisConfig {
        mode: RedisMode::Sentinel {
            service: "hot".to_owned(),
            node_url: None,
        },
        ..config(sentinel_url.clone())
    };
    let hand = Hand::new(&through_sentinel, 4)?;
    let old = eventually("the first server", || async { hand.begin().await.ok() }).await?;
    let mut from = VersionVector::default();
    for slot in from.iter_mut().skip(4).take(1) {
        *slot = Version {
            incarnation: old,
            ..Version::default()
        };
    }
    let mut followed = hand.store.follow(from);
    let at = hand.put(old, "p:one", None, 1).await?;
    assert!(matches!(next(&mut followed).await?, Followed::Changes(..)));
    eventually("the replica to have it", || async {
        let rev = second
            .command(&["GET", "tidegate:1:{s04}:rev"])
            .await
            .ok()?;
        (rev.as_integer() == Some(1)).then_some(())
    })
    .await?;
    let second_port = second.addr().port().to_string();
    eventually("the sentinel to know the replica", || async {
        let replicas = ask(&sentinel_url, &["SENTINEL", "REPLICAS", "hot"])
            .await
            .ok()?;
        // Names and values of each; its port is one of them.
        let known = format!("{replicas:?}").contains(&second_port);
        known.then_some(())
    })
    .await?;

    first.kill().await?;
    let seen = eventually("the second server", || async {
        hand.check()
            .await
            .ok()
            .filter(|check| check.incarnation.is_none())
    })
    .await?;
    assert_eq!((seen.incarnation, seen.found), (None, Some(old)));
    let mut doubts = 0;
    while doubts < usize::from(SHARDS) {
        doubts += usize::from(matches!(next(&mut followed).await?, Followed::Doubt(_)));
    }
    let write = hand.write(old, "p:one", Some(at), 2);
    let WriteOutcome::Refused(refusal) = hand.store.write(write).await? else {
        return Err("the new server took a write of the old incarnation".into());
    };
    assert_eq!(refusal.reason, RefusalReason::OtherServer);
    let new = eventually("the second server to take writes", || async {
        hand.begin().await.ok()
    });
    let new = new.await?;
    assert!(new > old);
    hand.put(new, "p:one", Some(at), 2).await?;
    Ok(())
}

async fn ask(url: &str, words: &[&str]) -> redis::RedisResult<redis::Value> {
    let mut connection = redis::Client::open(url)?
        .get_multiplexed_async_connection()
        .await?;
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    command.query_async(&mut connection).await
}

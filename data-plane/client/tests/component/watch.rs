//! What is followed: configuration, hot state, and whether the replica lives.

use std::sync::atomic::Ordering;
use std::time::Duration;

use prost::Message as _;
use tidegate_core::breaker::BreakerStatus;
use tidegate_core::ids::{ProviderId, Shard};
use tidegate_core::state::codec::{encode_payload, key_text};
use tidegate_core::state::{ProviderState, StateKey, StateValue, StoredValue, VALUE_SCHEMA};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tidegate_proto::common::v1::ShardVersion;
use tidegate_proto::config::v1 as config;
use tidegate_proto::config::v1::watch_response::Kind;
use tidegate_wire::version_to_proto;
use tokio::time::sleep;

use super::fake::Deciding;
use super::network::Network;
use super::setting::{STORE_TIME, Setting, connection, snapshot, until};

fn provider() -> ProviderId {
    ProviderId::new("a").unwrap()
}

fn shard_version(revision: u64) -> ShardVersion {
    ShardVersion {
        shard: u32::from(Shard::of_provider(&provider()).number()),
        version: Some(version_to_proto(Version::new(5, revision))),
    }
}

/// The value of provider `a` with its breaker open or closed, written at this revision.
fn value(revision: u64, open: bool) -> config::HotValue {
    let mut state = ProviderState::default();
    if open {
        state.breaker.status = BreakerStatus::Open;
        state.breaker.last_failure_at = Some(Timestamp(STORE_TIME));
    }
    let key = key_text(&StateKey::Provider(provider()));
    let far = Timestamp(STORE_TIME + 100_000_000);
    let stored = StoredValue::from_live(StateValue::Provider(state), Version::default(), far);
    config::HotValue {
        payload: encode_payload(&key, &stored).unwrap().into(),
        key,
        version: Some(version_to_proto(Version::new(5, revision))),
        schema: VALUE_SCHEMA,
        expires_at_unix_ms: far.0,
    }
}

fn shard(revision: u64, open: bool) -> Kind {
    Kind::Shard(config::ShardSnapshot {
        version: Some(shard_version(revision)),
        values: vec![value(revision, open)],
    })
}

fn delta(revision: u64, open: bool) -> Kind {
    Kind::Delta(config::ShardDelta {
        version: Some(shard_version(revision)),
        values: vec![value(revision, open)],
    })
}

/// A client that decides by what it follows.
async fn deciding_locally(replicas: usize) -> Setting {
    let setting = Setting::start(replicas).await;
    for replica in &setting.replicas {
        *replica.deciding.lock() = Deciding::Hangs;
    }
    while !setting.client.status().deciding_locally {
        setting.decide("smart").await;
    }
    // So that each decision of the test is local and immediate.
    setting
}

async fn decides_on(setting: &Setting, wanted: &str) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let answer = setting.decide("smart").await;
        if connection(&answer) == wanted {
            return;
        }
        assert!(tokio::time::Instant::now() < limit, "never on {wanted}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn hot_state_as_followed_is_what_local_decisions_rest_on_and_it_never_goes_back() {
    let setting = deciding_locally(1).await;
    let replica = &setting.replicas[0];
    decides_on(&setting, "a1").await;
    replica.push(shard(10, true));
    decides_on(&setting, "b1").await;
    // Older, whole or in part: from a replica that is behind.
    replica.push(shard(9, false));
    replica.push(delta(9, false));
    sleep(Duration::from_secs(2)).await;
    decides_on(&setting, "b1").await;
    replica.push(delta(11, false));
    decides_on(&setting, "a1").await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_continues_where_the_last_one_stopped() {
    let setting = Setting::start(2).await;
    let (home, others) = setting.home_and_others();
    home.push(shard(10, true));
    home.beats.store(false, Ordering::Relaxed);
    until("the other is watched", || {
        !others[0].watched.lock().is_empty()
    })
    .await;
    assert_eq!(setting.client.metrics().silent_replicas.get(), 1);
    let request = others[0].watched.lock()[0].clone();
    assert_eq!(request.plane, setting.client.incarnation().0);
    assert_eq!(request.configuration_version, 1);
    assert_eq!(request.resume, [shard_version(10)]);
    setting.client_is_ready().await;
    let (new_home, _) = setting.home_and_others();
    assert!(
        std::sync::Arc::ptr_eq(&new_home, &others[0]),
        "decisions follow"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_in_force_and_what_was_refused_is_told_to_who_is_watched() {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    let last = || {
        let told = replica.told.lock();
        told.last()
            .map(|it| (it.configuration_version, it.refused_version))
    };
    until("the first is told", || last() == Some((1, 0))).await;
    replica.push(Kind::Snapshot(snapshot(2)));
    until("the second is told", || last() == Some((2, 0))).await;
    let mut dangling = snapshot(3);
    dangling.document.as_mut().unwrap().connections[0].provider = "nobody".to_owned();
    replica.push(Kind::Snapshot(dangling));
    until("the refusal is told", || last() == Some((2, 3))).await;
    replica.push(Kind::Snapshot(snapshot(4)));
    until("the fourth is told", || last() == Some((4, 0))).await;
}

#[tokio::test(start_paused = true)]
async fn settings_of_a_newer_release_are_no_reason_to_refuse_a_configuration() {
    let setting = Setting::start(1).await;
    let mut newer = snapshot(2);
    newer.document.as_mut().unwrap().settings_json =
        r#"{"magic": 1, "streams": {"idleTimeoutMs": "7000.5", "spell": 2}}"#.to_owned();
    setting.replicas[0].push(Kind::Snapshot(newer));
    until("it is in force", || {
        setting.client.status().configuration_version == Some(2)
    })
    .await;
    let snapshot = setting.client.snapshot().unwrap();
    assert_eq!(snapshot.config.settings.attempt_limits().idle_ms, 7_000);
    assert_eq!(snapshot.config.mended.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_does_not_build_never_replaces_a_good_one() {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    let mut dangling = snapshot(2);
    dangling.document.as_mut().unwrap().connections[0].provider = "nobody".to_owned();
    replica.push(Kind::Snapshot(dangling));
    let mut unknown = snapshot(3);
    unknown.document.as_mut().unwrap().settings_json = "no object".to_owned();
    replica.push(Kind::Snapshot(unknown));
    until("both were refused", || {
        setting.client.metrics().configurations_refused.get() == 2
    })
    .await;
    assert_eq!(setting.client.status().configuration_version, Some(1));
    replica.push(Kind::Snapshot(snapshot(4)));
    until("a good one comes into force", || {
        setting.client.status().configuration_version == Some(4)
    })
    .await;
    replica.push(Kind::Snapshot(snapshot(2)));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(
        setting.client.status().configuration_version,
        Some(4),
        "older ones are passed over"
    );
}

#[tokio::test(start_paused = true)]
async fn renewed_credentials_come_into_force_and_never_go_back() {
    use secrecy::ExposeSecret as _;
    use tidegate_core::ids::ConnectionId;

    let setting = Setting::start(1).await;
    let renewed = |configuration_version, revision, version, secret: &str| {
        let credential = config::Credential {
            connection: "a1".to_owned(),
            version,
            secret: secret.as_bytes().to_vec(),
        };
        setting.replicas[0].push(Kind::Credentials(config::CredentialsDelta {
            configuration_version,
            revision,
            credentials: vec![credential],
        }));
    };
    let in_force = || {
        let snapshot = setting.client.snapshot().unwrap();
        let a1 = ConnectionId::new("a1").unwrap();
        let credential = snapshot.credentials.get(&a1).cloned();
        credential.map(|it| (it.version, it.secret.expose_secret().to_owned()))
    };
    renewed(1, 5, 40, "new");
    until("it is in force", || {
        in_force() == Some((40, "new".to_owned()))
    })
    .await;
    renewed(1, 4, 41, "of an older revision");
    renewed(2, 9, 41, "of another configuration");
    renewed(1, 6, 39, "of an older version");
    until("the last of them was taken in", || {
        setting.client.snapshot().unwrap().credentials_revision == 6
    })
    .await;
    assert_eq!(in_force(), Some((40, "new".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn the_stores_time_is_shown_and_runs_on_while_cut_off() {
    let network = Network::new();
    let setting = Setting::start_with(1, |address| network.over(address), |_| {});
    setting.client_is_ready().await;
    let shown = setting.client.now();
    assert!(
        shown.0 >= STORE_TIME && shown.0 < STORE_TIME + 5_000,
        "{shown:?}"
    );
    network.cut();
    sleep(Duration::from_secs(100)).await;
    assert!(setting.client.now() >= shown.plus_ms(100_000));
}

#[tokio::test(start_paused = true)]
async fn with_a_snapshot_on_disk_a_data_plane_starts_while_the_control_plane_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("snapshot");
    let first = Setting::start_with(
        1,
        |address| address,
        |config| {
            config.snapshot_file = Some(path.clone());
        },
    );
    first.replicas[0].set_snapshot(Some(snapshot(7)));
    first.client_is_ready().await;
    until("it is on disk", || path.exists()).await;
    first.end().await;

    let network = Network::new();
    network.cut();
    let second = Setting::start_with(
        1,
        |address| network.over(address),
        |config| {
            config.snapshot_file = Some(path.clone());
        },
    );
    assert!(second.client.is_ready());
    let status = second.client.status();
    assert_eq!(status.configuration_version, Some(7));
    assert!(!status.configuration_confirmed);
    let answer = second.decide("smart").await;
    assert!(answer.local);
    assert_eq!(connection(&answer), "a1");
    // What the control plane says stands above the disk, also when its version is lower.
    network.repair();
    until("the control plane's is in force", || {
        second.client.status().configuration_version == Some(1)
    })
    .await;
    assert!(second.client.status().configuration_confirmed);
    assert_eq!(
        second.replicas[0].watched.lock()[0].configuration_version,
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_data_plane_that_nothing_was_ever_applied_for_is_ready_only_where_that_is_allowed() {
    for allowed in [false, true] {
        let setting = Setting::start_with(
            1,
            |address| address,
            |config| config.ready_without_configuration = allowed,
        );
        assert!(!setting.client.is_ready(), "nobody has said anything yet");
        setting.replicas[0].set_snapshot(Some(snapshot(0)));
        until("it was told so", || {
            setting.client.status().configuration_version == Some(0)
        })
        .await;
        assert_eq!(setting.client.is_ready(), allowed);
        setting.replicas[0].push(Kind::Snapshot(snapshot(1)));
        setting.client_is_ready().await;
    }
}

#[tokio::test(start_paused = true)]
async fn that_nothing_was_ever_applied_is_not_kept_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("snapshot");
    let first = Setting::start_with(
        1,
        |address| address,
        |config| {
            config.snapshot_file = Some(path.clone());
            config.ready_without_configuration = true;
        },
    );
    first.replicas[0].set_snapshot(Some(snapshot(0)));
    first.client_is_ready().await;
    first.end().await;
    assert!(!path.exists());

    // Nor is it believed where an earlier release kept it.
    let mut kept = b"tidegate snapshot 1\n".to_vec();
    kept.extend(snapshot(0).encode_to_vec());
    std::fs::write(&path, kept).unwrap();
    let network = Network::new();
    network.cut();
    let second = Setting::start_with(
        1,
        |address| network.over(address),
        |config| {
            config.snapshot_file = Some(path.clone());
            config.ready_without_configuration = true;
        },
    );
    assert!(!second.client.is_ready(), "nobody has said anything yet");
    assert_eq!(second.client.metrics().snapshot_file_errors.get(), 0);
    network.repair();
    second.client_is_ready().await;
}

#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_on_disk_is_no_reason_not_to_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("snapshot");
    std::fs::write(&path, "half of something").unwrap();
    let setting = Setting::start_with(
        1,
        |address| address,
        |config| {
            config.snapshot_file = Some(path.clone());
        },
    );
    assert!(!setting.client.is_ready());
    assert_eq!(setting.client.metrics().snapshot_file_errors.get(), 1);
    setting.client_is_ready().await;
}

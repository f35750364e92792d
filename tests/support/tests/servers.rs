//! The harness's Postgres and Redis: they start, stop, die, freeze and come back.

use std::time::Duration;

use anyhow::Context as _;
use tidegate_test_support::{
    Postgres, PostgresOptions, Redis, RedisOptions, RespValue, eventually,
};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn postgres_gives_databases_that_share_nothing() {
    let postgres = Postgres::start().await.unwrap();
    let first = postgres.create_database().await.unwrap();
    let second = postgres.create_database().await.unwrap();
    assert_ne!(first, second);
    postgres
        .execute("test_1", "CREATE TABLE t (v int); INSERT INTO t VALUES (7)")
        .await
        .unwrap();
    let rows = postgres
        .execute("test_1", "SELECT v, NULL FROM t")
        .await
        .unwrap();
    assert_eq!(rows, [[Some("7".to_owned()), None]]);
    let error = postgres
        .execute("test_2", "SELECT v FROM t")
        .await
        .unwrap_err();
    assert!(format!("{error:#}").contains("42P01"), "{error:#}");
}

#[tokio::test]
async fn postgres_keeps_what_was_committed_over_stop_and_kill() {
    let postgres = Postgres::start().await.unwrap();
    postgres
        .execute("postgres", "CREATE TABLE t (v int)")
        .await
        .unwrap();
    let addr = postgres.addr();
    postgres.stop().await.unwrap();
    assert!(TcpStream::connect(addr).await.is_err());
    postgres.start_again().await.unwrap();
    postgres
        .execute("postgres", "INSERT INTO t VALUES (1)")
        .await
        .unwrap();
    postgres.kill().await.unwrap();
    assert!(TcpStream::connect(addr).await.is_err());
    postgres.start_again().await.unwrap();
    assert_eq!(postgres.addr(), addr);
    let rows = postgres
        .execute("postgres", "SELECT count(*) FROM t")
        .await
        .unwrap();
    assert_eq!(rows, [[Some("1".to_owned())]]);
}

#[tokio::test]
async fn postgres_keeps_what_was_committed_over_an_immediate_stop_and_shows_it_in_a_dump() {
    let postgres = Postgres::start().await.unwrap();
    let database = "postgres";
    postgres
        .execute(
            database,
            "CREATE TABLE t (v text); INSERT INTO t VALUES ('kept')",
        )
        .await
        .unwrap();
    let lost = "BEGIN; INSERT INTO t VALUES ('lost'); SELECT pg_sleep(60); COMMIT";
    let unfinished = postgres.execute(database, lost);
    tokio::pin!(unfinished);
    let begun = eventually(LIMIT, "the transaction to begin", || async {
        let asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        let found = postgres.execute(database, asleep).await.ok()?;
        (!found.is_empty()).then_some(())
    });
    tokio::select! {
        ended = &mut unfinished => panic!("{ended:?}"),
        begun = begun => begun.unwrap(),
    }
    postgres.stop_immediately().await.unwrap();
    unfinished.await.unwrap_err();
    postgres.start_again().await.unwrap();
    let dump = postgres.dump(database).await.unwrap();
    assert!(dump.contains("CREATE TABLE public.t"), "{dump}");
    assert!(dump.contains("kept") && !dump.contains("lost"), "{dump}");
    assert!(postgres.dir().join("postgres.log").is_file());
}

#[tokio::test]
async fn a_paused_postgres_answers_only_after_resume() {
    let postgres = Postgres::start().await.unwrap();
    postgres.pause().unwrap();
    let asking = postgres.execute("postgres", "SELECT 1");
    tokio::pin!(asking);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut asking).await;
    assert!(early.is_err(), "answered while paused: {early:?}");
    postgres.resume().unwrap();
    asking.await.unwrap();
}

#[tokio::test]
async fn a_durable_postgres_syncs() {
    let options = PostgresOptions {
        durable: true,
        settings: vec![("max_connections".to_owned(), "17".to_owned())],
    };
    let postgres = Postgres::start_with(options).await.unwrap();
    let show = |name: &'static str| {
        let postgres = &postgres;
        async move {
            let rows = postgres
                .execute("postgres", &format!("SHOW {name}"))
                .await
                .unwrap();
            rows.into_iter().flatten().flatten().next()
        }
    };
    assert_eq!(show("fsync").await.as_deref(), Some("on"));
    assert_eq!(show("max_connections").await.as_deref(), Some("17"));
}

#[tokio::test]
async fn redis_forgets_over_a_restart_unless_append_only() {
    for append_only in [false, true] {
        let options = RedisOptions {
            append_only,
            ..RedisOptions::default()
        };
        let redis = Redis::start_with(options).await.unwrap();
        redis.command(&["SET", "k", "v"]).await.unwrap();
        let before = run_id(&redis).await.unwrap();
        redis.kill().await.unwrap();
        redis.start_again().await.unwrap();
        assert_ne!(run_id(&redis).await.unwrap(), before);
        let value = redis.command(&["GET", "k"]).await.unwrap();
        assert_eq!(value.as_text(), append_only.then_some("v"));
        redis.stop().await.unwrap();
        redis.start_again().await.unwrap();
        let value = redis.command(&["GET", "k"]).await.unwrap();
        assert_eq!(value.as_text(), append_only.then_some("v"));
        redis.flush_all().await.unwrap();
        assert_eq!(redis.command(&["GET", "k"]).await.unwrap(), RespValue::Nil);
    }
}

#[tokio::test]
async fn a_paused_redis_answers_only_after_resume() {
    let redis = Redis::start().await.unwrap();
    redis.pause().unwrap();
    let asking = redis.command(&["PING"]);
    tokio::pin!(asking);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut asking).await;
    assert!(early.is_err(), "answered while paused: {early:?}");
    redis.resume().unwrap();
    assert_eq!(asking.await.unwrap().as_text(), Some("PONG"));
}

#[tokio::test]
async fn a_redis_cluster_of_one_owns_every_slot_also_after_a_restart() {
    let options = RedisOptions {
        cluster: true,
        append_only: true,
        ..RedisOptions::default()
    };
    let redis = Redis::start_with(options).await.unwrap();
    redis.command(&["SET", "k", "v"]).await.unwrap();
    redis.stop().await.unwrap();
    redis.start_again().await.unwrap();
    assert_eq!(
        redis.command(&["GET", "k"]).await.unwrap().as_text(),
        Some("v")
    );
}

#[tokio::test]
async fn a_server_that_cannot_start_shows_its_log() {
    let args = vec!["--no-such-setting".to_owned(), "1".to_owned()];
    let error = Redis::start_with(RedisOptions {
        args,
        ..RedisOptions::default()
    })
    .await
    .unwrap_err();
    assert!(
        format!("{error:#}").contains("no-such-setting"),
        "{error:#}"
    );
}

#[tokio::test]
async fn dropping_a_server_ends_it_even_when_paused() {
    let redis = Redis::start().await.unwrap();
    let postgres = Postgres::start().await.unwrap();
    let addrs = [redis.addr(), postgres.addr()];
    redis.pause().unwrap();
    postgres.pause().unwrap();
    drop((redis, postgres));
    for addr in addrs {
        eventually(LIMIT, "the port to be closed", || async {
            TcpStream::connect(addr).await.is_err().then_some(())
        })
        .await
        .unwrap();
    }
}

async fn run_id(redis: &Redis) -> anyhow::Result<String> {
    let info = redis.command(&["INFO", "server"]).await?;
    let mut lines = info.as_text().unwrap_or_default().lines();
    let line = lines.find(|line| line.starts_with("run_id:"));
    Ok(line.context("no run id")?.to_owned())
}

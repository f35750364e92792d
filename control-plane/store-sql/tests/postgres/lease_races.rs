//! Leases and sessions that are in the middle of something: who waits for whom, and what is written once.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tidegate_core::config::{ApiKey, Connection, Document, KeyScope};
use tidegate_core::ids::{ConnectionId, KeyId, PlaneIncarnation, ProviderId};
use tidegate_core::lease::{
    Acquire, ActivityName, Eligibility, Eligible, EndReason, Fence, FenceError, Grant, Lease,
    LeaseError, LeaseId, Named, OwnerHash,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_store::durable::{ConfigurationStore as _, LeaseStore as _, SealedSecrets};
use tidegate_test_support::eventually;

use super::{OnPostgres, on_postgres};

/// Far more than any wait here takes.
const LIMIT: Duration = Duration::from_secs(10);
/// Longer than any test.
const TTL_MS: u64 = 600_000;
pub(super) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

fn new_id() -> LeaseId {
    static LAST: AtomicU64 = AtomicU64::new(1);
    LeaseId(LAST.fetch_add(1, Ordering::Relaxed).into())
}

fn key() -> KeyId {
    KeyId::new("k1").unwrap()
}

/// Asks for one of these connections, first come first served.
pub(super) async fn ask(
    fixture: &OnPostgres,
    owner: u8,
    names: &[&str],
) -> Result<Lease, LeaseError> {
    ask_for(fixture, TTL_MS, owner, names).await
}

pub(super) async fn ask_for(
    fixture: &OnPostgres,
    ttl_ms: u64,
    owner: u8,
    names: &[&str],
) -> Result<Lease, LeaseError> {
    let eligible: Vec<Eligible> = names
        .iter()
        .map(|name| Eligible {
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new(*name).unwrap(),
        })
        .collect();
    let asked = Acquire {
        id: new_id(),
        owner: OwnerHash::from_bytes([owner; 32]),
        key: &key(),
        eligibility: Eligibility::Some(&eligible),
        why: &|_| Some(EndReason::HealthOrCooldown),
        ttl_ms,
    };
    let settings = LeaseSettings::default();
    let reply = fixture.store.acquire_lease(&asked, &settings).await;
    reply.unwrap().answer
}

fn registration(lease: &Lease) -> ActivityName {
    ActivityName {
        connection: lease.connection.clone(),
        lease: lease.name(),
        plane: PlaneIncarnation(1),
        number: 1,
    }
}

async fn fence(fixture: &OnPostgres, lease: &Lease) -> Result<Grant, FenceError> {
    let asked = Fence {
        lease: lease.name(),
        key: &key(),
        connection: &lease.connection,
        plane: PlaneIncarnation(1),
        number: 1,
    };
    let settings = LeaseSettings::default();
    fixture.store.fence(&asked, &settings).await.unwrap()
}

pub(super) fn named(lease: &Lease) -> Named<'_> {
    Named {
        generation: lease.generation,
        key: &lease.key,
    }
}

pub(super) async fn renew_lease(fixture: &OnPostgres, lease: &Lease) -> Result<Lease, LeaseError> {
    let renewed = fixture.store.renew_lease(lease.owner, named(lease), TTL_MS);
    renewed.await.unwrap().answer
}

async fn renew(fixture: &OnPostgres, lease: &Lease) -> Option<Grant> {
    let (name, settings) = (registration(lease), LeaseSettings::default());
    let renewed = fixture.store.renew_activity(&name, &settings);
    renewed.await.unwrap()
}

/// A foreign session in the middle of a transaction that has done this.
pub(super) async fn in_the_middle_of(fixture: &OnPostgres, sql: &str) -> PgConnection {
    let mut foreign = PgConnection::connect(&fixture.url).await.unwrap();
    let sql = format!("BEGIN; {sql}");
    foreign.execute(AssertSqlSafe(sql)).await.unwrap();
    foreign
}

/// What a call answers that has to wait for a session, which commits once it is waited for.
async fn across<T>(
    fixture: &OnPostgres,
    mut foreign: PgConnection,
    call: impl Future<Output = T>,
) -> T {
    let committed = async {
        waits(fixture).await;
        foreign.execute("COMMIT").await.unwrap();
    };
    tokio::join!(call, committed).0
}

/// Until a call waits for a session.
pub(super) async fn waits(fixture: &OnPostgres) {
    eventually(LIMIT, "the call to wait", || async {
        let waiting = fixture
            .sql(
                "SELECT pid FROM pg_stat_activity
                 WHERE application_name = 'tidegate' AND wait_event_type = 'Lock'",
            )
            .await;
        (!waiting.is_empty()).then_some(())
    })
    .await
    .unwrap();
}

/// How many rows there are, and a text of each.
pub(super) async fn count(fixture: &OnPostgres, of: &str) -> u64 {
    let sql = format!("SELECT count(*) FROM {of}");
    let rows = fixture.sql(&sql).await;
    rows[0][0].as_deref().unwrap().parse().unwrap()
}

/// A document with these connections, all of which key `k1` may lease.
fn covering(names: &[&str]) -> Document {
    let connections: Vec<ConnectionId> = names
        .iter()
        .map(|name| ConnectionId::new(*name).unwrap())
        .collect();
    Document {
        connections: connections
            .iter()
            .map(|id| Connection {
                id: id.clone(),
                provider: ProviderId::new("p").unwrap(),
                priority: 1,
                enabled: true,
                credential: None,
                disable_cooling: false,
                max_concurrent: None,
                rate_limit_protection: None,
                per_model_quota: None,
                models: Vec::new(),
                refresh_token: None,
                client_id: None,
                client_secret: None,
                quota_endpoint: None,
            })
            .collect(),
        keys: vec![ApiKey {
            id: key(),
            secret: None,
            sha256: Some("0".repeat(64)),
            allowed_connections: connections,
            allowed_models: Vec::new(),
            scopes: vec![KeyScope::ExclusiveLease],
        }],
        ..Document::default()
    }
}

#[tokio::test]
async fn who_is_refused_waits_for_nobody_who_holds() {
    let fixture = on_postgres().await;
    let lease = ask(&fixture, 1, &["a"]).await.unwrap();
    fence(&fixture, &lease).await.unwrap();
    let held = "SELECT FROM leases FOR UPDATE; SELECT FROM lease_activity FOR UPDATE";
    let _foreign = in_the_middle_of(&fixture, held).await;
    let refused = ask(&fixture, 2, &["a"]).await;
    assert!(
        matches!(refused, Err(LeaseError::Capacity(_))),
        "{refused:?}"
    );
    assert!(ask(&fixture, 2, &["a", "b"]).await.is_ok());
}

#[tokio::test]
async fn a_lease_that_moves_meanwhile_does_not_escape_a_document() {
    for saved in [false, true] {
        let fixture = on_postgres().await;
        ask(&fixture, 1, &["a"]).await.unwrap();
        let moving = format!(
            "UPDATE leases SET ended_at = {NOW}, end_reason = 'HEALTH_OR_COOLDOWN';
             INSERT INTO leases (id, owner, key_id, provider, connection, generation,
                 acquired_at, renewed_at, expires_at)
             SELECT decode(repeat('ab', 16), 'hex'), owner, key_id, provider, 'b', generation,
                 acquired_at, renewed_at, expires_at FROM leases"
        );
        let foreign = in_the_middle_of(&fixture, &moving).await;
        let store = &fixture.store;
        across(&fixture, foreign, async {
            let document = Document::default();
            if saved {
                let secrets = SealedSecrets::default();
                let saved = store.save_document(0, &document, &secrets, "ops", "");
                saved.await.unwrap();
            } else {
                assert_eq!(store.reconcile_leases(&document, 0).await.unwrap(), 1);
            }
        })
        .await;
        assert_eq!(store.list_leases().await.unwrap().1, []);
    }
}

#[tokio::test]
async fn a_document_waits_for_no_lease_that_it_covers() {
    let fixture = on_postgres().await;
    let kept = ask(&fixture, 1, &["a"]).await.unwrap();
    ask(&fixture, 2, &["b"]).await.unwrap();
    let held = "SELECT FROM leases WHERE connection = 'a' FOR UPDATE";
    let _foreign = in_the_middle_of(&fixture, held).await;
    let document = covering(&["a"]);
    let ended = fixture.store.reconcile_leases(&document, 0).await.unwrap();
    assert_eq!(ended, 1);
    assert_eq!(fixture.store.list_leases().await.unwrap().1, [kept]);
}

#[tokio::test]
async fn however_many_leases_a_document_ends_it_does_so_with_one_statement() {
    const LEASES: u64 = 300;
    let fixture = on_postgres().await;
    fixture
        .sql(&format!(
            "INSERT INTO leases (id, owner, key_id, provider, connection, generation, acquired_at,
                 renewed_at, expires_at)
             SELECT decode(md5('' || i), 'hex'), md5('' || i) || md5('' || i), 'k1', 'p', 'c' || i,
                 1, {NOW}, {NOW}, {NOW} + CASE WHEN i % 2 = 0 THEN {TTL_MS} ELSE 0 END
             FROM generate_series(1, {LEASES}) AS i;
             CREATE TABLE statements (at timestamptz);
             CREATE FUNCTION count_statement() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO statements VALUES (now()); RETURN NULL; END $$;
             CREATE TRIGGER count_statement AFTER UPDATE ON leases
                 FOR EACH STATEMENT EXECUTE FUNCTION count_statement()"
        ))
        .await;
    let document = Document::default();
    let ended = fixture.store.reconcile_leases(&document, 0).await.unwrap();
    assert_eq!(ended, LEASES);
    assert_eq!(count(&fixture, "statements").await, 1);
    let reasons = "(SELECT FROM leases GROUP BY end_reason) AS reasons";
    assert_eq!(count(&fixture, reasons).await, 2);
}

#[tokio::test]
async fn a_fence_that_meets_the_end_of_its_lease_registers_nothing() {
    let fixture = on_postgres().await;
    let lease = ask(&fixture, 1, &["a"]).await.unwrap();
    let ending = format!("UPDATE leases SET ended_at = {NOW}, end_reason = 'OWNER_EXIT'");
    let foreign = in_the_middle_of(&fixture, &ending).await;
    let fenced = across(&fixture, foreign, fence(&fixture, &lease)).await;
    assert_eq!(fenced, Err(FenceError::Lease(LeaseError::Required)));
    assert_eq!(count(&fixture, "lease_activity").await, 0);
}

#[tokio::test]
async fn a_fence_that_meets_a_renewal_of_its_lease_passes() {
    let fixture = on_postgres().await;
    let lease = ask(&fixture, 1, &["a"]).await.unwrap();
    let renewing = "UPDATE leases SET expires_at = expires_at + 1000";
    let foreign = in_the_middle_of(&fixture, renewing).await;
    let fenced = across(&fixture, foreign, fence(&fixture, &lease)).await;
    assert!(fenced.is_ok(), "{fenced:?}");
    assert_eq!(count(&fixture, "lease_activity").await, 1);
}

#[tokio::test]
async fn a_registration_that_is_forgotten_is_not_renewed_back() {
    let fixture = on_postgres().await;
    let lease = ask(&fixture, 1, &["a"]).await.unwrap();
    fence(&fixture, &lease).await.unwrap();
    let foreign = in_the_middle_of(&fixture, "DELETE FROM lease_activity").await;
    let renewed = across(&fixture, foreign, renew(&fixture, &lease)).await;
    assert_eq!(renewed, None);
    assert_eq!(count(&fixture, "lease_activity").await, 0);
}

#[tokio::test]
async fn a_registration_that_is_renewed_is_not_forgotten() {
    let fixture = on_postgres().await;
    let lease = ask(&fixture, 1, &["a"]).await.unwrap();
    fence(&fixture, &lease).await.unwrap();
    let over = format!(
        "UPDATE lease_activity SET until = {NOW};
         UPDATE leases SET ended_at = {NOW}, end_reason = 'OWNER_EXIT'"
    );
    fixture.sql(&over).await;
    let renewing = "UPDATE lease_activity SET until = until + 60000";
    let foreign = in_the_middle_of(&fixture, renewing).await;
    let refused = across(&fixture, foreign, ask(&fixture, 2, &["a"])).await;
    assert!(
        matches!(refused, Err(LeaseError::Capacity(_))),
        "{refused:?}"
    );
    assert_eq!(count(&fixture, "lease_activity").await, 1);
}

/// A row of owner `99…` on this connection.
pub(super) fn foreign_lease(connection: &str) -> String {
    format!(
        "INSERT INTO leases (id, owner, key_id, provider, connection, generation, acquired_at,
             renewed_at, expires_at)
         VALUES (decode(repeat('ab', 16), 'hex'), repeat('99', 32), 'k1', 'p', '{connection}', 1,
             {NOW}, {NOW}, {NOW} + {TTL_MS})"
    )
}

#[tokio::test]
async fn who_is_second_to_a_free_connection_gets_the_next_one() {
    let fixture = on_postgres().await;
    let foreign = in_the_middle_of(&fixture, &foreign_lease("a")).await;
    let lease = across(&fixture, foreign, ask(&fixture, 1, &["a", "b"])).await;
    assert_eq!(lease.unwrap().connection.as_str(), "b");
}

#[tokio::test]
async fn what_a_lease_left_that_came_and_went_meanwhile_keeps_others_away() {
    let fixture = on_postgres().await;
    let passing = format!(
        "{};
         INSERT INTO lease_activity VALUES
             ('a', repeat('99', 32), 1, 1, 1, {NOW} + {TTL_MS});
         UPDATE leases SET ended_at = {NOW}, end_reason = 'OWNER_EXIT'",
        foreign_lease("a")
    );
    let foreign = in_the_middle_of(&fixture, &passing).await;
    let refused = across(&fixture, foreign, ask(&fixture, 1, &["a"])).await;
    assert!(
        matches!(refused, Err(LeaseError::Capacity(_))),
        "{refused:?}"
    );
    assert_eq!(count(&fixture, "lease_generations").await, 0);
}

#[tokio::test]
async fn an_owner_that_asks_twice_at_once_has_one_lease_and_no_generation_twice() {
    let fixture = on_postgres().await;
    let owner = "repeat('01', 32)";
    let counted = format!("INSERT INTO lease_generations VALUES ({owner}, 1)");
    let foreign = in_the_middle_of(&fixture, &counted).await;
    let lease = across(&fixture, foreign, ask(&fixture, 1, &["a"])).await;
    assert_eq!(lease.unwrap().generation.number(), 2);
}

#[tokio::test]
async fn a_lease_that_is_renewed_meanwhile_is_not_ended_as_overdue() {
    let fixture = on_postgres().await;
    ask(&fixture, 1, &["a"]).await.unwrap();
    let overdue = format!("UPDATE leases SET expires_at = {NOW}");
    fixture.sql(&overdue).await;
    let renewing = format!("UPDATE leases SET expires_at = {NOW} + {TTL_MS}");
    let foreign = in_the_middle_of(&fixture, &renewing).await;
    let refused = across(&fixture, foreign, ask(&fixture, 2, &["a"])).await;
    assert!(
        matches!(refused, Err(LeaseError::Capacity(_))),
        "{refused:?}"
    );
    assert_eq!(count(&fixture, "leases WHERE ended_at IS NULL").await, 1);
}

#[tokio::test]
async fn a_renewal_that_meets_the_end_of_its_lease_extends_nothing() {
    let ending = format!("ended_at = {NOW}, end_reason = 'OWNER_EXIT'");
    let expiring = format!("expires_at = {NOW}");
    for change in [ending, expiring] {
        let fixture = on_postgres().await;
        let lease = ask(&fixture, 1, &["a"]).await.unwrap();
        let change = format!("UPDATE leases SET {change}");
        let foreign = in_the_middle_of(&fixture, &change).await;
        let renewed = across(&fixture, foreign, renew_lease(&fixture, &lease)).await;
        assert_eq!(renewed, Err(LeaseError::FenceStale), "{change}");
        assert_eq!(count(&fixture, "leases WHERE ended_at IS NULL").await, 0);
    }
}

#[tokio::test]
async fn a_renewal_that_comes_to_be_written_after_the_end_of_its_lease_extends_nothing() {
    // The second one changes nothing, so that the row is as it was when the renewal gets it.
    for waits in [
        "UPDATE leases SET renewed_at = renewed_at",
        "SELECT FROM leases FOR UPDATE",
    ] {
        let fixture = on_postgres().await;
        let lease = ask(&fixture, 1, &["a"]).await.unwrap();
        let ends_soon = format!("UPDATE leases SET expires_at = {NOW} + 1000");
        fixture.sql(&ends_soon).await;
        let mut foreign = in_the_middle_of(&fixture, waits).await;
        let passes = async {
            let end = "SELECT pg_sleep(1.001)";
            foreign.execute(end).await.unwrap();
            foreign.execute("COMMIT").await.unwrap();
        };
        let (renewed, ()) = tokio::join!(renew_lease(&fixture, &lease), passes);
        assert_eq!(renewed, Err(LeaseError::FenceStale), "{waits}");
    }
}

#[tokio::test]
async fn a_release_that_meets_a_renewal_of_its_lease_ends_it_all_the_same() {
    let fixture = on_postgres().await;
    let lease = ask(&fixture, 1, &["a"]).await.unwrap();
    let renewing = "UPDATE leases SET expires_at = expires_at + 60000";
    let foreign = in_the_middle_of(&fixture, renewing).await;
    let named = named(&lease);
    let reason = EndReason::OwnerExit;
    let release = fixture.store.release_lease(lease.owner, named, reason);
    let released = across(&fixture, foreign, release).await;
    let released = released.unwrap().answer.unwrap();
    assert_eq!(released.expires_at, lease.expires_at.plus_ms(60_000));
    assert_eq!(count(&fixture, "leases WHERE ended_at IS NULL").await, 0);
}

#[tokio::test]
async fn nobody_makes_a_row_of_what_was_seen_long_ago() {
    let fixture = on_postgres().await;
    let open = |latest: &str| {
        let open = format!(
            "SELECT open_lease_v1(decode(repeat('ab', 16), 'hex'), repeat('99', 32), 'k1', 'p', 'a',
                 1, true, {NOW}, {NOW}, {NOW} + {TTL_MS}, {NOW} + {latest})"
        );
        AssertSqlSafe(open)
    };
    let mut session = PgConnection::connect(&fixture.url).await.unwrap();
    let error = session.execute(open("-1")).await.unwrap_err();
    let error = error.into_database_error().unwrap();
    assert_eq!(error.code().as_deref(), Some("40001"));
    session.execute(open("60000")).await.unwrap();
}

#[tokio::test]
async fn a_sweep_does_not_walk_through_the_history() {
    const ENDED: u64 = 50_000;
    const ACTIVE: u64 = 500;
    let fixture = on_postgres().await;
    fixture
        .sql(&format!(
            "INSERT INTO leases (id, owner, key_id, provider, connection, generation, acquired_at,
                 renewed_at, expires_at, ended_at, end_reason)
             SELECT decode(md5('' || i), 'hex'), md5('' || i) || md5('' || i), 'k1', 'p', 'c' || i,
                 1, {NOW}, {NOW}, {NOW} + CASE WHEN i <= {ENDED} THEN -i ELSE {TTL_MS} END,
                 CASE WHEN i <= {ENDED} THEN {NOW} END, CASE WHEN i <= {ENDED} THEN 'OWNER_EXIT' END
             FROM generate_series(1, {ENDED} + {ACTIVE}) AS i;
             ANALYZE leases"
        ))
        .await;
    let read = "(SELECT FROM generate_series(1, (SELECT seq_tup_read + idx_tup_fetch
                 FROM pg_stat_user_tables WHERE relname = 'leases'))) AS rows";
    let before = count(&fixture, read).await;
    let keep = Duration::from_secs(3_600);
    assert_eq!(fixture.store.sweep_leases(keep).await.unwrap(), 0);
    // What a session counted is told when it ends.
    fixture
        .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidegate'")
        .await;
    let after = eventually(LIMIT, "the count of what was read", || async {
        let after = count(&fixture, read).await;
        (after > before).then_some(after)
    })
    .await
    .unwrap();
    assert!(after - before <= 10 * ACTIVE, "{} rows", after - before);
}

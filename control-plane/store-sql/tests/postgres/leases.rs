//! Leases and a server that dies, and what the indexes refuse whatever the rules say.

use sqlx::{Connection as _, Executor as _, PgConnection};
use tidegate_core::ids::{ConnectionId, KeyId, ProviderId};
use tidegate_core::lease::{
    Acquire, Eligibility, Eligible, EndReason, Lease, LeaseError, LeaseId, Named, OwnerHash,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_store::durable::{DurableStoreError, LeaseStore as _};
use tidegate_store_sql::PgDurableStore;
use tidegate_test_support::Postgres;

use super::{on_postgres, patient};

async fn acquire(
    store: &PgDurableStore,
    owner: u8,
) -> Result<Result<Lease, LeaseError>, DurableStoreError> {
    acquire_of(store, owner, "c").await
}

async fn acquire_of(
    store: &PgDurableStore,
    owner: u8,
    connection: &str,
) -> Result<Result<Lease, LeaseError>, DurableStoreError> {
    let key = KeyId::new("k1").unwrap();
    let eligible = [Eligible {
        provider: ProviderId::new("p").unwrap(),
        connection: ConnectionId::new(connection).unwrap(),
    }];
    let asked = Acquire {
        id: LeaseId(u128::from(owner)),
        owner: OwnerHash::from_bytes([owner; 32]),
        key: &key,
        eligibility: Eligibility::Some(&eligible),
        why: &|_| Some(EndReason::HealthOrCooldown),
        ttl_ms: 600_000,
    };
    let reply = store
        .acquire_lease(&asked, &LeaseSettings::default())
        .await?;
    Ok(reply.answer)
}

#[tokio::test]
async fn a_lease_survives_the_death_of_the_server() {
    let fixture = on_postgres().await;
    let lease = acquire(&fixture.store, 1).await.unwrap().unwrap();
    fixture.postgres.kill().await.unwrap();
    fixture.postgres.start_again().await.unwrap();
    let refused = acquire(&fixture.store, 2).await.unwrap();
    assert!(matches!(refused, Err(LeaseError::Capacity(_))));
    let named = Named {
        generation: lease.generation,
        key: &lease.key,
    };
    let status = fixture.store.lease_status(lease.owner, named).await;
    assert_eq!(status.unwrap().answer, Ok(lease));
}

/// Pages of leases go on behind the bytes of the last one.
#[tokio::test]
async fn leases_are_listed_in_the_order_of_bytes_whatever_the_database_sorts_by() {
    let postgres = Postgres::start().await.unwrap();
    let create = "CREATE DATABASE sorted TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";
    postgres.execute("postgres", create).await.unwrap();
    let sort =
        "SELECT name FROM (VALUES ('B'), ('a'), ('a-c'), ('ab')) AS names (name) ORDER BY name";
    let of_database = postgres.execute("sorted", sort).await.unwrap();
    let of_database: Vec<String> = of_database.into_iter().flatten().flatten().collect();
    let of_bytes = ["B", "a", "a-c", "ab"];
    assert_ne!(of_database, of_bytes, "the database sorts by bytes, too");
    let url = postgres.url("sorted");
    let store = PgDurableStore::open(&url, patient()).await.unwrap();
    for (owner, connection) in (1..).zip(of_bytes) {
        let lease = acquire_of(&store, owner, connection).await.unwrap();
        lease.unwrap();
    }
    let (_, leases) = store.list_leases().await.unwrap();
    let listed: Vec<&str> = leases.iter().map(|it| it.connection.as_str()).collect();
    assert_eq!(listed, of_bytes);
}

#[tokio::test]
async fn the_indexes_refuse_a_second_lease_of_an_owner_or_connection() {
    let fixture = on_postgres().await;
    acquire(&fixture.store, 1).await.unwrap().unwrap();
    let mut foreign = PgConnection::connect(&fixture.url).await.unwrap();
    let copy = |owner: &str, connection: &str| {
        format!(
            "INSERT INTO leases (id, owner, key_id, provider, connection, generation,
                 acquired_at, renewed_at, expires_at)
             SELECT decode(md5(random()::text), 'hex'), {owner}, key_id, provider, {connection},
                 generation, acquired_at, renewed_at, expires_at FROM leases LIMIT 1"
        )
    };
    let another_owner = "repeat('0', 64)";
    for (owner, connection, index) in [
        ("owner", "'d'", "leases_active_owner"),
        (another_owner, "connection", "leases_active_connection"),
    ] {
        let statement = sqlx::AssertSqlSafe(copy(owner, connection));
        let error = foreign.execute(statement).await.unwrap_err();
        let error = error.into_database_error().unwrap();
        assert_eq!(error.constraint(), Some(index));
    }
    let statement = sqlx::AssertSqlSafe(copy(another_owner, "'d'"));
    foreign.execute(statement).await.unwrap();
}

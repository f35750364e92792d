//! What a replica foresees of leases is not so: another one was there since. It answers as if it had foreseen nothing.

use tidegate_core::ids::{ConnectionId, KeyId, PlaneIncarnation, ProviderId};
use tidegate_core::lease::{
    Acquire, ActivityName, Eligibility, Eligible, EndReason, Fence, FenceError, Grant, Lease,
    LeaseError, LeaseId, Named, OwnerHash,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_store::durable::{Foresight, LeaseStore as _};
use tidegate_store_sql::PgDurableStore;

use super::{OnPostgres, on_postgres, patient};

const TTL_MS: u64 = 600_000;

fn key() -> KeyId {
    KeyId::new("k1").unwrap()
}

fn named(lease: &Lease) -> Named<'_> {
    Named {
        generation: lease.generation,
        key: &lease.key,
    }
}

/// Two replicas, of which the first has seen owner 1 take connection `a` and owner 2 wait for it.
struct Two {
    fixture: OnPostgres,
    other: PgDurableStore,
    lease: Lease,
    /// Ids of leases.
    number: u128,
}

impl Two {
    async fn start() -> Self {
        let fixture = on_postgres().await;
        let other = fixture.another_with(patient()).await;
        let lease = ask(&fixture.store, (1, 1), &["a"]).await.unwrap();
        let refused = ask(&fixture.store, (2, 2), &["a"]).await;
        assert!(matches!(refused, Err(LeaseError::Capacity(_))));
        Self {
            fixture,
            other,
            lease,
            number: 2,
        }
    }

    fn store(&self) -> &PgDurableStore {
        &self.fixture.store
    }

    async fn acquire(&mut self, owner: u8, names: &[&str]) -> Result<Lease, LeaseError> {
        self.number += 1;
        ask(&self.fixture.store, (owner, self.number), names).await
    }

    async fn acquire_elsewhere(&mut self, owner: u8, names: &[&str]) -> Lease {
        self.number += 1;
        ask(&self.other, (owner, self.number), names).await.unwrap()
    }

    async fn counted(&self, of: &str) -> String {
        let rows = self
            .fixture
            .sql(&format!("SELECT count(*) FROM {of}"))
            .await;
        rows[0][0].clone().unwrap()
    }
}

async fn ask(
    store: &PgDurableStore,
    (owner, id): (u8, u128),
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
        id: LeaseId(id),
        owner: OwnerHash::from_bytes([owner; 32]),
        key: &key(),
        eligibility: Eligibility::Some(&eligible),
        why: &|_| Some(EndReason::HealthOrCooldown),
        ttl_ms: TTL_MS,
    };
    let settings = LeaseSettings::default();
    store.acquire_lease(&asked, &settings).await.unwrap().answer
}

async fn release(store: &PgDurableStore, lease: &Lease) -> Result<Lease, LeaseError> {
    let released = store.release_lease(lease.owner, named(lease), EndReason::OwnerExit);
    released.await.unwrap().answer
}

async fn renew(store: &PgDurableStore, lease: &Lease, ttl_ms: u64) -> Result<Lease, LeaseError> {
    let renewed = store.renew_lease(lease.owner, named(lease), ttl_ms);
    renewed.await.unwrap().answer
}

async fn fence(store: &PgDurableStore, lease: &Lease, number: u64) -> Result<Grant, FenceError> {
    let asked = Fence {
        lease: lease.name(),
        key: &key(),
        connection: &lease.connection,
        plane: PlaneIncarnation(1),
        number,
    };
    let settings = LeaseSettings::default();
    store.fence(&asked, &settings).await.unwrap()
}

async fn end(store: &PgDurableStore, lease: &Lease, number: u64) {
    let name = ActivityName {
        connection: lease.connection.clone(),
        lease: lease.name(),
        plane: PlaneIncarnation(1),
        number,
    };
    store.delete_activity(&name).await.unwrap();
}

#[tokio::test]
async fn a_lease_that_was_given_back_elsewhere_is_not_renewed() {
    let two = Two::start().await;
    let released = release(&two.other, &two.lease).await.unwrap();
    let renewed = renew(two.store(), &two.lease, TTL_MS).await;
    assert_eq!(renewed, Err(LeaseError::FenceStale));
    // Given back once more, it is as it was.
    assert_eq!(release(two.store(), &two.lease).await, Ok(released));
}

#[tokio::test]
async fn a_lease_that_was_renewed_elsewhere_is_known_as_it_is() {
    let mut two = Two::start().await;
    let longer = renew(&two.other, &two.lease, 2 * TTL_MS).await.unwrap();
    let fenced = fence(two.store(), &two.lease, 1).await.unwrap();
    assert!(fenced.lease_ms > TTL_MS, "{fenced:?}");
    let longest = renew(&two.other, &two.lease, 3 * TTL_MS).await.unwrap();
    let again = two.acquire(1, &["a"]).await.unwrap();
    assert_eq!(again.id, longest.id);
    renew(&two.other, &two.lease, 2 * TTL_MS).await.unwrap();
    let released = release(two.store(), &two.lease).await.unwrap();
    assert!(released.expires_at >= longer.expires_at);
    assert_eq!(two.counted("leases").await, "1");
}

#[tokio::test]
async fn a_generation_that_was_counted_elsewhere_is_not_counted_again() {
    let mut two = Two::start().await;
    release(two.store(), &two.lease).await.unwrap();
    let second = two.acquire_elsewhere(1, &["a"]).await;
    release(&two.other, &second).await.unwrap();
    let third = two.acquire(1, &["a"]).await.unwrap();
    assert_eq!(third.generation.number(), 3);
    // Neither is what the owner has elsewhere given once more.
    release(two.store(), &third).await.unwrap();
    let fourth = two.acquire_elsewhere(1, &["a"]).await;
    assert_eq!(two.acquire(1, &["a", "b"]).await.unwrap().id, fourth.id);
}

#[tokio::test]
async fn a_connection_that_came_free_elsewhere_is_not_passed_over() {
    let mut two = Two::start().await;
    release(&two.other, &two.lease).await.unwrap();
    let lease = two.acquire(2, &["a", "b"]).await.unwrap();
    assert_eq!(lease.connection.as_str(), "a");
    // One that is still taken is.
    let lease = two.acquire(3, &["a", "b"]).await.unwrap();
    assert_eq!(lease.connection.as_str(), "b");
}

#[tokio::test]
async fn a_connection_that_was_taken_elsewhere_is_passed_over() {
    let mut two = Two::start().await;
    release(two.store(), &two.lease).await.unwrap();
    two.acquire_elsewhere(3, &["a"]).await;
    let lease = two.acquire(2, &["a", "b"]).await.unwrap();
    assert_eq!(lease.connection.as_str(), "b");
}

#[tokio::test]
async fn a_connection_with_something_in_flight_that_is_not_known_of_is_not_given_away() {
    let mut two = Two::start().await;
    fence(&two.other, &two.lease, 1).await.unwrap();
    release(two.store(), &two.lease).await.unwrap();
    let refused = two.acquire(2, &["a"]).await;
    assert!(
        matches!(refused, Err(LeaseError::Capacity(_))),
        "{refused:?}"
    );
    end(&two.other, &two.lease, 1).await;
    assert!(two.acquire(2, &["a"]).await.is_ok());
}

#[tokio::test]
async fn a_lease_that_ended_elsewhere_lets_nothing_pass_and_registers_nothing() {
    let two = Two::start().await;
    release(&two.other, &two.lease).await.unwrap();
    for number in [1, 2] {
        let fenced = fence(two.store(), &two.lease, number).await;
        assert_eq!(fenced, Err(FenceError::Lease(LeaseError::Required)));
    }
    assert_eq!(two.counted("lease_activity").await, "0");
}

#[tokio::test]
async fn a_registration_that_was_made_elsewhere_is_neither_hidden_nor_put_back() {
    let two = Two::start().await;
    fence(&two.other, &two.lease, 2).await.unwrap();
    let fenced = fence(two.store(), &two.lease, 1).await;
    assert_eq!(fenced, Err(FenceError::Superseded));
    fence(two.store(), &two.lease, 2).await.unwrap();
    end(&two.other, &two.lease, 2).await;
    // It is not there any more, so it is made.
    fence(two.store(), &two.lease, 2).await.unwrap();
    assert_eq!(two.counted("lease_activity").await, "1");
    end(two.store(), &two.lease, 2).await;
    fence(two.store(), &two.lease, 3).await.unwrap();
    assert_eq!(
        two.counted("lease_activity WHERE number = 3 - 9223372036854775808")
            .await,
        "1"
    );
}

#[tokio::test]
async fn what_becomes_of_what_is_foreseen_is_counted() {
    let two = Two::start().await;
    let counted = |foreseen, wrong, unknown| Foresight {
        foreseen,
        wrong,
        unknown,
    };
    // Nothing was known for the first, and the second was refused.
    assert_eq!(two.store().foresight(), counted(0, 0, 2));
    renew(two.store(), &two.lease, TTL_MS).await.unwrap();
    assert_eq!(two.store().foresight(), counted(1, 0, 2));
    fence(two.store(), &two.lease, 1).await.unwrap();
    assert_eq!(two.store().foresight(), counted(2, 0, 2));
    // What is registered need not be foreseen.
    fence(two.store(), &two.lease, 1).await.unwrap();
    assert_eq!(two.store().foresight(), counted(2, 0, 2));

    end(two.store(), &two.lease, 1).await;
    fence(&two.other, &two.lease, 2).await.unwrap();
    fence(two.store(), &two.lease, 2).await.unwrap();
    assert_eq!(two.store().foresight(), counted(2, 1, 2));
    release(&two.other, &two.lease).await.unwrap();
    let renewed = renew(two.store(), &two.lease, TTL_MS).await;
    assert_eq!(renewed, Err(LeaseError::FenceStale));
    assert_eq!(two.store().foresight(), counted(2, 2, 2));
    // Now it is known that there is no lease.
    let fenced = fence(two.store(), &two.lease, 3).await;
    assert_eq!(fenced, Err(FenceError::Lease(LeaseError::Required)));
    assert_eq!(two.store().foresight(), counted(2, 2, 3));
}

/// The clock of the database is not where it is foreseen to be: nothing is written by it.
#[tokio::test]
async fn what_is_foreseen_is_written_only_about_when_it_is_foreseen() {
    let two = Two::start().await;
    let open = |at: &str| {
        format!(
            "SELECT made FROM open_foreseen_lease_v1(decode(repeat('ab', 16), 'hex'), repeat('99', 32),
                 'k1', 'p', 'b', 1, {at}, {at} + {TTL_MS}, {at} + 500, ARRAY['a'])"
        )
    };
    const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    for (at, made) in [("- 600", false), ("+ 60000", false), ("", true)] {
        let rows = two.fixture.sql(&open(&format!("({NOW} {at})"))).await;
        assert_eq!(rows[0][0].is_some(), made, "{at}");
    }
}

#[tokio::test]
async fn no_step_of_a_new_lease_reads_the_whole_table() {
    let fixture = on_postgres().await;
    let rows = fixture
        .sql(
            "BEGIN;
             SELECT made FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS present,
                 open_foreseen_lease_v1(decode(repeat('01', 16), 'hex'), repeat('01', 32), 'k', 'p', 'c', 1,
                     now, now + 60000, now + 500, '{}');
             SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'leases';
             ROLLBACK",
        )
        .await;
    let [made, scans] = rows.as_slice() else {
        panic!("{rows:?}");
    };
    assert!(made[0].is_some(), "{rows:?}");
    // Three looks before the row is made, and one after. A small table would be read as a whole otherwise, and by that plan
    // for as long as the session lasts.
    assert_eq!(scans[0].as_deref(), Some("0"), "{rows:?}");
    let by_index: u32 = scans[1].as_deref().unwrap().parse().unwrap();
    assert!(by_index >= 3, "{rows:?}");
}

//! Acquire, renew, release, status.

use pretty_assertions::assert_eq;
use rstest::rstest;
use tidegate_proto::admin::v1 as admin;
use tonic::Code;
use tonic_types::StatusExt as _;

use super::*;
use crate::fleet::{apply_request, within};

const STALE: &str = "LEASE_FENCE_STALE";

#[tokio::test]
async fn vector_sessions_04_acquire_and_05_again() {
    let (_fleet, [one, other]) = fleet(2).await;
    let first = one.acquire('A').await.unwrap();
    assert_eq!((first.state.as_str(), first.generation), ("ACTIVE", 1));
    assert_eq!(
        first.expires_at_unix_ms - first.acquired_at_unix_ms,
        120_000
    );
    let again = other.acquire('A').await.unwrap();
    assert_eq!(
        (again.generation, again.acquired_at_unix_ms),
        (1, first.acquired_at_unix_ms)
    );
    assert!(again.expires_at_unix_ms >= first.expires_at_unix_ms);
    assert_eq!(one.sent_to('A', 1).await, Ok("c1".to_owned()));
}

#[tokio::test]
async fn vector_sessions_06_renew() {
    let (_fleet, [one, other]) = fleet(1).await;
    let lease = one.acquire('A').await.unwrap();
    let renewed = other.renew('A', 1, KEY).await.unwrap();
    assert!(renewed.expires_at_unix_ms >= lease.expires_at_unix_ms);
    assert_eq!(code(one.renew('A', 2, KEY).await), STALE);
    for generation in [0, 1 << 53] {
        let request = lease::RenewRequest {
            lease: Some(name('A', generation)),
            key_id: KEY.to_owned(),
            ttl_ms: 0,
        };
        let refused = one.try_renew(request).await.unwrap_err();
        assert_eq!(field(&refused), "lease.generation");
    }
}

#[tokio::test]
async fn vector_sessions_07_release_and_08_acquire_after_it() {
    let (_fleet, [one, other]) = fleet(1).await;
    one.acquire('A').await.unwrap();
    let release = lease::ReleaseRequest {
        lease: Some(name('A', 1)),
        key_id: KEY.to_owned(),
        reason: "CLIENT_CANCELLED".to_owned(),
    };
    for replica in [&one, &other] {
        let released = replica.try_release(release.clone()).await.unwrap().unwrap();
        assert_eq!(released.state, "RELEASED");
    }
    assert_eq!(code(one.renew('A', 1, KEY).await), STALE);
    assert_eq!(other.acquire('A').await.unwrap().generation, 2);
    let old = one.release('A', 1, KEY).await.unwrap();
    assert_eq!((old.state.as_str(), old.generation), ("RELEASED", 1));
    assert_eq!(one.renew('A', 2, KEY).await.unwrap().state, "ACTIVE");
}

#[tokio::test]
async fn vector_sessions_09_and_10_what_nobody_renews_ends() {
    let (_fleet, [one, other]) = fleet(1).await;
    let short = lease::AcquireRequest {
        ttl_ms: 1_000,
        ..acquire_request('A')
    };
    let lease = one.try_acquire(short).await.unwrap().unwrap();
    assert_eq!(lease.expires_at_unix_ms - lease.acquired_at_unix_ms, 1_000);
    let renew = lease::RenewRequest {
        lease: Some(name('A', 1)),
        key_id: KEY.to_owned(),
        ttl_ms: 1_500,
    };
    let renewed = one.try_renew(renew).await.unwrap().unwrap();
    assert_eq!(
        renewed.expires_at_unix_ms - renewed.renewed_at_unix_ms,
        1_500
    );
    assert_eq!(code(other.acquire('B').await), "lease-capacity-unavailable");
    eventually("the end of the lease", async || {
        other.acquire('B').await.is_ok()
    })
    .await;
    let began = other.standing('B', 1).await.unwrap().lease.unwrap();
    assert!(began.acquired_at_unix_ms >= renewed.expires_at_unix_ms);
    assert_eq!(code(one.renew('A', 1, KEY).await), STALE);
    other.release('B', 1, KEY).await.unwrap();
    assert_eq!(one.acquire('A').await.unwrap().generation, 2);
}

#[tokio::test]
async fn vector_sessions_11_everything_is_leased() {
    let (_fleet, [one, other]) = fleet(1).await;
    one.acquire('A').await.unwrap();
    let refused = other.acquire('B').await.unwrap_err();
    assert_eq!(
        (refused.code.as_str(), refused.eligible),
        ("lease-capacity-unavailable", 1)
    );
    assert!(
        (1..=120).contains(&refused.retry_after_seconds),
        "{refused:?}"
    );
    other.release('A', 1, KEY).await.unwrap();
    assert_eq!(one.acquire('B').await.unwrap().generation, 1);
}

#[tokio::test]
async fn vector_sessions_13_an_empty_set_is_no_lack_of_capacity() {
    let (_fleet, [one]) = fleet(1).await;
    let attempt = dispatched(one.ask(decide_request(9, 1)).await);
    one.cools(&attempt).await;
    let refused = one.acquire('A').await.unwrap_err();
    assert_eq!(
        (refused.code.as_str(), refused.retry_after_seconds),
        ("LEASE_ELIGIBILITY_UNAVAILABLE", 0)
    );
    let mut switched_off = document(1);
    switched_off.connections[0].disabled = true;
    let request = admin::ApplyConfigurationRequest {
        expected_version: Some(1),
        ..apply_request(switched_off)
    };
    one.apply(request).await.unwrap();
    assert_eq!(code(one.acquire('A').await), "LEASE_NO_ELIGIBLE_CONNECTION");
    let unknown = lease::AcquireRequest {
        model: "nobody/m".to_owned(),
        ..acquire_request('A')
    };
    assert_eq!(
        code(one.try_acquire(unknown).await.unwrap()),
        "LEASE_MODEL_INVALID"
    );
}

#[tokio::test]
async fn vector_sessions_14_another_key_has_no_say() {
    let (_fleet, [one, other]) = fleet(2).await;
    let lease = one.acquire('A').await.unwrap();
    assert_eq!(code(other.renew('A', 1, OTHER_KEY).await), STALE);
    assert_eq!(code(other.release('A', 1, OTHER_KEY).await), STALE);
    let acquire = lease::AcquireRequest {
        key_id: OTHER_KEY.to_owned(),
        ..acquire_request('A')
    };
    assert_eq!(code(other.try_acquire(acquire).await.unwrap()), STALE);
    let stands = one.standing('A', 1).await.unwrap();
    assert_eq!(stands.lease, Some(lease));
    assert_eq!(one.renew('A', 1, KEY).await.unwrap().generation, 1);
}

#[tokio::test]
async fn an_acquire_for_what_the_connection_does_not_serve_moves_the_lease() {
    let fleet = Fleet::new().await;
    let mut two = document(2);
    two.connections[0].models = vec!["m".to_owned()];
    two.connections[1].models = vec!["n".to_owned()];
    let [one] = fleet.replicas_with(two).await;
    one.acquire('A').await.unwrap();
    assert_eq!(one.sent_to('A', 1).await, Ok("c1".to_owned()));
    let moved = lease::AcquireRequest {
        model: "alpha/n".to_owned(),
        ..acquire_request('A')
    };
    assert_eq!(one.try_acquire(moved).await.unwrap().unwrap().generation, 1);
    let mut question = question('A', 1, 1);
    question.facts.as_mut().unwrap().model = "alpha/n".to_owned();
    assert_eq!(sent_to(one.ask(question).await), Ok("c2".to_owned()));
}

#[tokio::test]
async fn status_tells_the_lease_and_its_provider_and_nothing_of_others() {
    let (_fleet, [one]) = fleet(1).await;
    let lease = one.acquire('A').await.unwrap();
    let standing = one.standing('A', 1).await.unwrap();
    assert_eq!(standing.lease, Some(lease));
    assert_eq!(
        (standing.provider.as_str(), standing.display_name.as_str()),
        (ALPHA, "")
    );
    assert_eq!(code(one.standing('A', 2).await), STALE);
    assert_eq!(code(one.standing('B', 1).await), STALE);
    one.release('A', 1, KEY).await.unwrap();
    assert_eq!(code(one.standing('A', 1).await), STALE);
}

#[rstest]
#[case::unknown("nobody", "LEASE_API_KEY_INVALID")]
#[case::without_the_scope("plain", "LEASE_SCOPE_REQUIRED")]
#[tokio::test]
async fn a_key_that_may_not_lease_is_told_so(#[case] key: &str, #[case] expected: &str) {
    let fleet = Fleet::new().await;
    let mut with_plain = document(1);
    with_plain.keys[1] = config::ApiKey {
        id: "plain".to_owned(),
        scopes: Vec::new(),
        ..with_plain.keys[1].clone()
    };
    let [one] = fleet.replicas_with(with_plain).await;
    let acquire = lease::AcquireRequest {
        key_id: key.to_owned(),
        ..acquire_request('A')
    };
    assert_eq!(code(one.try_acquire(acquire).await.unwrap()), expected);
    assert_eq!(code(one.renew('A', 1, key).await), expected);
    assert_eq!(code(one.release('A', 1, key).await), expected);
}

#[tokio::test]
async fn a_key_that_this_replica_has_not_heard_of_is_looked_for() {
    let (_fleet, [one, other]) = fleet(1).await;
    let mut with_third = document(1);
    with_third.keys.push(config::ApiKey {
        id: "k3".to_owned(),
        sha256: "3".repeat(64),
        ..with_third.keys[0].clone()
    });
    let request = admin::ApplyConfigurationRequest {
        expected_version: Some(1),
        ..apply_request(with_third)
    };
    one.apply(request).await.unwrap();
    let acquire = lease::AcquireRequest {
        key_id: "k3".to_owned(),
        configuration_version: 2,
        ..acquire_request('A')
    };
    // Within the time that a decision waits for it; on a busy machine it may take a second question.
    eventually("the key", async || {
        other.try_acquire(acquire.clone()).await.unwrap().is_ok()
    })
    .await;
    assert!(other.renew('A', 1, "k3").await.is_ok());
}

#[tokio::test]
async fn a_key_that_is_taken_away_takes_its_leases_along() {
    let (_fleet, [one]) = fleet(1).await;
    one.acquire('A').await.unwrap();
    let mut without = document(1);
    without.keys.remove(0);
    let request = admin::ApplyConfigurationRequest {
        expected_version: Some(1),
        ..apply_request(without)
    };
    one.apply(request).await.unwrap();
    assert_eq!(code(one.renew('A', 1, KEY).await), "LEASE_API_KEY_INVALID");
    let by_other = lease::AcquireRequest {
        key_id: OTHER_KEY.to_owned(),
        ..acquire_request('B')
    };
    assert!(one.try_acquire(by_other).await.unwrap().is_ok());
}

/// The member that a refusal names.
fn field(refused: &Status) -> String {
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    let details = refused.get_details_bad_request().unwrap();
    details.field_violations[0].field.clone()
}

#[tokio::test]
async fn bad_questions_are_refused_by_the_name_of_the_member() {
    let (_fleet, [one]) = fleet(1).await;
    let acquire = |change: fn(&mut lease::AcquireRequest)| {
        let mut request = acquire_request('A');
        change(&mut request);
        one.try_acquire(request)
    };
    for (answer, expected) in [
        (
            acquire(|it| it.owner_sha256 = vec![1; 31]).await,
            "owner_sha256",
        ),
        (acquire(|it| it.key_id = String::new()).await, "key_id"),
        (acquire(|it| it.model = " ".to_owned()).await, "model"),
        (acquire(|it| it.model = "m".repeat(513)).await, "model"),
    ] {
        assert_eq!(field(&answer.unwrap_err()), expected);
    }
    let release = lease::ReleaseRequest {
        lease: Some(name('A', 1)),
        key_id: KEY.to_owned(),
        reason: "TTL_EXPIRED".to_owned(),
    };
    assert_eq!(
        field(&one.try_release(release).await.unwrap_err()),
        "reason"
    );
    let unnamed = lease::RenewRequest {
        lease: None,
        key_id: KEY.to_owned(),
        ttl_ms: 0,
    };
    assert_eq!(field(&one.try_renew(unnamed).await.unwrap_err()), "lease");
    for (registration, expected) in [
        (
            lease::Registration {
                plane: 0,
                ..registration('A', "c1", 1)
            },
            "registration.plane",
        ),
        (
            lease::Registration {
                number: 0,
                ..registration('A', "c1", 1)
            },
            "registration.number",
        ),
        (
            lease::Registration {
                connection: String::new(),
                ..registration('A', "c1", 1)
            },
            "registration.connection",
        ),
    ] {
        let request = lease::RenewActivityRequest {
            registration: Some(registration),
        };
        let refused = one.leases().renew_activity(request).await.unwrap_err();
        assert_eq!(field(&refused), expected);
    }
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused() {
    let (_fleet, [one]) = fleet(1).await;
    let large = lease::AcquireRequest {
        key_id: "k".repeat(20_000),
        ..acquire_request('A')
    };
    let refused = one.try_acquire(large).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    assert!(within("a lease", one.acquire('A')).await.is_ok());
}

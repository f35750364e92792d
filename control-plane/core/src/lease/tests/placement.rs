use rstest::rstest;
use serde_json::json;

use crate::config::Document;
use crate::ids::ConnectionId;
use crate::lease::{
    Change, EndReason, Lease, LeaseError, LeaseKey, LeaseState, Placement, reconcile,
    reconcile_with_document,
};
use crate::routing::ExclusionReason;

use super::table::{Table, at, connection, generation, key, owner};

/// A table in which owner A has a lease of c1, generation 1.
fn leased() -> (Table, Lease) {
    let mut table = Table::new();
    let lease = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    (table, lease)
}

fn ended(table: &Table, lease: &Lease) -> Option<EndReason> {
    table.by_id(lease.id).ended.map(|ended| ended.reason)
}

#[test]
fn a_request_goes_to_its_lease_and_does_not_renew_it() {
    let (mut table, lease) = leased();
    let placed = table.place(owner('A'), 1, None, &["c2", "c1"], at(9));
    assert_eq!(placed, Ok(Placement::Lease(lease.clone())));
    assert_eq!(table.own(owner('A')), Some(&lease));
}

#[test]
fn vector_sessions_15_a_lease_leaves_a_connection_that_cools() {
    let (mut table, lease) = leased();
    let placed = table.place(owner('A'), 1, None, &["c2"], at(9));
    let Ok(Placement::Lease(moved)) = placed else {
        panic!("placed on {placed:?}");
    };
    assert_eq!(
        (moved.connection.as_str(), moved.generation),
        ("c2", generation(1))
    );
    assert_eq!(moved.expires_at, lease.expires_at);
    assert_eq!(ended(&table, &lease), Some(EndReason::HealthOrCooldown));
    assert_eq!(table.own(owner('A')), Some(&moved));
}

#[test]
fn vector_sessions_16_the_only_connection_cools() {
    let (mut table, lease) = leased();
    let ordinary = Ok(Placement::Ordinary(None));
    assert_eq!(table.place(owner('A'), 1, None, &[], at(1)), ordinary);
    assert_eq!(ended(&table, &lease), Some(EndReason::HealthOrCooldown));
    assert_eq!(table.by_id(lease.id).state(), LeaseState::Invalidated);
    assert_eq!(table.place(owner('A'), 1, None, &[], at(2)), ordinary);
    let recovered = table.place(owner('A'), 1, None, &["c1"], at(3));
    assert_eq!(recovered, Err(LeaseError::Required));
    let again = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(4))
        .unwrap();
    assert_eq!(again.generation, generation(2));
}

#[test]
fn vector_sessions_17_everything_else_is_leased() {
    let (mut table, lease) = leased();
    table
        .acquire_one_of(owner('B'), "k1", &["c2"], at(0))
        .unwrap();
    let refused = table
        .place(owner('A'), 1, None, &["c2"], at(1))
        .unwrap_err();
    assert_eq!(
        (refused.status(), refused.retry_after_seconds()),
        (429, Some(120))
    );
    assert_eq!(ended(&table, &lease), Some(EndReason::HealthOrCooldown));
    assert_eq!(table.own(owner('A')), None);
}

#[test]
fn vector_sessions_19_a_lease_given_back_while_a_request_waits() {
    let (mut table, _) = leased();
    table.release(owner('A'), "k1", 1, at(1)).unwrap();
    let refused = table.place(owner('A'), 1, None, &["c1"], at(2));
    assert_eq!(refused, Err(LeaseError::Required));
}

#[test]
fn vector_sessions_20_a_request_insists_on_another_connection() {
    let (mut table, lease) = leased();
    let refused = table
        .place(owner('A'), 1, Some("c2"), &["c2"], at(1))
        .unwrap_err();
    assert_eq!(
        (refused.status(), refused.code()),
        (409, "LEASE_CONNECTION_MISMATCH")
    );
    assert_eq!(table.own(owner('A')), Some(&lease));
    let placed = table.place(owner('A'), 1, Some("c1"), &["c1"], at(1));
    assert_eq!(placed, Ok(Placement::Lease(lease)));
}

#[test]
fn what_a_lease_check_finds_is_told_in_order() {
    let (mut table, lease) = leased();
    let no_lease = table.place(owner('B'), 7, Some("c2"), &["c2"], at(1));
    assert_eq!(no_lease, Err(LeaseError::Required));
    let stale_and_elsewhere = table.place(owner('A'), 7, Some("c2"), &["c2"], at(1));
    assert_eq!(stale_and_elsewhere, Err(LeaseError::FenceStale));
    let expired = table.place(owner('A'), 1, None, &["c1"], lease.expires_at);
    assert_eq!(expired, Err(LeaseError::Required));
    assert_eq!(ended(&table, &lease), Some(EndReason::TtlExpired));
}

#[rstest]
#[case::another_generation(7, None, Some(EndReason::HealthOrCooldown), false)]
#[case::another_connection_was_insisted_on(1, Some("c2"), Some(EndReason::HealthOrCooldown), false)]
#[case::nothing_serves_the_model(1, None, Some(EndReason::ModelIneligible), true)]
#[case::only_this_request_is_kept_out(1, None, None, true)]
fn a_lease_survives_an_empty_set_that_says_nothing_of_its_connection(
    #[case] number: u64,
    #[case] forced: Option<&str>,
    #[case] why: Option<EndReason>,
    #[case] is_its_own: bool,
) {
    let (mut table, lease) = leased();
    table.why = why;
    let placed = table.place(owner('A'), number, forced, &[], at(1));
    let stands = is_its_own.then(|| lease.clone());
    assert_eq!(placed, Ok(Placement::Ordinary(stands)));
    assert_eq!(table.own(owner('A')), Some(&lease));
}

#[test]
fn a_request_that_may_not_be_repeated_there_does_not_move_its_lease() {
    let (mut table, lease) = leased();
    table.why = EndReason::of_exclusion(ExclusionReason::RequestExhaustion);
    let placed = table.place(owner('A'), 1, None, &["c2"], at(1));
    assert_eq!(placed, Ok(Placement::Lease(lease.clone())));
    assert_eq!(table.own(owner('A')), Some(&lease));
}

#[rstest]
#[case(ExclusionReason::ConnectionCooldown, Some(EndReason::HealthOrCooldown))]
#[case(ExclusionReason::QuotaCutoff, Some(EndReason::QuotaUnavailable))]
#[case(ExclusionReason::Disabled, Some(EndReason::ConnectionIneligible))]
#[case(ExclusionReason::NotAllowed, Some(EndReason::AuthorizationChanged))]
#[case(ExclusionReason::ModelLockout, Some(EndReason::ModelIneligible))]
#[case(ExclusionReason::ConcurrencyCap, None)]
#[case(ExclusionReason::Leased, None)]
#[case(ExclusionReason::Reserved, None)]
fn exclusions_end_leases_for_a_reason(
    #[case] exclusion: ExclusionReason,
    #[case] reason: Option<EndReason>,
) {
    assert_eq!(EndReason::of_exclusion(exclusion), reason);
}

/// What a new configuration says of key k1 and connection c1.
#[derive(Clone, Copy)]
struct Said {
    key: bool,
    exclusive: bool,
    allowed: &'static [&'static str],
    connection: bool,
}

const UNCHANGED: Said = Said {
    key: true,
    exclusive: true,
    allowed: &["c2", "c1"],
    connection: true,
};

#[rstest]
#[case::nothing_changed(UNCHANGED, None)]
#[case::key_gone(Said { key: false, ..UNCHANGED }, Some(EndReason::ManagedKeyRevoked))]
#[case::scope_gone(Said { exclusive: false, ..UNCHANGED }, Some(EndReason::AuthorizationChanged))]
#[case::not_allowed(Said { allowed: &["c2"], ..UNCHANGED }, Some(EndReason::AuthorizationChanged))]
#[case::none_allowed(Said { allowed: &[], ..UNCHANGED }, Some(EndReason::AuthorizationChanged))]
#[case::connection_gone(Said { connection: false, ..UNCHANGED }, Some(EndReason::ConnectionIneligible))]
fn a_new_configuration_ends_what_it_does_not_cover(
    #[case] said: Said,
    #[case] reason: Option<EndReason>,
) {
    let (mut table, lease) = leased();
    let (id, allowed): (_, Vec<ConnectionId>) = (
        key("k1"),
        said.allowed.iter().map(|name| connection(name)).collect(),
    );
    let known = said.key.then_some(LeaseKey {
        id: &id,
        exclusive: said.exclusive,
        allowed_connections: &allowed,
    });
    for change in reconcile(&table.leases, |_| known, |_| said.connection, at(1)) {
        table.write(change);
    }
    assert_eq!(ended(&table, &lease), reason);
    assert_eq!(
        reconcile(&table.leases, |_| known, |_| said.connection, at(2)),
        []
    );
}

#[test]
fn a_new_configuration_finds_an_overdue_lease_expired() {
    let (table, lease) = leased();
    let changes = reconcile(&table.leases, |_| None, |_| true, lease.expires_at);
    assert_eq!(
        changes,
        [lease.end(EndReason::TtlExpired, lease.expires_at)]
    );
}

#[rstest]
#[case::covered("k1", &["c1"], Some("p"), &["lease:exclusive"], None)]
#[case::without_its_key("k2", &["c1"], Some("p"), &["lease:exclusive"], Some(EndReason::ManagedKeyRevoked))]
#[case::for_another_connection("k1", &["c2"], Some("p"), &["lease:exclusive"], Some(EndReason::AuthorizationChanged))]
#[case::for_no_connection_by_name("k1", &[], Some("p"), &["lease:exclusive"], Some(EndReason::AuthorizationChanged))]
#[case::without_the_scope("k1", &["c1"], Some("p"), &[], Some(EndReason::AuthorizationChanged))]
#[case::switched_off("k1", &["c1"], None, &["lease:exclusive"], Some(EndReason::ConnectionIneligible))]
#[case::of_another_provider("k1", &["c1"], Some("q"), &["lease:exclusive"], Some(EndReason::ConnectionIneligible))]
fn a_document_says_what_may_be_leased(
    #[case] key: &str,
    #[case] allowed: &[&str],
    #[case] enabled_at: Option<&str>,
    #[case] scopes: &[&str],
    #[case] reason: Option<EndReason>,
) {
    let document: Document = serde_json::from_value(json!({
        "connections": [{"id": "c1", "provider": enabled_at.unwrap_or("p"), "enabled": enabled_at.is_some()}],
        "keys": [{"id": key, "allowedConnections": allowed, "scopes": scopes}],
    }))
    .unwrap();
    let (table, _) = leased();
    let changes = reconcile_with_document(&table.leases, &document, at(1));
    let reasons: Vec<_> = changes
        .iter()
        .map(|change| match change {
            Change::End { ended, .. } => Some(ended.reason),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, Vec::from_iter(reason.map(Some)));
}

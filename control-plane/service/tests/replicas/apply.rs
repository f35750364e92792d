//! Replacing the configuration.

use tidegate_plane_client::endpoint::{Address, ChannelSettings, channel};
use tidegate_proto::admin::v1 as admin;
use tidegate_proto::admin::v1::admin_service_client::AdminServiceClient;
use tidegate_proto::config::v1::WatchRequest;
use tidegate_proto::config::v1::snapshot_service_client::SnapshotServiceClient;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::fleet::{Fleet, apply_request, connection, document, eventually, failure, provider};

#[tokio::test]
async fn invalid_document_changes_nothing_and_every_violation_is_named() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let mut bad = document();
    bad.connections.push(connection("c1", "nowhere", 1));
    bad.settings_json = r#"{"providerBreaker":{"probeTtlMs":1}}"#.to_owned();
    let mut request = apply_request(bad);
    request
        .credentials
        .insert("nobody".to_owned(), b"x".to_vec());
    request
        .credentials
        .insert("a1".to_owned(), b"two\nlines".to_vec());
    let refused = one.apply(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let details = refused.get_error_details();
    assert_eq!(details.error_info().unwrap().reason, "CP0001");
    let fields: Vec<&str> = details
        .bad_request()
        .unwrap()
        .field_violations
        .iter()
        .map(|violation| violation.field.as_str())
        .collect();
    for field in ["credentials[nobody]", "credentials[a1]"] {
        assert!(fields.contains(&field), "{fields:?}");
    }
    assert!(fields.len() >= 4, "{fields:?}");
    assert_eq!(one.configuration_version().await, 1);
}

#[tokio::test]
async fn dry_run_shows_the_difference_and_changes_nothing() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let mut wanted = document();
    wanted.providers.push(provider("gamma", 7));
    let mut request = apply_request(wanted);
    request.dry_run = true;
    let shown = one.apply(request).await.unwrap();
    assert_eq!(shown.version, 1);
    let told: Vec<String> = shown
        .differences
        .iter()
        .map(|it| format!("{} {}", it.kind, it.subject))
        .collect();
    assert_eq!(told, ["added provider gamma"]);
    assert_eq!(one.configuration_version().await, 1);
}

#[tokio::test]
async fn same_document_again_is_no_change_and_a_stale_version_is_refused() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    let same = one.apply(apply_request(document())).await.unwrap();
    assert_eq!((same.version, same.differences.len()), (1, 0));
    let mut changed = document();
    changed.connections[0].priority = Some(9);
    let mut request = apply_request(changed);
    request.expected_version = Some(1);
    assert_eq!(one.apply(request.clone()).await.unwrap().version, 2);
    other.has_configuration(2).await;
    let refused = other.apply(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
}

#[tokio::test]
async fn new_credential_ends_what_the_old_one_caused_and_only_a_new_one_does() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    let attempt = one.dispatched(7).await;
    let mut report = failure(7, 1, &attempt);
    let outcome = report.report.as_mut().unwrap().outcome.as_mut().unwrap();
    if let Some(tidegate_proto::common::v1::outcome::Kind::Response(error)) = &mut outcome.kind {
        error.status = 401;
    }
    let mut reporting = one.report().await;
    reporting.send(7, vec![report]).await;
    reporting.acknowledged_to(1).await;
    assert_eq!(one.connection("a1").await.state, "expired");
    one.apply(apply_request(document())).await.unwrap();
    assert_eq!(one.connection("a1").await.state, "expired");
    let mut renewed = apply_request(document());
    renewed
        .credentials
        .insert("a1".to_owned(), b"a new secret".to_vec());
    let applied = one.apply(renewed).await.unwrap();
    assert_eq!(applied.differences[0].details, ["credential"]);
    eventually("the new credential to be in force", async || {
        let status = other.connection("a1").await;
        status.state == "active" && status.credential_version == 2
    })
    .await;
}

#[tokio::test]
async fn history_and_explanation_tell_what_happened() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    one.open_breaker(7).await;
    eventually("history", async || {
        let request = admin::ListTransitionsRequest::default();
        let answer = one.admin().list_transitions(request).await.unwrap();
        let transitions = answer.into_inner().transitions;
        transitions
            .iter()
            .any(|it| it.kind == "breaker" && it.description.contains("OPEN"))
    })
    .await;
    let request = admin::ExplainRequest {
        model: "alpha/m".to_owned(),
        ..admin::ExplainRequest::default()
    };
    let explained = one.admin().explain(request).await.unwrap().into_inner();
    assert_eq!(explained.decision, "reject");
    assert_eq!(explained.targets[0].exclusions[0].reason, "circuit_open");
}

#[tokio::test]
async fn listener_for_operators_hands_out_no_credentials() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let serving = one.plane.serve_admin_tcp(listener, None).unwrap();
    let tasks = tokio_util::task::TaskTracker::new();
    let serving = tasks.spawn(serving);
    let address = Address::Tcp(address.parse().unwrap());
    let channel = channel(&address, &ChannelSettings::default(), None, None).unwrap();
    let status = AdminServiceClient::new(channel.clone())
        .get_status(admin::GetStatusRequest {})
        .await;
    assert!(status.is_ok(), "{status:?}");
    let refused = SnapshotServiceClient::new(channel)
        .watch(WatchRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    one.shutdown().await;
    serving.await.unwrap().unwrap();
}

//! Changes of one thing of the configuration.

use tidegate_proto::admin::v1 as admin;
use tidegate_proto::config::v1 as config;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::fleet::{ALPHA, Fleet, Replica, connection, document};

fn reason(status: &Status) -> String {
    status
        .get_error_details()
        .error_info()
        .unwrap()
        .reason
        .clone()
}

fn switch(connection: &str, enabled: bool) -> admin::SetConnectionEnabledRequest {
    admin::SetConnectionEnabledRequest {
        connection: connection.to_owned(),
        enabled,
        ..admin::SetConnectionEnabledRequest::default()
    }
}

fn delete(kind: admin::ResourceKind, id: &str) -> admin::DeleteResourceRequest {
    admin::DeleteResourceRequest {
        kind: kind.into(),
        id: id.to_owned(),
        ..admin::DeleteResourceRequest::default()
    }
}

impl Replica {
    async fn switch(
        &self,
        request: admin::SetConnectionEnabledRequest,
    ) -> Result<admin::SetConnectionEnabledResponse, Status> {
        let answer = self.admin().set_connection_enabled(request).await?;
        Ok(answer.into_inner())
    }

    async fn delete(
        &self,
        request: admin::DeleteResourceRequest,
    ) -> Result<admin::DeleteResourceResponse, Status> {
        Ok(self.admin().delete_resource(request).await?.into_inner())
    }
}

#[tokio::test]
async fn a_connection_is_switched_off_and_on_and_keeps_its_secret() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    let mut off = switch("a1", false);
    off.dry_run = true;
    let shown = one.switch(off.clone()).await.unwrap();
    assert_eq!((shown.version, shown.differences.len()), (1, 1));
    assert_eq!(one.connection("a1").await.state, "active");
    off.dry_run = false;
    off.author = "ada".to_owned();
    off.expected_version = Some(1);
    let done = one.switch(off.clone()).await.unwrap();
    assert_eq!(done.version, 2);
    assert_eq!(done.differences[0].details, ["enabled: unset -> false"]);
    other.has_configuration(2).await;
    assert_eq!(other.connection("a1").await.state, "disabled");
    // Again is no change; on a stale version it is a conflict.
    let again = other.switch(switch("a1", false)).await.unwrap();
    assert_eq!((again.version, again.differences.len()), (2, 0));
    let stale = other.switch(off).await.unwrap_err();
    assert_eq!(
        (stale.code(), reason(&stale)),
        (Code::Aborted, "CP0002".to_owned())
    );
    other.switch(switch("a1", true)).await.unwrap();
    one.has_configuration(3).await;
    one.dispatched(1).await;
    let audit = fleet.durable.list_audit(10).await.unwrap();
    let told: Vec<_> = audit
        .iter()
        .map(|it| (it.author.as_str(), it.summary.as_str()))
        .collect();
    assert_eq!(
        told[..2],
        [
            ("local", "connection a1 switched on"),
            ("local ada", "connection a1 switched off"),
        ]
    );
    for (wrong, code) in [("nobody", Code::NotFound), ("", Code::InvalidArgument)] {
        let refused = one.switch(switch(wrong, false)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{wrong}");
    }
}

#[tokio::test]
async fn what_is_deleted_goes_with_its_secret_and_what_is_used_stays() {
    use admin::ResourceKind::{Combo, Connection, Key, Provider, Unspecified};
    let fleet = Fleet::new().await;
    let mut wanted = document();
    wanted.connections.push(connection("a2", ALPHA, 2));
    wanted.combos.push(config::Combo {
        name: "main".to_owned(),
        steps: vec![config::Step {
            model: "alpha/m".to_owned(),
            connection: "a2".to_owned(),
            ..config::Step::default()
        }],
        ..config::Combo::default()
    });
    let key = |id: &str, digit: &str| config::ApiKey {
        id: id.to_owned(),
        sha256: digit.repeat(64),
        ..config::ApiKey::default()
    };
    wanted.keys = vec![key("k", "1"), key("last", "2")];
    let [one] = fleet.replicas_with(wanted).await;
    // The combo's step names it, and the provider has connections.
    for (kind, id) in [(Connection, "a2"), (Provider, ALPHA)] {
        let refused = one.delete(delete(kind, id)).await.unwrap_err();
        assert_eq!(
            (refused.code(), reason(&refused).as_str()),
            (Code::InvalidArgument, "CP0001")
        );
        let details = refused.get_error_details();
        assert!(!details.bad_request().unwrap().field_violations.is_empty());
    }
    // What was decided on an older version is not done, also not for show.
    for (expected_version, dry_run) in [(0, false), (2, false), (0, true)] {
        let stale = admin::DeleteResourceRequest {
            expected_version: Some(expected_version),
            dry_run,
            ..delete(Combo, "main")
        };
        let refused = one.delete(stale).await.unwrap_err();
        assert_eq!(
            (refused.code(), reason(&refused).as_str()),
            (Code::Aborted, "CP0002")
        );
    }
    assert_eq!(one.configuration_version().await, 1);
    let mut dry = delete(Combo, "main");
    dry.expected_version = Some(1);
    dry.dry_run = true;
    let shown = one.delete(dry).await.unwrap();
    assert_eq!(
        (shown.version, shown.differences[0].kind.as_str()),
        (1, "removed")
    );
    for (version, (kind, id)) in (2..).zip([
        (Combo, "main"),
        (Connection, "a2"),
        (Key, "k"),
        (Connection, "b1"),
        (Provider, "beta"),
    ]) {
        let done = one.delete(delete(kind, id)).await.unwrap();
        assert_eq!(done.version, version, "{id}");
        assert_eq!(done.differences.len(), 1, "{id}");
        let gone = one.delete(delete(kind, id)).await.unwrap_err();
        assert_eq!(gone.code(), Code::NotFound, "{id}");
    }
    // Without the last key everybody would be served; a whole document may say so.
    let refused = one.delete(delete(Key, "last")).await.unwrap_err();
    assert_eq!(reason(&refused), "CP0001");
    let details = refused.get_error_details();
    let violation = &details.bad_request().unwrap().field_violations[0];
    assert_eq!(violation.field, "keys");
    assert!(violation.description.contains("--require-api-key"));
    let stored = fleet.durable.load_document().await.unwrap();
    assert_eq!(stored.document.keys.len(), 1);
    let secrets: Vec<String> = stored
        .secrets
        .credentials
        .iter()
        .map(|it| it.connection.to_string())
        .collect();
    assert_eq!(secrets, ["a1"]);
    let refused = one.delete(delete(Unspecified, "a1")).await.unwrap_err();
    assert_eq!(reason(&refused), "CP0006");
}

#[tokio::test]
async fn concurrent_changes_of_two_replicas_lose_nothing() {
    let fleet = Fleet::new().await;
    let mut wanted = document();
    wanted.connections = (0..8)
        .map(|number| connection(&format!("c{number}"), ALPHA, number))
        .collect();
    let [one, other]: [Replica; 2] = fleet.replicas_with(wanted).await;
    let off = async |replica: &Replica, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let request = switch(&format!("c{number}"), false);
            replica.switch(request).await.unwrap();
        }
    };
    tokio::join!(off(&one, 0..4), off(&other, 4..8));
    one.has_configuration(9).await;
    for number in 0..8 {
        assert_eq!(
            one.connection(&format!("c{number}")).await.state,
            "disabled"
        );
    }
}

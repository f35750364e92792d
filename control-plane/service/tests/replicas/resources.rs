//! Providers, connections, combos and keys one by one, and parts of a configuration that are put into it.

use tidegate_proto::admin::v1 as admin;
use tidegate_proto::config::v1 as config;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::fleet::{ALPHA, Fleet, Replica, connection, document};

fn blamed(status: &Status) -> Vec<String> {
    let details = status.get_error_details();
    let bad = details.bad_request().map(|it| it.field_violations.clone());
    let fields = bad.unwrap_or_default().into_iter();
    fields.map(|it| it.field).collect()
}

fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map(|it| it.reason.clone())
        .unwrap_or_default()
}

/// A step `alpha/m`, pinned.
fn combo(name: &str, connection: &str) -> config::Combo {
    config::Combo {
        name: name.to_owned(),
        steps: vec![config::Step {
            model: "alpha/m".to_owned(),
            connection: connection.to_owned(),
            ..config::Step::default()
        }],
        ..config::Combo::default()
    }
}

fn key(id: &str, digit: &str) -> config::ApiKey {
    config::ApiKey {
        id: id.to_owned(),
        sha256: digit.repeat(64),
        ..config::ApiKey::default()
    }
}

fn part(document: config::Document) -> admin::ApplyConfigurationRequest {
    admin::ApplyConfigurationRequest {
        part: Some(document),
        ..admin::ApplyConfigurationRequest::default()
    }
}

impl Replica {
    async fn put(
        &self,
        request: admin::ApplyConfigurationRequest,
    ) -> Result<admin::ApplyConfigurationResponse, Status> {
        let answer = self.admin().apply_configuration(request).await?;
        Ok(answer.into_inner())
    }

    async fn stored(&self) -> Result<config::Document, Status> {
        let request = admin::GetConfigurationRequest {};
        let answer = self.admin().get_configuration(request).await?;
        let stored = answer.into_inner().document;
        stored.ok_or_else(|| Status::not_found("no document"))
    }
}

#[tokio::test]
async fn one_thing_is_told_by_its_name_and_what_is_not_there_is_not_found() {
    let fleet = Fleet::new().await;
    let mut wanted = document();
    wanted.combos = vec![combo("main", "a1")];
    wanted.keys = vec![key("k", "1")];
    let [one] = fleet.replicas_with(wanted).await;
    let mut admin = one.admin();
    let id = |id: &str| id.to_owned();

    let asked = admin::GetProviderRequest { id: id(ALPHA) };
    let told = admin.get_provider(asked).await.unwrap().into_inner();
    assert_eq!(told.version, 1);
    assert_eq!(told.provider.unwrap().id, ALPHA);
    assert_eq!(told.breaker.unwrap().state, "CLOSED");
    let asked = admin::GetConnectionRequest { id: id("a1") };
    let told = admin.get_connection(asked).await.unwrap().into_inner();
    assert_eq!(told.connection.unwrap().provider, ALPHA);
    assert_eq!(told.status.unwrap().state, "active");
    let name = id("main");
    let told = admin.get_combo(admin::GetComboRequest { name }).await;
    assert_eq!(told.unwrap().into_inner().combo.unwrap().steps.len(), 1);
    let told = admin.get_key(admin::GetKeyRequest { id: id("k") }).await;
    let told = told.unwrap().into_inner();
    assert_eq!((told.key.unwrap().id.as_str(), told.leases.len()), ("k", 0));

    for (wanted, code) in [("nobody", Code::NotFound), ("", Code::InvalidArgument)] {
        let (id, name) = (|| wanted.to_owned(), wanted.to_owned());
        let refused = [
            admin
                .get_provider(admin::GetProviderRequest { id: id() })
                .await
                .map(drop),
            admin
                .get_connection(admin::GetConnectionRequest { id: id() })
                .await
                .map(drop),
            admin
                .get_combo(admin::GetComboRequest { name })
                .await
                .map(drop),
            admin
                .get_key(admin::GetKeyRequest { id: id() })
                .await
                .map(drop),
        ];
        for refused in refused {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), code, "{refused:?}");
        }
    }
}

#[tokio::test]
async fn configured_things_come_in_pages_by_name() {
    let fleet = Fleet::new().await;
    let mut wanted = document();
    wanted.combos = ["c", "a", "b"].map(|name| combo(name, "a1")).to_vec();
    wanted.keys = vec![key("z", "1"), key("y", "2")];
    let [one] = fleet.replicas_with(wanted).await;
    let mut admin = one.admin();
    let page = |page_size, token: &str| admin::ListCombosRequest {
        page_size,
        page_token: token.to_owned(),
    };
    let first = admin.list_combos(page(2, "")).await.unwrap().into_inner();
    let names = |combos: &[config::Combo]| -> Vec<String> {
        combos.iter().map(|it| it.name.clone()).collect()
    };
    assert_eq!(names(&first.combos), ["a", "b"]);
    let next = admin.list_combos(page(2, &first.next_page_token)).await;
    let next = next.unwrap().into_inner();
    assert_eq!(names(&next.combos), ["c"]);
    assert_eq!(next.next_page_token, "");
    let keys = admin.list_keys(admin::ListKeysRequest::default()).await;
    let keys = keys.unwrap().into_inner().keys;
    assert_eq!([&keys[0].id, &keys[1].id], ["y", "z"]);
    let providers = admin.list_providers(admin::ListProvidersRequest::default());
    assert_eq!(providers.await.unwrap().into_inner().providers.len(), 2);
    // A page of another list, and one too large.
    let refused = admin
        .list_keys(admin::ListKeysRequest {
            page_token: first.next_page_token,
            ..admin::ListKeysRequest::default()
        })
        .await
        .unwrap_err();
    assert_eq!(blamed(&refused), ["page_token"]);
    let refused = admin.list_combos(page(1_001, "")).await.unwrap_err();
    assert_eq!(
        (reason(&refused), blamed(&refused)),
        ("CP0006".to_owned(), vec!["page_size".to_owned()])
    );
}

#[tokio::test]
async fn a_part_is_put_into_the_configuration_and_nothing_else_moves() {
    let fleet = Fleet::new().await;
    let mut wanted = document();
    wanted.combos = vec![combo("main", "a1")];
    wanted.keys = vec![key("k", "1")];
    let [one, other]: [Replica; 2] = fleet.replicas_with(wanted).await;
    let before = one.stored().await.unwrap();
    let new = || config::Document {
        connections: vec![connection("a2", ALPHA, 2)],
        ..config::Document::default()
    };
    let mut request = part(new());
    request.dry_run = true;
    let shown = one.put(request.clone()).await.unwrap();
    assert_eq!((shown.version, shown.differences.len()), (1, 1));
    // Two providers and their connections, the combo and the key.
    assert_eq!(shown.untouched, 6);
    let stays = [
        "key k",
        "connection a1",
        "connection b1",
        "combo main",
        "provider alpha",
        "provider beta",
    ];
    assert_eq!(shown.untouched_subjects, stays);
    assert_eq!(one.stored().await.unwrap(), before);

    request.dry_run = false;
    request.author = "ada".to_owned();
    request.expected_version = Some(1);
    request.credentials = [("a2".to_owned(), b"secret".to_vec())].into();
    let done = one.put(request.clone()).await.unwrap();
    assert_eq!(done.version, 2);
    assert_eq!(done.differences[0].subject, "connection a2");
    let mut expected = before.clone();
    let after = one.stored().await.unwrap();
    expected.connections.clone_from(&after.connections);
    assert_eq!(after, expected);
    assert_eq!(after.connections.len(), before.connections.len() + 1);
    assert_eq!(one.connection("a2").await.credential_version, 1);
    assert_eq!(one.connection("a1").await.credential_version, 1);
    let audit = fleet.durable.list_audit(1).await.unwrap();
    assert_eq!(audit[0].author, "local ada");

    // Once more is no change; on a stale version it is a conflict.
    other.has_configuration(2).await;
    let mut again = part(new());
    again.credentials = [("a2".to_owned(), b"secret".to_vec())].into();
    let again = other.put(again).await.unwrap();
    assert_eq!((again.version, again.differences.len()), (2, 0));
    assert_eq!(reason(&other.put(request).await.unwrap_err()), "CP0002");

    // What is wrong changes nothing: a connection of nobody, a secret of nobody, something named twice.
    let nobody = part(config::Document {
        connections: vec![connection("a3", "nobody", 1)],
        ..config::Document::default()
    });
    let mut secret = part(new());
    secret.credentials = [("nobody".to_owned(), b"secret".to_vec())].into();
    let twice = part(config::Document {
        connections: vec![connection("a3", ALPHA, 1), connection("a3", ALPHA, 2)],
        ..config::Document::default()
    });
    for (wrong, field) in [
        (nobody, "connections[a3].provider"),
        (secret, "credentials[nobody]"),
        (twice, "connections[a3]"),
    ] {
        let refused = one.put(wrong).await.unwrap_err();
        assert_eq!(reason(&refused), "CP0001");
        assert_eq!(blamed(&refused), [field]);
    }
    // Which of the two is meant is not guessed.
    let mut both = part(new());
    both.document.clone_from(&both.part);
    assert_eq!(blamed(&one.put(both).await.unwrap_err()), ["part"]);
    let neither = admin::ApplyConfigurationRequest::default();
    let refused = one.put(neither).await.unwrap_err();
    assert_eq!(blamed(&refused), ["document"]);
    assert_eq!(one.configuration_version().await, 2);
}

#[tokio::test]
async fn parts_that_two_replicas_put_at_once_are_both_there() {
    let fleet = Fleet::new().await;
    let [one, other]: [Replica; 2] = fleet.replicas_with(document()).await;
    let put = async |replica: &Replica, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let new = config::Document {
                connections: vec![connection(&format!("n{number}"), ALPHA, number)],
                ..config::Document::default()
            };
            replica.put(part(new)).await.unwrap();
        }
    };
    tokio::join!(put(&one, 0..4), put(&other, 4..8));
    one.has_configuration(9).await;
    let stored = one.stored().await.unwrap();
    assert_eq!(stored.connections.len(), document().connections.len() + 8);
}

#[tokio::test]
async fn everything_that_refers_is_named_where_something_is_not_deleted() {
    let fleet = Fleet::new().await;
    let mut wanted = document();
    wanted.combos = vec![combo("main", "a1"), combo("second", "")];
    wanted.keys = vec![config::ApiKey {
        allowed_connections: vec!["a1".to_owned()],
        allowed_models: vec!["alpha/m".to_owned(), "main".to_owned()],
        ..key("k", "1")
    }];
    let [one] = fleet.replicas_with(wanted).await;
    use admin::ResourceKind::{Combo, Connection, Provider};
    for (kind, id, fields) in [
        (
            Provider,
            ALPHA,
            vec![
                "connections[0].provider",
                "combos[0].steps[0]",
                "combos[1].steps[0]",
                "keys[0].allowedModels[0]",
            ],
        ),
        (
            Connection,
            "a1",
            vec![
                "combos[0].steps[0].connection",
                "keys[0].allowedConnections[0]",
            ],
        ),
        (Combo, "main", vec!["keys[0].allowedModels[1]"]),
    ] {
        let request = admin::DeleteResourceRequest {
            kind: kind.into(),
            id: id.to_owned(),
            ..admin::DeleteResourceRequest::default()
        };
        let refused = one.admin().delete_resource(request).await.unwrap_err();
        assert_eq!(blamed(&refused), fields, "{id}");
        assert!(refused.message().contains("is in use"), "{refused:?}");
    }
}

#[tokio::test]
async fn a_name_that_is_asked_for_must_mean_something_and_members_are_left_out_that_are_not() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let mut admin = one.admin();
    let nobody = || "nobody".to_owned();
    let refused = [
        admin
            .list_breakers(admin::ListBreakersRequest {
                provider: nobody(),
                ..admin::ListBreakersRequest::default()
            })
            .await
            .map(drop),
        admin
            .list_connections(admin::ListConnectionsRequest {
                connection: nobody(),
                ..admin::ListConnectionsRequest::default()
            })
            .await
            .map(drop),
        admin
            .list_lockouts(admin::ListLockoutsRequest {
                connection: nobody(),
                ..admin::ListLockoutsRequest::default()
            })
            .await
            .map(drop),
        admin
            .list_cooldowns(admin::ListCooldownsRequest {
                connection: nobody(),
                ..admin::ListCooldownsRequest::default()
            })
            .await
            .map(drop),
        admin
            .list_leases(admin::ListLeasesRequest {
                connection: nobody(),
                ..admin::ListLeasesRequest::default()
            })
            .await
            .map(drop),
    ];
    for refused in refused {
        let refused = refused.unwrap_err();
        assert_eq!(reason(&refused), "CP0011", "{refused:?}");
    }
    let breakers = admin
        .list_breakers(admin::ListBreakersRequest {
            provider: "beta".to_owned(),
            ..admin::ListBreakersRequest::default()
        })
        .await
        .unwrap()
        .into_inner()
        .breakers;
    assert_eq!(breakers.len(), 1);
    assert_eq!(breakers[0].provider, "beta");
    let masked = |paths: &[&str]| admin::ListConnectionsRequest {
        connection: "a1".to_owned(),
        read_mask: Some(prost_types::FieldMask {
            paths: paths.iter().map(|it| (*it).to_owned()).collect(),
        }),
        ..admin::ListConnectionsRequest::default()
    };
    let listed = admin.list_connections(masked(&["id", "state"])).await;
    let expected = admin::ConnectionStatus {
        id: "a1".to_owned(),
        state: "active".to_owned(),
        ..admin::ConnectionStatus::default()
    };
    assert_eq!(listed.unwrap().into_inner().connections, [expected]);
    let refused = admin.list_connections(masked(&["secret"])).await;
    assert_eq!(blamed(&refused.unwrap_err()), ["read_mask"]);
}

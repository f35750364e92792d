//! Names of what is not there, in calls that explain or end something.

use tidegate_proto::admin::v1 as admin;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::fleet::{ALPHA, Fleet, MODEL};

/// The code, and the member that it is about where there is one.
fn told(refused: &Status) -> (String, Option<String>) {
    let details = refused.get_error_details();
    let member = details
        .bad_request()
        .map(|bad| bad.field_violations[0].field.clone());
    (details.error_info().unwrap().reason.clone(), member)
}

#[tokio::test]
async fn a_name_that_is_not_there_is_refused_and_nothing_is_done() {
    let (fleet, [one]) = Fleet::with_replicas().await;
    one.open_breaker(7).await;
    one.breaker_becomes("OPEN").await;
    let mut client = one.admin();
    let explain = |key_id: &str| admin::ExplainRequest {
        model: MODEL.to_owned(),
        key_id: key_id.to_owned(),
        ..admin::ExplainRequest::default()
    };
    let clear = |connection: &str| admin::ClearPermitsRequest {
        connection: connection.to_owned(),
    };
    let reset = |scope: admin::ResetScope, provider: &str, connection: &str| admin::ResetRequest {
        scope: scope.into(),
        provider: provider.to_owned(),
        connection: connection.to_owned(),
        ..admin::ResetRequest::default()
    };
    let long = "x".repeat(1_000);
    let (unknown, senseless) = ("CP0011", "CP0006");
    let expected = |code: &str, member: Option<&str>| (code.to_owned(), member.map(str::to_owned));

    let refused = client.explain(explain("nobody")).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert_eq!(told(&refused), expected(unknown, None));
    let refused = client.explain(explain(&long)).await.unwrap_err();
    assert_eq!(told(&refused), expected(senseless, Some("key_id")));

    for (connection, expected) in [
        ("nobody", expected(unknown, None)),
        ("", expected(senseless, Some("connection"))),
        (long.as_str(), expected(senseless, Some("connection"))),
    ] {
        let refused = client.clear_permits(clear(connection)).await.unwrap_err();
        assert_eq!(told(&refused), expected, "{connection}");
    }

    use admin::ResetScope::{All, Breakers, Cooldowns, Lockouts, Unspecified};
    for scope in [Unspecified, Breakers, Cooldowns, Lockouts, All] {
        for (provider, connection) in [("nowhere", ""), ("", "nobody"), (ALPHA, "nobody")] {
            let refused = client
                .reset(reset(scope, provider, connection))
                .await
                .unwrap_err();
            let what = format!("{scope:?} of {provider}/{connection}");
            // A connection has no breaker, whatever its name.
            let is_of_breakers = matches!(scope, Unspecified | Breakers);
            let expected = if is_of_breakers && !connection.is_empty() {
                expected(senseless, Some("connection"))
            } else {
                expected(unknown, None)
            };
            assert_eq!(told(&refused), expected, "{what}");
        }
    }
    let refused = client.reset(reset(All, &long, "")).await.unwrap_err();
    assert_eq!(told(&refused), expected(senseless, Some("provider")));
    let scopeless = admin::ResetRequest {
        scope: 99,
        ..admin::ResetRequest::default()
    };
    let refused = client.reset(scopeless).await.unwrap_err();
    assert_eq!(told(&refused), expected(senseless, Some("scope")));

    assert_eq!(one.breaker().await, "OPEN");
    assert_eq!(one.configuration_version().await, 1);
    let audit = fleet.durable.list_audit(10).await.unwrap();
    assert_eq!(audit.len(), 1, "only the configuration: {audit:?}");
}

use rstest::rstest;
use serde_json::json;

use super::*;

const JSON: &[u8] = b"application/json";
const OWNER: &[u8] = b"vlo_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// What a request may have wrong, in the order of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Bearer,
    Key,
    ContentType,
    Body,
    Policy,
    Scope,
    Connections,
    Owner,
}

/// What a request is told that has all this wrong.
fn refusal(wrong: &[Wrong]) -> Refused<&'static str> {
    let has = |what| wrong.contains(&what);
    let id = KeyId::new("k1").unwrap();
    let connections = [ConnectionId::new("c1").unwrap()];
    let bearer = if has(Wrong::Bearer) {
        Bearer::Missing
    } else if has(Wrong::Key) {
        Bearer::Unknown
    } else {
        Bearer::Key(LeaseKey {
            id: &id,
            exclusive: !has(Wrong::Scope),
            allowed_connections: if has(Wrong::Connections) {
                &[]
            } else {
                &connections
            },
        })
    };
    let body: &[u8] = if has(Wrong::Body) {
        b"{}"
    } else {
        br#"{"action":"renew","generation":1}"#
    };
    let policy = |_: Option<&str>| {
        if has(Wrong::Policy) {
            Err("no")
        } else {
            Ok(())
        }
    };
    let content_type = (!has(Wrong::ContentType)).then_some(JSON);
    let owner = (!has(Wrong::Owner)).then_some(OWNER);
    read_lifecycle(bearer, content_type, body, owner, policy).unwrap_err()
}

#[test]
fn the_first_thing_wrong_is_told() {
    let order = [
        (
            Wrong::Bearer,
            Refused::Lease(LeaseError::AuthenticationRequired),
        ),
        (Wrong::Key, Refused::Lease(LeaseError::ApiKeyInvalid)),
        (
            Wrong::ContentType,
            Refused::Lease(LeaseError::ContentTypeRequired),
        ),
        (Wrong::Body, Refused::Lease(LeaseError::ActionInvalid)),
        (Wrong::Policy, Refused::Policy("no")),
        (Wrong::Scope, Refused::Lease(LeaseError::ScopeRequired)),
        (
            Wrong::Connections,
            Refused::Lease(LeaseError::KeyConfigurationInvalid),
        ),
        (Wrong::Owner, Refused::Lease(LeaseError::ContextRequired)),
    ];
    let wrong = order.map(|(wrong, _)| wrong);
    for (index, (_, told)) in order.into_iter().enumerate() {
        assert_eq!(refusal(&wrong[index..]), told);
    }
}

#[rstest]
#[case::no_bearer(&[Wrong::Bearer], 401, "LEASE_AUTHENTICATION_REQUIRED")]
#[case::no_content_type_and_no_scope(
    &[Wrong::ContentType, Wrong::Scope],
    415,
    "LEASE_CONTENT_TYPE_REQUIRED"
)]
#[case::no_scope(&[Wrong::Scope], 403, "LEASE_SCOPE_REQUIRED")]
fn vector_sessions_03_who_asks_and_how(
    #[case] wrong: &[Wrong],
    #[case] status: u16,
    #[case] code: &str,
) {
    let Refused::Lease(error) = refusal(wrong) else {
        panic!("refused by a rule of leases");
    };
    assert_eq!((error.status(), error.code()), (status, code));
}

#[test]
fn a_request_in_order_is_read() {
    let id = KeyId::new("k1").unwrap();
    let connections = [ConnectionId::new("c1").unwrap()];
    let key = LeaseKey {
        id: &id,
        exclusive: true,
        allowed_connections: &connections,
    };
    let mut asked = None;
    let policy = |model: Option<&str>| {
        asked = model.map(str::to_owned);
        Ok::<(), ()>(())
    };
    let body = br#"{"action":"acquire","model":" m "}"#;
    let read = read_lifecycle(Bearer::Key(key), Some(JSON), body, Some(OWNER), policy);
    assert_eq!(
        read,
        Ok(Lifecycle {
            action: Action::Acquire {
                model: "m".to_owned()
            },
            owner: OwnerHash::of_header(Some(OWNER)).unwrap(),
        })
    );
    assert_eq!(asked.as_deref(), Some("m"));
}

fn generation(number: u64) -> Generation {
    Generation::try_from(number).unwrap()
}

#[rstest]
#[case::renew(json!({"action": "renew", "generation": 7}), Action::Renew { generation: generation(7) })]
#[case::status(json!({"action": "status", "generation": 7}), Action::Status { generation: generation(7) })]
#[case::release(
    json!({"action": "release", "generation": 7}),
    Action::Release { generation: generation(7), reason: EndReason::OwnerExit }
)]
#[case::release_with_a_reason(
    json!({"action": "release", "generation": 7, "reason": "CLIENT_CANCELLED"}),
    Action::Release { generation: generation(7), reason: EndReason::ClientCancelled }
)]
#[case::a_model_of_512(
    json!({"action": "acquire", "model": "é".repeat(512)}),
    Action::Acquire { model: "é".repeat(512) }
)]
#[case::unknown_members(
    json!({"action": "acquire", "model": "m", "generation": "x", "ttlMs": 1}),
    Action::Acquire { model: "m".to_owned() }
)]
fn actions_are_read(#[case] body: Value, #[case] action: Action) {
    assert_eq!(Action::of_body(body.to_string().as_bytes()), Ok(action));
}

#[rstest]
#[case::no_action(json!({}))]
#[case::unknown_action(json!({"action": "steal", "generation": 1}))]
#[case::action_of_another_type(json!({"action": 1}))]
#[case::no_object(json!(["acquire"]))]
#[case::no_model(json!({"action": "acquire"}))]
#[case::blank_model(json!({"action": "acquire", "model": " "}))]
#[case::model_of_513(json!({"action": "acquire", "model": "m".repeat(513)}))]
#[case::no_generation(json!({"action": "renew"}))]
#[case::status_of_none(json!({"action": "status"}))]
#[case::a_reason_that_is_not_the_clients(
    json!({"action": "release", "generation": 1, "reason": "TTL_EXPIRED"})
)]
#[case::null_reason(json!({"action": "release", "generation": 1, "reason": null}))]
fn what_is_no_action_is_refused(#[case] body: Value) {
    assert_eq!(
        Action::of_body(body.to_string().as_bytes()),
        Err(LeaseError::ActionInvalid)
    );
}

#[test]
fn a_body_is_read_up_to_its_limit() {
    let of_length = |bytes: usize| {
        let empty = json!({"action": "renew", "generation": 1, "x": ""}).to_string();
        let fill = "x".repeat(bytes - empty.len());
        let body = json!({"action": "renew", "generation": 1, "x": fill}).to_string();
        assert_eq!(body.len(), bytes);
        Action::of_body(body.as_bytes())
    };
    assert!(of_length(MAX_LIFECYCLE_BYTES).is_ok());
    assert_eq!(
        of_length(MAX_LIFECYCLE_BYTES + 1),
        Err(LeaseError::ActionInvalid)
    );
    assert_eq!(Action::of_body(b"{"), Err(LeaseError::ActionInvalid));
}

#[rstest]
#[case::plain(Some("application/json"), true)]
#[case::with_parameters(Some("Application/JSON ; charset=utf-8"), true)]
#[case::longer(Some("application/jsonx"), false)]
#[case::other(Some("text/json"), false)]
#[case::none(None, false)]
fn media_types(#[case] value: Option<&str>, #[case] json: bool) {
    assert_eq!(is_json(value.map(str::as_bytes)), json);
}

#[rstest]
#[case::no_owner(None, Some("1"), LeaseError::ContextRequired)]
#[case::no_owner_and_no_generation(None, None, LeaseError::ContextRequired)]
#[case::bad_owner(Some("vlo_"), Some("1"), LeaseError::ContextInvalid)]
#[case::no_generation(Some("good"), None, LeaseError::ContextInvalid)]
#[case::bad_generation(Some("good"), Some("01"), LeaseError::ContextInvalid)]
fn vector_sessions_18_an_inference_request_names_its_lease(
    #[case] owner: Option<&str>,
    #[case] generation: Option<&str>,
    #[case] error: LeaseError,
) {
    let owner = owner.map(|owner| {
        if owner == "good" {
            OWNER
        } else {
            owner.as_bytes()
        }
    });
    let read = LeaseName::of_headers(owner, generation.map(str::as_bytes));
    assert_eq!(read, Err(error));
    assert_eq!(error.status(), 400);
    assert!(LeaseName::of_headers(Some(OWNER), Some(b"1")).is_ok());
}

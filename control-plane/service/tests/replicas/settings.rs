//! Reading and changing settings.

use serde_json::{Value, json};
use tidegate_proto::admin::v1 as admin;
use tidegate_proto::admin::v1::SettingSource;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::fleet::{Fleet, Replica, apply_request, document};

fn patch(value: &Value) -> admin::PatchSettingsRequest {
    admin::PatchSettingsRequest {
        patch_json: value.to_string(),
        ..admin::PatchSettingsRequest::default()
    }
}

async fn written(replica: &Replica) -> Value {
    serde_json::from_str(&replica.settings().await.written_json).unwrap()
}

/// Code and fields of a refusal.
fn refusal(status: &tonic::Status) -> (String, Vec<String>) {
    let details = status.get_error_details();
    let fields = details.bad_request().map_or_else(Vec::new, |bad| {
        let fields = bad.field_violations.iter();
        fields.map(|violation| violation.field.clone()).collect()
    });
    (details.error_info().unwrap().reason.clone(), fields)
}

#[tokio::test]
async fn a_patch_writes_what_it_names_and_nothing_else() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    let before = written(&one).await;
    let mut request = patch(&json!({
        "modelLockout": {"enabled": true},
        "connectionCooldown": {"apikey": {"baseCooldownMs": 7_000}},
    }));
    request.author = "ada".to_owned();
    request.dry_run = true;
    let shown = one.patch(request.clone()).await.unwrap();
    assert_eq!((shown.version, shown.differences.len()), (1, 1));
    assert_eq!(written(&one).await, before);
    request.dry_run = false;
    let done = one.patch(request.clone()).await.unwrap();
    assert_eq!(
        done.differences[0].details,
        [
            "connectionCooldown.apikey.baseCooldownMs: unset -> 7000",
            "modelLockout.enabled: unset -> true",
        ]
    );
    assert_eq!(done.version, 2);
    let mut expected = before.clone();
    expected["modelLockout"] = json!({"enabled": true});
    expected["connectionCooldown"] = json!({"apikey": {"baseCooldownMs": 7_000}});
    assert_eq!(written(&one).await, expected);
    // Everything else of the configuration, credentials included, is as it was.
    other.has_configuration(2).await;
    assert_eq!(written(&other).await, expected);
    other.dispatched(1).await;
    assert_eq!(other.patch(request).await.unwrap().version, 2);
    let audit = fleet.durable.list_audit(10).await.unwrap();
    assert_eq!(audit[0].author, "local ada");
    assert_eq!(audit[0].document_version, Some(2));
    assert_eq!(
        audit[0].summary,
        "settings: connectionCooldown.apikey.baseCooldownMs: unset -> 7000; modelLockout.enabled: unset -> true"
    );
    let cleared = one.patch(patch(&json!({"modelLockout": null})));
    assert_eq!(cleared.await.unwrap().version, 3);
    assert!(written(&one).await.get("modelLockout").is_none());
}

#[tokio::test]
async fn vector_sessions_58_a_bad_patch_is_refused_and_changes_nothing() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    for (bad, code, fields) in [
        (json!({}), "CP0001", vec![""]),
        (json!({"magic": {}}), "CP0001", vec!["magic"]),
        (
            json!({"modelLockout": {"enabled": 1, "maxBackoffSteps": 21}}),
            "CP0001",
            vec!["modelLockout.enabled", "modelLockout.maxBackoffSteps"],
        ),
        (json!([]), "CP0006", vec![]),
    ] {
        let refused = one.patch(patch(&bad)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{bad}");
        let fields = fields.into_iter().map(str::to_owned).collect();
        assert_eq!(refusal(&refused), (code.to_owned(), fields), "{bad}");
    }
    let mut stale = patch(&json!({"modelLockout": {"enabled": true}}));
    stale.expected_version = Some(7);
    let refused = one.patch(stale).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert_eq!(refusal(&refused).0, "CP0002");
    assert_eq!(one.configuration_version().await, 1);
}

#[tokio::test]
async fn two_replicas_that_patch_at_the_same_time_lose_nothing() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    const ROUNDS: u64 = 12;
    let lockout = async {
        for round in 0..ROUNDS {
            let change = json!({"modelLockout": {"baseCooldownMs": 10_000 + round}});
            one.patch(patch(&change)).await.unwrap();
        }
    };
    let streams = async {
        for round in 0..ROUNDS {
            let change = json!({"streams": {"idleTimeoutMs": 20_000 + round}});
            other.patch(patch(&change)).await.unwrap();
        }
    };
    tokio::join!(lockout, streams);
    let version = 1 + 2 * ROUNDS;
    one.has_configuration(version).await;
    let settings = written(&one).await;
    assert_eq!(settings["modelLockout"]["baseCooldownMs"], 9_999 + ROUNDS);
    assert_eq!(settings["streams"]["idleTimeoutMs"], 19_999 + ROUNDS);
    assert_eq!(one.configuration_version().await, version);
}

#[tokio::test]
async fn what_acts_is_told_with_who_said_so() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let mut configured = document();
    configured.settings_json = r#"{"modelLockout": {"enabled": true}}"#.to_owned();
    configured.connections[0].disable_cooling = true;
    configured.connections[0].models = vec!["m".to_owned()];
    one.apply(apply_request(configured)).await.unwrap();
    let told = one.settings().await;
    assert_eq!(told.version, 2);
    let of = |path: &str| {
        let setting = told.effective.iter().find(|it| it.path == path).unwrap();
        (setting.value_json.clone(), setting.source())
    };
    let stored = (String::from("true"), SettingSource::Stored);
    assert_eq!(of("modelLockout.enabled"), stored);
    let built_in = (String::from("12"), SettingSource::BuiltIn);
    assert_eq!(of("providerBreaker.apikey.failureThreshold"), built_in);
    let overrides: Vec<String> = told
        .connection_overrides
        .iter()
        .map(|it| format!("{} {} {}", it.connection, it.member, it.value_json))
        .collect();
    let expected = [
        "a1 disableCooling true",
        r#"a1 models ["m"]"#,
        "b1 disableCooling true",
    ];
    assert_eq!(overrides, expected);
}

#[tokio::test]
async fn a_stored_document_that_no_release_wrote_does_not_stop_a_replica() {
    let (fleet, [one]) = Fleet::with_replicas().await;
    let mut stored = fleet.durable.load_document().await.unwrap();
    let hand_made = json!({
        "tomorrow": {"of": 1},
        "modelLockout": {"enabled": true, "baseCooldownMs": "1e12", "newMember": []},
    });
    stored.document.settings = serde_json::from_value(hand_made.clone()).unwrap();
    fleet
        .durable
        .save_document(1, &stored.document, &stored.secrets, "hand", "")
        .await
        .unwrap();
    one.has_configuration(2).await;
    let late = fleet.start().await;
    late.has_configuration(2).await;
    let told = late.settings().await;
    let paths: Vec<&str> = told.mended.iter().map(|it| it.path.as_str()).collect();
    let expected = [
        "modelLockout.baseCooldownMs",
        "modelLockout.newMember",
        "tomorrow",
    ];
    assert_eq!(paths, expected);
    // A change of a section leaves what is not understood where it is.
    late.patch(patch(&json!({"modelLockout": {"maxBackoffSteps": 3}})))
        .await
        .unwrap();
    let mut expected = hand_made;
    expected["modelLockout"]["maxBackoffSteps"] = json!(3);
    assert_eq!(written(&late).await, expected);
}

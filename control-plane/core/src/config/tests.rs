//! Validation tells every fault with its path; what validates is found again.

use proptest::prelude::*;
use proptest::strategy::Strategy;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

mod combos;

fn document(value: Value) -> Document {
    serde_json::from_value(value).unwrap()
}

fn build(value: Value) -> Result<Config, Vec<Violation>> {
    Config::build(document(value), 3, &crate::settings::Overrides::default())
}

fn good() -> Value {
    json!({
        "providers": [
            {"id": "openai", "protocol": "openai", "baseUrl": "https://api.openai.com/v1/",
             "models": ["gpt-5"]},
            {"id": "claude", "protocol": "anthropic", "baseUrl": "https://api.anthropic.com/v1"},
            {"id": "issuing", "protocol": "openai", "baseUrl": "https://issuing.example/v1",
             "oauth": {"tokenEndpoint": "https://issuing.example/token"}},
        ],
        "connections": [
            {"id": "late", "provider": "openai", "priority": 200},
            {"id": "main", "provider": "openai", "credential": {"env": "OPENAI_API_KEY"}},
            {"id": "team", "provider": "claude", "credential": {"file": "/run/secrets/team"}},
        ],
        "combos": [{
            "name": "best",
            "steps": ["openai/gpt-5", {"model": "claude/opus/4", "connection": "team"}],
            "config": {"maxRetries": 0},
        }],
        "keys": [{
            "id": "alice",
            "sha256": key_hash("tg-alice").to_uppercase(),
            "allowedModels": ["best", "openai/gpt-5"],
            "allowedConnections": ["main"],
        }],
    })
}

#[rstest]
#[case("lkgp", json!({}), Some(LastServed::Account))]
#[case("priority", json!({}), None)]
#[case("round-robin", json!({"auto": {"router": "lkgp"}}), None)]
#[case("auto", json!({}), None)]
#[case("auto", json!({"auto": {"router": "rules"}}), None)]
#[case("auto", json!({"auto": {"router": "lkgp"}}), Some(LastServed::Account))]
fn who_served_last_matters_to_combos_that_follow_it(
    #[case] strategy: &str,
    #[case] config: Value,
    #[case] expected: Option<LastServed>,
) {
    let mut document = good();
    document["combos"][0]["strategy"] = json!(strategy);
    document["combos"][0]["config"] = config;
    let config = build(document).unwrap();
    let combo = config.combo("best").unwrap();
    assert_eq!(combo.follows_last_served(), expected);
}

#[test]
fn where_no_target_names_an_account_only_the_provider_matters() {
    let mut document = good();
    document["combos"][0]["strategy"] = json!("lkgp");
    document["combos"][0]["steps"] = json!(["openai/gpt-5", "claude/opus"]);
    let config = build(document).unwrap();
    let follows = config.combo("best").unwrap().follows_last_served().unwrap();
    let (openai, claude) = (
        ProviderId::new("openai").unwrap(),
        ProviderId::new("claude").unwrap(),
    );
    let (late, main) = (
        ConnectionId::new("late").unwrap(),
        ConnectionId::new("main").unwrap(),
    );
    assert!(follows.is_same((&openai, Some(&late)), (&openai, Some(&main))));
    assert!(!follows.is_same((&openai, Some(&late)), (&claude, Some(&late))));
    assert!(!LastServed::Account.is_same((&openai, Some(&late)), (&openai, Some(&main))));
}

/// The good document with one member replaced; `path` is a JSON pointer.
fn with(path: &str, value: Value) -> Value {
    let mut document = good();
    let (parent, member) = path.rsplit_once('/').unwrap();
    match document.pointer_mut(parent).unwrap() {
        Value::Object(members) => {
            members.insert(member.to_owned(), value);
        }
        Value::Array(entries) => match member.parse::<usize>() {
            Ok(index) => entries[index] = value,
            Err(_) => entries.push(value),
        },
        other => panic!("{other} has no members"),
    }
    document
}

#[test]
fn a_good_document_is_found_again() {
    let config = build(good()).unwrap();
    assert_eq!(config.version, 3);
    let openai = config
        .provider(&ProviderId::new("openai").unwrap())
        .unwrap();
    assert_eq!(openai.provider.base_url, "https://api.openai.com/v1");
    let accounts: Vec<_> = openai
        .connections
        .iter()
        .map(|entry| entry.id.as_str())
        .collect();
    assert_eq!(accounts, ["main", "late"]);
    let targets = &config.combo("best").unwrap().targets;
    assert_eq!(targets[1].model.as_str(), "opus/4");
    assert_eq!(targets[1].connection.as_ref().unwrap().as_str(), "team");
    let key = config.key_by_hash(&key_hash("tg-alice")).unwrap();
    assert_eq!(key.id.as_str(), "alice");
    assert!(config.key_by_hash(&key_hash("tg-bob")).is_none());
    assert!(
        config
            .connection(&ConnectionId::new("late").unwrap())
            .is_some()
    );
}

#[test]
fn an_empty_document_is_good() {
    assert!(build(json!({})).unwrap().providers.is_empty());
}

#[rstest]
#[case::provider_twice("/providers/+", json!({"id": "claude", "protocol": "openai", "baseUrl": "https://x.example"}), "providers[3].id")]
#[case::reserved_provider("/providers/+", json!({"id": "combo", "protocol": "openai", "baseUrl": "https://x.example"}), "providers[3].id")]
#[case::url("/providers/0/baseUrl", json!("api.openai.com/v1"), "providers[0].baseUrl")]
#[case::connection_twice("/connections/+", json!({"id": "late", "provider": "claude"}), "connections[3].id")]
#[case::connection_at_nobody("/connections/0/provider", json!("nobody"), "connections[0].provider")]
#[case::variable_with_space("/connections/1/credential", json!({"env": "A B"}), "connections[1].credential.env")]
#[case::variable_with_digit("/connections/1/credential", json!({"env": "1A"}), "connections[1].credential.env")]
#[case::no_file("/connections/1/credential", json!({"file": ""}), "connections[1].credential.file")]
#[case::plain_token_endpoint("/providers/0/oauth", json!({"tokenEndpoint": "http://id.example/token"}), "providers[0].oauth.tokenEndpoint")]
#[case::private_token_endpoint("/providers/0/oauth", json!({"tokenEndpoint": "http://10.0.0.1/token"}), "providers[0].oauth.tokenEndpoint")]
#[case::no_token_endpoint("/providers/0/oauth", json!({"tokenEndpoint": "token"}), "providers[0].oauth.tokenEndpoint")]
#[case::scope("/providers/0/oauth", json!({"tokenEndpoint": "https://id.example/t", "scope": "a\nb"}), "providers[0].oauth.scope")]
#[case::empty_client("/providers/0/oauth", json!({"tokenEndpoint": "https://id.example/t", "clientId": ""}), "providers[0].oauth.clientId")]
#[case::plain_quota_endpoint("/providers/0/quotaEndpoint", json!({"url": "http://x.example/usage", "limitReached": "/full"}), "providers[0].quotaEndpoint.url")]
#[case::quota_endpoint_with_query("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage?account={id}", "limitReached": "/full"}), "providers[0].quotaEndpoint.url")]
#[case::quota_endpoint_of_nothing("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage"}), "providers[0].quotaEndpoint.windows")]
#[case::quotas_too_often("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage", "limitReached": "/full", "intervalMs": 999}), "providers[0].quotaEndpoint.intervalMs")]
#[case::quotas_too_rarely("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage", "limitReached": "/full", "intervalMs": 21_600_001}), "providers[0].quotaEndpoint.intervalMs")]
#[case::quotas_too_slowly("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage", "limitReached": "/full", "timeoutMs": 30_001}), "providers[0].quotaEndpoint.timeoutMs")]
#[case::no_pointer("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage", "limitReached": "full"}), "providers[0].quotaEndpoint.limitReached")]
#[case::bad_escape("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage", "limitReached": "/a~2"}), "providers[0].quotaEndpoint.limitReached")]
#[case::long_pointer("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage", "limitReached": format!("/{}", "a".repeat(256))}), "providers[0].quotaEndpoint.limitReached")]
#[case::window_of_nothing("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage", "windows": {"weekly": {"resetsAt": "/a"}}}), "providers[0].quotaEndpoint.windows.weekly")]
#[case::used_without_limit("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage", "windows": {"session": {"used": "/a"}}}), "providers[0].quotaEndpoint.windows.session")]
#[case::used_twice("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage", "windows": {"monthly": {"usedShare": "/a", "usedPercent": "/b"}}}), "providers[0].quotaEndpoint.windows.monthly")]
#[case::pointer_of_a_model("/providers/0/quotaEndpoint", json!({"url": "https://x.example/usage", "windows": {"weeklyByModel": {"m": {"usedShare": "a"}}}}), "providers[0].quotaEndpoint.windows.weeklyByModel.m.usedShare")]
#[case::credential_by_hand("/connections/1/quotaEndpoint", json!({"url": "https://x.example/usage", "limitReached": "/full", "headers": {"authorization": "Bearer x"}}), "connections[1].quotaEndpoint.headers.authorization")]
#[case::header_with_a_line_break("/connections/1/quotaEndpoint", json!({"url": "https://x.example/usage", "limitReached": "/full", "headers": {"x-a": "b\r\nc: d"}}), "connections[1].quotaEndpoint.headers.x-a")]
#[case::header_without_a_name("/connections/1/quotaEndpoint", json!({"url": "https://x.example/usage", "limitReached": "/full", "headers": {"X A": "b"}}), "connections[1].quotaEndpoint.headers")]
#[case::token_of_nobody("/connections/1/refreshToken", json!({"env": "TOKEN"}), "connections[1].refreshToken")]
#[case::secret_alone("/connections/+", json!({"id": "x", "provider": "issuing", "clientSecret": {"env": "SECRET"}}), "connections[3].clientSecret")]
#[case::long_client("/connections/1/clientId", json!("x".repeat(2_049)), "connections[1].clientId")]
#[case::combo_twice("/combos/+", json!({"name": "best", "steps": ["openai/gpt-5"]}), "combos[1].name")]
#[case::reserved_combo("/combos/+", json!({"name": "auto/fast", "steps": ["openai/gpt-5"]}), "combos[1].name")]
#[case::empty_combo("/combos/0/steps", json!([]), "combos[0].steps")]
#[case::step_without_provider("/combos/0/steps/0", json!("gpt-5"), "combos[0].steps[0]")]
#[case::step_without_model("/combos/0/steps/0", json!("openai/"), "combos[0].steps[0]")]
#[case::step_at_nobody("/combos/0/steps/0", json!("nobody/gpt-5"), "combos[0].steps[0]")]
#[case::detailed_step("/combos/0/steps/1/model", json!("opus"), "combos[0].steps[1].model")]
#[case::pin_to_nothing("/combos/0/steps/1/connection", json!("gone"), "combos[0].steps[1].connection")]
#[case::pin_elsewhere("/combos/0/steps/1/connection", json!("main"), "combos[0].steps[1].connection")]
#[case::auto_combo("/combos/+", json!({"name": "auto/x", "steps": ["openai/gpt-5"]}), "combos[1].name")]
#[case::unknown_combo("/combos/0/steps/0", json!({"combo": "gone"}), "combos[0].steps[0].combo")]
#[case::itself("/combos/0/steps/0", json!("best"), "combos[0].steps[0]")]
#[case::negative_weight("/combos/0/steps/1/weight", json!(-0.5), "combos[0].steps[1].weight")]
#[case::heavy("/combos/0/steps/1/weight", json!(101), "combos[0].steps[1].weight")]
#[case::step_id("/combos/0/steps/1/id", json!("a>b"), "combos[0].steps[1].id")]
#[case::empty_step_id("/combos/0/steps/1/id", json!(""), "combos[0].steps[1].id")]
#[case::step_id_twice("/combos/0/steps/1/id", json!("best-model-1-openai-gpt-5"), "combos[0].steps[1].id")]
#[case::label("/combos/0/steps/1/label", json!("x".repeat(129)), "combos[0].steps[1].label")]
#[case::tag("/combos/0/steps/1/tags", json!([""]), "combos[0].steps[1].tags[0]")]
#[case::tags("/combos/0/steps/1/tags", json!(vec!["a"; 17]), "combos[0].steps[1].tags")]
#[case::prompt("/combos/0/steps/1/prompt", json!("x".repeat(32_769)), "combos[0].steps[1].prompt")]
#[case::allowed_nothing("/combos/0/steps/1", json!({"model": "claude/opus", "allowedConnections": ["gone"]}), "combos[0].steps[1].allowedConnections[0]")]
#[case::allowed_elsewhere("/combos/0/steps/1", json!({"model": "claude/opus", "allowedConnections": ["team", "main"]}), "combos[0].steps[1].allowedConnections[1]")]
#[case::pin_not_allowed("/combos/0/steps/1", json!({"model": "openai/gpt-5", "connection": "main", "allowedConnections": ["late"]}), "combos[0].steps[1].connection")]
#[case::pattern_of_nothing("/combos/0/steps/0", json!("openai/gpt-4*"), "combos[0].steps[0]")]
#[case::pattern_of_unlisted("/combos/0/steps/1/model", json!("claude/*"), "combos[0].steps[1]")]
#[case::unknown_tier("/combos/0/config", json!({"compositeTiers": {"defaultTier": "a", "tiers": {}}}), "combos[0].config.compositeTiers.defaultTier")]
#[case::tier_of_no_step("/combos/0/config", json!({"compositeTiers": {"defaultTier": "a", "tiers": {"a": {"stepId": "gone"}}}}), "combos[0].config.compositeTiers.tiers.a.stepId")]
#[case::tier_to_nowhere("/combos/0/config", json!({"compositeTiers": {"defaultTier": "a", "tiers": {"a": {"stepId": "best-model-1-openai-gpt-5", "fallbackTier": "b"}}}}), "combos[0].config.compositeTiers.tiers.a.fallbackTier")]
#[case::tier_to_itself("/combos/0/config", json!({"compositeTiers": {"defaultTier": "a", "tiers": {"a": {"stepId": "best-model-1-openai-gpt-5", "fallbackTier": "a"}}}}), "combos[0].config.compositeTiers.tiers.a.fallbackTier")]
#[case::mapping_to_nothing("/modelMappings", json!([{"pattern": "gpt-*", "combo": "gone"}]), "modelMappings[0].combo")]
#[case::mapping_of_nothing("/modelMappings", json!([{"pattern": "", "combo": "best"}]), "modelMappings[0].pattern")]
#[case::mappings("/modelMappings", json!(vec![json!({"pattern": "a", "combo": "best"}); 101]), "modelMappings")]
#[case::key_twice("/keys/+", json!({"id": "alice", "sha256": "0".repeat(64)}), "keys[1].id")]
#[case::hash_twice("/keys/+", json!({"id": "bob", "sha256": key_hash("tg-alice")}), "keys[1].sha256")]
#[case::key_with_both("/keys/0/secret", json!({"env": "KEY"}), "keys[0]")]
#[case::key_with_neither("/keys/0/sha256", Value::Null, "keys[0]")]
#[case::short_hash("/keys/0/sha256", json!("abc"), "keys[0].sha256")]
#[case::no_hex("/keys/0/sha256", json!("g".repeat(64)), "keys[0].sha256")]
#[case::wide_digits("/keys/0/sha256", json!("０".repeat(64)), "keys[0].sha256")]
#[case::key_to_nothing("/keys/0/allowedConnections/0", json!("gone"), "keys[0].allowedConnections[0]")]
#[case::key_to_no_model("/keys/0/allowedModels/1", json!("nobody/gpt-5"), "keys[0].allowedModels[1]")]
#[case::key_that_leases_nothing("/keys/+", json!({"id": "bob", "sha256": "0".repeat(64), "scopes": ["lease:exclusive"]}), "keys[1].allowedConnections")]
#[case::scope_twice("/keys/0/scopes", json!(["lease:exclusive", "lease:exclusive"]), "keys[0].scopes[1]")]
#[case::key_to_no_combo("/keys/0/allowedModels/0", json!("worst"), "keys[0].allowedModels[0]")]
#[case::settings("/settings", json!({"streams": {"connectTimeoutMs": 0}}), "settings.streams.connectTimeoutMs")]
fn a_fault_is_told_with_its_path(#[case] path: &str, #[case] value: Value, #[case] field: &str) {
    let violations = build(with(path, value)).unwrap_err();
    let fields: Vec<_> = violations.iter().map(|one| one.field.as_str()).collect();
    assert_eq!(fields, [field], "{violations:?}");
}

#[test]
fn a_quota_endpoint_may_use_all_of_its_room() {
    let place =
        json!({"used": "/a~1b/0", "limit": format!("/{}", "l".repeat(255)), "resetsAt": "/r"});
    let models = (0..64).map(|number| (format!("m{number}"), place.clone()));
    let models: serde_json::Map<String, Value> = models.collect();
    let headers = (0..8).map(|number| (format!("x-{number}"), json!("v".repeat(256))));
    let headers: serde_json::Map<String, Value> = headers.collect();
    let mut endpoint = json!({
        "url": "http://127.0.0.1:9/usage",
        "authentication": "none",
        "headers": headers,
        "intervalMs": 21_600_000,
        "timeoutMs": 30_000,
        "resetFormat": "epoch-milliseconds",
        "windows": {"session": place, "weeklyByModel": models},
    });
    assert!(build(with("/connections/0/quotaEndpoint", endpoint.clone())).is_ok());
    endpoint["headers"]["x-8"] = json!("v");
    endpoint["windows"]["weeklyByModel"]["m64"] = place;
    let found = build(with("/connections/0/quotaEndpoint", endpoint)).unwrap_err();
    let fields: Vec<_> = found.iter().map(|it| it.field.as_str()).collect();
    let path = "connections[0].quotaEndpoint";
    let expected = ["headers", "windows.weeklyByModel"].map(|it| format!("{path}.{it}"));
    assert_eq!(fields, expected);
}

#[rstest]
#[case("https://id.example/oauth/token")]
#[case("http://127.0.0.1:9/token")]
#[case("http://[::1]:9/token")]
#[case("http://localhost:9/token")]
fn a_token_endpoint_is_encrypted_or_on_this_machine(#[case] endpoint: &str) {
    let mut value = with("/providers/0/oauth", json!({"tokenEndpoint": endpoint}));
    value["connections"][0]["refreshToken"] = json!({"env": "TOKEN"});
    value["connections"][0]["clientId"] = json!("app");
    value["connections"][0]["clientSecret"] = json!({"file": "secret"});
    let config = build(value).unwrap();
    let openai = config
        .provider(&ProviderId::new("openai").unwrap())
        .unwrap();
    assert_eq!(openai.policy.class, crate::settings::ProviderClass::Oauth);
}

#[rstest]
#[case("maxRetries", json!(0), json!(10), json!(11))]
#[case("retryDelayMs", json!(0), json!(60_000), json!(60_001))]
#[case("fallbackDelayMs", json!(0), json!(60_000), json!(60_001))]
#[case("maxSetRetries", json!(0), json!(10), json!(11))]
#[case("setRetryDelayMs", json!(0), json!(60_000), json!(60_001))]
#[case("maxGlobalAttempts", json!(1), json!(200), json!(201))]
#[case("maxGlobalAttempts", json!(1), json!(200), json!(0))]
#[case("targetTimeoutMs", json!(1_000), json!(600_000), json!(999))]
#[case("targetTimeoutMs", json!(1_000), json!(600_000), json!(600_001))]
#[case("comboTimeoutMs", json!(0), json!(600_000), json!(600_001))]
#[case("maxComboDepth", json!(1), json!(10), json!(0))]
#[case("maxComboDepth", json!(1), json!(10), json!(99))]
#[case("concurrencyPerModel", json!(1), json!(32), json!(0))]
#[case("concurrencyPerModel", json!(1), json!(32), json!(33))]
#[case("queueTimeoutMs", json!(0), json!(600_000), json!(600_001))]
#[case("queueDepth", json!(0), json!(100), json!(101))]
#[case("stickyWeightedLimit", json!(1), json!(1_000), json!(0))]
#[case("stickyRoundRobinLimit", json!(1), json!(1_000), json!(1_001))]
#[case("handoffThreshold", json!(0), json!(1), json!(1.01))]
#[case("handoffModel", json!("openai/gpt-5"), json!("claude/any"), json!("nobody/gpt-5"))]
#[case("handoffProviders", json!([]), json!(["codex"]), json!(vec!["codex"; 65]))]
#[case("maxMessagesForSummary", json!(5), json!(100), json!(4))]
#[case("resetAwareSessionWeight", json!(0), json!(3.5), json!(-0.1))]
#[case("resetAwareWeeklyWeight", json!(0), json!(3.5), json!(-1))]
#[case("resetAwareTieBandPercent", json!(0), json!(100), json!(100.5))]
#[case("resetAwareExhaustionGuardPercent", json!(0), json!(100), json!(-1))]
#[case("resetWindows", json!(["weekly"]), json!(["session", "weekly", "monthly"]), json!([]))]
#[case("resetWindowTieBandMs", json!(0), json!(3_600_000), json!(3_600_001))]
#[case("retryBudgetRatio", json!(0), json!(1), json!(1.5))]
#[case("fusion.judgeModel", json!("openai/gpt-5"), json!("claude/any"), json!("gpt-5"))]
#[case("fusion.minPanel", json!(1), json!(5), json!(0))]
#[case("fusion.stragglerGraceMs", json!(0), json!(600_000), json!(600_001))]
#[case("fusion.panelHardTimeoutMs", json!(1), json!(600_000), json!(0))]
#[case("auto.weights.quota", json!(0), json!(3), json!(-1))]
#[case("auto.weights", json!({}), json!({"costInv": 1}), json!({"cost": 1}))]
#[case("auto.modePack", json!("ship-fast"), json!("chaos-mode"), json!("fast"))]
#[case("auto.router", json!("rules"), json!("nadir"), json!("best"))]
#[case("auto.candidatePool", json!([]), json!(["openai"]), json!(vec!["openai"; 65]))]
#[case("auto.candidatePool[0]", json!("openai"), json!("claude"), json!("nobody"))]
#[case("auto.explorationRate", json!(0), json!(1), json!(2))]
#[case("auto.budgetCap", json!(0.01), json!(5), json!(0))]
#[case("auto.quotaCutoffPercent", json!(0), json!(100), json!(101))]
#[case("auto.slaLatencyMs", json!(0), json!(2_000), json!(-1))]
#[case("auto.slaErrorRate", json!(0), json!(1), json!(1.1))]
#[case("auto.slaCost", json!(0), json!(9), json!(-1))]
fn a_member_of_a_combo_has_bounds(
    #[case] member: &str,
    #[case] least: Value,
    #[case] most: Value,
    #[case] beyond: Value,
) {
    let config = |value: &Value| {
        let mut config = value.clone();
        for name in member.rsplit('.') {
            config = match name.strip_suffix("[0]") {
                Some(name) => json!({ name: [config] }),
                None => json!({ name: config }),
            };
        }
        with("/combos/0/config", config)
    };
    for good in [least, most] {
        assert!(build(config(&good)).is_ok(), "{good}");
    }
    let violations = build(config(&beyond)).unwrap_err();
    let fields: Vec<_> = violations.iter().map(|one| one.field.as_str()).collect();
    assert_eq!(
        fields,
        [format!("combos[0].config.{member}")],
        "{violations:?}"
    );
}

#[test]
fn all_faults_are_told_at_once() {
    let mut value = with("/providers/0/baseUrl", json!("nothing"));
    value["combos"][0]["steps"] = json!(["a/b", "c"]);
    let violations = build(value).unwrap_err();
    assert_eq!(violations.len(), 3, "{violations:?}");
}

#[test]
fn a_key_whose_secret_is_not_read_yet_is_good_and_matches_nothing() {
    let mut value = good();
    value["keys"] = json!([{"id": "alice", "secret": {"env": "KEY"}}]);
    assert!(build(value).unwrap().keys.is_empty());
}

#[rstest]
#[case::unknown_member(json!({"combos": [{"name": "a", "steps": [{"model": "p/m", "wait": 3}]}]}), "wait")]
#[case::weight_that_is_none(json!({"combos": [{"name": "a", "steps": [{"model": "p/m", "weight": null}]}]}), "between 0 and 100")]
#[case::model_and_combo(json!({"combos": [{"name": "a", "steps": [{"model": "p/m", "combo": "b"}]}]}), "either")]
#[case::pinned_combo(json!({"combos": [{"name": "a", "steps": [{"combo": "b", "connection": "c"}]}]}), "connection")]
#[case::number(json!({"combos": [{"name": "a", "steps": [3]}]}), "provider/model")]
#[case::member_of_the_document(json!({"provider": []}), "provider")]
#[case::secret_of_no_kind(json!({"connections": [{"id": "a", "provider": "p", "credential": {"value": "x"}}]}), "env")]
fn what_cannot_be_read_names_the_reason(#[case] value: Value, #[case] expected: &str) {
    let error = serde_json::from_value::<Document>(value)
        .unwrap_err()
        .to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_document_survives_being_written_and_read() {
    let written = document(good());
    let text = serde_json::to_string(&written).unwrap();
    assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), written);
}

#[rstest]
#[case::https("https://api.openai.com/v1", false)]
#[case::port("http://gateway.example:8080", false)]
#[case::public_address("https://8.8.8.8/v1", false)]
#[case::trailing_slash("https://api.example/v1/", false)]
#[case::localhost("http://localhost:11434/v1", true)]
#[case::below_localhost("http://ollama.LOCALHOST/v1", true)]
#[case::loopback("http://127.8.0.1:80", true)]
#[case::private("http://192.168.1.20:8000/v1", true)]
#[case::carrier("http://172.31.0.1/v1", true)]
#[case::not_private("http://172.32.0.1/v1", false)]
#[case::loopback_v6("http://[::1]:8000/v1", true)]
#[case::unique_local("http://[fd00::1]/v1", true)]
#[case::mapped("http://[::ffff:10.0.0.1]/v1", true)]
#[case::global_v6("https://[2606:4700::1111]/v1", false)]
fn a_base_url_is_local(#[case] url: &str, #[case] local: bool) {
    assert_eq!(base_url::check(url), Ok(()));
    assert_eq!(base_url::is_local(url), local);
}

#[rstest]
#[case::empty("")]
#[case::no_scheme("api.openai.com")]
#[case::other_scheme("ftp://x.example")]
#[case::upper_case_scheme("HTTPS://x.example")]
#[case::no_host("https:///v1")]
#[case::only_port("https://:80")]
#[case::user("https://user:secret@x.example")]
#[case::hidden_host("https://api.openai.com@evil.example/v1")]
#[case::query("https://x.example/v1?key=1")]
#[case::fragment("https://x.example/v1#a")]
#[case::query_in_host("https://x.example?a=1")]
#[case::space("https://x.example/v 1")]
#[case::line_break("https://x.example/v1\r\nHost: evil")]
#[case::backslash("https://x.example\\v1")]
#[case::dot_segments("https://x.example/v1/../admin")]
#[case::port_zero("https://x.example:0")]
#[case::port_too_large("https://x.example:65536")]
#[case::port_with_sign("https://x.example:+80")]
#[case::no_port("https://x.example:")]
#[case::short_address("http://127.1")]
#[case::hex_address("http://0x7f000001")]
#[case::decimal_address("http://2130706433")]
#[case::address_with_dot("http://127.0.0.1.")]
#[case::open_bracket("http://[::1")]
#[case::after_bracket("http://[::1]x")]
#[case::not_ascii("https://bücher.example")]
fn a_url_that_could_be_misread_is_refused(#[case] url: &str) {
    assert!(base_url::check(url).is_err());
    assert!(!base_url::is_local(url));
}

#[test]
fn a_url_that_is_too_long_is_refused() {
    let url = format!(
        "https://x.example/{}",
        "a".repeat(base_url::MAX_BASE_URL_BYTES)
    );
    assert!(base_url::check(&url).is_err());
}

#[test]
fn the_answer_to_a_document_full_of_faults_is_short() {
    let steps: Vec<Value> = (0..MAX_STEPS).map(|_| json!("nothing")).collect();
    let violations = build(json!({"combos": [{"name": "a", "steps": steps}]})).unwrap_err();
    assert_eq!(violations.len(), MAX_VIOLATIONS + 1);
    let last = violations.last().unwrap();
    assert_eq!(last.message, "900 more violations are not listed");
}

#[test]
fn lists_have_limits() {
    let step = json!("openai/gpt-5");
    let steps = vec![step; MAX_STEPS + 1];
    let violations = build(with("/combos/0/steps", json!(steps))).unwrap_err();
    assert_eq!(violations[0].field, "combos[0].steps");

    let key = document(good()).keys[0].clone();
    let too_many = Document {
        keys: vec![key; MAX_ENTRIES + 1],
        ..document(good())
    };
    let overrides = crate::settings::Overrides::default();
    let violations = Config::build(too_many, 1, &overrides).unwrap_err();
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].field, "keys");
}

#[test]
fn a_hundred_thousand_connections_are_indexed() {
    let mut large = document(good());
    let template = large.connections[0].clone();
    large.connections.extend(
        (large.connections.len()..MAX_ENTRIES).map(|number| Connection {
            id: ConnectionId::new(format!("k{number}")).unwrap(),
            priority: u32::try_from(MAX_ENTRIES - number).unwrap(),
            ..template.clone()
        }),
    );
    let overrides = crate::settings::Overrides::default();
    let config = Config::build(large, 1, &overrides).unwrap();
    assert_eq!(config.connections.len(), MAX_ENTRIES);
    let openai = config.provider(&template.provider).unwrap();
    assert!(
        openai
            .connections
            .is_sorted_by_key(|connection| connection.priority)
    );
}

/// Names and links that are often, but not always, good.
fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "openai",
            "claude",
            "main",
            "team",
            "best",
            "openai/gpt-5",
            "combo/best",
            "/",
            "",
        ])
        .prop_map(str::to_owned),
        any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn building_never_panics_and_agrees_with_itself(
        url in any::<String>(),
        texts in prop::collection::vec(names(), 8),
        numbers in any::<[u32; 3]>(),
    ) {
        let [a, b, c, d, e, f, g, h] = texts.try_into().unwrap();
        let value = json!({
            "providers": [
                {"id": "openai", "protocol": "openai", "baseUrl": "https://x.example"},
                {"id": a, "protocol": "anthropic", "baseUrl": url},
            ],
            "connections": [{"id": b, "provider": c, "priority": numbers[0]}],
            "combos": [{
                "name": d,
                "steps": [e, {"model": f, "connection": b}],
                "config": {"maxRetries": numbers[1], "maxGlobalAttempts": numbers[2]},
            }],
            "keys": [{"id": "k", "sha256": g, "allowedModels": [h]}],
        });
        // Names that are none are refused when the document is read.
        if let Ok(document) = serde_json::from_value::<Document>(value) {
            let overrides = crate::settings::Overrides::default();
            match Config::build(document.clone(), 1, &overrides) {
                Ok(config) => {
                    for combo in &document.combos {
                        let entry = config.combo(combo.name.as_str()).unwrap();
                        prop_assert!(!entry.targets.is_empty());
                    }
                }
                Err(violations) => prop_assert!(!violations.is_empty()),
            }
        }
    }

    #[test]
    fn checking_a_url_never_panics(url in "(https?://)?[\\PC]{0,40}") {
        let good = base_url::check(&url).is_ok();
        prop_assert!(good || !base_url::is_local(&url));
    }
}

//! The contract's management endpoints over HTTP, and as data planes forward them.

mod access;
mod health;
mod late;
mod state;
mod tls;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use pretty_assertions::assert_eq;
use rstest::rstest;
use secrecy::SecretString;
use serde_json::{Value, json};
use tidegate_control::plane::Tokens;
use tidegate_core::config::key_hash;
use tidegate_proto::config::v1 as config;
use tidegate_proto::management::v1 as management;
use tidegate_proto::management::v1::management_service_client::ManagementServiceClient;

use crate::fleet::{ALPHA, Fleet, Replica, document, eventually, within};

const OPERATOR: &str = "token-of-operators";
const READER: &str = "token-of-readers";
const HEALTH: &str = "/api/monitoring/health";
const RESET: &str = "/api/resilience/reset";
const SETTINGS: &str = "/api/resilience";
const COOLDOWNS: &str = "/api/resilience/model-cooldowns";

/// Tokens of operators and readers, none of data planes.
fn tokens() -> Tokens {
    Tokens {
        data_plane: None,
        admin: Some(SecretString::from(OPERATOR)),
        reader: Some(SecretString::from(READER)),
    }
}

/// [`document`] with keys `boss`, `looker` and `client`.
fn with_keys() -> config::Document {
    let key = |id: &str, scopes: &[&str]| config::ApiKey {
        id: id.to_owned(),
        sha256: key_hash(&format!("sk-{id}")),
        scopes: scopes.iter().map(ToString::to_string).collect(),
        ..config::ApiKey::default()
    };
    config::Document {
        keys: vec![
            key("boss", &["manage"]),
            key("looker", &["manage:read"]),
            key("client", &[]),
        ],
        ..document()
    }
}

/// A listener of a replica.
struct Http {
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

#[derive(Debug)]
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    fn error(&self) -> Value {
        self.json()["error"].clone()
    }

    /// The members that are wrong.
    fn fields(&self) -> Vec<String> {
        let error = self.error();
        let details = error["details"].as_array().unwrap().iter();
        let field = |it: &Value| it["field"].as_str().unwrap().to_owned();
        details.map(field).collect()
    }
}

impl Http {
    async fn of(fleet: &Fleet, replica: &Replica) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        fleet.run(replica.plane.serve_api(listener, None));
        Self::at(address)
    }

    fn at(address: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, client }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: impl Into<Bytes>,
    ) -> Reply {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let answer = within(path, self.client.request(request)).await.unwrap();
        let (head, body) = answer.into_parts();
        Reply {
            status: head.status,
            headers: head.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    async fn get(&self, path: &str, token: Option<&str>) -> Reply {
        self.send(Method::GET, path, token, "").await
    }

    /// What an operator gets with a body that is JSON.
    async fn operate(&self, method: Method, path: &str, body: &Value) -> Reply {
        self.send(method, path, Some(OPERATOR), body.to_string())
            .await
    }

    async fn patch(&self, body: &Value) -> Reply {
        self.operate(Method::PATCH, SETTINGS, body).await
    }

    async fn settings(&self) -> Value {
        self.get(SETTINGS, Some(OPERATOR)).await.json()
    }

    /// Version of the configuration in use.
    async fn version(&self) -> u64 {
        let health = self.health().await;
        health["controlPlane"]["configurationVersion"]
            .as_u64()
            .unwrap()
    }

    async fn uses(&self, version: u64) {
        eventually("the configuration", async || {
            self.version().await == version
        })
        .await;
    }

    async fn health(&self) -> Value {
        self.get(HEALTH, Some(OPERATOR)).await.json()
    }
}

/// A guarded replica with keys, over HTTP.
async fn guarded() -> (Fleet, Replica, Http) {
    guarded_with(with_keys(), BTreeMap::new()).await
}

async fn guarded_with(
    wanted: config::Document,
    environment: BTreeMap<String, String>,
) -> (Fleet, Replica, Http) {
    let mut fleet = Fleet::new().await;
    fleet.environment = environment;
    let (replica, http) = guarded_in(&fleet, wanted).await;
    (fleet, replica, http)
}

async fn guarded_in(fleet: &Fleet, wanted: config::Document) -> (Replica, Http) {
    let [open] = fleet.replicas_with(wanted).await;
    let replica = fleet.start_with(tokens()).await;
    open.shutdown().await;
    let http = Http::of(fleet, &replica).await;
    (replica, http)
}

#[tokio::test]
async fn vector_sessions_57_who_sees_health_and_who_sees_cooldowns() {
    let (_fleet, _replica, http) = guarded().await;
    let word = json!({"status": "healthy"});
    eventually("health", async || {
        http.get(HEALTH, None).await.json() == word
    })
    .await;
    for token in [None, Some("wrong"), Some(""), Some("sk-client")] {
        let reply = http.get(HEALTH, token).await;
        assert_eq!((reply.status, reply.json()), (StatusCode::OK, word.clone()));
    }
    for token in [OPERATOR, READER, "sk-boss", "sk-looker"] {
        let reply = http.get(HEALTH, Some(token)).await;
        assert_eq!(reply.status, StatusCode::OK, "{token}");
        let health = reply.json();
        assert_eq!(health["status"], "healthy");
        assert_eq!(health["providerBreakers"][0]["name"], ALPHA);
        assert_eq!(health["providerBreakers"][0]["state"], "CLOSED");
        assert_eq!(health["providerHealth"][ALPHA]["failures"], 0);
        assert_eq!(health["lockouts"], json!([]));
        assert_eq!(reply.headers["cache-control"], "no-store");
    }
    let stranger = http.get(COOLDOWNS, None).await;
    assert_eq!(stranger.status, StatusCode::UNAUTHORIZED);
    assert_eq!(stranger.headers["www-authenticate"], "Bearer");
    let expected = ("authentication_error", "CP0008");
    let error = stranger.error();
    assert_eq!(
        (
            error["type"].as_str().unwrap(),
            error["code"].as_str().unwrap()
        ),
        expected
    );
    let client = http.get(COOLDOWNS, Some("sk-client")).await;
    assert_eq!(client.status, StatusCode::FORBIDDEN);
    assert_eq!(client.error()["code"], "CP0014");
    for token in [OPERATOR, READER, "sk-boss", "sk-looker"] {
        let reply = http.get(COOLDOWNS, Some(token)).await;
        let expected = json!({"items": [], "total": 0});
        assert_eq!((reply.status, reply.json()), (StatusCode::OK, expected));
    }
}

#[tokio::test]
async fn vector_sessions_58_a_patch_over_rest_changes_what_it_names_or_nothing() {
    let (_fleet, _replica, http) = guarded().await;
    let before = http.settings().await;
    let nothing = http.patch(&json!({})).await;
    assert_eq!(
        (nothing.status, nothing.fields()),
        (StatusCode::BAD_REQUEST, vec![String::new()])
    );
    let unknown = http
        .patch(&json!({"magic": {}, "modelLockout": {"enabled": 1}}))
        .await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
    assert_eq!(unknown.fields(), ["magic", "modelLockout.enabled"]);
    assert_eq!(unknown.error()["code"], "CP0001");
    assert!(!unknown.error()["message"].as_str().unwrap().is_empty());
    assert_eq!(http.settings().await, before);
    assert_eq!(http.version().await, 1);

    let patched = http
        .patch(&json!({"modelLockout": {"enabled": true}}))
        .await;
    assert_eq!(patched.status, StatusCode::OK);
    let mut expected = before.clone();
    expected["modelLockout"]["enabled"] = json!(true);
    assert_eq!(http.settings().await, expected);
    expected["ok"] = json!(true);
    assert_eq!(patched.json(), expected);
}

#[rstest]
#[case::no_number("abc", 15_000)]
#[case::negative("-5", 15_000)]
#[case::a_number("20000", 20_000)]
#[tokio::test]
async fn vector_sessions_37_the_queue_wait_over_rest(#[case] variable: &str, #[case] wait_ms: u64) {
    let environment = [("RATE_LIMIT_MAX_WAIT_MS".to_owned(), variable.to_owned())];
    let (_fleet, _replica, http) = guarded_with(with_keys(), environment.into()).await;
    assert_eq!(http.settings().await["requestQueue"]["maxWaitMs"], wait_ms);
    let persisted = json!({"requestQueue": {"maxWaitMs": 9_000}});
    assert_eq!(http.patch(&persisted).await.status, StatusCode::OK);
    assert_eq!(http.settings().await["requestQueue"]["maxWaitMs"], 9_000);
}

#[tokio::test]
async fn vector_sessions_38_the_depth_of_queues_over_rest() {
    let mut wanted = with_keys();
    wanted.settings_json = r#"{"requestQueue": {"maxQueueDepth": 100}}"#.to_owned();
    let (fleet, _replica, http) = guarded_with(wanted, BTreeMap::new()).await;
    let refused = http
        .patch(&json!({"requestQueue": {"maxQueueDepth": 100_001}}))
        .await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.fields(), ["requestQueue.maxQueueDepth"]);
    let stored = [(json!(100_001), 100_000), (json!("12.9"), 12)];
    for ((stored, read), version) in stored.into_iter().zip(2..) {
        store(&fleet, &json!({"requestQueue": {"maxQueueDepth": stored}})).await;
        http.uses(version).await;
        assert_eq!(http.settings().await["requestQueue"]["maxQueueDepth"], read);
    }
}

#[tokio::test]
async fn vector_sessions_41_degraded_before_open_over_rest() {
    let (fleet, _replica, http) = guarded().await;
    let thresholds = |degradation: u32| {
        json!({"providerBreaker": {"apikey": {
            "degradationThreshold": degradation, "failureThreshold": 8,
        }}})
    };
    let refused = http.patch(&thresholds(8)).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        refused.fields(),
        ["providerBreaker.apikey.degradationThreshold"]
    );
    store(&fleet, &thresholds(8)).await;
    http.uses(2).await;
    let acting = http.settings().await["providerBreaker"]["apikey"].clone();
    assert_eq!(acting["degradationThreshold"], 7);
    assert_eq!(acting["failureThreshold"], 8);
}

/// Stores settings as a hand might.
async fn store(fleet: &Fleet, settings: &Value) {
    let mut stored = fleet.durable.load_document().await.unwrap();
    stored.document.settings = serde_json::from_value(settings.clone()).unwrap();
    fleet
        .durable
        .save_document(
            stored.version,
            &stored.document,
            &stored.secrets,
            "hand",
            "",
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn bad_input_is_refused_and_changes_nothing() {
    let (fleet, _replica, http) = guarded().await;
    let before = http.settings().await;
    let large = format!("{{\"modelLockout\": \"{}\"}}", "x".repeat(1024 * 1024));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let cases: [(Method, &str, &str, u16); 16] = [
        (Method::PATCH, SETTINGS, "", 400),
        (Method::PATCH, SETTINGS, "{", 400),
        (Method::PATCH, SETTINGS, "[]", 400),
        (Method::PATCH, SETTINGS, "null", 400),
        (Method::PATCH, SETTINGS, &deep, 400),
        (Method::PATCH, SETTINGS, "{\"streams\": []}", 400),
        (
            Method::PATCH,
            SETTINGS,
            "{\"streams\": {\"idleTimeoutMs\": \"1\"}}",
            400,
        ),
        (Method::PATCH, SETTINGS, &large, 413),
        (Method::POST, RESET, "x", 400),
        (Method::POST, RESET, "{\"scope\": \"everything\"}", 400),
        (Method::POST, RESET, "{\"scop\": \"all\"}", 400),
        (Method::POST, RESET, &large, 413),
        (Method::DELETE, COOLDOWNS, "", 400),
        (Method::DELETE, COOLDOWNS, "{\"provider\": \"alpha\"}", 400),
        (
            Method::DELETE,
            COOLDOWNS,
            "{\"provider\": 1, \"model\": \"m\"}",
            400,
        ),
        (Method::DELETE, COOLDOWNS, &large, 413),
    ];
    for (method, path, body, status) in cases {
        let reply = http
            .send(method.clone(), path, Some(OPERATOR), body.to_owned())
            .await;
        let start = body.get(..body.len().min(40)).unwrap();
        assert_eq!(reply.status, status, "{method} {path} {start}");
        assert!(reply.body.len() < 4_096, "{method} {path} {start}");
        let error = reply.error();
        assert!(
            error["message"].is_string() && error["code"].is_string(),
            "{error}"
        );
    }
    assert_eq!(http.settings().await, before);
    assert_eq!(http.version().await, 1);
    assert_eq!(fleet.durable.list_audit(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_a_data_plane_forwards_is_answered_like_what_comes_over_http() {
    let (_fleet, replica, http) = guarded().await;
    let call = async |method: &str, path: &str, token: Option<&str>, body: &str| {
        let request = management::CallRequest {
            method: method.to_owned(),
            path: path.to_owned(),
            authorization: token.map(|token| format!("Bearer {token}")),
            body: body.as_bytes().to_vec(),
            ..management::CallRequest::default()
        };
        let mut client = ManagementServiceClient::new(replica.channel.clone());
        client.call(request).await.unwrap().into_inner()
    };
    for (method, path, token, body) in [
        ("GET", SETTINGS, Some(READER), ""),
        ("HEAD", SETTINGS, Some(READER), ""),
        ("GET", COOLDOWNS, Some("sk-client"), ""),
        ("GET", COOLDOWNS, None, ""),
        ("PUT", SETTINGS, Some(OPERATOR), ""),
        ("OPTIONS", HEALTH, None, ""),
        ("GET", "/api/nothing", Some(OPERATOR), ""),
        ("PATCH", SETTINGS, Some(OPERATOR), "{}"),
        ("POST", RESET, Some(OPERATOR), "[]"),
    ] {
        let forwarded = call(method, path, token, body).await;
        let direct = http
            .send(
                Method::from_bytes(method.as_bytes()).unwrap(),
                path,
                token,
                body.to_owned(),
            )
            .await;
        assert_eq!(
            forwarded.status,
            u32::from(direct.status.as_u16()),
            "{method} {path}"
        );
        if method != "HEAD" {
            assert_eq!(forwarded.body, direct.body, "{method} {path}");
        }
        let allow = direct.headers.get("allow").map(|it| it.to_str().unwrap());
        assert_eq!(
            forwarded.allow,
            allow.unwrap_or_default(),
            "{method} {path}"
        );
    }
    // No log line, error or span shows what a client showed.
    let request = management::CallRequest {
        authorization: Some("Bearer hush".to_owned()),
        ..management::CallRequest::default()
    };
    assert!(!format!("{request:?}").contains("hush"));
}

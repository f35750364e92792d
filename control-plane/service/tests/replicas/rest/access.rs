//! Who gets in, over every method of every path.

use http::{Method, StatusCode};
use pretty_assertions::assert_eq;
use serde_json::json;
use tidegate_control::rest::{Served, Stranger, api_paths, telemetry_paths};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fleet::{Fleet, eventually, within};

use super::{COOLDOWNS, HEALTH, Http, OPERATOR, READER, RESET, SETTINGS, guarded, with_keys};

/// Every method that HTTP has.
const METHODS: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
    Method::TRACE,
    Method::CONNECT,
];

#[tokio::test]
async fn without_credentials_every_method_of_every_path_leads_nowhere() {
    let (fleet, replica, api) = guarded().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let telemetry = Http::at(listener.local_addr().unwrap());
    fleet.run(replica.plane.serve_telemetry(listener));
    eventually("health", async || {
        api.get(HEALTH, None).await.json()["status"] == "healthy"
    })
    .await;
    let before = api.settings().await;
    let listeners: [(&Http, Vec<Served>); 2] = [
        (&api, api_paths().collect()),
        (&telemetry, telemetry_paths().collect()),
    ];
    for (http, paths) in listeners {
        assert!(paths.len() > 2);
        for served in paths {
            for method in METHODS {
                if method == Method::CONNECT {
                    // It has no path.
                    continue;
                }
                for token in [None, Some("wrong"), Some("sk-client")] {
                    let reply = http.send(method.clone(), served.path, token, "{}").await;
                    let what = format!("{method} {} with {token:?}", served.path);
                    let allows = served.allow.split(", ").any(|it| it == method.as_str());
                    let looks = method == Method::GET || method == Method::HEAD;
                    let expected = match served.without_credentials {
                        _ if !allows => 405,
                        _ if method == Method::OPTIONS => 204,
                        Stranger::Answered => 200,
                        Stranger::Status if looks => 200,
                        Stranger::Status | Stranger::Refused => match token {
                            Some("sk-client") => 403,
                            _ => 401,
                        },
                    };
                    assert_eq!(reply.status, expected, "{what}");
                    if !allows || method == Method::OPTIONS {
                        assert_eq!(reply.headers["allow"], served.allow, "{what}");
                    }
                    if served.without_credentials == Stranger::Status && method == Method::GET {
                        assert_eq!(reply.json(), json!({"status": "healthy"}), "{what}");
                    }
                }
            }
        }
        for path in ["/", "/api", "/api/resilience/", "/metrics/", "/v1/models"] {
            let reply = http.get(path, Some(OPERATOR)).await;
            assert_eq!(reply.status, StatusCode::NOT_FOUND, "{path}");
        }
    }
    assert_eq!(api.settings().await, before);
    assert_eq!(fleet.durable.list_audit(10).await.unwrap().len(), 1);
    assert!(replica.counter("denied_calls_total{reason=\"unknown\"}") > 0);
    let refused = "rest_requests_total{operation=\"patch_settings\",ending=\"refused\"}";
    assert!(replica.counter(refused) > 0);
}

#[tokio::test]
async fn who_may_look_may_not_change() {
    let (_fleet, _replica, http) = guarded().await;
    for token in [READER, "sk-looker"] {
        for (method, path) in [
            (Method::DELETE, HEALTH),
            (Method::POST, RESET),
            (Method::PATCH, SETTINGS),
            (Method::DELETE, COOLDOWNS),
        ] {
            let reply = http.send(method, path, Some(token), "{}").await;
            assert_eq!(reply.status, StatusCode::FORBIDDEN, "{path} with {token}");
        }
        for path in [SETTINGS, COOLDOWNS] {
            let reply = http.get(path, Some(token)).await;
            assert_eq!(reply.status, StatusCode::OK, "{path} with {token}");
        }
    }
}

#[tokio::test]
async fn without_any_token_configured_nobody_is_let_in_without_a_key() {
    let fleet = Fleet::new().await;
    let [open] = fleet.replicas_with(with_keys()).await;
    let http = Http::of(&fleet, &open).await;
    for token in [None, Some(""), Some("anything")] {
        for (method, path) in [(Method::POST, RESET), (Method::GET, SETTINGS)] {
            let reply = http.send(method, path, token, "").await;
            assert_eq!(
                reply.status,
                StatusCode::UNAUTHORIZED,
                "{path} with {token:?}"
            );
        }
        let told = http.get(HEALTH, token).await.json();
        assert_eq!(told.as_object().unwrap().len(), 1, "{told}");
    }
    let boss = http.send(Method::POST, RESET, Some("sk-boss"), "").await;
    assert_eq!(boss.status, StatusCode::OK);
}

#[tokio::test]
async fn the_bodies_of_strangers_are_not_waited_for() {
    let (_fleet, _replica, http) = guarded().await;
    for (request, status) in [
        (
            format!("POST {RESET} HTTP/1.1\r\nauthorization: Bearer wrong"),
            "401",
        ),
        (
            format!("POST {RESET} HTTP/1.1\r\nauthorization: Bearer {READER}"),
            "403",
        ),
        (
            format!("PUT {RESET} HTTP/1.1\r\nauthorization: Bearer {OPERATOR}"),
            "405",
        ),
        (
            format!("POST /nothing HTTP/1.1\r\nauthorization: Bearer {OPERATOR}"),
            "404",
        ),
    ] {
        let mut stream = TcpStream::connect(http.address).await.unwrap();
        let head = format!("{request}\r\nhost: x\r\ncontent-length: 9\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        within(&request, stream.read_exact(&mut answer))
            .await
            .unwrap();
        assert_eq!(
            answer.as_slice(),
            format!("HTTP/1.1 {status}").as_bytes(),
            "{request}"
        );
    }
}

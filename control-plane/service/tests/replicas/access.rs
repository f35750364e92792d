//! Who may call what, over every method of everything that is served.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use secrecy::SecretString;
use tidegate_control::plane::Tokens;
use tidegate_core::config::key_hash;
use tidegate_plane_client::endpoint::{Address, ChannelSettings, channel};
use tidegate_proto::admin::v1 as admin;
use tidegate_proto::config::v1 as config;
use tonic::Code;
use tonic::body::Body;
use tower::{Service, ServiceExt as _};

use crate::fleet::{Fleet, Replica, apply_request, document, within};

const OPERATOR: &str = "token-of-operators";
const READER: &str = "token-of-readers";
const PLANE: &str = "token-of-data-planes";

/// What orchestrators call without a token.
const OPEN: [&str; 1] = ["/grpc.health.v1.Health/Check"];

fn tokens() -> Tokens {
    Tokens {
        data_plane: Some(SecretString::from(PLANE)),
        admin: Some(SecretString::from(OPERATOR)),
        reader: Some(SecretString::from(READER)),
    }
}

/// Paths of all methods of all services that are served.
fn paths() -> Vec<String> {
    let sets = [
        tidegate_proto::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    let mut paths = Vec::new();
    for set in sets {
        for file in FileDescriptorSet::decode(set).unwrap().file {
            for service in &file.service {
                for method in &service.method {
                    let (package, service) = (file.package(), service.name());
                    paths.push(format!("/{package}.{service}/{}", method.name()));
                }
            }
        }
    }
    assert!(paths.len() > 40, "{paths:?}");
    paths
}

/// The status that a call with an empty message is refused with; `Ok` when its service was reached.
async fn call<S, R>(channel: &S, path: &str, token: Option<&str>) -> Code
where
    S: Service<Request<Body>, Response = http::Response<R>> + Clone,
    S::Error: std::fmt::Debug,
{
    let mut request = Request::post(format!("http://replica{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let empty = Full::new(Bytes::from_static(&[0; 5]));
    let request = request.body(Body::new(empty)).unwrap();
    let response = within(path, channel.clone().oneshot(request))
        .await
        .unwrap();
    // Who is refused gets no more than a head. Services refuse likewise, though never with these codes.
    let status = response.headers().get("grpc-status");
    match status.map(|status| Code::from_bytes(status.as_bytes())) {
        Some(code @ (Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented)) => code,
        _ => Code::Ok,
    }
}

async fn guarded() -> (Fleet, Replica) {
    let (fleet, _) = Fleet::with_replicas::<1>().await;
    let replica = fleet.start_with(tokens()).await;
    (fleet, replica)
}

#[tokio::test]
async fn without_credentials_or_with_wrong_ones_every_method_of_every_listener_is_refused() {
    let (_fleet, replica) = guarded().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let serving = replica.plane.serve_admin_tcp(listener, None).unwrap();
    let tasks = tokio_util::task::TaskTracker::new();
    let serving = tasks.spawn(serving);
    let address = Address::Tcp(address.parse().unwrap());
    let operators = channel(&address, &ChannelSettings::default(), None, None).unwrap();
    for path in paths() {
        for token in [None, Some("wrong"), Some(""), Some("token-of-operator")] {
            let refused = if OPEN.contains(&path.as_str()) {
                Code::Ok
            } else {
                Code::Unauthenticated
            };
            let code = call(&replica.channel, &path, token).await;
            assert_eq!(code, refused, "{path} with {token:?}");
            // Not everything is served there.
            let code = call(&operators, &path, token).await;
            let is_served = ["admin", "grpc"].iter().any(|part| path.contains(part));
            let refused = if is_served {
                refused
            } else {
                Code::Unimplemented
            };
            assert_eq!(code, refused, "{path} with {token:?} among operators");
        }
    }
    assert!(replica.counter("denied_calls_total{reason=\"unknown\"}") > 100);
    replica.shutdown().await;
    serving.await.unwrap().unwrap();
}

/// Whether the method changes nothing, by its name.
fn reads(path: &str) -> bool {
    let method = path.rsplit('/').next().unwrap();
    ["Get", "List", "Watch", "Explain"]
        .iter()
        .any(|verb| method.starts_with(verb))
}

#[tokio::test]
async fn each_token_opens_what_it_is_for_and_nothing_else() {
    let (_fleet, replica) = guarded().await;
    for path in paths() {
        let is_admin = path.starts_with("/tidegate.admin.");
        let is_ours = path.starts_with("/tidegate.");
        for (token, may) in [
            (OPERATOR, is_admin || !is_ours),
            (READER, (is_admin && reads(&path)) || !is_ours),
            (PLANE, !is_admin),
        ] {
            let code = call(&replica.channel, &path, Some(token)).await;
            let expected = if may {
                Code::Ok
            } else {
                Code::PermissionDenied
            };
            assert_eq!(code, expected, "{path} with {token}");
        }
    }
}

#[tokio::test]
async fn api_keys_administer_as_their_scopes_say_and_as_the_configuration_stands() {
    let fleet = Fleet::new().await;
    let key = |id: &str, scopes: &[&str]| config::ApiKey {
        id: id.to_owned(),
        sha256: key_hash(&format!("sk-{id}")),
        scopes: scopes.iter().map(ToString::to_string).collect(),
        ..config::ApiKey::default()
    };
    let mut wanted = document();
    wanted.keys = vec![
        key("boss", &["manage"]),
        key("looker", &["manage:read"]),
        key("client", &[]),
    ];
    let [open] = fleet.replicas_with(wanted.clone()).await;
    let replica = fleet.start_with(tokens()).await;
    for path in paths() {
        let is_admin = path.starts_with("/tidegate.admin.");
        let is_ours = path.starts_with("/tidegate.");
        let is_open = OPEN.contains(&path.as_str());
        for (token, may) in [
            ("sk-boss", is_admin || !is_ours),
            ("sk-looker", (is_admin && reads(&path)) || !is_ours),
            ("sk-client", is_open),
        ] {
            let code = call(&replica.channel, &path, Some(token)).await;
            let expected = if may {
                Code::Ok
            } else {
                Code::PermissionDenied
            };
            assert_eq!(code, expected, "{path} with {token}");
        }
    }
    let mut request = tonic::Request::new(admin::WatchEventsRequest::default());
    let bearer = "Bearer sk-boss".parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    let mut watch = replica
        .admin()
        .watch_events(request)
        .await
        .unwrap()
        .into_inner();
    // A key that is gone opens nothing.
    wanted.keys.remove(0);
    open.apply(apply_request(wanted)).await.unwrap();
    let path = "/tidegate.admin.v1.AdminService/GetStatus";
    crate::fleet::eventually("the key to be forgotten", async || {
        call(&replica.channel, path, Some("sk-boss")).await == Code::Unauthenticated
    })
    .await;
    // What it watches ends, too.
    let ended = loop {
        match within("the end of the watch", watch.message()).await {
            Ok(Some(_)) => {}
            ended => break ended,
        }
    };
    assert_eq!(ended.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_method_that_does_not_exist_is_not_there_for_anybody() {
    let (_fleet, replica) = guarded().await;
    for path in [
        "/tidegate.admin.v1.AdminService/Nothing",
        "/tidegate.admin.v1.AdminService/GetStatus/",
        "/tidegate.admin.v2.AdminService/GetStatus",
        "/",
    ] {
        for token in [None, Some(OPERATOR)] {
            let code = call(&replica.channel, path, token).await;
            assert_eq!(code, Code::Unimplemented, "{path}");
        }
    }
}

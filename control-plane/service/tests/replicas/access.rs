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
use tonic_types::StatusExt as _;
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

/// A member of a request that says how many items are wanted.
const BOUNDED: [&str; 2] = ["page_size", "limit"];

/// The methods that list, each with the member that says how many, and its number.
fn lists() -> Vec<(String, Option<(String, i32)>)> {
    let set = FileDescriptorSet::decode(tidegate_proto::FILE_DESCRIPTOR_SET).unwrap();
    let bound = |message: &str| {
        let mut messages = set.file.iter().flat_map(|file| {
            let package = file.package();
            let named = file.message_type.iter();
            named.map(move |it| (format!(".{package}.{}", it.name()), it))
        });
        let (_, message) = messages.find(|(name, _)| name == message)?;
        let mut fields = message.field.iter();
        let field = fields.find(|field| BOUNDED.contains(&field.name()))?;
        Some((field.name().to_owned(), field.number()))
    };
    let mut lists = Vec::new();
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                let (package, service) = (file.package(), service.name());
                let path = format!("/{package}.{service}/{}", method.name());
                let bound = bound(method.input_type());
                if bound.is_some() || method.name().starts_with("List") {
                    lists.push((path, bound));
                }
            }
        }
    }
    lists
}

#[tokio::test]
async fn no_list_takes_a_number_of_items_beyond_its_bound() {
    let (_fleet, [replica]) = Fleet::with_replicas().await;
    let lists = lists();
    assert!(lists.len() >= 14, "{lists:?}");
    for (path, bound) in lists {
        let (field, number) = bound.unwrap_or_else(|| panic!("{path} has no bound"));
        for (wanted, is_refused) in [(1_000, false), (1_001, true), (u32::MAX, true)] {
            let mut message = Vec::new();
            prost::encoding::uint32::encode(u32::try_from(number).unwrap(), &wanted, &mut message);
            let refused = send(&replica.channel, &path, None, &message).await;
            if !is_refused {
                assert_eq!(refused.code(), Code::Ok, "{path} of {wanted}: {refused:?}");
                continue;
            }
            assert_eq!(refused.code(), Code::InvalidArgument, "{path} of {wanted}");
            let details = refused.get_error_details();
            assert_eq!(details.error_info().unwrap().reason, "CP0006", "{path}");
            let violations = &details.bad_request().unwrap().field_violations;
            assert_eq!(violations[0].field, field, "{path}");
        }
    }
}

#[tokio::test]
async fn reflection_of_version_1_tells_the_services_that_are_there() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServiceResponse};

    let (_fleet, replica) = guarded().await;
    let ask = async |request: MessageRequest| {
        let asked = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(request),
        };
        let mut asked = tonic::Request::new(tokio_stream::iter([asked]));
        let bearer = format!("Bearer {READER}").parse().unwrap();
        asked.metadata_mut().insert("authorization", bearer);
        let mut client = ServerReflectionClient::new(replica.channel.clone());
        let answers = client.server_reflection_info(asked).await.unwrap();
        let mut answers = answers.into_inner();
        let answer = within("an answer", answers.message()).await;
        answer.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(listed) =
        ask(MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list");
    };
    let admin = "tidegate.admin.v1.AdminService";
    let names: Vec<String> = listed
        .service
        .into_iter()
        .map(|ServiceResponse { name }| name)
        .collect();
    for expected in [admin, "grpc.health.v1.Health"] {
        assert!(names.iter().any(|name| name == expected), "{names:?}");
    }
    // From its name alone a client comes to its methods.
    let symbol = MessageRequest::FileContainingSymbol(admin.to_owned());
    let MessageResponse::FileDescriptorResponse(files) = ask(symbol).await else {
        panic!("no file");
    };
    let file = files.file_descriptor_proto.first().unwrap();
    let file = prost_types::FileDescriptorProto::decode(file.as_slice()).unwrap();
    let methods = &file.service.first().unwrap().method;
    assert!(methods.iter().any(|it| it.name() == "GetStatus"));
}

/// The status that a call with an empty message is refused with; `Ok` when its service was reached.
async fn call<S, R>(channel: &S, path: &str, token: Option<&str>) -> Code
where
    S: Service<Request<Body>, Response = http::Response<R>> + Clone,
    S::Error: std::fmt::Debug,
{
    // Who is refused gets no more than a head. Services refuse likewise, though never with these codes.
    match send(channel, path, token, &[]).await.code() {
        code @ (Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented) => code,
        _ => Code::Ok,
    }
}

/// The status in the head of an answer to a message; `Ok` when there is none, for then something is answered.
async fn send<S, R>(channel: &S, path: &str, token: Option<&str>, message: &[u8]) -> tonic::Status
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
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let framed = Bytes::from([&[0], &length[..], message].concat());
    let request = request.body(Body::new(Full::new(framed))).unwrap();
    let response = within(path, channel.clone().oneshot(request))
        .await
        .unwrap();
    let status = tonic::Status::from_header_map(response.headers());
    status.unwrap_or_else(|| tonic::Status::ok(""))
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

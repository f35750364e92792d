//! What clients and operators send wrong: a clear answer, and nothing changes.

use std::time::Duration;

use anyhow::Result;
use http::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use tidegate_integration::{CLIENT_KEY, LIMIT, World, chat, post, send};
use tidegate_test_support::FleetOptions;
use tidegate_test_support::upstream::{Reply, Selector};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_in_the_clients_format() -> Result<()> {
    let world = World::start().await?;
    let addr = world.data_plane(0)?;
    let deep = format!(
        "{{\"model\":\"main\",\"x\":{}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let bodies: [(&str, Vec<u8>, u16); 8] = [
        ("malformed", b"{\"model\":".to_vec(), 400),
        ("no object", b"[1,2]".to_vec(), 400),
        ("empty", Vec::new(), 400),
        ("no model", b"{\"messages\":[]}".to_vec(), 400),
        ("a number as model", b"{\"model\":7}".to_vec(), 400),
        ("invalid UTF-8", b"{\"model\":\"\xff\xfe\"}".to_vec(), 400),
        ("deep nesting", deep.into_bytes(), 400),
        (
            "unknown model",
            b"{\"model\":\"nothing/here\"}".to_vec(),
            404,
        ),
    ];
    for (what, body, status) in bodies {
        for (path, anthropic) in [("/v1/chat/completions", false), ("/v1/messages", true)] {
            let answer = post(addr, path, body.clone()).await?;
            assert_eq!(answer.status, status, "{what}: {answer:?}");
            let error = answer.json();
            assert!(error["error"]["message"].is_string(), "{what}: {answer:?}");
            assert!(error["error"]["type"].is_string(), "{what}: {answer:?}");
            assert_eq!(error["type"] == "error", anthropic, "{what}: {answer:?}");
        }
    }
    for upstream in [&world.one, &world.two, &world.claude] {
        assert_eq!(upstream.log().count(&Selector::any()), 0);
    }
    assert_eq!(chat(addr, "main").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn keys_methods_paths_and_sizes_are_checked() -> Result<()> {
    let world = World::start().await?;
    let addr = world.data_plane(0)?;
    let request = |method: &str, path: &str, key: Option<&str>, body: Vec<u8>| {
        let mut builder = Request::builder()
            .method(method)
            .uri(format!("http://{addr}{path}"))
            .header("content-type", "application/json");
        if let Some(key) = key {
            builder = builder.header("authorization", format!("Bearer {key}"));
        }
        builder.body(Full::new(Bytes::from(body)))
    };
    let chat_path = "/v1/chat/completions";
    let body = b"{\"model\":\"main\",\"messages\":[]}".to_vec();
    let too_large = vec![b' '; 11 * 1024 * 1024];
    for (method, path, key, body, status) in [
        ("POST", chat_path, None, body.clone(), 401),
        ("POST", chat_path, Some("wrong"), body.clone(), 401),
        ("DELETE", chat_path, Some(CLIENT_KEY), Vec::new(), 405),
        ("POST", "/v1/nothing", Some(CLIENT_KEY), body, 404),
        ("OPTIONS", chat_path, None, Vec::new(), 204),
        ("POST", chat_path, Some(CLIENT_KEY), too_large, 413),
    ] {
        let answer = send(request(method, path, key, body)?).await?;
        assert_eq!(answer.status, status, "{method} {path} {key:?}: {answer:?}");
    }
    let mut flood = request("POST", chat_path, Some(CLIENT_KEY), Vec::new())?;
    for number in 0..2_000 {
        let name = http::HeaderName::try_from(format!("x-flood-{number}"))?;
        flood.headers_mut().insert(name, "x".parse()?);
    }
    // The server may also close the connection on a client that keeps sending.
    if let Ok(answer) = send(flood).await {
        assert_eq!(answer.status, 431, "{answer:?}");
    }
    assert_eq!(chat(addr, "main").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_client_that_never_finishes_its_request_is_let_go() -> Result<()> {
    let world = World::start_with(FleetOptions {
        env: vec![("TIDEGATE_HEAD_TIME".to_owned(), "1s".to_owned())],
        ..FleetOptions::default()
    })
    .await?;
    let addr = world.data_plane(0)?;
    let mut socket = tokio::net::TcpStream::connect(addr).await?;
    socket
        .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
        .await?;
    let mut answer = Vec::new();
    tokio::time::timeout(LIMIT, socket.read_to_end(&mut answer)).await??;
    Ok(())
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_its_upstream_back() -> Result<()> {
    let world = World::start().await?;
    world.one.set_reply(Reply {
        chunks: 512,
        chunk_bytes: 64 * 1024,
        ..Reply::default()
    });
    let mut socket = tokio::net::TcpStream::connect(world.data_plane(0)?).await?;
    let body = r#"{"model":"one/m","stream":true,"messages":[]}"#;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         authorization: Bearer {CLIENT_KEY}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all((head + body).as_bytes()).await?;
    // Were the answer taken in without regard to its reader, all 32 MiB of it would be gone from the upstream by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let request = world.one.log().last(&Selector::any());
    assert!(
        request
            .as_ref()
            .is_some_and(|request| request.ending.is_none()),
        "{request:?}"
    );
    let mut answer = Vec::new();
    tokio::time::timeout(LIMIT, socket.read_to_end(&mut answer)).await??;
    assert!(answer.len() > 512 * 64 * 1024);
    assert!(String::from_utf8_lossy(&answer).contains("data: [DONE]"));
    Ok(())
}

#[tokio::test]
async fn malformed_requests_are_answered() -> Result<()> {
    let world = World::start().await?;
    let start = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n";
    let flood: String = (0..500)
        .map(|number| format!("x-{number}: y\r\n"))
        .collect();
    for (what, head, status) in [
        ("too many headers", format!("{start}{flood}\r\n"), "431"),
        (
            "two lengths",
            format!("{start}content-length: 3\r\ncontent-length: 4\r\n\r\nabc"),
            "400",
        ),
        (
            "a folded header",
            format!("{start}x-a: b\r\n c: d\r\n\r\n"),
            "400",
        ),
        ("no HTTP", "what is this\r\n\r\n".to_owned(), "400"),
    ] {
        let mut socket = tokio::net::TcpStream::connect(world.data_plane(0)?).await?;
        socket.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        // A reset after the answer is no fault.
        let ended = tokio::time::timeout(LIMIT, socket.read_to_end(&mut answer)).await?;
        let line = String::from_utf8_lossy(&answer);
        assert!(
            line.starts_with(&format!("HTTP/1.1 {status}")),
            "{what}: {line} {ended:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_configuration_that_is_not_valid_never_replaces_a_good_one() -> Result<()> {
    let world = World::start().await?;
    let good = world.document();
    for (what, document, named) in [
        (
            "unknown member",
            good.replace("models: [m]", "modles: [m]"),
            "modles",
        ),
        (
            "dangling reference",
            good.replace("steps: [one/m", "steps: [gone/m"),
            "gone",
        ),
        (
            "out of bounds",
            good.replace("failureThreshold: 3", "failureThreshold: 0"),
            "failureThreshold",
        ),
        ("no YAML", "providers: [".to_owned(), "line"),
    ] {
        let refused = world.fleet.apply(&document).await;
        let message = refused.err().map(|error| error.to_string());
        assert!(
            message.as_ref().is_some_and(|text| text.contains(named)),
            "{what}: {message:?}"
        );
        assert_eq!(
            chat(world.data_plane(0)?, "main").await?.status,
            200,
            "{what}"
        );
    }
    let again = world.fleet.apply(&good).await?;
    assert!(again.stdout.contains("nothing differs"), "{}", again.stdout);
    Ok(())
}

#[tokio::test]
async fn secrets_stay_out_of_logs_and_databases() -> Result<()> {
    let world = World::start().await?;
    chat(world.data_plane(0)?, "main").await?;
    send(
        Request::post(format!(
            "http://{}/v1/chat/completions",
            world.data_plane(0)?
        ))
        .header("authorization", "Bearer tg-wrong-key-of-somebody")
        .body(Full::new(Bytes::from_static(b"{\"model\":\"main\"}")))?,
    )
    .await?;
    let secrets = [
        "sk-one-a",
        "sk-two-a",
        CLIENT_KEY,
        "tg-wrong-key-of-somebody",
    ];
    let processes = world
        .fleet
        .control_planes
        .iter()
        .map(|replica| &replica.process)
        .chain(world.fleet.data_planes.iter().map(|plane| &plane.process));
    for process in processes {
        let log = process.log()?;
        for secret in secrets {
            assert!(!log.contains(secret), "{secret} is in a log:\n{log}");
        }
    }
    let tables = world
        .fleet
        .postgres
        .execute(
            &world.fleet.database,
            "select table_name from information_schema.tables where table_schema = 'public'",
        )
        .await?;
    for table in tables.iter().flatten().flatten() {
        let rows = world
            .fleet
            .postgres
            .execute(
                &world.fleet.database,
                &format!("select row_to_json(t)::text from \"{table}\" t"),
            )
            .await?;
        let text = format!("{rows:?}");
        for secret in secrets {
            assert!(!text.contains(secret), "{secret} is in table {table}");
            let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
            assert!(!text.contains(&hex), "{secret} is in table {table}");
        }
    }
    Ok(())
}

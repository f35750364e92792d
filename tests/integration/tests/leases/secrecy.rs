//! The token of an owner is known to the data plane it was shown to, for as long as that takes, and to nobody else.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use memchr::memmem;
use serde_json::{Value, json};
use tidegate_core::lease::OwnerHash;
use tidegate_integration::LIMIT;
use tidegate_test_support::upstream::{Mode, Selector};
use tidegate_test_support::{
    CollectedSpan, Collector, FleetOptions, PostgresOptions, RedisOptions,
};

use super::stage::{Setup, Stage, key_secret};

/// What follows `vlo_` in the token of the owner that is looked for.
const SECRET: &str = "Rg7-hWcZ_q3NfT9xKdLm2PvYsB8uJaE5iXoQr6tGkVw";
/// Of another owner, who has everything that there is to lease.
const OTHER: &str = "Zt4_bHnQ-e8MjS1yRfKc7DwXvA2gUiN6oLpYq9sBmTx";

/// Something that was written down, and where. It is looked through in lower case.
struct Written {
    place: String,
    bytes: Vec<u8>,
}

/// How a secret may be written down.
fn disguises(secret: &str) -> Vec<Vec<u8>> {
    let mut disguises = vec![
        secret.to_ascii_lowercase().into_bytes(),
        hex::encode(secret).into_bytes(),
        hex::encode(secret.to_ascii_lowercase()).into_bytes(),
    ];
    // Inside of something longer it may begin at any of three places of the code.
    for before in 0..3 {
        let padded = ["\0".repeat(before).as_bytes(), secret.as_bytes()].concat();
        let encoded = STANDARD_NO_PAD.encode(padded).to_ascii_lowercase();
        let sure = encoded.get(4..encoded.len().saturating_sub(4));
        let sure = sure.filter(|sure| !sure.is_empty());
        disguises.extend(sure.map(|sure| sure.as_bytes().to_vec()));
    }
    disguises
}

/// Where a secret is written, in whatever case and disguise.
fn places<'w>(written: &'w [Written], secret: &str) -> Vec<&'w str> {
    let disguises = disguises(secret);
    written
        .iter()
        .filter(|written| {
            let mut disguises = disguises.iter();
            disguises.any(|disguise| memmem::find(&written.bytes, disguise).is_some())
        })
        .map(|written| written.place.as_str())
        .collect()
}

#[test]
fn a_secret_is_found_in_whatever_form() {
    let written = |text: String| Written {
        place: "somewhere".to_owned(),
        bytes: text.to_ascii_lowercase().into_bytes(),
    };
    let forms = [
        format!("owner=vlo_{SECRET},"),
        SECRET.to_ascii_uppercase(),
        format!("\\x{}", hex::encode(format!("vlo_{SECRET}"))),
        STANDARD_NO_PAD.encode(format!("vlo_{SECRET}")),
        STANDARD_NO_PAD.encode(format!("x-owner: vlo_{SECRET};")),
        STANDARD_NO_PAD.encode(format!("x-owner:  vlo_{SECRET};")),
    ];
    for form in forms {
        let found = [written(form.clone())];
        assert_eq!(places(&found, SECRET), ["somewhere"], "{form}");
        assert_eq!(places(&found, OTHER), [""; 0], "{form}");
    }
}

/// All files below a folder.
fn files(name: &str, folder: &Path, written: &mut Vec<Written>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files(name, &path, written)?;
        } else {
            match fs::read(&path) {
                Ok(bytes) => written.push(Written {
                    place: format!("{name}: {}", path.display()),
                    bytes,
                }),
                // Servers remove files of theirs.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// A client that shows its token with everything, and keeps what it is answered.
struct Talk<'s> {
    stage: &'s Stage,
    written: Vec<Written>,
}

impl Talk<'_> {
    async fn say(
        &mut self,
        what: &str,
        path: &str,
        key: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<(u16, Value)> {
        let mut last = (0, Value::Null);
        for plane in 0..self.stage.fleet.data_planes.len() {
            let mut request =
                Request::post(format!("http://{}{path}", self.stage.data_plane(plane)?))
                    .header("content-type", "application/json")
                    .header("authorization", format!("Bearer {}", key_secret(key)));
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(Full::new(Bytes::from(body.to_owned())))?;
            let client = Client::builder(TokioExecutor::new()).build_http();
            let answered = tokio::time::timeout(LIMIT, client.request(request)).await??;
            let (parts, body) = answered.into_parts();
            let body = tokio::time::timeout(LIMIT, body.collect()).await?;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            let json = serde_json::from_slice(&body).unwrap_or_default();
            let head = head(&parts.headers);
            self.written.push(Written {
                place: format!("answer to {what}"),
                bytes: [head.as_bytes(), &body].concat(),
            });
            last = (parts.status.as_u16(), json);
        }
        Ok(last)
    }

    async fn lifecycle(&mut self, owner: &str, body: Value) -> Result<(u16, Value)> {
        let headers = [("x-omniroute-lease-owner", owner)];
        let path = "/api/v1/session-leases";
        self.say(&body.to_string(), path, "k1", &headers, &body.to_string())
            .await
    }

    /// A request of each kind that the upstream answers.
    async fn infer(
        &mut self,
        what: &str,
        owner: &str,
        generation: &str,
        model: &str,
    ) -> Result<(u16, Value)> {
        let headers = [
            ("x-omniroute-lease-owner", owner),
            ("x-omniroute-lease-generation", generation),
        ];
        let mut last = (0, Value::Null);
        for (path, stream) in [
            ("/v1/chat/completions", false),
            ("/v1/chat/completions", true),
            ("/v1/responses", true),
            ("/v1/responses", false),
        ] {
            let body = json!({
                "model": model,
                "stream": stream,
                "input": "canary-of-the-body",
                "messages": [{"role": "user", "content": "canary-of-the-body"}],
            });
            last = self
                .say(what, path, "k1", &headers, &body.to_string())
                .await?;
        }
        Ok(last)
    }
}

fn head(headers: &HeaderMap) -> String {
    let lines = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    lines.collect()
}

fn options(collector: &Collector) -> FleetOptions {
    FleetOptions {
        // Everything that is said to it.
        postgres: PostgresOptions {
            settings: vec![("log_statement".to_owned(), "all".to_owned())],
            ..PostgresOptions::default()
        },
        redis: RedisOptions {
            append_only: true,
            ..RedisOptions::default()
        },
        env: vec![
            ("TIDEGATE_LOG".to_owned(), "debug".to_owned()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), collector.url()),
            ("OTEL_BSP_SCHEDULE_DELAY".to_owned(), "100".to_owned()),
        ],
        ..FleetOptions::default()
    }
}

#[tokio::test]
async fn vector_sessions_25_the_token_of_an_owner_is_written_nowhere() -> Result<()> {
    let setup = Setup {
        settings: json!({"leases": {"horizonMs": 5_000, "guardMs": 500, "drainMs": 500}}),
        combos: json!([{"name": "fused", "strategy": "fusion", "steps": ["p/m", "p/m"]}]),
        connection: json!({"disableCooling": true}),
        ..Setup::default()
    };
    let collector = Collector::start().await?;
    let stage = Stage::start(&setup, options(&collector)).await?;
    let mut talk = Talk {
        stage: &stage,
        written: Vec::new(),
    };
    let owner = format!("vlo_{SECRET}");
    let other = format!("vlo_{OTHER}");
    drive(&mut talk, &owner, &other).await?;
    let mut written = talk.written;
    let dump = stage.fleet.postgres.dump(&stage.fleet.database).await?;
    written.push(Written {
        place: "dump".to_owned(),
        bytes: dump.into_bytes(),
    });
    for request in stage.upstream.log().requests(&Selector::any()) {
        let head = format!(
            "{} {:?}\n{}",
            request.path,
            request.query,
            head(&request.headers)
        );
        for name in ["x-omniroute-lease-owner", "x-omniroute-lease-generation"] {
            ensure!(request.header(name).is_none(), "{head}");
        }
        written.push(Written {
            place: "upstream".to_owned(),
            bytes: [head.as_bytes(), &request.body].concat(),
        });
    }
    // What the last requests told may still be under way.
    let last = |spans: &[CollectedSpan]| spans.iter().any(|span| span.failed).then_some(());
    collector
        .wait_for(LIMIT, "the spans of failures", last)
        .await?;
    for plane in &stage.fleet.data_planes {
        plane.process.terminate(LIMIT).await?;
    }
    written.push(Written {
        place: "spans".to_owned(),
        bytes: collector.text().into_bytes(),
    });
    for replica in &stage.fleet.control_planes {
        files("control plane", replica.process.dir(), &mut written)?;
    }
    for plane in &stage.fleet.data_planes {
        files("data plane", plane.process.dir(), &mut written)?;
    }
    files("postgres", stage.fleet.postgres.dir(), &mut written)?;
    files("redis", stage.fleet.redis.dir(), &mut written)?;

    // Once for all that is looked for: a database is large.
    for one in &mut written {
        one.bytes.make_ascii_lowercase();
    }

    // What is there is found.
    let hash = OwnerHash::of_header(Some(owner.as_bytes()))?.to_string();
    for (canary, expected) in [
        (hash.as_str(), vec!["dump", "postgres"]),
        ("canary-of-the-body", vec!["upstream"]),
        ("POST /v1/chat/completions", vec!["spans"]),
        ("RoutingService/Decide", vec!["spans"]),
        ("tidegate", vec!["control plane", "data plane", "dump"]),
        ("set", vec!["redis"]),
        ("lease-capacity-unavailable", vec!["answer to"]),
    ] {
        let found = places(&written, canary);
        for place in expected {
            ensure!(
                found.iter().any(|found| found.starts_with(place)),
                "{canary} is not found in {place}: {found:?}"
            );
        }
    }
    for secret in [SECRET, OTHER] {
        assert_eq!(places(&written, secret), [""; 0]);
    }
    let in_spans = |place: &&str| *place == "spans";
    for secret in ["canary-of-the-body", key_secret("k1").as_str()] {
        assert!(!places(&written, secret).iter().any(in_spans), "{secret}");
    }
    Ok(())
}

/// All that an owner may do, rightly and wrongly, on every data plane.
async fn drive(talk: &mut Talk<'_>, owner: &str, other: &str) -> Result<()> {
    let acquire = json!({"action": "acquire", "model": "p/m"});
    let (status, lease) = talk.lifecycle(owner, acquire.clone()).await?;
    ensure!(
        status == 200 && lease["generation"] == 1,
        "{status} {lease}"
    );
    let (status, full) = talk.lifecycle(other, acquire.clone()).await?;
    ensure!(status == 429, "{status} {full}");
    for body in [
        json!({"action": "renew", "generation": 1}),
        json!({"action": "renew", "generation": 7}),
        json!({"action": "status", "generation": 1}),
        json!({"action": "release", "generation": 7}),
        json!({"action": "acquire", "model": "unknown"}),
        json!({"action": "steal", "owner": "me"}),
        json!("nothing"),
    ] {
        talk.lifecycle(owner, body).await?;
    }
    let (status, answer) = talk.infer("inference", owner, "1", "p/m").await?;
    ensure!(status == 200, "{status} {answer}");
    // Wrong in every way that one can be.
    let longer = format!("{owner}x");
    for (owner, generation, model) in [
        (owner, "2", "p/m"),
        (owner, "01", "p/m"),
        (owner, owner, "p/m"),
        (other, "1", "p/m"),
        (longer.as_str(), "1", "p/m"),
        (owner, "1", "fused"),
        (owner, "1", "unknown"),
    ] {
        let (status, answer) = talk
            .infer("a wrong request", owner, generation, model)
            .await?;
        ensure!((400..500).contains(&status), "{status} {answer}");
    }
    talk.lifecycle(&longer, acquire.clone()).await?;
    let headers = [
        ("x-omniroute-lease-owner", owner),
        ("x-omniroute-lease-generation", "1"),
    ];
    for (key, path) in [
        ("ordinary", "/v1/chat/completions"),
        ("ordinary", "/api/v1/session-leases"),
        ("k2", "/v1/chat/completions"),
        ("nobody", "/api/v1/session-leases"),
        ("k1", "/v1/nowhere"),
    ] {
        let body = json!({"model": "p/m", "messages": [], "action": "acquire"});
        talk.say("another key", path, key, &headers, &body.to_string())
            .await?;
    }
    talk.say("no JSON", "/v1/chat/completions", "k1", &headers, "{")
        .await?;
    // The upstream fails, breaks off, and says nothing more.
    for mode in [
        Mode::status(500),
        Mode::status(400),
        Mode::Reset,
        Mode::CutAfter { bytes: 40 },
        Mode::sse_error_first(),
    ] {
        talk.stage.upstream.set_default(mode);
        talk.infer("a failure", owner, "1", "p/m").await?;
    }
    cut(talk, owner, acquire).await?;
    // Nobody is there to be asked.
    for replica in &talk.stage.fleet.control_planes {
        replica.process.kill().await?;
    }
    let body = json!({"action": "renew", "generation": 2});
    let (status, answer) = talk.lifecycle(owner, body).await?;
    ensure!(status == 503, "{status} {answer}");
    let (status, answer) = talk.infer("with nobody to ask", owner, "2", "p/m").await?;
    ensure!(status == 503, "{status} {answer}");
    Ok(())
}

/// A stream that is cut after the end of its lease.
async fn cut(talk: &mut Talk<'_>, owner: &str, acquire: Value) -> Result<()> {
    talk.stage.upstream.set_default(Mode::Stall { events: 2 });
    let (_, lease) = talk.lifecycle(owner, acquire).await?;
    let generation = lease["generation"].as_u64().context("no generation")?;
    let body = json!({"model": "p/m", "stream": true, "messages": []});
    let request = Request::post(format!(
        "http://{}/v1/chat/completions",
        talk.stage.data_plane(0)?
    ))
    .header("content-type", "application/json")
    .header("authorization", format!("Bearer {}", key_secret("k1")))
    .header("x-omniroute-lease-owner", owner)
    .header("x-omniroute-lease-generation", generation.to_string())
    .body(Full::new(Bytes::from(body.to_string())))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await?;
    ensure!(response.status() == 200, "{}", response.status());
    let release = json!({"action": "release", "generation": generation});
    talk.lifecycle(owner, release).await?;
    let whole = response.into_body().collect();
    let whole = tokio::time::timeout(Duration::from_secs(10), whole).await?;
    let whole = whole.map(|body| body.to_bytes()).unwrap_or_default();
    let told = memmem::find(&whole, b"LEASE_FENCE_STALE");
    ensure!(told.is_some(), "{whole:?}");
    talk.written.push(Written {
        place: "a cut stream".to_owned(),
        bytes: whole.to_vec(),
    });
    talk.stage.upstream.heal();
    Ok(())
}

//! `GET /v1/models/health`.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_fake_upstream::{Mode, Selector};
use tidegate_proxy::Limits;
use tokio::time::timeout;

use crate::bench::{Bench, LEASE_KEY, LIMIT, Options, chat};
use crate::client::Client;

const PATH: &str = "/v1/models/health";

fn find(list: &Value, id: &str) -> Value {
    let data = list["data"].as_array().unwrap();
    data.iter().find(|it| it["id"] == id).unwrap().clone()
}

#[tokio::test]
async fn each_model_says_whether_it_can_be_had_and_what_is_in_the_way() {
    let bench = Bench::start_with(Options {
        locks: true,
        ..Options::default()
    })
    .await;
    let before = bench.client.get(PATH).await;
    assert_eq!(before.status, 200);
    assert_eq!(before.header("cache-control"), Some("no-store"));
    let before = before.json();
    assert_eq!(before["object"], "list");
    let listed = bench.client.get("/v1/models").await.json();
    let ids = |list: &Value| -> Vec<Value> {
        let data = list["data"].as_array().unwrap();
        data.iter().map(|it| it["id"].clone()).collect()
    };
    assert_eq!(ids(&before), ids(&listed));
    assert_eq!(before["total"], ids(&listed).len());
    let well = find(&before, "one/m");
    assert_eq!(well["state"], "ok");
    let expected = json!([{
        "provider": "one", "model": "m", "state": "ok",
        "accounts": 1, "available": 1, "excluded": {},
    }]);
    assert_eq!(well["targets"], expected);
    assert!(well["observed_at"].as_str().unwrap().ends_with('Z'));

    bench.one.set_default(Mode::status(503));
    bench
        .client
        .post("/v1/chat/completions", &chat("one/m", false))
        .await;
    let asked = format!("{PATH}?ids=one/m,one/n&other=1&ids=duo,nobody/knows");
    let after = bench.client.get(&asked).await.json();
    let locked = find(&after, "one/m");
    assert_eq!(locked["state"], "cooling", "{locked}");
    let remaining = locked["retry_after"].as_u64().unwrap();
    assert!(remaining > 0, "{locked}");
    assert_eq!(
        locked["targets"][0]["excluded"],
        json!({"model_lockout": 1})
    );
    assert_eq!(locked["targets"][0]["available"], 0);
    assert_eq!(find(&after, "one/n")["state"], "ok");
    // A combo can be had while one of its targets can.
    let combo = find(&after, "duo");
    assert_eq!(combo["state"], "ok", "{combo}");
    let states: Vec<&Value> = combo["targets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|target| &target["state"])
        .collect();
    assert_eq!(states, ["cooling", "ok"]);
    let unknown = find(&after, "nobody/knows");
    assert_eq!(
        (&unknown["state"], &unknown["targets"]),
        (&json!("unknown"), &json!([]))
    );
    assert_eq!(
        (after["data"].as_array().unwrap().len(), &after["total"]),
        (4, &json!(3))
    );
    // No account is named, and nobody was asked for anything.
    assert!(!after.to_string().contains("one-a"), "{after}");
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
}

#[tokio::test]
async fn a_key_is_told_of_what_it_may_ask_for_and_nobody_else_of_anything() {
    let bench = Bench::start_with(Options {
        leases: true,
        ..Options::default()
    })
    .await;
    let session = Client::new(bench.addr, LEASE_KEY);
    let told = session.get(&format!("{PATH}?ids=one/m,one/n")).await.json();
    assert_eq!(find(&told, "one/n")["state"], "unknown");
    assert_ne!(find(&told, "one/m")["state"], "unknown");
    // The key may use neither account of `two`.
    let told = session.get(&format!("/api{PATH}?ids=duo")).await.json();
    let targets = find(&told, "duo")["targets"].clone();
    assert_eq!(targets[1]["excluded"]["not_allowed"], 1, "{targets}");
    let stranger = Client::new(bench.addr, "sk-wrong").get(PATH).await;
    assert_eq!(
        (stranger.status, stranger.code().as_str()),
        (401, "invalid_api_key")
    );
}

#[tokio::test]
async fn who_does_not_come_to_its_turn_is_told_to_come_back() {
    let bench = Bench::start_with(Options {
        limits: Limits {
            look_time: Duration::ZERO,
            ..Limits::default()
        },
        ..Options::default()
    })
    .await;
    let mut busy = None;
    let mut told = false;
    let asking = async {
        while busy.is_none() || !told {
            let asking = (0..30).map(|_| bench.client.get(PATH));
            for reply in futures::future::join_all(asking).await {
                match reply.status {
                    200 => told = true,
                    _ => busy = Some(reply),
                }
            }
        }
    };
    timeout(LIMIT, asking).await.expect("both answers");
    let busy = busy.unwrap();
    assert_eq!(
        (busy.status, busy.code().as_str()),
        (503, "models_health_busy")
    );
    assert_eq!(busy.header("retry-after"), Some("1"));
}

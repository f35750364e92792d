//! The contract's members of health and of settings.

use std::collections::BTreeMap;

use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use tidegate_core::affinity::{Pin, PinKey};
use tidegate_core::ids::{ConnectionId, KeyId, ProviderId};
use tidegate_core::lease::{Acquire, Eligibility, Eligible, EndReason, LeaseId, Named, OwnerHash};
use tidegate_core::session_key::SessionKey;
use tidegate_core::settings::LeaseSettings;
use tidegate_core::time::Timestamp;
use tidegate_proto::admin::v1 as admin;
use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as config;
use tidegate_proto::routing::v1::{
    Admission, AdmitRequest, HeldPermits, ReleaseAdmittedRequest, ToldLimits, ToldRequests,
};
use tidegate_store::durable::StoredPin;
use tidegate_store::hot::HotStore as _;

use crate::fleet::{ALPHA, Fleet, Replica, connection, eventually, provider};

use super::{Http, guarded_with, tokens, with_keys};

/// `sessions-and-streams.md` §5.4.
const OF_THE_CONTRACT: [&str; 12] = [
    "status",
    "timestamp",
    "providerBreakers",
    "providerHealth",
    "rateLimitStatus",
    "learnedLimits",
    "lockouts",
    "quotaMonitor",
    "sessions",
    "adaptiveAdmission",
    "chatAdmission",
    "dedup",
];

fn nothing_is_watched() -> Value {
    json!({
        "active": 0, "alerting": 0, "exhausted": 0, "errors": 0,
        "statusCounts": {
            "starting": 0, "idle": 0, "healthy": 0, "warning": 0, "exhausted": 0, "error": 0,
        },
        "byProvider": {}, "monitors": [],
    })
}

fn no_sessions() -> Value {
    json!({
        "activeCount": 0, "stickyBoundCount": 0, "leasedCount": 0, "goesOn": false,
        "byApiKey": {}, "top": [],
    })
}

#[tokio::test]
async fn every_member_of_the_contract_is_there_also_where_nothing_is_known() {
    let fleet = Fleet::new().await;
    let replica = fleet.start_with(tokens()).await;
    let unconfigured = Http::of(&fleet, &replica).await;
    let (_fleet, _replica, configured) = guarded_with(with_keys(), BTreeMap::new()).await;
    for http in [&unconfigured, &configured] {
        let health = http.health().await;
        for name in OF_THE_CONTRACT {
            assert!(health.get(name).is_some(), "{name} of {health}");
        }
        // What there is not here has its empty form.
        assert_eq!(health["dedup"], json!({"inflightRequests": 0}));
        assert_eq!(health["adaptiveAdmission"], Value::Null);
        assert_eq!(health["chatAdmission"], Value::Null);
        assert_eq!(health["rateLimitStatus"], json!({}));
        assert_eq!(health["learnedLimits"], json!({}));
        assert_eq!(health["quotaMonitor"], nothing_is_watched());
        assert_eq!(health["sessions"], no_sessions());
        assert_eq!(health["controlPlane"]["notRead"], json!([]));
    }
    let amiss = &unconfigured.health().await["controlPlane"]["degraded"];
    assert_eq!(*amiss, json!(["no_configuration"]));
    let settings = configured.settings().await;
    let (old, acting) = (
        &settings["legacy"],
        &settings["connectionCooldown"]["oauth"],
    );
    let cooldown = &old["profiles"]["oauth"]["transientCooldown"];
    assert!(cooldown.is_u64(), "{settings}");
    assert_eq!(*cooldown, acting["baseCooldownMs"]);
    // They are told, not taken.
    let refused = configured.patch(&json!({"legacy": old})).await;
    assert_eq!(refused.fields(), ["legacy"]);
}

/// One request at a time on each connection, of which the key `holder` may lease `a2`.
fn busy() -> config::Document {
    let mut wanted = with_keys();
    wanted.providers[0].class = "apikey".to_owned();
    wanted.connections.push(connection("a2", ALPHA, 2));
    wanted.keys.push(config::ApiKey {
        id: "holder".to_owned(),
        sha256: "ab".repeat(32),
        allowed_connections: vec!["a2".to_owned()],
        scopes: vec!["lease:exclusive".to_owned()],
        ..config::ApiKey::default()
    });
    wanted.settings_json = json!({"requestQueue": {"concurrentRequests": 1}}).to_string();
    wanted
}

async fn admit(replica: &Replica, plane: u64, look: bool, spent: Option<&str>) -> Admission {
    let requests = ToldRequests {
        limit: 10,
        remaining: 0,
        resets_in_ms: 30_000,
    };
    let request = AdmitRequest {
        admission: Some(common::AttemptId { plane, number: 1 }),
        provider: ALPHA.to_owned(),
        connection: "a1".to_owned(),
        look,
        released: Vec::new(),
        model: spent.unwrap_or_default().to_owned(),
        told: spent.map(|_| ToldLimits {
            requests: Some(requests),
            tokens: None,
            place: None,
        }),
    };
    let answer = replica.admission().admit(request).await.unwrap();
    answer.into_inner().admission()
}

async fn tell_quota(replica: &Replica, connection: &str, used: f64) {
    let window = common::QuotaWindow {
        used,
        ..common::QuotaWindow::default()
    };
    let request = admin::ReportQuotaRequest {
        connection: connection.to_owned(),
        quota: Some(common::QuotaSnapshot {
            weekly: Some(window),
            ..common::QuotaSnapshot::default()
        }),
    };
    replica.admin().report_quota(request).await.unwrap();
}

#[tokio::test]
async fn queues_quotas_and_sessions_are_told_as_they_stand() {
    let (fleet, _replica, http) = guarded_with(busy(), BTreeMap::new()).await;
    let other = fleet.start().await;
    other.has_configuration(1).await;
    let idle = json!({"queued": 0, "running": 0, "oldestWaitMs": null, "stale": false});
    let queue = async |name: &str| http.health().await["rateLimitStatus"][name].clone();
    assert_eq!(queue("alpha:a1").await, idle);
    // Nothing at `beta` passes a queue.
    assert_eq!(queue("beta:b1").await, Value::Null);

    // One runs, another one waits, and a model has nothing left.
    assert_eq!(admit(&other, 7, false, None).await, Admission::Now);
    eventually("one that runs and one that waits", async || {
        assert_eq!(admit(&other, 8, true, None).await, Admission::Full);
        let queue = queue("alpha:a1").await;
        queue["running"] == 1 && queue["queued"] == 1 && queue["oldestWaitMs"].is_u64()
    })
    .await;
    admit(&other, 8, true, Some("m")).await;
    eventually("the window of a model", async || {
        let learned = http.health().await["learnedLimits"]["alpha:a1:m"].clone();
        learned["model"] == "m"
            && learned["connectionId"] == "a1"
            && learned["remainingMs"].as_u64().is_some_and(|it| it > 0)
    })
    .await;
    let held = HeldPermits {
        provider: ALPHA.to_owned(),
        connection: "a1".to_owned(),
        numbers: vec![1],
    };
    let released = ReleaseAdmittedRequest {
        plane: 7,
        released: vec![held],
    };
    other.admission().release_admitted(released).await.unwrap();
    eventually("the end of both", async || queue("alpha:a1").await == idle).await;

    for (connection, used) in [("a1", 1.0), ("a2", 0.9), ("b1", 0.1)] {
        tell_quota(&other, connection, used).await;
    }
    let quotas = async || http.health().await["quotaMonitor"].clone();
    eventually("the quotas", async || quotas().await["active"] == 3).await;
    let told = quotas().await;
    assert_eq!(
        (&told["exhausted"], &told["alerting"], &told["errors"]),
        (&json!(1), &json!(1), &json!(0))
    );
    assert_eq!(told["statusCounts"]["healthy"], 1);
    assert_eq!(told["byProvider"], json!({"alpha": 2, "beta": 1}));
    // The worst first.
    let worst = &told["monitors"][0];
    assert_eq!(
        (&worst["accountId"], &worst["status"]),
        (&json!("a1"), &json!("exhausted"))
    );
    assert!(worst["lastSuccessAt"].is_string(), "{worst}");

    sessions_are_told(&fleet, &http).await;
}

/// The pin of a session to `a1`; of a later one it ends later.
fn pin(session: u64, now: Timestamp) -> StoredPin {
    let name = SessionKey::parse(&format!("header:s-{session}")).unwrap();
    StoredPin {
        key: PinKey::new(&ProviderId::new(ALPHA).unwrap(), None, &name),
        pin: Pin {
            connection: ConnectionId::new("a1").unwrap(),
            created_at: now,
            expires_at: now.plus_ms(600_000 + session),
        },
    }
}

async fn sessions_are_told(fleet: &Fleet, http: &Http) {
    let now = fleet.memory.time().await.unwrap();
    let pins: Vec<StoredPin> = (0..10).map(|session| pin(session, now)).collect();
    fleet.durable.save_pins(&pins).await.unwrap();
    let (key, candidate) = (
        KeyId::new("holder").unwrap(),
        ConnectionId::new("a2").unwrap(),
    );
    let candidates = [Eligible {
        connection: candidate,
        provider: ProviderId::new(ALPHA).unwrap(),
    }];
    let asked = Acquire {
        id: LeaseId(1),
        owner: OwnerHash::from_bytes([0xcd; 32]),
        key: &key,
        eligibility: Eligibility::Some(&candidates),
        why: &|_| None,
        ttl_ms: 1_800_000,
    };
    let terms = LeaseSettings::default();
    let reply = fleet.durable.acquire_lease(&asked, &terms).await.unwrap();
    let lease = reply.answer.unwrap();
    let sessions = async || http.health().await["sessions"].clone();
    eventually("the sessions", async || {
        sessions().await["activeCount"] == 11
    })
    .await;
    let told = sessions().await;
    assert_eq!(
        (&told["stickyBoundCount"], &told["leasedCount"]),
        (&json!(10), &json!(1))
    );
    assert_eq!(told["byApiKey"], json!({"holder": 1}));
    let top = told["top"].as_array().unwrap();
    assert_eq!(top.len(), 8);
    assert_eq!(top[0]["connectionId"], "a1");
    assert_eq!(top[0]["sessionId"].as_str().unwrap().len(), 8);
    // Of an owner or a session no more is told.
    let all = told.to_string();
    assert!(
        !all.contains(&"cd".repeat(4)) && !all.contains("s-1"),
        "{all}"
    );
    let named = Named {
        generation: lease.generation,
        key: &key,
    };
    let ended = fleet
        .durable
        .release_lease(lease.owner, named, EndReason::OwnerExit);
    ended.await.unwrap().answer.unwrap();
    eventually("the end of the lease", async || {
        let told = sessions().await;
        told["activeCount"] == 10 && told["byApiKey"] == json!({})
    })
    .await;
}

#[tokio::test]
async fn counts_of_health_are_of_all_and_lists_have_an_end() {
    let mut wanted = with_keys();
    for number in 0..1_000 {
        let (id, account) = (format!("more-{number}"), format!("c-{number}"));
        wanted.connections.push(connection(&account, &id, 1));
        wanted.providers.push(config::Provider {
            class: "apikey".to_owned(),
            ..provider(&id, 7)
        });
    }
    wanted.providers[0].class = "apikey".to_owned();
    let (fleet, _replica, http) = guarded_with(wanted, BTreeMap::new()).await;
    let health = http.health().await;
    let listed = health["providerBreakers"].as_array().unwrap();
    let by_name = health["providerHealth"].as_object().unwrap();
    assert_eq!((listed.len(), by_name.len()), (1_000, 1_000));
    assert_eq!(health["circuitBreakers"]["total"], 1_002);
    assert_eq!(health["circuitBreakers"]["closed"], 1_002);
    assert_eq!(health["providerSummary"]["monitoredCount"], 1_002);
    // A connection of each of 1,001 providers has a queue, and as many sessions have a pin.
    let now = fleet.memory.time().await.unwrap();
    let pins: Vec<StoredPin> = (0..1_001).map(|number| pin(number, now)).collect();
    for pins in pins.chunks(1_000) {
        fleet.durable.save_pins(pins).await.unwrap();
    }
    eventually("as many as are told", async || {
        let health = http.health().await;
        let queues = health["rateLimitStatus"].as_object().unwrap().len();
        let sessions = &health["sessions"];
        queues == 1_000 && sessions["stickyBoundCount"] == 1_000 && sessions["goesOn"] == true
    })
    .await;
}

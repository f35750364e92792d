//! A proxy with fake providers behind it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tidegate_core::config::{Config, Document};
use tidegate_core::routing::Counters;
use tidegate_core::settings::Overrides;
use tidegate_fake_upstream::FakeUpstream;
use tidegate_plane_client::{Credential, Deadlines, Snapshot};
use tidegate_proxy::{Limits, Proxy, Surface, Tracing};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::fake_control::FakeControl;

/// Waits for conditions give up after this. The longest answers here take seconds to be made, and much longer on a machine
/// that does something else.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// The key of [`Bench`]'s only client.
pub(crate) const KEY: &str = "sk-client-key";
/// The key of sessions that lease `one-a` or `ant-a`, where options say that there is one. It may not ask for `one/n`.
pub(crate) const LEASE_KEY: &str = "sk-lease-key";

/// Two OpenAI providers `one` and `two`, an Anthropic one `ant`, each with one connection `<provider>-a`; the combo
/// `duo` is `one/m` and then `two/m`, with neither retries nor waits. With plans, `panel` asks `one/m`, `two/m` and `one/n` at once
/// and lets `one/j` judge; `chain` asks `one/m`, then `two/m`, then `one/n`; `ant-panel` and `ant-chain` are of `ant`.
pub(crate) struct Bench {
    pub(crate) one: FakeUpstream,
    pub(crate) two: FakeUpstream,
    pub(crate) ant: FakeUpstream,
    pub(crate) control: Arc<FakeControl>,
    pub(crate) proxy: Arc<Proxy<Arc<FakeControl>>>,
    pub(crate) addr: SocketAddr,
    pub(crate) client: Client,
    pub(crate) tasks: TaskTracker,
}

/// What tests may choose.
pub(crate) struct Options {
    pub(crate) limits: Limits,
    pub(crate) deadlines: Deadlines,
    pub(crate) keys: bool,
    /// There is a key that may lease.
    pub(crate) leases: bool,
    /// Requests wait for cooldowns.
    pub(crate) waits: bool,
    /// There are combos that ask several models, and the model `j` of each provider.
    pub(crate) plans: bool,
    /// Providers keep a quota per model: some failures lock a model alone.
    pub(crate) locks: bool,
    /// There is a provider `codex` with two accounts at the upstream of `one`, and `talk`, which hands conversations over.
    pub(crate) relay: bool,
    /// Members of the combo beside `maxRetries`.
    pub(crate) combo: Value,
    /// Settings beside those about waits.
    pub(crate) settings: Value,
    /// Tools that `one/m` takes at most.
    pub(crate) tool_limit: Option<u32>,
    /// Base URL of `one`, or of `ant`, where it is not the fake provider's.
    pub(crate) one_at: Option<String>,
    pub(crate) ant_at: Option<String>,
    pub(crate) tracing: Tracing,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            deadlines: Deadlines::default(),
            keys: true,
            leases: false,
            waits: false,
            plans: false,
            locks: false,
            relay: false,
            combo: json!({}),
            settings: json!({}),
            tool_limit: None,
            one_at: None,
            ant_at: None,
            tracing: Tracing::default(),
        }
    }
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub(crate) async fn start_with(options: Options) -> Self {
        let (one, two, ant) = (
            FakeUpstream::builder().name("one").start().await.unwrap(),
            FakeUpstream::builder().name("two").start().await.unwrap(),
            FakeUpstream::builder().name("ant").start().await.unwrap(),
        );
        let document = document([&one, &two, &ant], &options);
        let mut control = FakeControl::new(document, options.deadlines);
        if let Some(limit) = options.tool_limit {
            control = control.with_tool_limit("one", "m", limit);
        }
        let control = Arc::new(control);
        let registry = Arc::new(RwLock::new(Registry::default()));
        let proxy = Proxy::new(
            Arc::clone(&control),
            options.limits,
            registry,
            options.tracing,
        )
        .unwrap();
        let proxy = Arc::new(proxy);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let tasks = TaskTracker::new();
        let serving = Arc::clone(&proxy);
        tasks.spawn(async move { serving.serve(listener, Surface::Everything).await });
        Self {
            one,
            two,
            ant,
            control,
            proxy,
            addr,
            client: Client::new(addr, KEY),
            tasks,
        }
    }

    /// Other options are in force at the data plane from now on, as far as they are configuration.
    pub(crate) fn set(&self, options: &Options) {
        let upstreams = [&self.one, &self.two, &self.ant];
        self.control.configure(document(upstreams, options));
    }

    /// Waits until `condition` holds.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let waiting = async {
            while !condition(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(LIMIT, waiting).await;
        assert!(waited.is_ok(), "{what} within {LIMIT:?}");
    }

    /// The value of a sample of `/metrics`, whose line begins with `name`.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let reply = self.client.get("/metrics").await;
        let text = reply.text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}"))
            .parse()
            .unwrap()
    }
}

/// Lets time pass in steps, each of which gives everything else here a turn: one that takes long because the machine does
/// something else stands for no more than itself.
pub(crate) async fn pass(time: Duration) {
    const STEP: Duration = Duration::from_millis(10);
    for _ in 0..time.as_millis() / STEP.as_millis() {
        tokio::time::sleep(STEP).await;
    }
}

fn document([one, two, ant]: [&FakeUpstream; 3], options: &Options) -> Document {
    let models = if options.plans {
        json!(["m", "n", "j"])
    } else {
        json!(["m", "n"])
    };
    let provider = |id: &str, protocol: &str, upstream: &FakeUpstream| {
        let elsewhere = match id {
            "one" => options.one_at.clone(),
            "ant" => options.ant_at.clone(),
            _ => None,
        };
        let url = elsewhere.unwrap_or_else(|| upstream.base_url());
        json!({"id": id, "protocol": protocol, "baseUrl": url,
            "class": "apikey", "models": models, "perModelQuota": options.locks})
    };
    // With plans, failures of `two` do not cool its account, so that a retry is not dropped. The limit is one that no
    // test reaches, so that every attempt holds a permit.
    let connection = |provider: &str| {
        json!({"id": format!("{provider}-a"), "provider": provider, "maxConcurrent": 1_000,
            "disableCooling": options.plans && provider == "two"})
    };
    let key = json!({"id": "tester", "sha256": tidegate_core::config::key_hash(KEY)});
    let mut keys: Vec<Value> = if options.keys { vec![key] } else { Vec::new() };
    if options.leases {
        let mut models = json!(["one/m", "ant/m", "duo"]);
        if options.relay {
            add(&mut models, json!("talk"));
        }
        keys.push(
            json!({"id": "session", "sha256": tidegate_core::config::key_hash(LEASE_KEY),
            "scopes": ["lease:exclusive"], "allowedConnections": ["one-a", "ant-a"],
            "allowedModels": models}),
        );
    }
    let with = |mut members: Value, more: &Value| {
        let more = more.as_object().unwrap().clone();
        members.as_object_mut().unwrap().extend(more);
        members
    };
    let combo = with(json!({"maxRetries": 0}), &options.combo);
    let settings = with(
        json!({
            "comboCooldownWait": {"enabled": false},
            "waitForCooldown": {"enabled": options.waits},
        }),
        &options.settings,
    );
    let mut document = json!({
        "providers": [
            provider("one", "openai", one),
            provider("two", "openai", two),
            provider("ant", "anthropic", ant),
        ],
        "connections": [connection("one"), connection("two"), connection("ant")],
        "combos": combos(&combo, options.plans),
        "keys": keys,
        "settings": settings,
    });
    if options.relay {
        add(&mut document["providers"], provider("codex", "openai", one));
        for id in ["codex-a", "codex-b"] {
            add(
                &mut document["connections"],
                json!({"id": id, "provider": "codex", "disableCooling": true}),
            );
        }
        let talk = json!({"name": "talk", "strategy": "context-relay", "steps": ["codex/m"],
            "config": {"maxRetries": 0}});
        add(&mut document["combos"], talk);
    }
    serde_json::from_value(document).unwrap()
}

fn add(list: &mut Value, entry: Value) {
    list.as_array_mut().unwrap().push(entry);
}

fn combos(duo: &Value, plans: bool) -> Value {
    let duo = json!({"name": "duo", "steps": ["one/m", "two/m"], "config": duo});
    if !plans {
        return json!([duo]);
    }
    let panel = |judge: &str| {
        json!({"maxRetries": 0, "fusion": {
            "judgeModel": judge, "stragglerGraceMs": 300, "panelHardTimeoutMs": 3_000,
        }})
    };
    let chain = json!({"maxRetries": 1, "retryDelayMs": 20});
    let brief = |model: &str| json!({"model": model, "prompt": "be brief"});
    json!([
        duo,
        {"name": "both", "steps": ["one/m", "one/n"], "config": {"maxRetries": 0}},
        {"name": "panel", "strategy": "fusion", "steps": ["one/m", "two/m", "one/n"],
         "config": panel("one/j")},
        {"name": "ant-panel", "strategy": "fusion", "steps": ["ant/m", "ant/n"],
         "config": panel("ant/n")},
        {"name": "chain", "strategy": "pipeline", "steps": ["one/m", brief("two/m"), "one/n"],
         "config": chain},
        {"name": "ant-chain", "strategy": "pipeline", "steps": [brief("ant/m"), "ant/n"],
         "config": chain},
    ])
}

/// What a data plane has of a document.
pub(crate) fn snapshot(document: Document, version: u64) -> Arc<Snapshot> {
    let config = Config::build(document, version, &Overrides::default()).unwrap();
    let credentials = config
        .connections
        .keys()
        .map(|connection| {
            let credential = Credential {
                version: 3,
                secret: format!("sk-{connection}").into(),
            };
            (connection.clone(), credential)
        })
        .collect();
    Arc::new(Snapshot {
        credentials_revision: 0,
        counters: Arc::new(Counters::of(&config, None, 0)),
        config: Arc::new(config),
        credentials,
    })
}

/// A chat request.
pub(crate) fn chat(model: &str, stream: bool) -> Value {
    json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": "ahoy"}]})
}
